//! Starts, stops and removes single containers, and runs commands in them.

use std::time::Duration;

use bollard::exec::StartExecOptions;
use bollard::models::ExecConfig;
use bollard::query_parameters as query;
use tokio::time::{Instant, sleep};

use super::names::checked;
use super::{CHANGE, DockerEngine, RESTART};
use crate::model::EngineError;
use crate::model::output::stable;
use crate::ports::ExecEnd;

/// Time between two looks at a command that runs in a container.
const LOOK: Duration = Duration::from_millis(100);

impl DockerEngine {
    pub(super) async fn start_container(&self, container: &str) -> Result<(), EngineError> {
        let container = checked(container)?;
        let doing = format!("start container {}", stable(container));
        self.connection
            .call_for_one(&doing, RESTART, |client| {
                let docker = client.docker.clone().with_timeout(RESTART);
                async move { docker.start_container(container, None).await }
            })
            .await
    }

    pub(super) async fn stop_container(&self, container: &str) -> Result<(), EngineError> {
        let container = checked(container)?;
        let doing = format!("stop container {}", stable(container));
        let (grace, limit) = self.stop_grace(container, &doing).await?;
        let options = query::StopContainerOptionsBuilder::new().t(grace).build();
        self.connection
            .call_for_one(&doing, limit, |client| {
                let options = options.clone();
                let docker = client.docker.clone().with_timeout(limit);
                async move { docker.stop_container(container, Some(options)).await }
            })
            .await
    }

    /// Returns the seconds that a container gets to stop, and how long a call that stops it may take.
    pub(super) async fn stop_grace(
        &self,
        container: &str,
        doing: &str,
    ) -> Result<(i32, Duration), EngineError> {
        let Some(seen) = self.inspect(container).await? else {
            return Err(EngineError::NotFound(format!("{doing}: it is gone")));
        };
        // Podman treats a missing timeout as zero and kills at once.
        let grace = i32::try_from(seen.stop_timeout.as_secs()).unwrap_or(i32::MAX);
        Ok((grace, RESTART.max(seen.stop_timeout.saturating_add(CHANGE))))
    }

    pub(super) async fn delete_container(&self, container: &str, volumes: bool) -> Result<(), EngineError> {
        let container = checked(container)?;
        let doing = format!("remove container {}", stable(container));
        let options = query::RemoveContainerOptionsBuilder::new().force(false).v(volumes).build();
        self.connection
            .call(&doing, CHANGE, |client| {
                let options = options.clone();
                async move { client.docker.remove_container(container, Some(options)).await }
            })
            .await
    }

    /// The command runs detached, since a connection that is taken over does not pass every proxy in front of an engine.
    pub(super) async fn exec_in(
        &self,
        container: &str,
        argv: &[String],
        limit: Duration,
    ) -> Result<ExecEnd, EngineError> {
        let container = checked(container)?;
        let doing =
            format!("run {} in container {}", argv.first().map_or("", String::as_str), stable(container));
        let config = ExecConfig { cmd: Some(argv.to_vec()), ..ExecConfig::default() };
        let deadline = Instant::now() + limit;
        let created = self
            .connection
            .call_for_one(&doing, CHANGE, |client| {
                let config = config.clone();
                async move { client.docker.create_exec(container, config).await }
            })
            .await?;
        let id = &*created.id;
        self.connection
            .call_for_one(&doing, CHANGE, |client| async move {
                let detached = StartExecOptions { detach: true, ..StartExecOptions::default() };
                client.docker.start_exec(id, Some(detached)).await.map(|_| ())
            })
            .await?;
        loop {
            let seen = self
                .connection
                .read_one(&doing, |client| async move { client.docker.inspect_exec(id).await })
                .await?;
            if let (Some(false), Some(status)) = (seen.running, seen.exit_code) {
                return Ok(ExecEnd::Exited { status });
            }
            if Instant::now() >= deadline {
                return Ok(ExecEnd::TimedOut);
            }
            sleep(LOOK).await;
        }
    }
}
