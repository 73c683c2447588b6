//! Isolated resources of one test in a real container engine: unique names, and images built from busybox. All are removed
//! at the end, even after a failure.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use bollard::auth::DockerCredentials;
use evenkeel_agent::adapters::docker::{DockerEngine, Endpoint, HostEnvironment, PullCredentials};
use evenkeel_agent::config::Runtime;
use evenkeel_agent::model::image::Repository;
use evenkeel_agent::ports::Engine as _;
use evenkeel_common::testing::{unused_port, wait_for_async};
use tempfile::TempDir;

/// Pulls without credentials.
pub(crate) struct AnonymousPulls;

#[async_trait]
impl PullCredentials for AnonymousPulls {
    async fn login(&self, _: &Repository) -> Result<Option<DockerCredentials>, String> {
        Ok(None)
    }
}

/// The resources of one test in the engine.
pub(crate) struct Stage {
    /// Part of the names of everything that the test creates.
    pub(crate) id: String,
    /// The engine under test.
    pub(crate) engine: DockerEngine,
    /// The engine's endpoint.
    pub(crate) endpoint: Endpoint,
    /// Files of the test.
    pub(crate) folder: TempDir,
}

impl Stage {
    /// Connects, or panics with instructions.
    pub(crate) async fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let variable = |name: &str| std::env::var(name).ok();
        let world = HostEnvironment { variable: &variable, root: Path::new("/") };
        let endpoint = Endpoint::resolve(Runtime::Docker, &world).unwrap();
        let engine = DockerEngine::new(endpoint.clone(), Arc::new(AnonymousPulls));
        if let Err(error) = engine.ping().await {
            panic!(
                "these tests need a container engine ({error}): install docker.io and start dockerd, \
                 or set DOCKER_HOST"
            );
        }
        let id = format!("ektest{}n{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self { id, engine, endpoint, folder: tempfile::tempdir().unwrap() }
    }

    /// Runs the engine's command line.
    pub(crate) fn docker<const N: usize>(&self, arguments: [&str; N]) -> String {
        let done = self.try_docker(&arguments);
        done.unwrap_or_else(|error| panic!("docker {arguments:?}: {error}"))
    }

    fn try_docker(&self, arguments: &[&str]) -> Result<String, String> {
        let done = Command::new("docker")
            .env("DOCKER_HOST", self.endpoint.to_string())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("docker can't be run, install docker-cli: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
    }

    /// Runs a container in the background and returns its ID.
    pub(crate) fn run(&self, name: &str, flags: &[&str], image: &str, command: &[&str]) -> String {
        let label = format!("{}=1", self.id);
        let mut all = vec!["run", "-d", "--network", "none", "--name", name, "--label", &label];
        all.extend(flags);
        all.push(image);
        all.extend(command);
        self.try_docker(&all).unwrap_or_else(|error| panic!("docker run {name}: {error}"))
    }

    /// Creates an image with busybox and returns its ID. A different `content` gives a different image; `changes` are
    /// Dockerfile lines.
    pub(crate) fn image(&self, reference: &str, content: &str, changes: &[&str]) -> String {
        let root = self.folder.path().join(format!("root-{content}"));
        fs::create_dir_all(root.join("bin")).unwrap();
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].iter().find(|path| Path::new(path).exists());
        let busybox = busybox.expect("these tests need busybox: install busybox-static");
        fs::copy(busybox, root.join("bin/busybox")).unwrap();
        for name in ["sh", "sleep", "true", "echo", "printf", "cat", "kill", "head", "tr"] {
            let link = root.join("bin").join(name);
            if !link.exists() {
                std::os::unix::fs::symlink("busybox", link).unwrap();
            }
        }
        fs::write(root.join("content"), format!("{content} of {}", self.id)).unwrap();
        let tar = Command::new("tar").arg("-C").arg(&root).args(["-c", "."]).output().unwrap();
        let label = format!("LABEL {}=1", self.id);
        let mut import = Command::new("docker");
        import.env("DOCKER_HOST", self.endpoint.to_string()).arg("import");
        for change in [label.as_str(), r#"CMD ["sleep", "1000"]"#].iter().chain(changes) {
            import.args(["--change", change]);
        }
        let mut child = import
            .args(["-", reference])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("docker runs");
        child.stdin.take().unwrap().write_all(&tar.stdout).unwrap();
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "docker import failed");
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    /// Writes a file into the test's folder.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let mut left = String::new();
        let lines = |text: Result<String, String>| text.unwrap_or_default().replace('\n', " ");
        for filter in [
            format!("label={}", self.id),
            format!("label=com.docker.compose.project={}", self.id),
            format!("label=evenkeel.hold={}", self.id),
        ] {
            let _ = write!(left, " {}", lines(self.try_docker(&["ps", "-aq", "--filter", &filter])));
        }
        for container in left.split_whitespace() {
            let _ = self.try_docker(&["rm", "-fv", container]);
        }
        let filter = format!("label={}", self.id);
        let images = lines(self.try_docker(&["images", "-aq", "--filter", &filter]));
        for image in images.split_whitespace() {
            let _ = self.try_docker(&["rmi", "-f", image]);
        }
    }
}

/// A registry that is stopped at the end of the test.
pub(crate) struct Registry {
    child: Child,
    /// Host and port for references.
    pub(crate) host: String,
    _folder: TempDir,
}

impl Registry {
    /// Starts one on a free port, without any authentication.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let host = format!("127.0.0.1:{}", unused_port());
        let config = folder.path().join("config.yml");
        let storage = folder.path().join("storage");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{host}\"}}\n",
            storage.display()
        );
        fs::write(&config, text).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("these tests need docker-registry: install the package docker-registry");
        let registry = Self { child, host, _folder: folder };
        wait_for_async("the registry to listen", async || {
            TcpStream::connect(&registry.host).map(drop).map_err(|error| error.to_string())
        })
        .await;
        registry
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
