//! Runs compose as a child process: own process group, cleaned environment, bounded output, a deadline.

mod env_file;
pub(crate) mod environment;
mod others;
mod version;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Seek as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use self::environment::Environment;
use self::version::{ApiMismatch, Version};
use super::child::{End, Leftovers, run};
use super::docker::Endpoint;
use crate::config::Runtime;
use crate::model::output::{Tail, stable};
use crate::model::text::plainly;
use crate::model::{ComposeError, Model, Project, PullPolicy, UpMode};
use crate::ports::Compose;

/// Images are pulled before; what remains is stopping and starting containers. A project's `health_grace` is added.
const LIMIT: Duration = Duration::from_mins(10);

/// How long compose may take to say which version it is.
const VERSION_LIMIT: Duration = Duration::from_secs(10);
/// What the engine calls the containerd image store, among what it says of its storage.
const CONTAINERD_STORE: &str = "io.containerd.snapshotter";

/// Pauses before the retries after a conflict: the other run may still be at work.
const CONFLICT_RETRIES: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(3)];
/// What the engine says when a killed run left its half-made container behind. The failed run repairs it.
const CONFLICT: &str = "Conflict. The container name";

/// Compose as a subcommand of the runtime's executable.
pub struct ComposeCli {
    runtime: Runtime,
    program: PathBuf,
    endpoint: String,
    environment: Environment,
    limit: Duration,
}

impl ComposeCli {
    /// Compose for this runtime, talking to the engine at `endpoint`. Of `environment` (the agent's own) it gets
    /// what DECISIONS 6 says.
    pub fn new(
        runtime: Runtime,
        endpoint: &Endpoint,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        let program = match runtime {
            Runtime::Docker => "docker",
            Runtime::Podman => "podman",
        };
        Self {
            runtime,
            program: PathBuf::from(program),
            endpoint: endpoint.to_string(),
            environment: Environment::new(environment),
            limit: LIMIT,
        }
    }

    /// Keeps these variables of the agent from compose from now on: the configuration names them as secrets.
    pub fn withhold(&self, variables: &BTreeSet<String>) {
        self.environment.withhold(variables);
    }

    /// Another executable than the one that `PATH` leads to.
    #[must_use]
    pub fn with_program(self, program: PathBuf) -> Self {
        Self { program, ..self }
    }

    /// Another deadline of one `up` than ten minutes; the project's `health_grace` is added to it, too.
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
        let mut command = self.bare_command(folder, variables);
        command.args(self.arguments(project, task));
        command
    }

    /// The runtime's program, with the environment that it gets.
    fn bare_command(&self, folder: &Path, variables: &[(String, String)]) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(folder);
        command.env_clear().envs(self.environment.own());
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        // The engine that the agent watches.
        command.env("DOCKER_HOST", &self.endpoint);
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
    fn cause(&self, task: &str, end: &End, limit: Duration, output: &str) -> String {
        let status = match end {
            End::TooLong => {
                return format!("`{task}` was stopped: not done after {} s", limit.as_secs());
            }
            End::Exited(status) => status,
        };
        if let Some(missing) = self.missing(output) {
            return missing;
        }
        match output.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
            Some(line) => stable(log_message(line)),
            None => format!("`{task}` ended without a word ({status})"),
        }
    }
    /// What is missing, where compose was not run at all.
    fn missing(&self, output: &str) -> Option<String> {
        let says = |signs: &[&str]| signs.iter().any(|sign| output.contains(sign));
        Some(match self.runtime {
            Runtime::Docker
                if says(&[
                    "unknown shorthand flag: 'p' in -p",
                    "is not a docker command",
                    "unknown command: docker compose",
                ]) =>
            {
                let path = self.environment.variable("PATH");
                let mut folders = path.iter().flat_map(std::env::split_paths);
                // Usually its Python predecessor, which does not know this option.
                let alone = match folders.find(|folder| folder.join("docker-compose").is_file()) {
                    Some(folder) => {
                        format!("; the program docker-compose in {} is no plugin", folder.display())
                    }
                    None => String::new(),
                };
                format!(
                    "docker has no compose plugin (install docker-compose-v2 or docker-compose-plugin{alone})"
                )
            }
            // Before 4.7 it does not know the subcommand, and reports the first argument after it.
            Runtime::Podman
                if says(&["unknown shorthand flag: 'p' in -p", "unrecognized command `podman compose`"]) =>
            {
                "this podman has no compose (it needs podman 4.7 with docker-compose; or set \
                 \"runtime\" to \"docker\", with DOCKER_HOST at podman's socket)"
                    .to_owned()
            }
            Runtime::Podman if says(&["looking up compose provider failed"]) => {
                "podman has no compose provider (install docker-compose)".to_owned()
            }
            _ => return None,
        })
    }
}

impl ComposeCli {
    async fn unfit_in(&self, folder: &Path) -> Option<String> {
        match self.version(folder).await {
            Err(fault) => Some(fault),
            Ok(Some(version)) if version.misreads_containerd() => {
                let storage = self.ask(&["info", "--format", "{{.DriverStatus}}"], folder).await.ok()?.1;
                storage.contains(CONTAINERD_STORE).then(|| version::misread(version))
            }
            Ok(_) => None,
        }
    }

    /// Which compose this is; `None` where it does not say. The error is why it can't be used.
    ///
    /// It is asked before every `up` and never remembered: that costs some 50 ms beside seconds, and nothing tells
    /// which file the runtime takes for its plugin, so nothing would tell that it is another one by now.
    async fn version(&self, folder: &Path) -> Result<Option<Version>, String> {
        let (end, output) = self
            .ask(&["compose", "version"], folder)
            .await
            .map_err(|error| self.not_started(&error, folder))?;
        if !matches!(&end, End::Exited(status) if status.success()) {
            return self.missing(&output).map_or(Ok(None), Err);
        }
        let version = Version::find(&output);
        version.and_then(|version| version.fault(self.runtime)).map_or(Ok(version), Err)
    }

    /// Runs a short command that concerns no project.
    async fn ask(&self, words: &[&str], folder: &Path) -> std::io::Result<(End, String)> {
        let mut tail = Tail::default();
        let mut command = self.bare_command(folder, &[]);
        command.args(words);
        let end =
            run(command, None, Instant::now() + VERSION_LIMIT.min(self.limit), Leftovers::Keep, &mut tail)
                .await?;
        Ok((end, tail.text()))
    }

    /// Refuses before anything is touched what is known not to work.
    async fn must_be_fit(&self, project: &Project) -> Result<(), ComposeError> {
        let Some(folder) = project.files.first().and_then(|file| file.parent()) else { return Ok(()) };
        let fit = self.version(folder).await;
        fit.map(|_| ()).map_err(|cause| ComposeError { cause, output: String::new() })
    }

    /// Why a run failed, where compose and the engine have no version of the API in common.
    async fn api_mismatch(&self, output: &str, folder: &Path) -> Option<String> {
        let mismatch = ApiMismatch::find(output)?;
        let version = self.version(folder).await.ok().flatten();
        Some(mismatch.sentence(version))
    }

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
        let mut variables = match &project.env_file {
            Some(path) => {
                let read = env_file::read(path, &self.environment.own()).await;
                self.environment.admit(path, read.map_err(|error| silent(error.to_string()))?)
            }
            None => Vec::new(),
        };
        variables.extend(project.set.clone());
        let limit = self.limit + project.health_grace;
        let deadline = Instant::now() + limit;
        let mut retries = CONFLICT_RETRIES.iter();
        loop {
            let mut tail = Tail::default();
            let command = self.command(project, task, folder, &variables);
            let answer = answer.as_ref().map(File::try_clone).transpose();
            let answer = answer.map_err(|error| silent(plainly(&error)))?;
            let end = run(command, answer, deadline, Leftovers::Keep, &mut tail)
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
                    let mismatch = self.api_mismatch(&output, folder).await;
                    let cause = mismatch.unwrap_or_else(|| self.cause(name, &end, limit, &output));
                    return Err(ComposeError { cause, output });
                }
            }
        }
    }
}

/// A compose file that has become a link since the configuration was checked (spec 2.9, rule 3) leads to a file that
/// somebody else has chosen. What else is wrong with a file, compose says itself.
async fn no_links(project: &Project) -> Result<(), ComposeError> {
    for file in &project.files {
        if tokio::fs::symlink_metadata(file).await.is_ok_and(|about| about.is_symlink()) {
            let cause = format!("compose file {}: is a symbolic link, which is not followed", file.display());
            return Err(ComposeError { cause, output: String::new() });
        }
    }
    Ok(())
}

/// `up` as an update needs it: nothing newer is pulled, and nothing is built, on the side.
fn up_task(up_mode: &UpMode, pull: PullPolicy) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    // `up --no-recreate` still changes networks and removes replicas.
    if *up_mode == UpMode::StartOnly {
        return words(&["start"]);
    }
    let policy = match pull {
        PullPolicy::Never => "never",
        PullPolicy::Missing => "missing",
    };
    let mut task = words(&["up", "-d", "--pull", policy, "--no-build"]);
    if matches!(up_mode, UpMode::All | UpMode::ForceService(_)) {
        task.push("--force-recreate".to_owned());
    }
    if let UpMode::ScaledServices { replicas, .. } = up_mode {
        let scale = |(name, count): (&String, &usize)| ["--scale".to_owned(), format!("{name}={count}")];
        task.extend(replicas.iter().flat_map(scale));
    }
    if !up_mode.services().is_empty() {
        task.push("--no-deps".to_owned());
        task.extend_from_slice(up_mode.services());
    }
    task
}

#[async_trait]
impl Compose for ComposeCli {
    async fn up(
        &self,
        project: &Project,
        up_mode: &UpMode,
        pull: PullPolicy,
    ) -> Result<String, ComposeError> {
        no_links(project).await?;
        self.must_be_fit(project).await?;
        others::wait(&project.name).await;
        let task = up_task(up_mode, pull);
        let task: Vec<&str> = task.iter().map(String::as_str).collect();
        self.run(project, &task).await
    }

    async fn down(&self, project: &Project) -> Result<String, ComposeError> {
        no_links(project).await?;
        self.must_be_fit(project).await?;
        others::wait(&project.name).await;
        self.run(project, &["down"]).await
    }

    async fn unfit(&self) -> Option<String> {
        self.unfit_in(Path::new("/")).await
    }

    async fn validate(&self, project: &Project) -> Result<(), ComposeError> {
        no_links(project).await?;
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
