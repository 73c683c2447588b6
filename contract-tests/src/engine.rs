//! Access to the container engine through its API, independent of the agent's client.

use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;

use crate::docker29::ModernEngine;
use crate::http::{Reply, request_unix};
use crate::image::layer;
use crate::{Image, LABEL, PREFIX, Registry, wait_for};

/// A container engine.
#[derive(Debug, Clone)]
pub struct Engine {
    /// The engine's own socket, which the harness uses.
    socket: PathBuf,
    /// Proxy for the programs under test, if they are to see an engine like Docker 29.
    modern: Option<Arc<ModernEngine>>,
}

/// The properties of a container that tests check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerView {
    /// Full ID.
    pub id: String,
    /// Name.
    pub name: String,
    /// Compose service.
    pub service: String,
    /// Label `evenkeel.version` of the image.
    pub version: String,
    /// ID of its image.
    pub image: String,
    /// For example `running`.
    pub state: String,
    /// Health status, empty without a health check.
    pub health: String,
    /// Time of its last start.
    pub started_at: String,
}

impl Engine {
    /// Returns the machine's engine. Panics with advice on how to start one if it does not respond.
    pub fn of_this_machine() -> Self {
        let host = std::env::var("DOCKER_HOST").unwrap_or_default();
        let socket = match host.strip_prefix("unix://") {
            Some(path) => PathBuf::from(path),
            None if host.is_empty() => PathBuf::from("/var/run/docker.sock"),
            None => panic!("these tests use the engine's unix socket, but DOCKER_HOST is {host}"),
        };
        Self { socket, modern: None }.answering("run dist/test.sh, or dist/scripts/bring-up.sh first")
    }

    /// Returns the engine for projects and agents: `$EVENKEEL_TEST_ENGINE`, or the machine's. With
    /// `$EVENKEEL_TEST_ENGINE_LIKE=29` agents and clients see it as Docker 29. `dist/scripts/with-engine.sh` sets both.
    pub fn under_test() -> Self {
        match std::env::var("EVENKEEL_TEST_ENGINE") {
            Err(_) => Self::of_this_machine(),
            Ok(host) => {
                let socket = host.strip_prefix("unix://").expect("EVENKEEL_TEST_ENGINE is unix:///a/path");
                Self::at(PathBuf::from(socket)).answering("see dist/scripts/with-engine.sh")
            }
        }
    }

    fn at(socket: PathBuf) -> Self {
        let like_29 = std::env::var("EVENKEEL_TEST_ENGINE_LIKE").is_ok_and(|like| like == "29");
        let modern = like_29.then(|| Arc::new(ModernEngine::start(&socket)));
        Self { socket, modern }
    }

    fn answering(self, advice: &str) -> Self {
        if let Err(error) = self.try_get("/_ping") {
            panic!("no container engine at {}: {advice} ({error})", self.socket.display());
        }
        self
    }

    /// Reports whether it uses the containerd image store, in which an image's ID is the digest of its manifest or index.
    pub fn has_containerd_store(&self) -> bool {
        let info = self.get("/info");
        let status = info["DriverStatus"].as_array().cloned().unwrap_or_default();
        status.iter().any(|pair| pair[0] == "driver-type" && pair[1] == "io.containerd.snapshotter.v1")
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the value of `DOCKER_HOST` for this engine.
    pub fn host(&self) -> String {
        let socket = self.modern.as_ref().map_or_else(|| self.socket.clone(), |modern| modern.socket());
        format!("unix://{}", socket.display())
    }

    /// Returns a `docker` command with these arguments for this engine.
    pub fn cli(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(arguments).env("DOCKER_HOST", self.host()).env_remove("DOCKER_CONTEXT");
        command.stdin(Stdio::null());
        command
    }

    /// Runs `docker` and returns its standard output. Panics if it fails.
    #[track_caller]
    pub fn docker(&self, arguments: &[&str]) -> String {
        let output = self.cli(arguments).output().expect("docker can be run");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "docker {arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn try_get(&self, path: &str) -> Result<Reply, String> {
        match request_unix(&self.socket, "GET", path, &[], &[]) {
            Ok(reply) if reply.status < 500 => Ok(reply),
            Ok(reply) => Err(reply.text()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends a GET request to the engine's API. Panics if the engine does not respond.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        match self.try_get(path) {
            Ok(reply) => reply.json(),
            Err(error) => panic!("GET {path} from the engine: {error}"),
        }
    }

    /// Sends a POST request to the engine's API and returns the status code.
    pub fn post(&self, path: &str) -> std::io::Result<u16> {
        request_unix(&self.socket, "POST", path, &[], &[]).map(|reply| reply.status)
    }

    fn labelled(&self, label: &str) -> Vec<Value> {
        let filters = format!(r#"{{"label":["{label}"]}}"#);
        let filters = filters.bytes().fold(String::new(), |text, byte| format!("{text}%{byte:02X}"));
        match self.get(&format!("/containers/json?all=1&filters={filters}")) {
            Value::Array(list) => list,
            other => panic!("the engine lists no containers: {other}"),
        }
    }

    /// Returns all containers of a compose project, sorted by name.
    pub fn containers(&self, project: &str) -> Vec<ContainerView> {
        let listed = self.labelled(&format!("com.docker.compose.project={project}"));
        let mut views: Vec<ContainerView> = listed
            .iter()
            .map(|item| self.get(&format!("/containers/{}/json", text(&item["Id"]))))
            // Skip containers that were removed after they were listed.
            .filter(|one| one["Id"].is_string())
            .map(|one| ContainerView {
                id: text(&one["Id"]),
                name: text(&one["Name"]).trim_start_matches('/').to_owned(),
                service: text(&one["Config"]["Labels"]["com.docker.compose.service"]),
                version: text(&one["Config"]["Labels"]["evenkeel.version"]),
                image: text(&one["Image"]),
                state: text(&one["State"]["Status"]),
                health: text(&one["State"]["Health"]["Status"]),
                started_at: text(&one["State"]["StartedAt"]),
            })
            .collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    /// Returns the names of the containers with which an agent holds images of this project.
    pub fn holds(&self, project: &str) -> Vec<String> {
        self.labelled(&format!("evenkeel.hold={project}")).iter().map(|one| text(&one["Names"][0])).collect()
    }

    /// Returns all tags of the images that belong to `owner`.
    pub fn tags(&self, owner: &str) -> Vec<String> {
        // Docker 28.5 fails to list images while another test removes one.
        let images =
            wait_for("the engine to list its images", || match self.try_get("/images/json")?.json() {
                Value::Array(images) => Ok(images),
                other => Err(other.to_string()),
            });
        images
            .iter()
            .filter(|image| image["Labels"][LABEL] == owner)
            .filter_map(|image| image["RepoTags"].as_array())
            .flatten()
            .map(text)
            .filter(|tag| tag != "<none>:<none>")
            .collect()
    }

    /// Returns the ID of the image with this name.
    pub fn image_id(&self, name: &str) -> Option<String> {
        self.get(&format!("/images/{name}/json"))["Id"].as_str().map(str::to_owned)
    }

    /// Creates a local image, as `docker build` would: it has a tag but does not exist in any registry.
    #[track_caller]
    pub fn build(&self, name: &str, image: &Image, owner: &str) {
        let changes = image.import_changes(owner);
        let mut arguments = vec!["import"];
        for change in &changes {
            arguments.extend(["-c", change]);
        }
        arguments.extend(["-", name]);
        let mut child = self
            .cli(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("docker can be run");
        child.stdin.take().expect("stdin is piped").write_all(layer()).expect("docker import reads");
        assert!(child.wait().expect("docker import ends").success(), "docker import {name} failed");
    }

    /// Removes all containers, holds, volumes, networks and images of a project.
    pub(crate) fn remove_all(&self, project: &str) {
        if self.try_get("/_ping").is_err() {
            return;
        }
        let mut containers: Vec<String> = self.containers(project).into_iter().map(|view| view.id).collect();
        containers.extend(self.holds(project).iter().map(|name| name.trim_start_matches('/').to_owned()));
        if !containers.is_empty() {
            // `rm -v` keeps the anonymous volumes that compose moved from one container to the next.
            let format = "{{range .Mounts}}{{.Name}} {{end}}";
            let listed = self.cli(&["inspect", "-f", format]).args(&containers).output();
            let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            // Docker 20.10 can deadlock in its network code when it removes twenty containers at once.
            for few in containers.chunks(3) {
                let _ = self.cli(&["rm", "-fv"]).args(few).output();
            }
            for volume in listed.unwrap_or_default().split_whitespace() {
                let _ = self.cli(&["volume", "rm", volume]).output();
            }
        }
        let of_project = format!("label=com.docker.compose.project={project}");
        let listed = self.cli(&["network", "ls", "-q", "--filter", &of_project]).output();
        let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        for name in listed.unwrap_or_default().lines() {
            let _ = self.cli(&["network", "rm", name]).output();
        }
        let filter = format!("label={LABEL}={project}");
        let listed = self.cli(&["images", "-q", "--no-trunc", "--filter", &filter]).output();
        let mut images: Vec<String> = listed
            .map(|output| String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
            .unwrap_or_default();
        images.sort();
        images.dedup();
        if !images.is_empty() {
            let _ = self.cli(&["rmi", "-f"]).args(&images).output();
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A private engine for one test, which may prune, kill and restart it.
///
/// It runs in the network namespace of the registry's container: `dockerd` removes the default bridge of its network
/// namespace, and the bridge in the machine's namespace belongs to the machine's engine.
pub struct PrivateEngine {
    network: String,
    folder: TempDir,
    engine: Engine,
    daemon: Option<Child>,
}

impl PrivateEngine {
    /// Starts it in the network namespace of a [`Registry::start_for_private_engine`]. Its containers have no network.
    pub fn start(registry: &Registry) -> Self {
        // nextest names the group. Too many engines at once make each other's tests fail.
        if let Ok(group) = std::env::var("NEXTEST_TEST_GROUP") {
            assert_eq!(
                group, "engine",
                "a test that starts an engine must be in the group in .config/nextest.toml"
            );
        }
        let path = format!("/containers/{}/json", registry.container());
        let pid = Engine::of_this_machine().get(&path)["State"]["Pid"].as_u64().unwrap_or_default();
        assert_ne!(pid, 0, "the registry's container runs");
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}engine-"))
            .tempdir()
            .expect("a temporary folder can be created");
        let engine = Engine::at(folder.path().join("docker.sock"));
        let mut private = Self { network: format!("/proc/{pid}/ns/net"), folder, engine, daemon: None };
        private.run();
        private
    }

    /// Returns the engine.
    pub fn engine(&self) -> Engine {
        self.engine.clone()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts or restarts the daemon, and waits until it responds.
    pub fn run(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .expect("the engine's log can be opened");
        let path = |name: &str| self.path(name).display().to_string();
        // Several engines may share the system's containerd, so each gets its own containerd namespaces.
        let space = self.folder.path().file_name().expect("it has a name").to_string_lossy().into_owned();
        // The dockerd of the engine under test, if that is not the machine's.
        let program = std::env::var("EVENKEEL_TEST_DOCKERD").unwrap_or_else(|_| "dockerd".to_owned());
        // The daemon receives SIGTERM when the thread of this test exits, even after a panic.
        let mut command = as_root("nsenter");
        command
            .arg(format!("--net={}", self.network))
            .args(["setpriv", "--pdeathsig", "TERM"])
            .args(program.split_whitespace())
            .args([
                "--bridge=none",
                "--iptables=false",
                "--ip-forward=false",
                "--ip-masq=false",
                "--shutdown-timeout=3",
            ])
            .args(["--containerd-namespace", &space, "--containerd-plugins-namespace", &format!("{space}-p")])
            .args(["--data-root", &path("data"), "--exec-root", &path("exec")])
            .args(["--pidfile", &path("docker.pid"), "--host", &format!("unix://{}", path("docker.sock"))])
            // Whoever runs the tests may not be in the group of the machine's engine.
            .args(["--group", &rustix::process::getegid().as_raw().to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file handle can be copied"))
            .stderr(log);
        self.daemon = Some(command.spawn().expect("dockerd can be started (run dist/scripts/bring-up.sh)"));
        let engine = self.engine();
        let log = self.path("log");
        wait_for("the private engine to respond", || {
            engine.try_get("/_ping").map(|_| ()).map_err(|error| format!("{error}\n{}", tail_of(&log)))
        });
    }

    /// Suspends the daemon: its socket still accepts connections but never responds.
    #[track_caller]
    pub fn hang(&self) {
        assert!(self.signal("STOP"), "SIGSTOP could not be sent to the engine");
    }

    /// Resumes a suspended daemon.
    #[track_caller]
    pub fn resume(&self) {
        assert!(self.signal("CONT"), "SIGCONT could not be sent to the engine");
    }

    fn signal(&self, signal: &str) -> bool {
        let pid = std::fs::read_to_string(self.path("docker.pid")).unwrap_or_default();
        let mut command = as_root("kill");
        command.args([&format!("-{signal}"), pid.trim()]);
        // `sudo` suspends itself with the program that it runs.
        if let Some(sudo) = self.daemon.as_ref().filter(|_| signal == "CONT") {
            command.arg(sudo.id().to_string());
        }
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// Stops the daemon with a signal (`TERM` or `KILL`), and waits until it has exited.
    pub fn end(&mut self, signal: &str) {
        if self.daemon.is_none() {
            return;
        }
        self.signal(signal);
        // A suspended daemon does not handle other signals.
        self.signal("CONT");
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.wait();
        }
        if signal == "KILL" {
            // Also kill its containerd and remove its PID file, because the next daemon would wait for that process.
            let pidfile = self.path("exec/containerd/containerd.pid");
            let pid = std::fs::read_to_string(&pidfile).unwrap_or_default();
            let _ = as_root("kill").args(["-KILL", pid.trim()]).stderr(Stdio::null()).status();
            let _ = as_root("rm").arg("-f").args([pidfile, self.path("docker.pid")]).status();
        }
        let socket = self.path("docker.sock");
        if std::fs::symlink_metadata(&socket).is_ok_and(|meta| meta.file_type().is_socket()) {
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl Drop for PrivateEngine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- private engine\n{}", tail_of(&self.path("log")));
        }
        if self.daemon.is_some() {
            // A suspended daemon would not respond.
            self.signal("CONT");
            let engine = self.engine();
            let ids = engine.cli(&["ps", "-aq"]).output().map(|out| out.stdout).unwrap_or_default();
            let ids = String::from_utf8_lossy(&ids).into_owned();
            if !ids.trim().is_empty() {
                let _ = engine.cli(&["rm", "-fv"]).args(ids.split_whitespace()).output();
            }
            self.end("TERM");
        }
        let script = r#"
            for cmdline in /proc/[0-9]*/cmdline; do
                if tr '\0' ' ' <"$cmdline" 2>/dev/null | grep -q "containerd-shim.*$0"; then
                    shim="${cmdline%/cmdline}"
                    kill -KILL $(cat "$shim"/task/*/children) "${shim#/proc/}"
                fi
            done
            while read -r _ mount _; do
                case "$mount" in "$0"/*) umount -l "$mount" ;; esac
            done </proc/mounts
            rm -rf -- "$0/data" "$0/exec"
        "#;
        // Clean up after a killed daemon: containers with their shims, and mounts. All of them belong to root.
        let mut command = as_root("sh");
        let _ = command.args(["-c", script]).arg(self.folder.path()).stderr(Stdio::null()).status();
    }
}

/// Returns a command that runs as root on the machine of the engine under test, where the process IDs that the engine
/// reports are valid. If that is another machine, `$EVENKEEL_TEST_ENTER` is the command that enters it.
pub fn on_engine_host(program: &str) -> Command {
    let enter = std::env::var("EVENKEEL_TEST_ENTER").unwrap_or_default();
    let mut words = enter.split_whitespace();
    match words.next() {
        None => as_root(program),
        Some(first) => {
            let mut command = as_root(first);
            command.args(words).arg(program);
            command
        }
    }
}

/// Returns a command that runs as root.
pub(crate) fn as_root(program: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        Command::new(program)
    } else {
        let mut command = Command::new("sudo");
        command.args(["-n", program]);
        command
    }
}

fn tail_of(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
