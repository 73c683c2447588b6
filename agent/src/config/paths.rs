//! Rules of the paths that the agent writes to, and warnings if others can write there.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Findings, KeyPath, quote};
use evenkeel_common::hanging::{UNRESPONSIVE, hangs};
use evenkeel_common::permissions::weaknesses;

use super::file::{AuditFile, StateFile};

const DEFAULT_STATE_PATH: &str = "/var/lib/evenkeel";

/// Reports whether the agent runs in a container: then a path that it does not see may exist on the machine. The file system of a
/// machine may have been made from an image, with the marks of a container, but no engine mounts anything there.
pub(crate) fn in_container() -> bool {
    let has_mark = ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists());
    has_mark && is_mounted_by_engine(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// Reports whether something is mounted from the folder of a container (`…/containers/ID/hostname`,
/// `…/overlay-containers/ID/userdata/hosts`), according to `/proc/self/mountinfo`.
fn is_mounted_by_engine(mounts: &str) -> bool {
    mounts.lines().filter_map(|line| line.split(' ').nth(3)).any(|root| root.contains("containers/"))
}

/// Reports whether nobody gave this variable to the agent: the engine has set it in the agent's container, where it says something
/// else than on the machine.
pub(crate) fn is_set_by_engine(name: &str, value: &OsStr) -> bool {
    is_of_container(name, value.as_encoded_bytes(), || rustix::system::uname().nodename().to_bytes().to_vec())
        && in_container()
}

/// Reports whether an engine sets this variable by itself in a container with this host name. By default that is the short ID of
/// the container. Any other `HOSTNAME` is what a person has chosen (`hostname`), or the name of the machine (`network_mode: host`).
fn is_of_container(name: &str, value: &[u8], host_name: impl Fn() -> Vec<u8>) -> bool {
    let is_id = || value.len() == 12 && value.iter().all(u8::is_ascii_hexdigit);
    match name {
        "HOSTNAME" => is_id() && value == host_name(),
        "container" => true,
        _ => false,
    }
}

/// `audit.path`: absolute, or empty.
pub(super) fn audit_path(file: &AuditFile, findings: &mut Findings) -> Option<PathBuf> {
    let at = KeyPath::of("audit.path");
    let path = absolute(&at, &file.path, "empty for no audit file", "there is no audit file", findings)?;
    if hangs(&path) {
        let what = format!("{} {UNRESPONSIVE}; entries are written to it once it does", quote(&file.path));
        findings.warn(&at, what);
        return Some(path);
    }
    if path.is_dir() {
        let what = format!(
            "{} is a folder; allowed: the absolute path of a file (there is no audit file)",
            quote(&file.path)
        );
        findings.warn(&at, what);
        return None;
    }
    if path.is_symlink() {
        findings.warn(
            &at,
            format!(
                "{} is a symbolic link and is not written to; use the path of the file that it points to",
                quote(&file.path)
            ),
        );
    }
    warn_of_weaknesses(&at, &path, "whoever can change it can forge or remove entries", findings);
    Some(path)
}

/// `state.path`: absolute; if empty, the first path in systemd's `$STATE_DIRECTORY`, else the default.
pub(super) fn state_path(file: &StateFile, env: Env<'_>, findings: &mut Findings) -> PathBuf {
    let at = KeyPath::of("state.path");
    let path = absolute(&at, &file.path, "empty for the default", "the default is used", findings);
    let path = path.unwrap_or_else(|| default_state_path(env));
    warn_of_weaknesses(
        &at,
        &path,
        "whoever can change it controls the agent's record of its deployments",
        findings,
    );
    path
}

/// The first path in systemd's `$STATE_DIRECTORY`, else the default.
pub(super) fn default_state_path(env: Env<'_>) -> PathBuf {
    let given = env("STATE_DIRECTORY").unwrap_or_default();
    let first = Path::new(given.split(':').next().unwrap_or_default());
    if first.is_absolute() { first.to_owned() } else { PathBuf::from(DEFAULT_STATE_PATH) }
}

/// Warns if others than root can change the configuration file itself.
pub(super) fn check_file(path: &Path, findings: &mut Findings) {
    if let Ok(path) = std::path::absolute(path) {
        let consequence = "whoever can change it controls this machine";
        warn_of_weaknesses(&KeyPath::root(), &path, consequence, findings);
    }
}

fn warn_of_weaknesses(at: &KeyPath, path: &Path, consequence: &str, findings: &mut Findings) {
    for weakness in weaknesses(path) {
        findings.warn(at, format!("{weakness}; {consequence}"));
    }
}

/// Returns the path if it is absolute and usable; otherwise warns, unless it is empty.
fn absolute(
    at: &KeyPath,
    text: &str,
    or: &str,
    consequence: &str,
    findings: &mut Findings,
) -> Option<PathBuf> {
    if text.is_empty() {
        return None;
    }
    if !text.starts_with('/') || text.contains('\0') {
        findings.warn(at, format!("{}; allowed: an absolute path, or {or} ({consequence})", quote(text)));
        return None;
    }
    Some(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use evenkeel_common::config::Configuration as _;
    use serde_json::json;

    use super::super::testing::{good, parse};
    use super::{is_mounted_by_engine, is_of_container};
    use crate::config::Config;

    #[test]
    fn a_container_is_known_by_what_its_engine_mounts() {
        let mount =
            |root: &str, at: &str| format!("812 790 8:1 {root} {at} rw,relatime - ext4 /dev/sda1 rw\n");
        let machine = [mount("/", "/"), mount("/srv/data", "/mnt")].concat();
        assert!(!is_mounted_by_engine(&machine));
        for root in [
            "/var/lib/docker/containers/abc/hostname",
            "/containers/storage/overlay-containers/abc/userdata/hosts",
        ] {
            assert!(is_mounted_by_engine(&(machine.clone() + &mount(root, "/etc/hosts"))), "{root}");
        }
    }

    #[test]
    fn the_id_of_a_container_as_its_host_name_was_given_by_nobody_and_another_one_was() {
        let id = "3f2a91c0b7de";
        let is_of_container = |name: &str, value: &str, host_name: &str| {
            is_of_container(name, value.as_bytes(), || host_name.as_bytes().to_vec())
        };
        assert!(is_of_container("HOSTNAME", id, id) && is_of_container("container", "podman", id));
        assert!(!is_of_container("HOSTNAME", "prod-1", id) && !is_of_container("HOST", id, id));
        for name in ["prod-1", "web-server-1"] {
            assert!(!is_of_container("HOSTNAME", name, name), "of the machine, or chosen: {name}");
        }
    }

    #[test]
    fn paths_that_the_agent_writes_to_are_absolute() {
        let config = good(&json!({"audit": {"path": "/var/log/a.jsonl"}, "state": {"path": "/srv/s"}}));
        assert_eq!(config.audit_path.as_deref(), Some(Path::new("/var/log/a.jsonl")));
        assert_eq!(config.state_path, Path::new("/srv/s"));
        assert_eq!(
            good(&json!({"audit": {"path": "a"}})).warnings,
            [
                "audit.path: \"a\"; allowed: an absolute path, or empty for no audit file (there is no audit file)"
            ]
        );
        assert_eq!(
            good(&json!({"audit": {"path": "/tmp"}})).warnings,
            [
                "audit.path: \"/tmp\" is a folder; allowed: the absolute path of a file (there is no audit file)"
            ]
        );
        assert_eq!(
            good(&json!({"state": {"path": "./s"}})).warnings,
            [
                "state.path: \"./s\"; allowed: an absolute path, or empty for the default (the default is used)"
            ]
        );
    }

    #[test]
    fn others_with_write_access_to_state_audit_or_configuration_cause_a_warning() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::write(open.join("c.json"), "").unwrap();
        std::fs::set_permissions(open.join("c.json"), std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        let weak = format!("the folder {open:?} is world-writable (mode 0777)");
        let tree = json!({"audit": {"path": open.join("a.jsonl")}, "state": {"path": open.join("s")}});
        assert_eq!(
            good(&tree).warnings,
            [
                format!("audit.path: {weak}; whoever can change it can forge or remove entries"),
                format!(
                    "state.path: {weak}; whoever can change it controls the agent's record of its deployments"
                ),
            ]
        );
        let config = Config::parse("{}", &open.join("c.json"), &|_| None).unwrap();
        assert_eq!(config.warnings, [format!("{weak}; whoever can change it controls this machine")]);
        let link = folder.path().join("link.jsonl");
        symlink(folder.path().join("real.jsonl"), &link).unwrap();
        assert_eq!(
            good(&json!({"audit": {"path": link}})).warnings,
            [format!(
                "audit.path: {link:?} is a symbolic link and is not written to; use the path of the file that it points to"
            )]
        );
    }

    #[test]
    fn the_state_folder_is_the_first_one_from_the_service_manager() {
        for (given, expected) in [
            ("/run/a:/run/b", "/run/a"),
            ("/run/a", "/run/a"),
            ("", "/var/lib/evenkeel"),
            ("relative", "/var/lib/evenkeel"),
        ] {
            let env = |name: &str| (name == "STATE_DIRECTORY").then(|| given.to_owned());
            assert_eq!(parse(&json!({}), &env).unwrap().state_path, Path::new(expected));
            assert_eq!(
                parse(&json!({"state": {"path": "/srv/s"}}), &env).unwrap().state_path,
                Path::new("/srv/s")
            );
        }
    }
}
