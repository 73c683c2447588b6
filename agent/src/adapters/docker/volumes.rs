//! Volumes, and the containers that mount folders.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::VolumeCreateRequest;
use bollard::query_parameters as query;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::convert;
use super::names::checked;
use super::own::Traces;
use super::{CHANGE, DockerEngine, answer};
use crate::model::output::stable;
use crate::model::snapshot::overlap;
use crate::model::{EngineError, IfFound};
use crate::ports::snapshot::{Ended, FolderId, Mounter, Volume, Volumes};

/// Label with the swarm service that a container is a task of.
const TASK_LABEL: &str = "com.docker.swarm.service.name";
/// How long it may take to look at the folders that containers mount.
const LOOK: Duration = Duration::from_secs(10);

#[async_trait]
impl Volumes for DockerEngine {
    async fn volume(&self, name: &str) -> Result<Option<Volume>, EngineError> {
        let name = checked_volume(name)?;
        let doing = format!("inspect volume {}", stable(name));
        let path = format!("/volumes/{name}");
        Ok(self.connection.get(&doing, &path, &[]).await.found()?.map(|seen| volume(&seen)))
    }

    async fn bind_volume(
        &self,
        name: &str,
        folder: &Path,
        labels: BTreeMap<String, String>,
    ) -> Result<(), EngineError> {
        let name = checked_volume(name)?;
        let doing = format!("create volume {}", stable(name));
        let options = [("type", "none"), ("o", "bind"), ("device", &folder.to_string_lossy())];
        let options: HashMap<String, String> =
            options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = VolumeCreateRequest {
            name: Some(name.to_owned()),
            driver: Some("local".to_owned()),
            driver_opts: Some(options),
            labels: Some(labels.into_iter().collect()),
            ..VolumeCreateRequest::default()
        };
        self.connection
            .call(&doing, CHANGE, |client| {
                let request = request.clone();
                async move { client.docker.create_volume(request).await.map(|_| ()) }
            })
            .await
    }

    async fn remove_volume(&self, name: &str) -> Result<(), EngineError> {
        let name = checked_volume(name)?;
        let doing = format!("remove volume {}", stable(name));
        let removed = self
            .connection
            .call(&doing, CHANGE, |client| async move {
                client.docker.remove_volume(name, None::<query::RemoveVolumeOptions>).await
            })
            .await;
        removed.found().map(drop)
    }

    async fn mounters(&self, folders: &[&Path], writable: bool) -> Result<Vec<Mounter>, EngineError> {
        // Podman rejects a filter with a state that it does not have.
        let mut listed = self.list_all().await?;
        for one in &mut listed {
            if may_write(one) && !has_mounts(one) {
                self.add_mounts(one).await?;
            }
        }
        self.users(listed, folders, writable, false).await
    }

    async fn ended(&self, folders: &[&Path]) -> Result<Vec<Ended>, EngineError> {
        let listed = self.list_all().await?;
        let mut ended = Vec::new();
        for Mounter { id, name, .. } in self.users(listed, folders, true, true).await? {
            let doing = format!("inspect container {}", stable(&name));
            let Ok(Some((seen, _))) = self.inspection(&doing, checked(&id)?).await else { continue };
            let started_at = answer::text(&seen, "/State/StartedAt").and_then(convert::moment);
            ended.extend(started_at.map(|started_at| Ended { id, name, started_at }));
        }
        Ok(ended)
    }
}

impl DockerEngine {
    /// The listed containers that mount these folders and run, or have `ended`.
    async fn users(
        &self,
        listed: Vec<Value>,
        folders: &[&Path],
        writable: bool,
        ended: bool,
    ) -> Result<Vec<Mounter>, EngineError> {
        let volumes = self.connection.get("list volumes", "/volumes", &[]).await?;
        let folders: Vec<PathBuf> = folders.iter().map(|folder| (*folder).to_owned()).collect();
        let look = move |at: &Mutex<PathBuf>| {
            let folder_at = |path: &Path| {
                path.clone_into(&mut at.lock());
                // What one that has ended mounted may be on a server that is gone, so that a look at it would hang.
                let by_path = || Folder { path: path.to_owned(), identities: Vec::new() };
                if ended { by_path() } else { Folder::at(path) }
            };
            mounters(&listed, &bound(&volumes), &folders, (writable, ended), &Traces::read(), &folder_at)
        };
        self.looks.within(LOOK, look).await
    }

    /// Adds what a container mounts to what the list says of it: podman before 4.0 leaves that out.
    async fn add_mounts(&self, listed: &mut Value) -> Result<(), EngineError> {
        let id = answer::text(listed, "/Id").unwrap_or_default().to_owned();
        let name = answer::container_name(listed).unwrap_or(&id).to_owned();
        let doing = format!("inspect container {}", stable(&name));
        let inspected = self.inspection(&doing, checked(&id)?).await?;
        let mounts = match inspected {
            Some((seen, _)) if has_mounts(&seen) => seen.get("Mounts").cloned().unwrap_or_default(),
            Some(_) => {
                let why = format!("the engine does not say what {} mounts", stable(&name));
                return Err(EngineError::Refused(why));
            }
            // It was removed in the meantime.
            None => Value::Array(Vec::new()),
        };
        if let Some(listed) = listed.as_object_mut() {
            listed.insert("Mounts".to_owned(), mounts);
        }
        Ok(())
    }
}

/// Looks at folders on a thread, one look after the other. A file system of the network whose server is gone does not answer,
/// and nothing interrupts whoever waits for it: one thread hangs there, and no more of them.
#[derive(Default)]
pub(super) struct Looks {
    turn: Arc<tokio::sync::Mutex<()>>,
    /// What is looked at now.
    at: Arc<Mutex<PathBuf>>,
}

impl Looks {
    async fn within<T: Send + 'static>(
        &self,
        limit: Duration,
        look: impl FnOnce(&Mutex<PathBuf>) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let (turn, at) = (self.turn.clone(), self.at.clone());
        let looked = timeout(limit, async move {
            let turn = turn.lock_owned().await;
            let look = move || {
                let found = look(&at);
                drop(turn);
                found
            };
            spawn_blocking(look).await
        });
        match looked.await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Err(EngineError::Refused(format!("interrupted: {error}"))),
            Err(_) => Err(EngineError::Refused(format!(
                "the folders that containers mount could not be looked at within {} s, since {} does not answer; bring \
                 its server back, or unmount it and restart the agent",
                limit.as_secs(),
                self.at.lock().display()
            ))),
        }
    }
}

/// Checks a name that becomes part of a path.
fn checked_volume(name: &str) -> Result<&str, EngineError> {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    let is_name =
        name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric()) && name.bytes().all(is_allowed);
    if is_name {
        Ok(name)
    } else {
        Err(EngineError::Refused(format!("{} is no name of a volume", stable(name))))
    }
}

fn volume(seen: &Value) -> Volume {
    Volume {
        driver: answer::text(seen, "/Driver").unwrap_or("local").to_owned(),
        options: answer::map(seen, "/Options").unwrap_or_default().into_iter().collect(),
        folder: answer::text(seen, "/Mountpoint").map(PathBuf::from).unwrap_or_default(),
    }
}

/// The listed volumes that bind a directory: the folder that the engine names as the source of a mount, and the directory.
fn bound(listed: &Value) -> Vec<(PathBuf, PathBuf)> {
    let volumes = answer::list(listed, "/Volumes").iter().map(volume);
    let bound = volumes.filter_map(|volume| {
        let (directory, is_engines) = volume.data().ok()?;
        (!is_engines && volume.folder.is_absolute()).then_some((volume.folder, directory))
    });
    bound.collect()
}

/// Reports whether a listed container may write. One that restarts again and again does so now and then, and one that is paused
/// or in a state that is not known here may go on.
fn may_write(listed: &Value) -> bool {
    let ended = ["created", "configured", "initialized", "exited", "stopped", "dead", "removing"];
    answer::text(listed, "/State").is_none_or(|state| !ended.contains(&state))
}

/// Reports whether the engine says what a container mounts, be it nothing.
fn has_mounts(seen: &Value) -> bool {
    seen.get("Mounts").is_some_and(Value::is_array)
}

/// Resolves the links of a path. What does not exist on this machine stays as it is, behind the part that does.
fn resolved(path: &Path) -> PathBuf {
    for part in path.ancestors() {
        if let Ok(found) = part.canonicalize() {
            return path.strip_prefix(part).map_or(found.clone(), |rest| found.join(rest));
        }
    }
    path.to_owned()
}

/// A folder of this machine. Bind mounts show the same one at several paths, so what it is counts as well as where it is.
struct Folder {
    /// Its links are resolved.
    path: PathBuf,
    /// The identities of the folder and of those that contain it; `None` for what does not exist on this machine.
    identities: Vec<Option<FolderId>>,
}

impl Folder {
    fn at(path: &Path) -> Self {
        let path = resolved(path);
        let identities = path.ancestors().map(identity).collect();
        Self { path, identities }
    }

    /// Reports whether one of the two contains the other, or they are the same.
    fn overlaps(&self, other: &Self) -> bool {
        overlap(&self.path, &other.path) || self.is_on_the_way_to(other) || other.is_on_the_way_to(self)
    }

    fn is_on_the_way_to(&self, other: &Self) -> bool {
        let own = self.identities.first().filter(|own| own.is_some());
        own.is_some_and(|own| other.identities.contains(own))
    }
}

fn identity(path: &Path) -> Option<FolderId> {
    let found = path.metadata().ok()?;
    Some(FolderId { device: found.dev(), inode: found.ino() })
}

/// Reports whether a listed container mounts one of these folders. The engine names the folder of a volume as the source of
/// the mount also where the volume binds a directory. `folder_at` looks at a path on the disk.
fn mounts(
    listed: &Value,
    bound: &[(PathBuf, PathBuf)],
    folders: &[Folder],
    writable: bool,
    folder_at: &dyn Fn(&Path) -> Folder,
) -> bool {
    let mounts = listed.get("Mounts").and_then(Value::as_array);
    mounts.into_iter().flatten().any(|mount| {
        let source = Path::new(answer::text(mount, "/Source").unwrap_or_default());
        let overlaps = |path: &Path| {
            let real = folder_at(path);
            folders.iter().any(|folder| folder.overlaps(&real))
        };
        let mut behind = bound
            .iter()
            .filter_map(|(volume, directory)| Some(directory.join(source.strip_prefix(volume).ok()?)));
        let is_writable = answer::flag(mount, "/RW").unwrap_or(true);
        source.is_absolute()
            && (is_writable || !writable)
            && (overlaps(source) || behind.any(|directory| overlaps(&directory)))
    })
}

/// The listed containers that mount these folders and run, or have `ended`, without that of the agent itself.
fn mounters(
    listed: &[Value],
    bound: &[(PathBuf, PathBuf)],
    folders: &[PathBuf],
    (writable, ended): (bool, bool),
    traces: &Traces,
    folder_at: &dyn Fn(&Path) -> Folder,
) -> Result<Vec<Mounter>, EngineError> {
    let folders: Vec<Folder> = folders.iter().map(|folder| folder_at(folder)).collect();
    let is_user = |one: &&Value| may_write(one) != ended && mounts(one, bound, &folders, writable, folder_at);
    let users = listed.iter().filter(is_user).collect();
    let users = traces.without_own(users, listed)?;
    let mut found: Vec<Mounter> = users.into_iter().filter_map(mounter).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Containers of the agent's own that hold images never run, so they are none.
fn mounter(listed: &Value) -> Option<Mounter> {
    let labels = answer::map(listed, "/Labels").unwrap_or_default();
    let is_of_compose = !convert::are_of_image(&labels);
    let label = |name: &str| labels.get(name).filter(|_| is_of_compose).cloned().unwrap_or_default();
    let named = answer::container_name(listed);
    let id = answer::text(listed, "/Id").filter(|_| !convert::is_anchor(named, &labels))?;
    let name = named.unwrap_or(id).to_owned();
    let depends_on = label(convert::DEPENDS_ON_LABEL);
    let services = depends_on.split(',').filter_map(|one| one.split(':').next());
    Some(Mounter {
        id: id.to_owned(),
        name,
        service: (label(convert::PROJECT_LABEL), label(convert::SERVICE_LABEL)),
        depends_on: services.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        is_paused: answer::text(listed, "/State") == Some("paused"),
        task_of: labels.get(TASK_LABEL).cloned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_is_found_by_what_it_mounts() {
        let with = |source: &str, writable: bool| json!({"Mounts": [{"Source": source, "RW": writable}]});
        let folder = [Folder::at(Path::new("/data/db"))];
        for (source, is_writable, expected) in [
            ("/data/db", true, true),
            ("/data", true, true),
            ("/data/db/sub", true, true),
            ("/data/db2", true, false),
            ("/data/db", false, false),
            ("", true, false),
        ] {
            let found = mounts(&with(source, is_writable), &[], &folder, true, &Folder::at);
            assert_eq!(found, expected, "{source}");
        }
        assert!(mounts(&with("/data/db", false), &[], &folder, false, &Folder::at));
        assert!(!mounts(&json!({"Mounts": null}), &[], &folder, false, &Folder::at));
    }

    #[test]
    fn a_container_is_found_by_the_volume_that_binds_what_it_mounts() {
        let folder = |name: &str| format!("/engine/volumes/{name}/_data");
        let volume = |name: &str, options: Value| json!({"Name": name, "Driver": "local", "Mountpoint": folder(name), "Options": options});
        let bind = |device: &str| json!({"type": "none", "o": "bind", "device": device});
        let volumes = json!({"Volumes": [
            volume("p_db", bind("/srv/db")),
            volume("other_all", bind("/srv")),
            volume("p_files", bind("/srv/files")),
            volume("p_own", Value::Null),
            volume("p_nfs", json!({"type": "nfs", "o": "addr=10.0.0.1", "device": ":/srv/db"})),
        ]});
        let bound = bound(&volumes);
        assert_eq!(bound.len(), 3, "{bound:?}");
        let db = [Folder::at(Path::new("/srv/db"))];
        for (source, expected) in [
            (folder("p_db"), true),
            (folder("p_db/sub"), false),
            (format!("{}/sub", folder("p_db")), true),
            (folder("other_all"), true),
            (format!("{}/files", folder("other_all")), false),
            (folder("p_files"), false),
            (folder("p_own"), false),
            (folder("p_nfs"), false),
        ] {
            let listed = json!({"Mounts": [{"Type": "volume", "Source": source, "RW": true}]});
            assert_eq!(mounts(&listed, &bound, &db, true, &Folder::at), expected, "{source}");
        }
        let none = json!({"Volumes": null});
        assert!(super::bound(&none).is_empty());
    }

    #[test]
    fn a_folder_is_the_same_at_every_path_that_a_bind_mount_shows_it_at() {
        let id = |inode: u64| Some(FolderId { device: 1, inode });
        let folder = |path: &str, identities: &[Option<FolderId>]| Folder {
            path: path.into(),
            identities: identities.to_vec(),
        };
        let db = folder("/srv/db", &[id(3), id(2), id(1)]);
        for (other, expected) in [
            (folder("/mnt/db", &[id(3), id(9), id(1)]), true),
            (folder("/mnt/srv", &[id(2), id(9), id(1)]), true),
            (folder("/mnt/db/sub", &[id(4), id(3), id(9), id(1)]), true),
            (folder("/mnt/other", &[id(5), id(9), id(1)]), false),
            (folder("/mnt/gone", &[None, id(9), id(1)]), false),
        ] {
            assert_eq!(db.overlaps(&other), expected, "{}", other.path.display());
            assert_eq!(other.overlaps(&db), expected, "{}", other.path.display());
        }
        let gone = folder("/srv/gone", &[None, id(2)]);
        assert!(!gone.overlaps(&folder("/mnt/gone", &[None, id(9)])), "nothing is known of either");
        let here = tempfile::tempdir().unwrap();
        let seen = Folder::at(here.path());
        assert!(seen.identities.iter().all(Option::is_some));
    }

    #[test]
    fn a_container_is_found_that_mounts_a_folder_by_another_path() {
        let place = tempfile::tempdir().unwrap();
        let (disk, link) = (place.path().join("disk"), place.path().join("srv"));
        std::fs::create_dir_all(disk.join("db")).unwrap();
        std::os::unix::fs::symlink(&disk, &link).unwrap();
        let with = |source: &Path| json!({"Mounts": [{"Source": source.to_str(), "RW": true}]});
        for (folder, source, expected) in [
            (disk.join("db"), link.join("db"), true),
            (link.join("db"), disk.join("db"), true),
            (link.join("db"), disk.clone(), true),
            (disk.clone(), link.join("db/not there"), true),
            (disk.join("db"), link.join("other"), false),
        ] {
            let found = mounts(&with(&source), &[], &[Folder::at(&folder)], true, &Folder::at);
            assert_eq!(found, expected, "{} {}", folder.display(), source.display());
        }
    }

    #[test]
    fn only_a_container_that_has_ended_or_not_begun_does_not_write() {
        for state in ["running", "restarting", "paused", "stopping", "one that is not known here"] {
            assert!(may_write(&json!({"State": state})), "{state}");
        }
        for state in ["created", "exited", "dead", "removing", "configured", "initialized", "stopped"] {
            assert!(!may_write(&json!({"State": state})), "{state}");
        }
        assert!(may_write(&json!({})));
    }

    #[test]
    fn what_is_not_said_is_not_taken_for_no_mounts() {
        assert!(has_mounts(&json!({"Mounts": []})));
        for seen in [json!({"Mounts": null}), json!({}), json!({"Mounts": {}})] {
            assert!(!has_mounts(&seen), "{seen}");
        }
    }

    #[test]
    fn a_mounter_has_its_dependencies() {
        let one = mounter(&json!({"Id": "ab", "Names": ["/p-web-1"], "Labels": {
            "com.docker.compose.project": "p", "com.docker.compose.service": "web",
            "com.docker.compose.depends_on": "db:service_healthy:false,cache:service_started:true",
        }}));
        let one = one.unwrap();
        assert_eq!(
            (one.name.as_str(), one.depends_on),
            ("p-web-1", vec!["db".to_owned(), "cache".to_owned()])
        );
    }

    #[test]
    fn a_container_whose_image_has_the_label_of_an_anchor_is_a_mounter() {
        let with =
            |name: &str| mounter(&json!({"Id": "ab", "Names": [name], "Labels": {"evenkeel.hold": "p"}}));
        assert!(with("/p-web-1").is_some() && with("/evenkeel-hold-p-aa").is_none());
    }

    #[test]
    fn a_task_of_a_swarm_is_told_from_a_container() {
        let with = |labels: Value| mounter(&json!({"Id": "ab", "Labels": labels})).unwrap().task_of;
        assert_eq!(with(json!({"com.docker.swarm.service.name": "backup"})), Some("backup".to_owned()));
        assert_eq!(with(json!({"com.docker.compose.service": "backup"})), None);
    }

    #[test]
    fn the_agent_is_no_mounter_of_the_data() {
        let id = |digit: &str| digit.repeat(64);
        let one = |digit: &str, state: &str| {
            json!({"Id": id(digit), "Names": [format!("/{digit}")], "State": state,
                "Mounts": [{"Source": "/data", "RW": true}]})
        };
        let listed = [one("a", "running"), one("b", "paused")];
        let mountinfo =
            format!("1 2 8:1 /var/lib/docker/containers/{}/hosts /etc/hosts rw - ext4 x rw", id("a"));
        let traces = Traces { mountinfo, cgroup: "0::/".into() };
        let data = [PathBuf::from("/data/db")];
        let found = mounters(&listed, &[], &data, (true, false), &traces, &Folder::at).unwrap();
        let found: Vec<(&str, bool)> = found.iter().map(|one| (one.name.as_str(), one.is_paused)).collect();
        assert_eq!(found, [("b", true)]);
        let found = mounters(&listed, &[], &data, (true, false), &Traces::default(), &Folder::at).unwrap();
        assert_eq!(found.len(), 2, "the agent runs on the machine");
    }

    #[tokio::test(start_paused = true)]
    async fn a_folder_that_does_not_answer_ends_the_look_and_is_named() {
        let looks = Looks::default();
        let (reach, mut reached) = tokio::sync::mpsc::unbounded_channel();
        let (answer, silent) = std::sync::mpsc::channel::<()>();
        let hangs = move |at: &Mutex<PathBuf>| {
            let folder_at = |path: &Path| {
                path.clone_into(&mut at.lock());
                if path == Path::new("/mnt/gone") {
                    reach.send(()).unwrap();
                    silent.recv().unwrap_err();
                }
                Folder::at(path)
            };
            let listed = [json!({"Id": "ab", "State": "running", "Mounts": [{"Source": "/mnt/gone"}]})];
            let data = [PathBuf::from("/data/db")];
            mounters(&listed, &[], &data, (true, false), &Traces::default(), &folder_at)
        };
        let later = async {
            reached.recv().await.unwrap();
            tokio::time::advance(LOOK * 2).await;
        };
        let (ended, ()) = tokio::join!(looks.within(LOOK, hangs), later);
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("within 10 s, since /mnt/gone does not answer"), "{error}");
        let (ended, ()) = tokio::join!(looks.within(LOOK, |_| Ok(())), tokio::time::advance(LOOK * 2));
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("/mnt/gone"), "no second thread waits for it: {error}");
        // The thread hangs as long as the file system does, or the process runs.
        assert!(error.ends_with("bring its server back, or unmount it and restart the agent"), "{error}");
        drop(answer);
        assert_eq!(looks.within(LOOK, |_| Ok(7)).await.unwrap(), 7, "it answers again");
    }

    #[test]
    fn a_name_that_is_part_of_a_path_is_checked() {
        assert!(checked_volume("web_db-1.x").is_ok());
        for name in ["", "../x", "a/b", "-a", "a?b"] {
            assert!(checked_volume(name).is_err(), "{name}");
        }
    }
}
