//! The engine pulls with the same logins that the registry client asks with.

use async_trait::async_trait;
use bollard::auth::DockerCredentials;

use super::docker::PullAuth;
use super::registry::{Credentials, Login};

#[async_trait]
impl PullAuth for Credentials {
    async fn login(&self, host: &str) -> Result<Option<DockerCredentials>, String> {
        let login = self.for_host(host).await.map_err(|error| error.to_string())?;
        let server =
            DockerCredentials { serveraddress: Some(host.to_owned()), ..DockerCredentials::default() };
        Ok(login.map(|login| match login {
            Login::UsernamePassword { username, password } => {
                DockerCredentials { username: Some(username), password: Some(password), ..server }
            }
            Login::IdentityToken(token) => DockerCredentials { identitytoken: Some(token), ..server },
        }))
    }
}
