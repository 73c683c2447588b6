//! Images with a known behaviour, assembled byte by byte: one layer with a static busybox, and a configuration.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::LABEL;

/// The kinds of manifest that a tag can refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Docker manifest, version 2 schema 2.
    Docker,
    /// OCI manifest.
    Oci,
    /// OCI index with one OCI manifest.
    OciIndex,
    /// OCI index with one OCI manifest, for an architecture other than this machine's.
    ForeignIndex,
    /// OCI index with an OCI manifest for this machine and one for [`OTHER_ARCHITECTURE`].
    TwoPlatforms,
    /// OCI index with one OCI manifest and its attestations, as `docker buildx build --push` creates it.
    AttestedIndex,
    /// Docker manifest list with one Docker manifest.
    DockerList,
}

/// A health check.
#[derive(Debug, Clone)]
pub struct Health {
    /// Shell command.
    pub command: String,
    /// Period after the start in which failures do not count.
    pub start_period: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Time limit of a probe.
    pub timeout: Duration,
    /// Consecutive failures after which the container is unhealthy.
    pub retries: u32,
}

impl Health {
    /// A health check with a probe every second. The time limit is far above the duration of a probe: on a busy machine the
    /// engine needs seconds to start a process in a container, and a probe that times out counts as failed. The limit is
    /// not higher because the length of probation includes it.
    pub fn every_second(command: &str, retries: u32) -> Self {
        Self {
            command: command.to_owned(),
            start_period: Duration::ZERO,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(10),
            retries,
        }
    }
}

/// An image, described by the behaviour of its containers.
#[derive(Debug, Clone)]
pub struct Image {
    /// Distinguishes images; containers carry it as label `evenkeel.version`.
    pub version: String,
    /// Command of the container.
    pub command: Vec<String>,
    /// Health check, if any.
    pub health: Option<Health>,
    /// When it was built, RFC 3339.
    pub created: &'static str,
    /// Path that it declares as a volume, if any.
    pub volume: Option<&'static str>,
}

/// When images are built unless they say otherwise.
const CREATED: &str = "2026-01-01T00:00:00Z";

/// Runs until SIGTERM or SIGINT, then exits immediately.
const SERVE: &str = "trap 'exit 0' TERM INT; sleep 86400 & wait";

impl Image {
    fn shell(version: &str, script: &str) -> Self {
        Self {
            version: version.to_owned(),
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            health: None,
            created: CREATED,
            volume: None,
        }
    }

    /// Sets when it was built, RFC 3339.
    #[must_use]
    pub fn created_at(mut self, time: &'static str) -> Self {
        self.created = time;
        self
    }

    /// Declares a volume.
    #[must_use]
    pub fn with_volume(mut self, path: &'static str) -> Self {
        self.volume = Some(path);
        self
    }

    /// Adds a health check.
    #[must_use]
    pub fn with_health(mut self, health: Health) -> Self {
        self.health = Some(health);
        self
    }

    /// Runs, without a health check, so that it passes probation by the grace period alone. For all tests that do not
    /// depend on health: on a small machine the probes of many containers cause most of the load.
    pub fn good(version: &str) -> Self {
        Self::shell(version, SERVE)
    }

    /// Runs, and is healthy after its first probe.
    pub fn healthy(version: &str) -> Self {
        Self::good(version).with_health(Health::every_second("true", 3))
    }

    /// Runs, with a health check that always fails with a message.
    pub fn unhealthy(version: &str) -> Self {
        let check = Health::every_second("echo the database is not there; false", 2);
        Self::good(version).with_health(check)
    }

    /// Answers on port 8080 from `after` seconds after its start on: 200 for `/`, 404 for everything else.
    pub fn answers(version: &str, after: u32) -> Self {
        let serve = "mkdir -p /tmp/www; echo fine > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www";
        Self::shell(version, &format!("trap 'exit 0' TERM INT; sleep {after} & wait $!; {serve}"))
    }

    /// Logs an error and exits with 7, `after` seconds after its start. The probation under test must be much longer, because
    /// on a busy machine the container takes longer, too.
    pub fn exits(version: &str, after: u32) -> Self {
        Self::shell(version, &format!("sleep {after}; echo cannot open the ledger >&2; exit 7"))
    }

    /// Runs until it is told to fail ([`crate::Project::fail`]), then logs an error and exits with 7.
    pub fn fails_on_command(version: &str) -> Self {
        let fail = "trap 'echo cannot open the ledger >&2; exit 7' USR1";
        Self::shell(version, &format!("{fail}; {SERVE}"))
    }

    /// Reports whether its containers fail on command.
    pub fn waits_for_command(&self) -> bool {
        self.command.iter().any(|word| word.contains("USR1"))
    }

    /// Is healthy, then unhealthy, then permanently healthy.
    pub fn flapping(version: &str) -> Self {
        Self::turning(version, "[ $n -le 4 ] || [ $n -gt 12 ]")
    }

    /// Is healthy at first, then permanently unhealthy.
    pub fn turning_unhealthy(version: &str) -> Self {
        Self::turning(version, "[ $n -le 4 ]")
    }

    /// Is healthy at first after each start, then unhealthy.
    pub fn relapsing(version: &str) -> Self {
        let health = Self::turning(version, "[ $n -le 4 ]").health;
        Self { health, ..Self::shell(version, &format!("echo 0 >/tmp/n; {SERVE}")) }
    }

    /// Is healthy while `condition` holds for the number `$n` of the probe. Probation includes the time limit of a probe, so
    /// with this long limit the health changes during probation on any machine, and no probe fails by a timeout.
    fn turning(version: &str, condition: &str) -> Self {
        let probe = format!("n=$(($(cat /tmp/n 2>/dev/null || echo 0) + 1)); echo $n >/tmp/n; {condition}");
        let check = Health { timeout: Duration::from_mins(1), ..Health::every_second(&probe, 1) };
        Self::good(version).with_health(check)
    }

    /// Allocates memory without limit.
    pub fn exhausts_memory(version: &str) -> Self {
        // After a delay, so that it is killed during probation and not while compose still starts it.
        Self::shell(version, "sleep 1; exec tail /dev/zero")
    }

    /// Becomes healthy only after `ready` seconds, with this start period in its health check.
    pub fn slow_starter(version: &str, ready: u32, start_period: Duration) -> Self {
        let script = format!("trap 'exit 0' TERM; (sleep {ready}; touch /tmp/ready) & sleep 86400 & wait $!");
        let health = Health { start_period, ..Health::every_second("test -f /tmp/ready", 2) };
        Self::shell(version, &script).with_health(health)
    }

    /// Can't be started: its program does not exist.
    pub fn bad_entrypoint(version: &str) -> Self {
        Self { command: vec!["/no/such/program".to_owned()], ..Self::good(version) }
    }

    /// Has no command, so that no engine can create a container from it.
    pub fn without_command(version: &str) -> Self {
        Self { command: Vec::new(), ..Self::good(version) }
    }

    /// Is healthy, and ignores SIGTERM.
    pub fn ignores_term(version: &str) -> Self {
        Self::shell(version, "trap '' TERM; while :; do sleep 1; done")
            .with_health(Health::every_second("true", 3))
    }

    /// Returns the image's configuration. `owner` makes its digest differ from those of all other tests.
    pub(crate) fn config(&self, owner: &str) -> Vec<u8> {
        self.config_for(architecture(), owner)
    }

    /// Like [`Self::config`], for this architecture.
    pub(crate) fn config_for(&self, architecture: &str, owner: &str) -> Vec<u8> {
        let mut config = json!({
            "Cmd": self.command,
            "Env": ["PATH=/bin"],
            "Labels": {
                LABEL: owner,
                "evenkeel.version": self.version,
                "org.opencontainers.image.version": self.version,
            },
        });
        if let Some(path) = self.volume {
            config["Volumes"] = json!({ path: {} });
        }
        if let Some(health) = &self.health {
            config["Healthcheck"] = json!({
                "Test": ["CMD-SHELL", health.command],
                "Interval": nanos(health.interval),
                "Timeout": nanos(health.timeout),
                "StartPeriod": nanos(health.start_period),
                "Retries": health.retries,
            });
        }
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": [digest(layer())] },
            "history": [{ "created": "2026-01-01T00:00:00Z", "created_by": "contract-tests" }],
            "created": self.created,
        });
        to_bytes(&config)
    }

    /// Returns the changes for `docker import` that create the same image from [`layer`].
    pub(crate) fn import_changes(&self, owner: &str) -> Vec<String> {
        let mut changes = vec![
            format!("CMD {}", json!(self.command)),
            "ENV PATH=/bin".to_owned(),
            format!("LABEL {LABEL}={owner} evenkeel.version={}", self.version),
        ];
        if let Some(health) = &self.health {
            // In a Dockerfile instruction a start period of zero is an error, not "none".
            let start_period = match health.start_period.as_secs() {
                0 => String::new(),
                seconds => format!("--start-period={seconds}s "),
            };
            changes.push(format!(
                "HEALTHCHECK {start_period}--interval={}s --timeout={}s --retries={} CMD {}",
                health.interval.as_secs(),
                health.timeout.as_secs(),
                health.retries,
                health.command
            ));
        }
        changes
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("test durations are short")
}

pub(crate) fn to_bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a JSON value can always be written")
}

/// Returns the digest of `bytes` as `sha256:<hex>`.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// An architecture that no test machine has. The images for it run here nevertheless, because only their metadata differs.
pub const OTHER_ARCHITECTURE: &str = "386";

/// Returns this machine's architecture as manifests name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the single layer of all images, an uncompressed tar.
pub(crate) fn layer() -> &'static [u8] {
    static LAYER: OnceLock<Vec<u8>> = OnceLock::new();
    LAYER.get_or_init(|| {
        let busybox = std::fs::read(busybox()).expect("busybox can be read");
        let mut tar = Vec::new();
        entry(&mut tar, "bin/", b'5', 0o755, "", &[]);
        entry(&mut tar, "tmp/", b'5', 0o1777, "", &[]);
        entry(&mut tar, "bin/busybox", b'0', 0o755, "", &busybox);
        for applet in ["sh", "sleep", "true", "false", "test", "touch", "tail", "cat", "echo"] {
            entry(&mut tar, &format!("bin/{applet}"), b'2', 0o777, "busybox", &[]);
        }
        tar.resize(tar.len() + 1024, 0);
        tar
    })
}

fn busybox() -> PathBuf {
    ["/bin/busybox", "/usr/bin/busybox"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.is_file())
        .expect("the images of these tests need a static busybox: run dist/scripts/bring-up.sh")
}

/// Appends one ustar entry.
fn entry(tar: &mut Vec<u8>, name: &str, kind: u8, mode: u32, link: &str, content: &[u8]) {
    let mut header = [0_u8; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", content.len()));
    put(136, "00000000000");
    put(148, "        ");
    put(157, link);
    put(257, "ustar");
    put(263, "00");
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    tar.extend_from_slice(&header);
    tar.extend_from_slice(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
}
