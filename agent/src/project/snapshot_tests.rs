//! What is done with the data of snapshots, with folders and volumes that fail.

use std::future::ready;

use async_trait::async_trait;

use super::*;
use crate::model::State;
use crate::model::snapshot::{Copied, FolderId, Free, Volume};
use crate::service::rollout::snapshot::{KeptKind, KeptSnapshot, PendingData};

/// Folders by path, of which some can't be put back, some can't be undone, and some can't be removed.
#[derive(Default)]
struct Folders {
    exchanged: Mutex<BTreeMap<PathBuf, bool>>,
    fails: Mutex<Vec<(PathBuf, Way)>>,
    available: Mutex<u64>,
    measured: Mutex<usize>,
    stuck: Mutex<Vec<PathBuf>>,
    removed: Mutex<Vec<PathBuf>>,
    links: BTreeMap<PathBuf, PathBuf>,
    makes_copies: bool,
}

impl Folders {
    fn go(&self, place: &Place, way: Way) -> Result<(), SnapshotError> {
        if self.fails.lock().contains(&(place.live.clone(), way)) {
            return Err(SnapshotError(format!("can't put back {}", place.live.display())));
        }
        self.exchanged.lock().insert(place.live.clone(), way == Way::Back);
        Ok(())
    }
}

#[async_trait]
impl Snapshots for Folders {
    async fn resolve(&self, folder: &Path) -> Result<PathBuf, SnapshotError> {
        Ok(self.links.get(folder).cloned().unwrap_or_else(|| folder.to_owned()))
    }

    async fn measure(&self, _: &Path, _: &Path) -> Result<Room, SnapshotError> {
        *self.measured.lock() += 1;
        Ok(Room {
            bytes: 1 << 30,
            available: *self.available.lock(),
            is_shared: false,
            copies: 1,
            ..Room::default()
        })
    }

    async fn available(&self, _: &Path) -> Result<Free, SnapshotError> {
        Ok(Free { bytes: *self.available.lock(), entries: Some(9) })
    }

    async fn copy(&self, _: &Place, _: &watch::Sender<u64>) -> Result<Copied, SnapshotError> {
        if self.makes_copies {
            return Ok(Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } });
        }
        Err(SnapshotError("not asked for".into()))
    }

    async fn restore(&self, place: &Place, _: &Copied) -> Result<(), SnapshotError> {
        self.go(place, Way::Back)
    }

    async fn undo(&self, place: &Place, _: &Copied) -> Result<(), SnapshotError> {
        self.go(place, Way::Forth)
    }

    async fn identify(&self, _: &Path) -> Result<FolderId, SnapshotError> {
        Err(SnapshotError("not asked for".into()))
    }

    async fn remove(&self, folder: &Path) -> Result<(), SnapshotError> {
        if self.stuck.lock().iter().any(|stuck| stuck == folder) {
            return Err(SnapshotError(format!("can't remove {}", folder.display())));
        }
        self.removed.lock().push(folder.to_owned());
        Ok(())
    }
}

/// No volumes, and containers that run when they are looked for the first time. The last of those that have ended are found
/// first.
#[derive(Default)]
struct NoVolumes {
    running: Mutex<Vec<Mounter>>,
    ended: Mutex<Vec<Vec<Ended>>>,
}

#[async_trait]
impl Volumes for NoVolumes {
    async fn volume(&self, _: &str) -> Result<Option<Volume>, EngineError> {
        Ok(None)
    }

    async fn bind_volume(&self, _: &str, _: &Path, _: BTreeMap<String, String>) -> Result<(), EngineError> {
        Err(EngineError::Refused("there are no volumes".into()))
    }

    async fn remove_volume(&self, _: &str) -> Result<(), EngineError> {
        Ok(())
    }

    async fn mounters(&self, _: &[&Path], _: bool) -> Result<Vec<Mounter>, EngineError> {
        Ok(std::mem::take(&mut *self.running.lock()))
    }

    async fn ended(&self, _: &[&Path]) -> Result<Vec<Ended>, EngineError> {
        Ok(self.ended.lock().pop().unwrap_or_default())
    }
}

fn data(folders: &Arc<Folders>, volumes: NoVolumes) -> Data {
    Data {
        folders: folders.clone(),
        volumes: Arc::new(volumes),
        dumps: PathBuf::new(),
        at_rest: AtRest::default(),
    }
}

fn copies(names: &[&str]) -> Vec<(CopyMade, Place)> {
    let copy = |name: &&str| {
        let folder = PathBuf::from(format!("/srv/{name}"));
        let source = Source { of: folder.display().to_string(), volume: None, folder };
        let (place, folder) = (source.place("7"), FolderId { device: 1, inode: 1 });
        (CopyMade { source, copied: Copied { bytes: 1, folder } }, place)
    };
    names.iter().map(copy).collect()
}

#[tokio::test]
async fn all_folders_are_put_back_or_none() {
    for way in [Way::Back, Way::Forth] {
        let folders = Arc::new(Folders::default());
        let data = data(&folders, NoVolumes::default());
        let all = copies(&["a", "b", "c"]);
        let seen = || folders.exchanged.lock().clone();
        let each = |of: &[(&str, bool)]| -> BTreeMap<PathBuf, bool> {
            of.iter().map(|(name, it)| (Path::new("/srv").join(name), *it)).collect()
        };
        let is_back = way == Way::Back;
        *folders.fails.lock() = vec![("/srv/b".into(), way)];
        let error = data.exchange_all(&all, way).await.unwrap_err().to_string();
        assert_eq!(error, "can't put back /srv/b");
        assert_eq!(seen(), each(&[("a", !is_back), ("b", !is_back)]), "as it was");
        *folders.fails.lock() = Vec::new();
        assert_eq!(data.exchange_all(&all, way).await.unwrap(), SnapshotStepped::Done);
        assert_eq!(seen(), each(&[("a", is_back), ("b", is_back), ("c", is_back)]));
        *folders.fails.lock() = vec![("/srv/b".into(), way), ("/srv/a".into(), way.reverse())];
        let stepped = data.exchange_all(&all, way).await.unwrap();
        let SnapshotStepped::Mixed { why } = stepped else { panic!("{stepped:?}") };
        let parts = ["can't put back /srv/b;", "/srv/a (", "/srv/.a.evenkeel-7-set-aside)"];
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    }
}

#[tokio::test]
async fn a_copy_that_can_not_be_removed_does_not_keep_the_others() {
    let folders = Arc::new(Folders::default());
    *folders.stuck.lock() = vec!["/srv/a".into(), "/srv/c".into()];
    let data = data(&folders, NoVolumes::default());
    let kept =
        |name: &str| KeptFolder { of: name.into(), folder: format!("/srv/{name}").into(), volume: None };
    let stepped = data.expire(["a", "b", "c", "d"].map(kept).to_vec()).await.unwrap();
    let why = "can't remove /srv/a; can't remove /srv/c".to_owned();
    assert_eq!(stepped, SnapshotStepped::Expired { left: ["a", "c"].map(kept).to_vec(), why });
    assert_eq!(*folders.removed.lock(), [PathBuf::from("/srv/b"), PathBuf::from("/srv/d")]);
}

#[tokio::test]
async fn a_volume_that_can_not_stand_for_what_was_set_aside_hinders_nothing() {
    let data = data(&Arc::default(), NoVolumes::default());
    let mut all = copies(&["a"]);
    all[0].0.source.volume = Some("p_a".into());
    data.show_set_aside(&all, &[], "7").await.unwrap();
}

fn mounter(name: &str, project: &str) -> Mounter {
    Mounter {
        id: name.into(),
        name: name.into(),
        service: (project.into(), name.into()),
        depends_on: Vec::new(),
        is_paused: false,
        task_of: None,
    }
}

#[tokio::test]
async fn who_was_started_while_data_was_put_back_is_found() {
    let volumes = NoVolumes { running: Mutex::new(vec![mounter("cron", "")]), ..NoVolumes::default() };
    let data = data(&Arc::default(), volumes);
    let all = copies(&["a", "b"]);
    let stepped = data.put_back(&all, &[], "7").await.unwrap();
    assert_eq!(stepped, SnapshotStepped::Disturbed(vec![mounter("cron", "")]));
    assert_eq!(data.put_back(&all, &[], "7").await.unwrap(), SnapshotStepped::Done);
}

#[tokio::test]
async fn a_copy_is_of_no_use_if_a_container_has_run_meanwhile_that_can_write_to_the_data() {
    let cron = |second: i64| Ended {
        id: "c1".into(),
        name: "cron".into(),
        started_at: jiff::Timestamp::from_second(second).unwrap(),
    };
    for (before, after, is_kept) in [
        (Vec::new(), Vec::new(), true),
        (vec![cron(1)], vec![cron(1)], true),
        (vec![cron(1)], Vec::new(), true),
        (vec![cron(1)], vec![cron(2)], false),
        (Vec::new(), vec![cron(2)], false),
    ] {
        let folders = Arc::new(Folders { makes_copies: true, ..Folders::default() });
        let volumes = NoVolumes { ended: Mutex::new(vec![after, before]), ..NoVolumes::default() };
        let places = copies(&["a"]).into_iter().map(|(made, place)| (made.source, place)).collect();
        let progress = watch::Sender::new(PullProgress { bytes: 0, total: 0 });
        match data(&folders, volumes).copy(places, &[], "7", &progress).await {
            Ok(stepped) => assert!(is_kept && matches!(stepped, SnapshotStepped::Copied(_)), "{stepped:?}"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("cron was started while the data was copied"), "{error}");
                assert!(!is_kept, "{error}");
            }
        }
        assert_eq!(folders.removed.lock().is_empty(), is_kept, "what is of no use takes up no room");
    }
}

#[test]
fn what_is_stopped_for_a_snapshot_is_known_until_it_is_started_again() {
    let at_rest = AtRest::default();
    let stop = vec![mounter("files", "other")];
    let of_project = |id: &str| {
        let state = State::Exited;
        [Container { id: id.into(), state, ..Container::running("files", "files") }]
    };
    let resume = SnapshotStep::Resume { start: stop.clone(), project: "p".into() };
    for step in [
        SnapshotStep::Quiesce { service: "web".into(), stop: stop.clone(), of: Vec::new(), measures: false },
        SnapshotStep::Restore {
            stop: stop.clone(),
            copies: Vec::new(),
            labels: Vec::new(),
            id: String::new(),
        },
        SnapshotStep::UndoRestore { stop, copies: Vec::new() },
    ] {
        at_rest.follow(&step);
        assert!(at_rest.holds_any(&of_project("files")), "{step:?}");
        assert!(!at_rest.holds_any(&of_project("another")), "{step:?}");
        let [stopped] = of_project("files");
        let started = Container { state: State::Running, ..stopped };
        assert!(!at_rest.holds_any(&[started]), "somebody has started it");
        at_rest.follow(&resume);
        assert!(!at_rest.holds_any(&of_project("files")), "{step:?}");
    }
}

#[tokio::test]
async fn room_that_was_taken_since_it_was_judged_is_missed_before_anything_is_stopped() {
    let folders = Arc::new(Folders::default());
    let data = data(&folders, NoVolumes::default());
    let of: Vec<Source> = copies(&["a", "b"]).into_iter().map(|(made, _)| made.source).collect();
    for (mib, is_enough) in [(2048 + 512, true), (2048 + 511, false)] {
        *folders.available.lock() = mib << 20;
        assert_eq!(data.lacks_free(&of).await.unwrap().is_none(), is_enough, "{mib} MiB");
    }
}

fn rules() -> SnapshotRules {
    SnapshotRules { of: vec!["/srv/a".into(), "/srv/b".into()], keep: 1, max_bytes: 1 << 40 }
}

#[tokio::test]
async fn data_whose_copy_is_hindered_is_not_walked_through() {
    let folders = Arc::new(Folders::default());
    let paused = Mounter { is_paused: true, ..mounter("cron", "") };
    let data = data(&folders, NoVolumes { running: Mutex::new(vec![paused]), ..NoVolumes::default() });
    let (rules, model) = (rules(), Model::default());
    let why = data.look("web", &rules, &model, None, &[]).await.unwrap().unwrap_err();
    assert!(why.contains("container cron mounts it and is paused"), "{why}");
    assert_eq!(*folders.measured.lock(), 0);
    let seen = data.look("web", &rules, &model, None, &[]).await.unwrap().unwrap();
    assert_eq!((seen.rooms.len(), *folders.measured.lock()), (2, 2), "it no longer runs");
}

#[tokio::test]
async fn data_that_lies_in_other_data_wherever_links_lead_is_not_copied() {
    for (one, leads_to, why) in [
        (
            "/srv/b",
            "/srv/a/uploads",
            "/srv/b can't be copied beside /srv/a: its directory /srv/a/uploads is in /srv/a;",
        ),
        ("/srv/a", "/srv/b/c", "/srv/a can't be copied beside /srv/b: its directory /srv/b/c is in /srv/b;"),
        ("/srv/b", "/srv/a", "its directory /srv/a is in /srv/a; name only"),
        ("/srv/b", "/srv/ab", ""),
    ] {
        let links = BTreeMap::from([(PathBuf::from(one), PathBuf::from(leads_to))]);
        let folders = Arc::new(Folders { links, ..Folders::default() });
        let data = data(&folders, NoVolumes::default());
        let seen = data.look("web", &rules(), &Model::default(), None, &[]).await.unwrap();
        let error = seen.err().unwrap_or_default();
        assert!(error.contains(why) && error.is_empty() == why.is_empty(), "{error}");
    }
}

#[tokio::test]
async fn the_free_room_is_that_of_now_although_the_data_was_measured_before() {
    let folders = Arc::new(Folders::default());
    *folders.available.lock() = 7;
    let data = data(&folders, NoVolumes::default());
    let room = Room { bytes: 1 << 30, available: 1 << 40, is_shared: false, copies: 1, ..Room::default() };
    let known = |(made, _): (CopyMade, Place)| (made.source, room);
    let measured: Vec<(Source, Room)> = copies(&["a", "b"]).into_iter().map(known).collect();
    let seen = data.look("web", &rules(), &Model::default(), None, &measured).await.unwrap().unwrap();
    let now = (PathBuf::from("/srv"), Room { available: 7, free_entries: Some(9), ..room });
    assert_eq!(seen.rooms, [now.clone(), now]);
    assert_eq!(*folders.measured.lock(), 0);
}

/// Starts these containers with an engine that refuses one unless the others that it needs run. Returns in which order they
/// were started, how often that was tried, and what was refused.
async fn started(all: &[Mounter], needs: &[(&str, &str)]) -> (Vec<String>, usize, Vec<String>) {
    let (running, tries) = (Mutex::new(Vec::new()), Mutex::new(0));
    let start = |id: &str| {
        *tries.lock() += 1;
        let runs = |other: &str| running.lock().iter().any(|one| one == other);
        if needs.iter().any(|(one, other)| *one == id && !runs(other)) {
            return ready(Err(EngineError::Refused("cannot join network of a non running container".into())));
        }
        running.lock().push(id.to_owned());
        ready(Ok(()))
    };
    let (refused, gone) = start_each(all, start).await.unwrap();
    assert_eq!(gone, []);
    (running.into_inner(), tries.into_inner(), refused.into_iter().map(|one| one.name).collect())
}

#[tokio::test]
async fn what_others_depend_on_is_started_first() {
    let qbittorrent = Mounter { depends_on: vec!["gluetun".into()], ..mounter("qbittorrent", "p") };
    for all in [[mounter("gluetun", "p"), qbittorrent.clone()], [qbittorrent, mounter("gluetun", "p")]] {
        let (order, tries, refused) = started(&all, &[("qbittorrent", "gluetun")]).await;
        assert_eq!((order, tries), (vec!["gluetun".to_owned(), "qbittorrent".to_owned()], 2));
        assert!(refused.is_empty(), "{refused:?}");
    }
}

#[tokio::test]
async fn what_the_engine_refuses_is_tried_again_once_others_run() {
    let all = ["c", "b", "a", "never"].map(|name| mounter(name, ""));
    let needs = [("c", "b"), ("b", "a"), ("never", "elsewhere")];
    let (order, tries, refused) = started(&all, &needs).await;
    assert_eq!(order, ["a", "b", "c"]);
    assert_eq!(refused, ["never"]);
    assert_eq!(tries, 4 + 3 + 2 + 1, "not without end");
}

#[test]
fn a_container_that_is_gone_is_lost_unless_the_update_has_made_it_anew() {
    let gone = [("web", "p"), ("cron", "p"), ("web", "other"), ("task", "")];
    let gone = gone.iter().map(|(name, project)| mounter(name, project)).collect();
    let containers = [Container::running("web", "web")];
    let lost: Vec<NotStarted> = lost(gone, "p", &containers).collect();
    let names: Vec<&str> = lost.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["cron", "web", "task"]);
}

#[test]
fn a_container_that_is_paused_is_not_stopped() {
    let one = |name: &str, is_paused: bool| Mounter { is_paused, ..mounter(name, "p") };
    assert!(all_stoppable(vec![one("a", false)]).is_ok());
    let error = all_stoppable(vec![one("a", false), one("b", true)]).unwrap_err().to_string();
    assert!(error.contains("container b mounts it and is paused"), "{error}");
}

#[test]
fn a_task_of_a_swarm_is_neither_stopped_nor_started() {
    let task = Mounter { task_of: Some("backup".into()), ..mounter("backup.1.x", "") };
    let error = all_stoppable(vec![mounter("a", "p"), task.clone()]).unwrap_err().to_string();
    assert!(error.contains("backup.1.x mounts it and is a task of the swarm service backup"), "{error}");
    let paused = Mounter { is_paused: true, ..mounter("b", "p") };
    let (start, left) = startable(vec![mounter("a", "p"), task, paused]);
    assert_eq!(start, [mounter("a", "p")]);
    let names: Vec<&str> = left.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["backup.1.x", "b"]);
    // The swarm does not, for example, if its service was scaled down or removed meanwhile.
    let why = "it was a task of the swarm service backup; whether another one starts in its place is up to the swarm";
    assert_eq!(left[0].why, why);
}

#[tokio::test]
async fn data_that_one_service_may_put_back_is_left_alone_by_the_others() {
    let folders = Arc::new(Folders::default());
    let data = data(&folders, NoVolumes::default());
    let of =
        |names: &[&str]| -> Vec<Source> { copies(names).into_iter().map(|(made, _)| made.source).collect() };
    let look =
        async |service: &str| data.look(service, &rules(), &Model::default(), None, &[]).await.unwrap();
    assert_eq!(data.at_rest.take("shop", &of(&["a/uploads"])), None);
    assert_eq!(data.at_rest.take("shop", &of(&["a/uploads"])), None, "its own");
    let why = "shop may put the data in /srv/a/uploads back until its new image is proven";
    assert_eq!(data.at_rest.take("web", &of(&["a"])).as_deref(), Some(why));
    assert_eq!(look("web").await.unwrap_err(), why);
    assert!(look("shop").await.is_ok());
    assert_eq!(data.at_rest.take("blog", &of(&["c"])), None);

    data.at_rest.release_unused("shop", &Durable::default());
    assert_eq!(data.at_rest.take("web", &of(&["a"])), None);
    data.at_rest.release("web");
    // After a restart of the agent, while the new image of the shop is not proven.
    let pending =
        PendingData { old: Vec::new(), copies: copies(&["b"]).into_iter().map(|(made, _)| made).collect() };
    let kept = KeptSnapshot {
        id: "shop-1".into(),
        at: "2026-01-01T00:00:00Z".parse().unwrap(),
        kind: KeptKind::Copy,
        image: "shop:1".into(),
        left: Vec::new(),
        bytes: 1,
        folders: Vec::new(),
        dump: None,
        is_expired: false,
        pending: Some(pending),
    };
    let durable = Durable { snapshots: vec![kept], ..Durable::default() };
    data.at_rest.take_again("shop", &durable);
    data.at_rest.release_unused("shop", &durable);
    assert!(look("web").await.unwrap_err().starts_with("shop may put the data in /srv/b back"));
}
