//! Lets the engine pull with the registry client's credentials.

use async_trait::async_trait;
use bollard::auth::DockerCredentials;

use super::docker::PullCredentials;
use super::registry::{Credentials, Login};
use crate::model::image::Repository;

#[async_trait]
impl PullCredentials for Credentials {
    async fn login(&self, repository: &Repository) -> Result<Option<DockerCredentials>, String> {
        let Repository { host, path } = repository;
        let login = self.for_repository(host, path).await.map_err(|error| error.to_string())?;
        let server = DockerCredentials { serveraddress: Some(host.clone()), ..DockerCredentials::default() };
        Ok(login.map(|login| match login {
            Login::UsernamePassword { username, password } => {
                DockerCredentials { username: Some(username), password: Some(password), ..server }
            }
            Login::IdentityToken(token) => DockerCredentials { identitytoken: Some(token), ..server },
        }))
    }
}
