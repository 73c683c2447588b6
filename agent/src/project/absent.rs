//! Folders that running containers have mounted and that are not there any more, as when a disk was unmounted or a server is away. A
//! new container would have an empty folder, which the engine makes or the mount point is, or could not be started.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use serde_json::Value;
use tokio::time::timeout;

use crate::model::Running;
use crate::model::container::is_full_id;
use crate::model::mount_table::{self, Found, Mount, Tables};

/// How long the look may take: a file system whose server is away may never answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Errors of a file system that is mounted and does not work any more.
const DEAD: [Errno; 4] = [Errno::NOTCONN, Errno::STALE, Errno::NODEV, Errno::IO];

/// A folder that a running container has mounted.
struct Bound {
    compose_service: String,
    /// ID of the container.
    id: String,
    /// Its main process.
    process: u64,
    /// Path on the machine.
    source: PathBuf,
    /// Path in the container.
    destination: PathBuf,
}

/// Returns these folders of the running containers of these compose services, each with its compose service. Where it is not
/// certain, for example because the engine is on another machine or the agent in a container, a folder is not among them.
pub(super) async fn absent(running: &Running, services: &[String]) -> Vec<(String, String)> {
    let of_service = |service: &String| {
        running.of_service(service).flat_map(|one| bound(service, one)).collect::<Vec<Bound>>()
    };
    let all: Vec<Bound> = services.iter().flat_map(of_service).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let look = tokio::task::spawn_blocking(move || look(Path::new("/proc"), &all));
    timeout(LIMIT, look).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// Returns what an inspected container has mounted of the machine, if it runs.
fn bound(compose_service: &str, container: &Value) -> Vec<Bound> {
    let text = |pointer: &str| container.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let process = container.pointer("/State/Pid").and_then(Value::as_u64).filter(|process| *process > 0);
    let is_running = matches!(text("/State/Status"), "running" | "paused");
    let (Some(process), true, id) = (process, is_running, text("/Id")) else { return Vec::new() };
    if !is_full_id(id) {
        return Vec::new();
    }
    let one = |mount: &Value| {
        let text = |key: &str| mount.get(key).and_then(Value::as_str);
        (text("Type") == Some("bind")).then_some(())?;
        Some(Bound {
            compose_service: compose_service.to_owned(),
            id: id.to_owned(),
            process,
            source: text("Source")?.into(),
            destination: text("Destination")?.into(),
        })
    };
    let mounts = container.get("Mounts").and_then(Value::as_array);
    mounts.into_iter().flatten().filter_map(one).collect()
}

fn look(proc: &Path, all: &[Bound]) -> Vec<(String, String)> {
    let (own, machine) = (mounts(&proc.join("self")), mounts(&proc.join("1")));
    let lost = all.iter().filter(|one| is_lost(proc, &own, &machine, one));
    let lost = lost.map(|one| (one.compose_service.clone(), one.source.display().to_string()));
    // Several containers of a compose service have the same.
    lost.collect::<BTreeSet<_>>().into_iter().collect()
}

fn mounts(process: &Path) -> Vec<Mount> {
    mount_table::read(&fs::read_to_string(process.join("mountinfo")).unwrap_or_default())
}

fn is_lost(proc: &Path, own: &[Mount], machine: &[Mount], one: &Bound) -> bool {
    let found = match fs::metadata(&one.source) {
        Ok(seen) if seen.is_dir() => Found::Folder,
        Err(error) if DEAD.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) => {
            Found::Dead
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Found::Nothing,
        _ => return false,
    };
    // An engine on another machine, or in a container, numbers its processes otherwise.
    let process = proc.join(one.process.to_string());
    let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    let Some(source) = real(&one.source).filter(|_| groups.contains(&one.id)) else { return false };
    let tables = Tables { own, machine, container: &mounts(&process) };
    // It is read last, which may start a disk that sleeps.
    tables.is_lost(&source, &one.destination, found) && (found != Found::Folder || is_empty(&source))
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut inside| inside.next().is_none())
}

/// Resolves the links of a path whose end may be missing; `None` if one leads nowhere.
fn real(path: &Path) -> Option<PathBuf> {
    for known in path.ancestors() {
        if let Ok(real) = known.canonicalize() {
            return Some(real.join(path.strip_prefix(known).ok()?));
        }
        if known.is_symlink() {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_folder_that_a_running_container_has_and_the_machine_has_lost_is_absent() {
        let dir = tempfile::tempdir().expect("a folder can be made");
        let path = |name: &str| dir.path().join(name);
        let id = "a".repeat(64);
        let root = "1 0 8:1 / / rw - ext4 x rw\n";
        let container = format!("{root}2 1 8:17 / /data rw - ext4 y rw\n");
        let group = format!("0::/system.slice/docker-{id}.scope\n");
        for (process, file, text) in [
            ("self", "mountinfo", root),
            ("1", "mountinfo", root),
            ("7", "mountinfo", container.as_str()),
            ("7", "cgroup", group.as_str()),
            ("8", "mountinfo", container.as_str()),
            ("8", "cgroup", "0::/system.slice/cron.service\n"),
        ] {
            fs::create_dir_all(path(process)).expect("the folder can be made");
            fs::write(path(process).join(file), text).expect("the file can be written");
        }
        std::os::unix::fs::symlink(path("nowhere"), path("link")).expect("a link can be made");
        fs::create_dir_all(path("empty")).expect("the folder can be made");
        for (what, process, status, kind, source, expected) in [
            ("its disk is not mounted", 7, "running", "bind", "gone", true),
            ("it is paused", 7, "paused", "bind", "gone", true),
            ("only its mount point is left", 7, "running", "bind", "empty", true),
            ("it is there", 7, "running", "bind", "7", false),
            ("it does not run", 7, "exited", "bind", "gone", false),
            ("it is a volume", 7, "running", "volume", "gone", false),
            ("the process is another one", 8, "running", "bind", "gone", false),
            ("the process is not seen", 9, "running", "bind", "gone", false),
            ("a link leads nowhere", 7, "running", "bind", "link/gone", false),
        ] {
            let container = json!({
                "Id": id,
                "State": { "Status": status, "Pid": process },
                "Mounts": [{ "Type": kind, "Source": path(source), "Destination": "/data" }],
            });
            let found = look(dir.path(), &bound("db", &container));
            let lost = ("db".to_owned(), path(source).display().to_string());
            let expected = if expected { vec![lost] } else { Vec::new() };
            assert_eq!(found, expected, "{what}");
        }
    }
}
