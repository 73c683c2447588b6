//! Runs compose as a child process: own process group, cleaned environment, bounded output, a deadline.

mod child;
mod env_file;
mod others;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Seek as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use self::child::{End, run};
use super::text::{Tail, stable};
use super::{Compose, ComposeError, Model, Project, Recreate};
use crate::config::Runtime;
use crate::text::plainly;

/// Pulling is done before; what is left is stopping and starting containers.
const LIMIT: Duration = Duration::from_mins(10);

/// Variables of the agent that compose gets. Anything else could change which project, engine or API version
/// is meant (`COMPOSE_*`, `DOCKER_*`), or belongs to the agent alone (`NOTIFY_SOCKET`).
const KEPT: [&str; 13] = [
    "PATH",
    "HOME",
    "DOCKER_CONFIG",
    "XDG_RUNTIME_DIR",
    "LANG",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
];

/// After a conflict it is tried again, after these times: whoever is in the way may still be at it.
const CONFLICT_RETRIES: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(3)];
/// What the engine says when a killed run left its half-made container behind. The failed run repairs it.
const CONFLICT: &str = "Conflict. The container name";

/// Compose as a subcommand of the runtime's executable.
pub struct ComposeCli {
    runtime: Runtime,
    program: PathBuf,
    endpoint: String,
    environment: Vec<(OsString, OsString)>,
    limit: Duration,
}

impl ComposeCli {
    /// Compose for this runtime, talking to the engine at `endpoint`. Of `environment` (the agent's own) it gets
    /// only what it needs.
    pub fn new(
        runtime: Runtime,
        endpoint: &super::engine::Endpoint,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        let program = match runtime {
            Runtime::Docker => "docker",
            Runtime::Podman => "podman",
        };
        let environment = environment.into_iter().filter(|(name, _)| KEPT.iter().any(|kept| name == kept));
        Self {
            runtime,
            program: PathBuf::from(program),
            endpoint: endpoint.to_string(),
            environment: environment.collect(),
            limit: LIMIT,
        }
    }

    /// Another executable than the one that `PATH` leads to.
    #[must_use]
    pub fn with_program(self, program: PathBuf) -> Self {
        Self { program, ..self }
    }

    /// Another deadline of one `up` than ten minutes.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    fn arguments(&self, project: &Project, task: &[&str]) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["compose".into(), "-p".into(), project.name.clone().into()];
        for file in &project.files {
            arguments.extend(["-f".into(), file.into()]);
        }
        // Podman hands its arguments to whatever provider is there, and not each knows this one.
        if self.runtime == Runtime::Docker {
            arguments.extend(["--progress".into(), "quiet".into()]);
        }
        arguments.extend(task.iter().map(OsString::from));
        arguments
    }

    fn command(
        &self,
        project: &Project,
        task: &[&str],
        folder: &Path,
        variables: &[(String, String)],
    ) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments(project, task)).current_dir(folder);
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        // Last, so that no file can send compose to another engine than the one that the agent watches.
        command.env_remove("DOCKER_CONTEXT").env("DOCKER_HOST", &self.endpoint);
        if self.runtime == Runtime::Podman {
            command.env("CONTAINER_HOST", &self.endpoint).env("PODMAN_COMPOSE_WARNING_LOGS", "false");
        }
        command
    }

    /// Why the child could not be started.
    fn not_started(&self, error: &std::io::Error, folder: &Path) -> String {
        let program = self.program.display();
        match error.kind() {
            // The system has one code for both.
            std::io::ErrorKind::NotFound if !folder.is_dir() => {
                format!("the folder {} of the compose files does not exist", folder.display())
            }
            std::io::ErrorKind::NotFound => {
                format!("{program} can't be run: not found (install it, or set \"runtime\")")
            }
            _ => format!("{program} can't be run: {}", plainly(error)),
        }
    }

    /// The line that says what went wrong.
    fn cause(&self, task: &str, end: &End, output: &str) -> String {
        let status = match end {
            End::TooLong => {
                return format!("`{task}` was stopped: not done after {} s", self.limit.as_secs());
            }
            End::Exited(status) => status,
        };
        let says = |signs: &[&str]| signs.iter().any(|sign| output.contains(sign));
        match self.runtime {
            Runtime::Docker
                if says(&[
                    "unknown shorthand flag: 'p' in -p",
                    "is not a docker command",
                    "unknown command: docker compose",
                ]) =>
            {
                return "docker has no compose plugin (install docker-compose-v2 or docker-compose-plugin)"
                    .to_owned();
            }
            // Before 4.7 it does not know the word, and stumbles over what comes first after it.
            Runtime::Podman
                if says(&["unknown shorthand flag: 'p' in -p", "unrecognized command `podman compose`"]) =>
            {
                return "this podman has no compose (it needs podman 4.7 with docker-compose; or set \
                        \"runtime\" to \"docker\", with DOCKER_HOST at podman's socket)"
                    .to_owned();
            }
            Runtime::Podman if says(&["looking up compose provider failed"]) => {
                return "podman has no compose provider (install docker-compose)".to_owned();
            }
            _ => {}
        }
        match output.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
            Some(line) => stable(log_message(line)),
            None => format!("`{task}` ended without a word ({status})"),
        }
    }
}

impl ComposeCli {
    /// Runs one compose task; its first word names it in messages.
    async fn run(&self, project: &Project, task: &[&str]) -> Result<String, ComposeError> {
        self.run_into(project, task, None).await
    }

    /// The same, where what it prints as its answer goes into a file instead.
    async fn run_into(
        &self,
        project: &Project,
        task: &[&str],
        answer: Option<File>,
    ) -> Result<String, ComposeError> {
        let silent = |cause: String| ComposeError { cause, output: String::new() };
        let folder = project
            .files
            .first()
            .and_then(|file| file.parent())
            .ok_or_else(|| silent("no compose files configured".to_owned()))?;
        let variables = match &project.env_file {
            Some(path) => {
                env_file::read(path, &self.environment).await.map_err(|error| silent(error.to_string()))?
            }
            None => Vec::new(),
        };
        let deadline = Instant::now() + self.limit;
        let mut retries = CONFLICT_RETRIES.iter();
        loop {
            let mut tail = Tail::default();
            let command = self.command(project, task, folder, &variables);
            let answer = answer.as_ref().map(File::try_clone).transpose();
            let answer = answer.map_err(|error| silent(plainly(&error)))?;
            let end = run(command, answer, deadline, &mut tail)
                .await
                .map_err(|error| silent(self.not_started(&error, folder)))?;
            let output = tail.text();
            match &end {
                End::Exited(status) if status.success() => return Ok(output),
                End::Exited(_) if output.contains(CONFLICT) && retries.len() > 0 => {
                    tracing::info!(
                        project = project.name,
                        "a half-made container was in the way, trying again"
                    );
                    sleep(retries.next().copied().unwrap_or_default()).await;
                }
                _ => {
                    let name = task.first().copied().unwrap_or_default();
                    return Err(ComposeError { cause: self.cause(name, &end, &output), output });
                }
            }
        }
    }
}

/// `up` as an update needs it: nothing is pulled or built on the side.
fn up_task(recreate: &Recreate) -> Vec<&str> {
    let mut task = vec!["up", "-d", "--pull", "never", "--no-build"];
    match recreate {
        Recreate::Changed => {}
        Recreate::All => task.push("--force-recreate"),
        // `up --no-recreate` still changes networks and removes replicas.
        Recreate::Nothing => return vec!["start"],
        Recreate::Only(service) => task.extend(["--force-recreate", "--no-deps", service]),
        Recreate::Alone(services) => {
            task.push("--no-deps");
            task.extend(services.iter().map(String::as_str));
        }
    }
    task
}

#[async_trait]
impl Compose for ComposeCli {
    async fn up(&self, project: &Project, recreate: &Recreate) -> Result<String, ComposeError> {
        others::wait(&project.name).await;
        self.run(project, &up_task(recreate)).await
    }

    async fn down(&self, project: &Project) -> Result<String, ComposeError> {
        others::wait(&project.name).await;
        self.run(project, &["down"]).await
    }

    async fn validate(&self, project: &Project) -> Result<(), ComposeError> {
        self.run(project, &["config", "--quiet"]).await.map(|_| ())
    }

    async fn model(&self, project: &Project) -> Result<Model, ComposeError> {
        let broken = |cause: String| ComposeError { cause, output: String::new() };
        let lost =
            |error: std::io::Error| broken(format!("what compose printed was lost: {}", plainly(&error)));
        // It can be long, and holds what the variables hold: into memory, whole, and not between the warnings.
        let memory = rustix::fs::memfd_create("compose-config", rustix::fs::MemfdFlags::CLOEXEC);
        let mut printed = File::from(memory.map_err(|error| lost(error.into()))?);
        let answer = Some(printed.try_clone().map_err(lost)?);
        self.run_into(project, &["config", "--format", "json"], answer).await?;
        printed.rewind().map_err(lost)?;
        serde_json::from_reader(BufReader::new(printed))
            .map_err(|error| broken(format!("`config` printed something else than its model: {error}")))
    }
}

/// The message of a line in the log format of Go programs (`time="…" level=error msg="…"`).
fn log_message(line: &str) -> &str {
    line.strip_prefix("time=")
        .and_then(|rest| rest.split_once(" msg="))
        .map_or(line, |(_, message)| message.trim_matches('"'))
}

#[cfg(test)]
mod tests;
