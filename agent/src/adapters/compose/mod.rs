//! Runs compose as a child process: own process group, filtered environment, bounded output, a deadline.

mod definition;
mod env_file;
pub(crate) mod environment;
mod others;
mod proxies;
mod version;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_common::config::expand::is_shown;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use self::environment::Environment;
use self::version::{ApiMismatch, Version};
use super::child::{Leftovers, Outcome, run};
use super::docker::Endpoint;
use crate::config::{Runtime, is_set_by_engine};
use crate::model::definition::{HOME, UNNAMED_VARIABLE};
use crate::model::errors::is_of_compose_caller;
use crate::model::machine::is_at_fault;
use crate::model::output::{Tail, stable, without_queries};
use crate::model::text::describe_io_error;
use crate::model::{ComposeError, Model, ModelService, Project, PullPolicy, UpMode};
use crate::ports::{Compose, Hashes, Priority, Turn};

/// Timeout of a run. Images are already pulled; only stopping and starting containers takes time. The project's
/// `health_grace` is added, and the times that its containers need to stop, and that compose waits for others.
const LIMIT: Duration = Duration::from_mins(10);

/// Timeout of short commands such as `compose version`.
const VERSION_LIMIT: Duration = Duration::from_secs(10);
/// How many runs only read at a time. Each has 20 to 30 threads and some 50 MB, of the 512 and the 1 GB that the unit grants to
/// the agent and its children. They do not wait for those that change containers, which may take as long as [`LIMIT`], and
/// which read while they have their turn.
const READS_AT_ONCE: usize = 6;
/// How many runs change containers at a time. The containers that start share the machine.
const CHANGES_AT_ONCE: usize = 4;
/// How many more do so for what is urgent: it must not wait for updates, which may take long.
const URGENT_AT_ONCE: usize = 2;
/// How the engine's storage status names the containerd image store.
const CONTAINERD_STORE: &str = "io.containerd.snapshotter";

/// Delays before the retries after a conflict: the other run may still be in progress.
const CONFLICT_RETRIES: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(3)];
/// The engine's error when a killed run left a half-created container behind. The failing run cleans it up.
const CONFLICT: &str = "Conflict. The container name";

/// Exit codes of a compose that a signal has ended: its own, those of a shell around it, and that of a runtime's executable whose
/// plugin was killed (-1).
const ENDED: [i32; 4] = [130, 137, 143, 255];
/// How lines begin with which the program itself, and not the engine, says that it got no memory or threads.
const NO_ROOM: [&str; 4] = [
    "runtime: failed to create new OS thread",
    "runtime/cgo: pthread_create failed",
    "runtime: out of memory",
    "fatal error: runtime: out of memory",
];
/// How lines begin with which the program says that it could not start another one, and how they end if it got no process or
/// memory for it: other reasons last.
const NOT_FORKED: &str = "fork/exec ";
const NO_PROCESS: [&str; 2] = ["resource temporarily unavailable", "cannot allocate memory"];

/// Compose as a subcommand of the runtime's executable.
pub struct ComposeCli {
    runtime: Runtime,
    program: PathBuf,
    endpoint: String,
    environment: Environment,
    limit: Duration,
    /// Folder for recorded definitions that compose reads in place of the files.
    definitions: PathBuf,
    /// Turns to change containers.
    changes: Arc<Semaphore>,
    /// More of them, for what is urgent.
    urgent: Arc<Semaphore>,
    /// Turns of the runs that only read.
    reads: Semaphore,
}

impl ComposeCli {
    /// Creates a runner for this runtime that uses the engine at `endpoint`. Compose gets the part of `environment` (the
    /// agent's own) that DECISIONS 6 allows.
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
            environment: Environment::new(environment, is_set_by_engine),
            limit: LIMIT,
            definitions: definition::process_folder(),
            changes: Arc::new(Semaphore::new(CHANGES_AT_ONCE)),
            urgent: Arc::new(Semaphore::new(URGENT_AT_ONCE)),
            reads: Semaphore::new(READS_AT_ONCE),
        }
    }

    /// Keeps recorded definitions in this folder; the default is a folder of this process in the temporary folder.
    /// Containers that were created from one name it in their labels.
    #[must_use]
    pub fn with_definitions(self, folder: PathBuf) -> Self {
        Self { definitions: folder, ..self }
    }

    /// Removes files with recorded definitions that earlier calls have left because they were killed. No call may be running.
    pub fn remove_leftovers(&self) {
        definition::remove_leftovers(&self.definitions);
    }

    /// Gives no further turns to change containers: the agent is stopping.
    pub fn close(&self) {
        self.changes.close();
        self.urgent.close();
    }

    /// Stops passing these variables to compose: the configuration uses them as secrets.
    pub fn withhold(&self, variables: &BTreeSet<String>) {
        self.environment.withhold(variables);
    }

    /// Replaces the timeout of ten minutes. The project's `health_grace` is still added.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    fn arguments(&self, project: &Project, task: &[&str]) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["compose".into(), "-p".into(), project.name.clone().into()];
        for file in &project.files {
            arguments.extend(["-f".into(), file.into()]);
        }
        if let Some(folder) = &project.folder {
            arguments.extend(["--project-directory".into(), folder.into()]);
        }
        for file in &project.env_files {
            arguments.extend(["--env-file".into(), file.into()]);
        }
        for profile in &project.profiles {
            arguments.extend(["--profile".into(), profile.into()]);
        }
        // Podman passes its arguments to the installed compose provider, and not every provider supports this one.
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
        // The project directory, as where a person runs compose. Its versions differ in whether they set it themselves, and
        // the agent's own is another one.
        if !variables.iter().any(|(name, _)| name == "PWD") {
            command.env("PWD", project.folder.as_deref().unwrap_or(folder));
        }
        if let Some(compatibility) = project.compatibility {
            command.env("COMPOSE_COMPATIBILITY", compatibility.to_string());
        }
        command.args(self.arguments(project, task));
        command
    }

    /// The runtime's executable with its environment, without arguments.
    fn bare_command(&self, folder: &Path, variables: &[(String, String)]) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(folder);
        command.env_clear().envs(self.environment.own());
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        // Use the agent's engine.
        command.env("DOCKER_HOST", &self.endpoint);
        // Compose reads it from `.env` as well. Containers of services that are no longer in the files are a person's to remove.
        command.env("COMPOSE_REMOVE_ORPHANS", "false");
        if self.runtime == Runtime::Podman {
            command.env("CONTAINER_HOST", &self.endpoint).env("PODMAN_COMPOSE_WARNING_LOGS", "false");
        }
        command
    }

    /// Returns why the child could not be started.
    fn not_started(&self, error: &std::io::Error, folder: &Path) -> ComposeError {
        let program = self.program.display();
        let cause = match error.kind() {
            // A missing program and a missing directory have the same error code.
            std::io::ErrorKind::NotFound if !folder.is_dir() => {
                format!("the folder {} of the compose files does not exist", folder.display())
            }
            std::io::ErrorKind::NotFound => {
                format!("{program} can't be run: not found (install it, or set \"runtime\")")
            }
            _ => format!("{program} can't be run: {}", describe_io_error(error)),
        };
        // No process, thread or memory is left (EAGAIN, ENOMEM).
        let was_killed =
            matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::OutOfMemory);
        ComposeError { was_killed, ..ComposeError::new(cause) }
    }

    /// Returns the cause of a failure in one line.
    fn cause(&self, task: &str, end: &Outcome, limit: Duration, output: &str) -> String {
        let status = match end {
            Outcome::TimedOut => {
                return format!("`{task}` timed out after {} s and was stopped", limit.as_secs());
            }
            Outcome::Exited(status) => status,
        };
        if let Some(missing) = self.missing(output) {
            return missing;
        }
        let lines = || output.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        match lines().find(|line| !is_of_compose_caller(line)).or_else(|| lines().next()) {
            Some(line) => stable(log_message(line)),
            None => format!("`{task}` failed without output ({status})"),
        }
    }
    /// Returns what has to be installed, if compose was not run at all.
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
                // Usually compose v1, which does not support this option.
                let alone = match folders.find(|folder| folder.join("docker-compose").is_file()) {
                    Some(folder) => {
                        format!("; the program docker-compose in {} is not a plugin", folder.display())
                    }
                    None => String::new(),
                };
                format!(
                    "docker has no compose plugin (install docker-compose-v2 or docker-compose-plugin{alone})"
                )
            }
            // Podman before 4.7 has no such subcommand, and reports the first argument after it.
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
    async fn problem_in(&self, folder: &Path) -> Option<String> {
        match self.version(folder).await {
            Err(error) => Some(error.cause),
            Ok(Some(version)) if version.misreads_containerd() => {
                let storage = self.ask(&["info", "--format", "{{.DriverStatus}}"], folder).await.ok()?.1;
                storage.contains(CONTAINERD_STORE).then(|| version::misread(version))
            }
            Ok(_) => None,
        }
    }

    /// Returns compose's version, or `None` if it does not report one. The error says why it cannot be used.
    ///
    /// The version is read before every `up` and never cached. That takes about 50 ms, while `up` takes seconds. The
    /// runtime does not report which file it uses as its plugin, so a replaced plugin could not be detected.
    async fn version(&self, folder: &Path) -> Result<Option<Version>, ComposeError> {
        let (end, output) = self
            .ask(&["compose", "version"], folder)
            .await
            .map_err(|error| self.not_started(&error, folder))?;
        if !matches!(&end, Outcome::Exited(status) if status.success()) {
            return self.missing(&output).map_or(Ok(None), |cause| Err(ComposeError::new(cause)));
        }
        let version = Version::find(&output);
        let fault = version.and_then(|version| version.fault(self.runtime));
        fault.map_or(Ok(version), |cause| Err(ComposeError::new(cause)))
    }

    /// Runs a short command that is not for a project.
    async fn ask(&self, words: &[&str], folder: &Path) -> std::io::Result<(Outcome, String)> {
        let mut tail = Tail::default();
        let mut command = self.bare_command(folder, &[]);
        command.args(words);
        let _turn = self.reads.acquire().await.ok();
        let end =
            run(command, None, Instant::now() + VERSION_LIMIT.min(self.limit), Leftovers::Keep, &mut tail)
                .await?;
        Ok((end, tail.text()))
    }

    /// Fails if compose cannot be used, before anything is changed.
    async fn must_be_fit(&self, project: &Project) -> Result<(), ComposeError> {
        let Some(folder) = project.files.first().and_then(|file| file.parent()) else { return Ok(()) };
        self.version(folder).await.map(|_| ())
    }

    /// Returns the cause of a failure if compose and the engine have no API version in common.
    async fn api_mismatch(&self, output: &str, folder: &Path) -> Option<String> {
        let mismatch = ApiMismatch::find(output)?;
        let version = self.version(folder).await.ok().flatten();
        Some(mismatch.sentence(version))
    }

    /// Runs a compose subcommand, with standard output written to `answer` if that is given. Its first word names it in
    /// messages. `is_read_only`: it creates no container. Any other run is in the turn of its caller.
    async fn run(
        &self,
        project: &Project,
        task: &[&str],
        answer: Option<File>,
        is_read_only: bool,
    ) -> Result<String, ComposeError> {
        let described =
            definition::written(&self.definitions, project, is_read_only).await.map_err(ComposeError::new)?;
        let folder = project
            .files
            .first()
            .and_then(|file| file.parent())
            .ok_or_else(|| ComposeError::new("no compose files configured"))?;
        let mut variables = match &project.env_file {
            Some(path) => {
                let read = env_file::read(path, &self.environment.own()).await;
                self.environment.admit(path, read.map_err(|error| ComposeError::new(error.to_string()))?)
            }
            None => Vec::new(),
        };
        variables.extend(project.set.clone());
        // Before the time limit begins: this may wait long.
        let turn = if is_read_only { self.reads.acquire().await.ok() } else { None };
        let limit = self.limit + project.health_grace + project.stop_grace + project.wait_grace;
        let deadline = Instant::now() + limit;
        let mut retries = CONFLICT_RETRIES.iter();
        loop {
            let mut tail = Tail::default();
            let command = self.command(described.project(), task, folder, &variables);
            let answer = answer.as_ref().map(File::try_clone).transpose();
            let answer = answer.map_err(|error| ComposeError::new(describe_io_error(&error)))?;
            let end = run(command, answer, deadline, Leftovers::Keep, &mut tail)
                .await
                .map_err(|error| self.not_started(&error, folder))?;
            let output = described.steady(tail.text());
            match &end {
                Outcome::Exited(status) if status.success() => return Ok(output),
                Outcome::Exited(_) if output.contains(CONFLICT) && retries.len() > 0 => {
                    tracing::info!(
                        project = project.name,
                        "conflict with a half-created container; retrying"
                    );
                    sleep(retries.next().copied().unwrap_or_default()).await;
                }
                _ => {
                    let is_command = |word: &&&str| word.bytes().all(|b| b.is_ascii_lowercase());
                    let name = task.iter().find(is_command).copied().unwrap_or_default();
                    // The version is asked for in a turn of its own.
                    drop(turn);
                    let mismatch = self.api_mismatch(&output, folder).await;
                    let is_hidden = is_read_only && tail.is_cut() && !says_before_value(&output);
                    let output = withheld(&output);
                    let ended = ended_from_outside(name, &end, &output);
                    let was_killed = ended.is_some();
                    let is_of_machine = is_at_fault(&output);
                    let output = if is_hidden { TOO_LONG.to_owned() } else { output };
                    let cause = mismatch.or(ended);
                    let cause = cause.unwrap_or_else(|| self.cause(name, &end, limit, &output));
                    return Err(ComposeError { cause, output, was_killed, is_of_machine });
                }
            }
        }
    }
}

impl ComposeCli {
    /// Runs a compose subcommand. Returns its standard output, complete and separate from the warnings, and these. The
    /// output can be long and contains the variables' values, so it is kept in memory.
    async fn printed(&self, project: &Project, task: &[&str]) -> Result<(File, String), ComposeError> {
        let memory = rustix::fs::memfd_create("compose-config", rustix::fs::MemfdFlags::CLOEXEC);
        let mut printed = File::from(memory.map_err(|error| lost(&error.into()))?);
        let answer = Some(printed.try_clone().map_err(|error| lost(&error))?);
        let said = self.run(project, task, answer, true).await?;
        printed.rewind().map_err(|error| lost(&error))?;
        Ok((printed, said))
    }

    /// Returns the variables that docker's configuration has compose set in new containers; `None` if they are not known.
    async fn proxies(&self) -> Option<BTreeMap<String, String>> {
        let folder = match self.environment.variable("DOCKER_CONFIG").filter(|folder| !folder.is_empty()) {
            Some(folder) => PathBuf::from(folder),
            None => Path::new(&self.environment.variable(HOME)?).join(".docker"),
        };
        match tokio::fs::read(folder.join("config.json")).await {
            Ok(text) => Some(proxies::of_config(&serde_json::from_slice(&text).ok()?, &self.endpoint)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(BTreeMap::new()),
            Err(_) => None,
        }
    }

    /// Prints the hashes of the services of these profiles, and of those without profiles.
    async fn hashed(&self, project: &Project, profiles: &[&str]) -> Result<(File, String), ComposeError> {
        self.printed(project, &with_profiles(profiles, &["config", "--hash", "*"])).await
    }

    /// Renders these services, each with its dependencies; without names, all of these profiles and those without profiles.
    async fn rendered(
        &self,
        project: &Project,
        profiles: &[&str],
        names: &[String],
    ) -> Result<Model, ComposeError> {
        let mut task = with_profiles(profiles, &["config", "--format", "json"]);
        task.extend(names.iter().map(String::as_str));
        let (printed, _) = self.printed(project, &task).await?;
        serde_json::from_reader(BufReader::new(printed))
            .map_err(|error| ComposeError::new(format!("`config` did not print a valid model: {error}")))
    }

    /// Renders the services that have containers, and returns their profiles. Services of profiles that are off may exclude
    /// one another, or name files that are not on this machine; `up` does not read them either. `None` if that fails, too.
    async fn present(&self, project: &Project) -> Option<(Model, BTreeSet<String>)> {
        let mut names = project.present.clone();
        let model = loop {
            if names.is_empty() {
                return None;
            }
            match self.rendered(project, &[], &names).await {
                Ok(model) => break model,
                // The container of a service that was taken out of the files.
                Err(error) => {
                    let unknown = unknown_service(&error.output)?;
                    let at = names.iter().position(|name| name == unknown)?;
                    names.remove(at);
                }
            }
        };
        let services = names.iter().filter_map(|name| model.service(name));
        let profiles: BTreeSet<String> =
            services.flat_map(ModelService::profiles).map(str::to_owned).collect();
        if profiles.is_empty() {
            return Some((model, profiles));
        }
        // From 2.34 on, compose reads the env files of these services only if their profiles are named; before, it reads those
        // of all services of these profiles then.
        let all: Vec<&str> = profiles.iter().map(String::as_str).collect();
        let whole = self.rendered(project, &all, &names).await.unwrap_or(model);
        Some((whole, profiles))
    }
}

fn with_profiles<'a>(profiles: &[&'a str], task: &[&'a str]) -> Vec<&'a str> {
    profiles.iter().flat_map(|profile| ["--profile", *profile]).chain(task.iter().copied()).collect()
}

/// Returns the service that compose has not found in the files.
fn unknown_service(output: &str) -> Option<&str> {
    let (_, rest) = output.rsplit_once("no such service: ")?;
    rest.split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c))).next()
}

/// Returns what has ended a run from outside: a signal, such as that of the kernel when memory is short, or that the machine had
/// no room for it. `None` if it ended by itself, or at its time limit.
fn ended_from_outside(task: &str, end: &Outcome, output: &str) -> Option<String> {
    let Outcome::Exited(status) = end else { return None };
    let lacks_room = |line: &&str| {
        NO_ROOM.iter().any(|sign| line.starts_with(sign))
            || line.starts_with(NOT_FORKED) && NO_PROCESS.iter().any(|sign| line.ends_with(sign))
    };
    if let Some(line) = output.lines().map(str::trim).find(lacks_room) {
        return Some(stable(line));
    }
    let is_ended = status.signal().is_some() || status.code().is_some_and(|code| ENDED.contains(&code));
    is_ended.then(|| format!("`{task}` was ended from outside ({status})"))
}

fn lost(error: &std::io::Error) -> ComposeError {
    ComposeError::new(format!("cannot read compose's output: {}", describe_io_error(error)))
}

/// Rejects compose files that are symbolic links. A file that became a link after the configuration was checked (spec
/// 2.9, rule 3) may point to a file chosen by another user. Compose reports all other problems with a file.
async fn no_links(project: &Project) -> Result<(), ComposeError> {
    for file in &project.files {
        if tokio::fs::symlink_metadata(file).await.is_ok_and(|about| about.is_symlink()) {
            let cause = format!("compose file {}: is a symbolic link, which is not followed", file.display());
            return Err(ComposeError::new(cause));
        }
    }
    Ok(())
}

/// The arguments for an `up` that neither pulls newer images nor builds any.
fn up_task(project: &Project, up_mode: &UpMode, pull: PullPolicy) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let named = up_mode.services();
    // `up --no-recreate` still changes networks and removes replicas.
    if up_mode.starts_only() {
        let names = if named.is_empty() { &project.all_services } else { named };
        return [words(&["start"]), names.to_vec()].concat();
    }
    let policy = match pull {
        PullPolicy::Never => "never",
        PullPolicy::Missing => "missing",
    };
    let mut task = words(&["up", "-d", "--pull", policy, "--no-build"]);
    if matches!(up_mode, UpMode::All | UpMode::ForceService(_)) {
        task.push("--force-recreate".to_owned());
    }
    let mut counts = project.kept_counts.clone();
    counts.retain(|name, _| named.is_empty() || named.contains(name));
    if let UpMode::ScaledServices { replicas, .. } = up_mode {
        counts.extend(replicas.clone());
    }
    task.extend(counts.iter().flat_map(|(name, count)| ["--scale".to_owned(), format!("{name}={count}")]));
    if matches!(up_mode, UpMode::ScaledServices { keeps_containers: true, .. }) {
        task.push("--no-recreate".to_owned());
    }
    if named.is_empty() {
        task.extend_from_slice(&project.all_services);
        return task;
    }
    if !matches!(up_mode, UpMode::ScaledServices { with_dependencies: true, .. }) {
        task.push("--no-deps".to_owned());
    }
    task.extend_from_slice(named);
    task
}

#[async_trait]
impl Compose for ComposeCli {
    async fn turn(&self, priority: Priority) -> Option<Turn> {
        let is_free = self.changes.available_permits() > 0
            || priority == Priority::Urgent && self.urgent.available_permits() > 0;
        if !is_free {
            tracing::info!("bringing up containers waits until another compose run has ended");
        }
        let common = self.changes.clone().acquire_owned();
        let permit = match priority {
            Priority::Routine => common.await,
            Priority::Urgent => tokio::select! {
                biased;
                permit = common => permit,
                permit = self.urgent.clone().acquire_owned() => permit,
            },
        };
        permit.ok().map(|permit| Turn(Some(permit)))
    }

    async fn settle(&self, project: &Project) {
        others::wait(&project.name, project.directory()).await;
    }

    async fn is_in_use(&self, project: &Project) -> bool {
        others::are_at_work(&project.name, project.directory()).await
    }

    async fn up(
        &self,
        project: &Project,
        up_mode: &UpMode,
        pull: PullPolicy,
    ) -> Result<String, ComposeError> {
        no_links(project).await?;
        self.must_be_fit(project).await?;
        let task = up_task(project, up_mode, pull);
        let task: Vec<&str> = task.iter().map(String::as_str).collect();
        let mut up = pin!(self.run(project, &task, None, false));
        let usual = self.limit + project.health_grace + project.stop_grace;
        let in_time = timeout(usual, up.as_mut()).await;
        if in_time.is_err() && !project.wait_grace.is_zero() {
            tracing::warn!(
                project = project.name,
                "`up` has not ended after {} s; it may wait {} s more for a job or a health check that a service depends on",
                usual.as_secs(),
                project.wait_grace.as_secs()
            );
        }
        let done = match in_time {
            Ok(done) => done,
            Err(_) => up.await,
        };
        done.map(|output| withheld(&output))
    }

    async fn problem(&self) -> Option<String> {
        self.problem_in(Path::new("/")).await
    }

    async fn validate(&self, project: &Project) -> Result<(), ComposeError> {
        const CHECK: [&str; 2] = ["config", "--quiet"];
        no_links(project).await?;
        match self.run(project, &CHECK, None, true).await {
            // A service may depend on one of a profile, which a person has named.
            Err(error) if !error.output.is_empty() => {
                let all = with_profiles(&["*"], &CHECK);
                self.run(project, &all, None, true).await.map(|_| ()).map_err(|_| error)
            }
            other => other.map(|_| ()),
        }
    }

    async fn model(&self, project: &Project) -> Result<Model, ComposeError> {
        no_links(project).await?;
        match self.rendered(project, &["*"], &[]).await {
            Ok(model) => Ok(model),
            // Compose has not answered.
            Err(error) if error.output.is_empty() => Err(error),
            Err(error) => self.present(project).await.map(|(model, _)| model).ok_or(error),
        }
    }

    async fn active_services(&self, project: &Project) -> Result<BTreeSet<String>, ComposeError> {
        no_links(project).await?;
        let (mut printed, _) = self.printed(project, &["config", "--services"]).await?;
        let mut text = String::new();
        printed.read_to_string(&mut text).map_err(|error| lost(&error))?;
        Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    async fn hashes(&self, project: &Project) -> Result<Hashes, ComposeError> {
        no_links(project).await?;
        let (mut printed, said) = match self.hashed(project, &["*"]).await {
            Ok(hashed) => hashed,
            Err(error) if error.output.is_empty() => return Err(error),
            Err(error) => {
                let Some((_, profiles)) = self.present(project).await else { return Err(error) };
                let profiles: Vec<&str> = profiles.iter().map(String::as_str).collect();
                self.hashed(project, &profiles).await.map_err(|_| error)?
            }
        };
        let mut text = String::new();
        printed.read_to_string(&mut text).map_err(|error| lost(&error))?;
        let pair =
            |line: &str| line.split_once(' ').map(|(name, hash)| (name.to_owned(), hash.trim().to_owned()));
        let folder = project.files.first().and_then(|file| file.parent()).unwrap_or(Path::new("/"));
        let version = self.version(folder).await.ok().flatten();
        Ok(Hashes {
            by_service: text.lines().filter_map(pair).collect(),
            version: version.map(|version| version.to_string()).unwrap_or_default(),
            unset: unset_variables(&said),
            home: self
                .environment
                .variable(HOME)
                .and_then(|home| home.into_string().ok())
                .unwrap_or_default(),
            proxies: self.proxies().await,
        })
    }
}

/// Returns the variables that compose reports as not set.
fn unset_variables(output: &str) -> Vec<String> {
    let names: BTreeSet<&str> = output.lines().filter_map(unset_variable).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Returns the variable that a line of compose reports as not set. Other programs write of variables in other words.
fn unset_variable(line: &str) -> Option<&str> {
    let (before, _) = line.split_once(" variable is not set")?;
    let (_, name) = before.rsplit_once("The ")?;
    let name = name.trim_matches(['"', '\\']);
    let is_name = |name: &&str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    Some(name).filter(is_name).filter(|name| !name.is_empty())
}

/// What compose prints before a value that it can't interpolate. The value has any number of lines.
const ADVICE: &str = "You may need to escape any $ with another $";
/// In place of an error of which only the end is known, which may be that of a value.
const TOO_LONG: &str = "compose's error is not shown: it is too long, and may contain a password";
/// What compose prints in a line before a value, or before a line or the rest of an env file.
const BEFORE_VALUES: [&str; 4] =
    ["nvalid template: ", " in variable name ", "unterminated quoted value ", " near \""];

/// Whether the advice is before the value, which then can be told from the rest. Other versions print it after the value.
fn says_before_value(output: &str) -> bool {
    output.lines().any(|line| line.starts_with(ADVICE))
}

/// Removes from compose's output what may be a password (DECISIONS 2).
fn withheld(output: &str) -> String {
    let output = without_queries(output);
    let Some((before, value)) = output.split_once(ADVICE) else {
        return output.lines().map(without_value).collect::<Vec<_>>().join("\n");
    };
    let mut lines: Vec<String> = before.lines().map(without_value).collect();
    let fault = lines.pop().unwrap_or_default();
    // Other versions print the value before the advice.
    let fault = fault.split_once(": \"").map_or(fault.as_str(), |(fault, _)| fault);
    lines.push(format!("{}. {ADVICE}.", fault.trim_end_matches('.')));
    // Some versions print this error in the place of the value.
    let required = value.lines().nth(1).filter(|line| line.starts_with("required variable "));
    lines.extend(required.map(str::to_owned));
    lines.join("\n")
}

fn without_value(line: &str) -> String {
    if unset_variable(line).is_some_and(|name| !is_shown(name)) {
        return UNNAMED_VARIABLE.to_owned();
    }
    let ends = BEFORE_VALUES.iter().filter_map(|sign| Some(line.find(sign)? + sign.len()));
    match ends.min() {
        Some(end) => {
            format!("{} (not shown, since it may be a password)", line[..end].trim_end_matches(['"', ' ']))
        }
        None => line.to_owned(),
    }
}

/// Extracts the message of a line in the log format of Go programs (`time="…" level=error msg="…"`).
fn log_message(line: &str) -> &str {
    line.strip_prefix("time=")
        .and_then(|rest| rest.split_once(" msg="))
        .map_or(line, |(_, message)| message.trim_matches('"'))
}

#[cfg(test)]
mod tests;
