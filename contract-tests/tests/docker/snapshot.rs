//! The data goes back with the image (DECISIONS 13). The agent reads the folders of volumes, which takes root.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use contract_tests::{Agent, Health, Image, World, request, run_agent, wait_for};
use evenkeel_common::wire::{Kind, ProvenRecord, SnapshotKind, StatusValue};
use serde_json::{Value, json};

/// An image that migrates the data when it starts.
fn migrating(version: &str, is_healthy: bool) -> Image {
    let spoil = if version == "v1" { "true" } else { "rm -rf /data/kept; echo junk > /data/new" };
    let script =
        format!("echo {version} > /data/schema; {spoil}; trap 'exit 0' TERM INT; sleep 86400 & wait");
    let check = if is_healthy { "true" } else { "false" };
    let image = Image::good(version);
    Image { command: ["/bin/sh", "-c", &script].map(str::to_owned).to_vec(), ..image }
        .with_health(Health::every_second(check, 1))
}

/// A project with a service whose volume has data, and another one that mounts the volume as well.
struct Site {
    world: World,
    volume: String,
    /// The folder of the volume.
    live: PathBuf,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.world.engine.cli(&["compose", "-p", &self.world.project.name, "down", "-v"]).output();
        for volume in self.copies() {
            let _ = self.world.engine.cli(&["volume", "rm", "-f", &volume]).output();
        }
        let engine = self.live.ancestors().nth(3).unwrap_or(&self.live);
        for entry in fs::read_dir(engine.join("evenkeel-snapshots")).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&self.volume) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

impl Site {
    /// `None` where the agent could not read the data.
    fn new(about: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("NOT RUN: it needs root");
            return None;
        }
        let mut world = World::new(about);
        world.push("web", &migrating("v1", true));
        world.push("reader", &Image::good("v1"));
        let text = format!(
            "services:\n  web:\n    image: {}\n    labels: {{labels}}\n    network_mode: none\n    volumes: [ 'data:/data' ]\n  \
             reader:\n    image: {}\n    labels: {{labels}}\n    network_mode: none\n    stop_grace_period: 1s\n    volumes: [ 'data:/data' ]\n\
             volumes:\n  data:\n    labels: {{labels}}\n",
            world.reference("web"),
            world.reference("reader"),
        );
        world.project.write_text(&text);
        world.project.up();
        let volume = format!("{}_data", world.project.name);
        let live = world.engine.docker(&["volume", "inspect", "-f", "{{.Mountpoint}}", &volume]);
        let live = PathBuf::from(live.trim());
        let site = Self { world, volume, live };
        wait_for("the service to write its data", || {
            let schema = fs::read_to_string(site.folder("schema")).unwrap_or_default();
            if schema == "v1\n" { Ok(()) } else { Err(schema) }
        });
        fs::create_dir(site.folder("kept")).expect("the data can be written");
        for nth in 0..50 {
            let path = site.folder(&format!("kept/{nth}"));
            fs::write(&path, format!("row {nth}\n").repeat(nth)).expect("the data can be written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("the data can be written");
            std::os::unix::fs::chown(&path, Some(999), Some(999)).expect("the data can be written");
        }
        fs::hard_link(site.folder("kept/7"), site.folder("kept/also 7")).expect("the data can be written");
        Some(site)
    }

    fn folder(&self, path: &str) -> PathBuf {
        self.live.join(path)
    }

    fn copies(&self) -> Vec<String> {
        let filter = format!("label=evenkeel.snapshot.of={}", self.volume);
        let names = self.world.engine.docker(&["volume", "ls", "-q", "--filter", &filter]);
        names.lines().map(str::to_owned).collect()
    }

    fn agent(&self, snapshot: &Value) -> Agent {
        let web = self.world.entry("web", &["web:latest"]).set("update", json!({ "snapshot": snapshot }));
        self.world.agent_for([web])
    }

    fn data(&self) -> Manifest {
        manifest(&self.folder(""))
    }

    /// Checks that the data is that of before. When it starts, the old image has written its version again.
    #[track_caller]
    fn assert_data(&self, before: &Manifest) {
        let mut after = self.data();
        for written in ["schema", ""] {
            after.insert(written.into(), before[Path::new(written)].clone());
        }
        assert_eq!(after, *before);
    }

    /// Waits for a rollback. An update whose compose run was killed before it had changed anything is begun again.
    #[track_caller]
    fn until_rolled_back(agent: &Agent, times: u64) {
        wait_for("the rollback", || {
            let service = agent.service("web");
            match (service.deploying, service.rollbacks_total) {
                (false, done) if done >= times => return Ok(()),
                (false, _) => drop(agent.trigger("web")),
                (true, _) => {}
            }
            Err(format!("{service:#?}"))
        });
    }

    #[track_caller]
    fn wait_done(agent: &Agent) {
        wait_for("the deployment to complete", || {
            let steps = agent.steps();
            if steps.last().is_some_and(|step| step == "done") { Ok(()) } else { Err(format!("{steps:?}")) }
        });
    }
}

/// What a folder has: path, mode, owner, number of names of the inode, nanoseconds of the modification time, content.
type Manifest = BTreeMap<PathBuf, (u32, u32, u64, i64, Vec<u8>)>;

fn manifest(root: &Path) -> Manifest {
    let (mut all, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = left.pop() {
        let seen = fs::symlink_metadata(&path).expect("the data can be read");
        let content = if seen.is_dir() {
            left.extend(
                fs::read_dir(&path).expect("the data can be read").flatten().map(|entry| entry.path()),
            );
            Vec::new()
        } else {
            fs::read(&path).expect("the data can be read")
        };
        let names = if seen.is_dir() { 0 } else { seen.nlink() };
        let name = path.strip_prefix(root).unwrap_or(&path).to_owned();
        all.insert(name, (seen.mode(), seen.uid(), names, seen.mtime_nsec(), content));
    }
    all
}

#[test]
fn the_data_goes_back_with_a_bad_image_and_what_it_left_is_kept() {
    let Some(site) = Site::new("snapshot-bad") else { return };
    let before = site.data();
    let agent = site.agent(&json!(["data"]));
    let reader = site.world.project.container("reader");
    site.world.push("web", &migrating("v2", false));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    let reason = entry.reason.clone().unwrap_or_default();
    assert!(reason.contains("was put back; what was in its place is kept in volume"), "{entry:#?}");
    assert!(entry.outage_seconds.is_some_and(|seconds| f64::from(seconds) > 0.0), "{entry:#?}");
    Site::wait_done(&agent);
    site.assert_data(&before);
    site.world.assert_runs("web", "v1");
    let again = site.world.project.container("reader");
    assert_eq!(
        (again.id, again.state.as_str()),
        (reader.id, "running"),
        "stopped and started, not made anew"
    );
    let snapshots = agent.service("web").snapshots;
    assert_eq!(snapshots.iter().map(|one| one.kind).collect::<Vec<_>>(), [SnapshotKind::SetAside]);
    let place = &snapshots[0].places[0];
    assert_eq!(fs::read_to_string(Path::new(&place.path).join("new")).unwrap(), "junk\n");
    let volume = place.volume.clone().expect("a volume stands for it");
    assert_eq!(site.copies(), std::slice::from_ref(&volume));
    let seen = format!("{volume}:/left:ro");
    let image = site.world.reference("reader");
    let look = ["run", "--rm", "--network", "none", "-v", &seen, &image, "cat", "/left/schema"];
    let shown = site.world.engine.docker(&look);
    assert_eq!(shown.trim(), "v2", "reached with plain docker commands");
    site.world.assert_tidy();
}

#[test]
fn the_copies_of_proven_updates_are_kept_and_older_ones_removed() {
    let Some(site) = Site::new("snapshot-good") else { return };
    let agent = site.agent(&json!({"of": ["data"], "keep": 1}));
    for (nth, version) in ["v2", "v3"].into_iter().enumerate() {
        site.world.push("web", &migrating(version, true));
        agent.trigger("web");
        agent.wait_entry(&Kind::UPDATED, nth + 1);
        Site::wait_done(&agent);
        let snapshots = agent.service("web").snapshots;
        assert_eq!(snapshots.len(), 1, "{snapshots:#?}");
        assert_eq!(snapshots[0].kind, SnapshotKind::Copy);
        let schema = fs::read_to_string(Path::new(&snapshots[0].places[0].path).join("schema")).unwrap();
        assert_eq!(schema, ["v1\n", "v2\n"][nth]);
        assert_eq!(site.copies().len(), 1);
    }
    assert_eq!(agent.service("web").status, StatusValue::Ok);
    let steps = agent.steps();
    // What may be needed by the new image is started before it, and the rest after it.
    let expected = ["quiesce", "copy", "resume", "start", "resume"];
    assert!(steps.windows(expected.len()).any(|steps| steps == expected), "{steps:?}");
}

#[test]
fn a_kill_at_each_step_and_a_prune_leave_image_and_data_matching() {
    let Some(site) = Site::new("snapshot-kill") else { return };
    let before = site.data();
    let mut agent = site.agent(&json!(["data"]));
    site.world.push("web", &migrating("v2", false));
    let steps = ["quiesce", "copy", "start", "resume", "probation"];
    let hit = agent.kill_at_each("web", &steps, Duration::from_millis(20));
    assert!(!hit.is_empty(), "no step was hit");
    // Everything that is not in use.
    site.world.engine.docker(&["volume", "prune", "-f"]);
    Site::until_rolled_back(&agent, 1);
    site.assert_data(&before);
    site.world.assert_runs("web", "v1");
    site.world.assert_runs("reader", "v1");
    site.world.push("web", &migrating("v3", false));
    let steps = ["diagnose", "restore", "rollback", "resume", "verify_rollback", "unpin"];
    agent.kill_at_each("web", &steps, Duration::from_millis(20));
    Site::until_rolled_back(&agent, 2);
    site.assert_data(&before);
    site.world.assert_runs("web", "v1");
    site.world.assert_runs("reader", "v1");
    site.world.assert_tidy();
}

#[test]
fn a_person_goes_back_with_the_data_and_forward_again() {
    let Some(site) = Site::new("snapshot-hand") else { return };
    let before = site.data();
    let agent = site.agent(&json!(["data"]));
    site.world.push("web", &migrating("v2", true));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    Site::wait_done(&agent);
    let migrated = site.data();
    let of =
        |history: &[ProvenRecord], nth: usize| (history[nth].digest.clone(), history[nth].snapshot.clone());
    let history: Vec<ProvenRecord> = agent.read("GET", "/history/web");
    let ((v2, of_v2), (v1, of_v1)) = (of(&history, 0), of(&history, 1));
    assert_eq!((of_v2, of_v1.as_deref()), (None, Some(agent.service("web").snapshots[0].id.as_str())));

    let back = |asked: Value| {
        let headers = [("content-type", "application/json")];
        request(agent.address(), "POST", "/rollback/web", &headers, asked.to_string().as_bytes()).unwrap()
    };
    let plan = back(json!({"data": true, "dry_run": true})).json();
    assert_eq!((&plan["status"], &plan["puts_data_back"]), (&json!("planned"), &json!(true)));
    assert_eq!(plan["snapshot"]["id"].as_str(), of_v1.as_deref());
    assert_eq!((&plan["images"][0]["leaves"], &plan["images"][0]["to"]["digest"]), (&json!(v2), &json!(v1)));
    assert!(!agent.service("web").deploying, "nothing was begun");
    let api = format!("http://{}", agent.address());
    let dry_run = ["rollback", "web", "--data", "--dry-run", "--api", &api];
    let shown = run_agent(&site.world.engine, &site.world.folder().join("config.json"), &dry_run);
    assert!(shown.stdout.contains("put back the data of"), "{shown:#?}");
    assert!(shown.stdout.contains("and set the data of now aside"), "{shown:#?}");
    assert_eq!(back(json!({"data": true})).status, 200);
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.reason.as_deref(), Some("rolled back by hand"));
    assert!(entry.message.contains("was put back; what was in its place is kept in volume"), "{entry:#?}");
    Site::wait_done(&agent);
    site.assert_data(&before);
    site.world.assert_runs("web", "v1");
    let snapshots = agent.service("web").snapshots;
    assert_eq!(snapshots.iter().map(|one| one.kind).collect::<Vec<_>>(), [SnapshotKind::SetAside]);
    assert_eq!(manifest(Path::new(&snapshots[0].places[0].path)), migrated, "the data of v2, untouched");
    assert_eq!(site.copies(), [snapshots[0].places[0].volume.clone().unwrap()], "the copy is used up");

    let history: Vec<ProvenRecord> = agent.read("GET", "/history/web");
    assert_eq!(of(&history, 1), (v2.clone(), Some(snapshots[0].id.clone())));
    assert_eq!(back(json!({"to": v2, "data": true})).status, 200);
    agent.wait_entry(&Kind::ROLLED_BACK, 2);
    Site::wait_done(&agent);
    assert!(site.data().keys().eq(migrated.keys()), "the data of v2, which v2 goes on to write");
    site.world.assert_runs("web", "v2");

    let of_v1 = agent.service("web").snapshots[0].places[0].path.clone();
    fs::remove_dir_all(of_v1).unwrap();
    assert_eq!(back(json!({"to": v1, "data": true})).status, 200);
    let entry = agent.wait_entry(&Kind::ROLLBACK_FAILED, 1);
    assert!(entry.reason.clone().unwrap_or_default().contains("can't be put back"), "{entry:#?}");
    site.world.assert_runs("web", "v2");
    assert!(site.data().keys().eq(migrated.keys()), "the data of v2, which v2 goes on to write");
}

#[test]
fn a_hook_saves_the_data_in_place_of_a_copy() {
    let (world, _) = World::with_web("snapshot-hook");
    let hook = world.folder().join("save");
    let script = format!(
        "#!/bin/sh\necho \"$EK_DIGEST\" > \"$EK_SNAPSHOT/dump\"; test ! -e {}/broken\n",
        world.folder().display()
    );
    fs::write(&hook, script).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let update = json!({ "snapshot": { "keep": 1 }, "hooks": { "before": [hook] } });
    let entry = world.entry("web", &["web:latest"]).set("health_grace", 3).set("update", update);
    let state = world.folder().join("state");
    let agent = world.agent_with(world.config([entry]).set("state", json!({ "path": state })), &[]);
    let dumps = || fs::read_dir(state.join("snapshots")).map_or(0, Iterator::count);
    for (nth, version) in ["v2", "v3"].into_iter().enumerate() {
        let pushed = world.push("web", &Image::good(version));
        agent.trigger("web");
        agent.wait_entry(&Kind::UPDATED, nth + 1);
        Site::wait_done(&agent);
        let kept = agent.service("web").snapshots;
        assert_eq!((kept.len(), dumps()), (1, 1), "{kept:#?}");
        let dump = Path::new(kept[0].dump.as_ref().expect("the hook has saved")).join("dump");
        assert_eq!(fs::read_to_string(dump).unwrap().trim(), pushed.digest);
    }
    let headers = [("content-type", "application/json")];
    let back = request(agent.address(), "POST", "/rollback/web", &headers, b"{\"data\": true}").unwrap();
    assert_eq!(back.status, 409, "a dump can't be put back by the agent");

    fs::write(world.folder().join("broken"), "").unwrap();
    world.push("web", &Image::good("v4"));
    agent.trigger("web");
    agent.wait_entry(&Kind::ERROR, 1);
    Site::wait_done(&agent);
    assert_eq!(
        (agent.service("web").snapshots.len(), dumps()),
        (1, 1),
        "nothing is left of what was not begun"
    );
    world.assert_runs("web", "v3");
    world.assert_tidy();
}

#[test]
fn an_update_waits_while_its_data_can_not_be_copied() {
    let Some(site) = Site::new("snapshot-gate") else { return };
    for (snapshot, why) in [
        (json!(["missing"]), "the compose files define no volume missing"),
        (json!(["/nowhere/at/all"]), "is no directory that the agent can see"),
        (json!({"of": ["data"], "max_mib": 1}), "more than max_mib allows (1.0 MiB)"),
    ] {
        let large = site.folder("large");
        fs::write(large, vec![7; 3 * 1024 * 1024]).unwrap();
        let agent = site.agent(&snapshot);
        site.world.push("web", &migrating("v2", true));
        agent.trigger("web");
        let waiting = wait_for("the update to wait", || {
            let service = agent.service("web");
            service.waiting.clone().ok_or_else(|| format!("{service:#?}"))
        });
        assert_eq!(waiting.gate, "snapshot", "{waiting:#?}");
        assert!(waiting.why.contains(why), "{}", waiting.why);
        site.world.assert_runs("web", "v1");
    }
}

#[test]
fn a_directory_is_copied_beside_itself() {
    let Some(mut site) = Site::new("snapshot-folder") else { return };
    let folder = site.world.folder().join("uploads");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("kept"), "kept").unwrap();
    let text = format!(
        "services:\n  web:\n    image: {}\n    labels: {{labels}}\n    network_mode: none\n    volumes: [ '{}:/data' ]\n\
         volumes:\n  data:\n    labels: {{labels}}\n",
        site.world.reference("web"),
        folder.display(),
    );
    site.world.project.write_text(&text);
    site.world.project.up();
    let agent = site.agent(&json!([folder]));
    site.world.push("web", &migrating("v2", false));
    agent.trigger("web");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    Site::wait_done(&agent);
    assert_eq!(fs::read_to_string(folder.join("kept")).unwrap(), "kept");
    assert_eq!(fs::read_to_string(folder.join("schema")).unwrap(), "v1\n");
    let place = agent.service("web").snapshots[0].places[0].clone();
    assert_eq!(Path::new(&place.path).parent(), folder.parent());
    assert_eq!(place.volume, None);
    assert_eq!(fs::read_to_string(Path::new(&place.path).join("schema")).unwrap(), "v2\n");
}

#[test]
fn what_mounts_a_volume_that_binds_a_directory_is_stopped_for_the_copy() {
    let Some(mut site) = Site::new("snapshot-bound") else { return };
    let folder = site.world.folder().join("bound");
    fs::create_dir(&folder).unwrap();
    let service = |name: &str| {
        format!(
            "  {name}:\n    image: {}\n    labels: {{labels}}\n    network_mode: none\n    stop_grace_period: 1s\n    \
             volumes: [ 'bound:/data' ]\n",
            site.world.reference(name)
        )
    };
    let text = format!(
        "services:\n{}{}volumes:\n  data:\n    labels: {{labels}}\n  bound:\n    labels: {{labels}}\n    \
         driver_opts: {{ type: none, o: bind, device: '{}' }}\n",
        service("web"),
        service("reader"),
        folder.display(),
    );
    site.world.project.write_text(&text);
    site.world.project.up();
    let before = site.world.project.container("reader");
    let agent = site.agent(&json!(["bound"]));
    site.world.push("web", &migrating("v2", false));
    agent.trigger("web");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    Site::wait_done(&agent);
    assert_eq!(fs::read_to_string(folder.join("schema")).unwrap(), "v1\n");
    let after = site.world.project.container("reader");
    assert_eq!((&after.id, after.state.as_str()), (&before.id, "running"));
    assert_ne!(after.started_at, before.started_at, "it could have written while the data was copied");
}

/// A file system of 40 MiB.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: &Path) -> Option<Self> {
        if std::env::var_os("EVENKEEL_TEST_ENTER").is_some() {
            println!("NOT RUN: the engine's machine does not see file systems that are mounted here");
            return None;
        }
        fs::create_dir(folder).expect("files of the test can be written");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=40m", "ektest"]).arg(folder).status();
        if !mounted.is_ok_and(|status| status.success()) {
            println!("NOT RUN: it needs to mount a file system");
            return None;
        }
        Some(Self(folder.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A container may still use it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_holds_an_update_and_ends_one_that_has_begun_before_anything_is_stopped() {
    let Some(mut site) = Site::new("snapshot-full") else { return };
    let Some(disk) = SmallDisk::mount(&site.world.folder().join("disk")) else { return };
    let (data, hook, other) = (disk.0.join("data"), site.world.folder().join("save"), disk.0.join("other"));
    fs::create_dir(&data).unwrap();
    fs::write(data.join("kept"), vec![7; 12 << 20]).unwrap();
    let text = format!(
        "services:\n  web:\n    image: {}\n    labels: {{labels}}\n    network_mode: none\n    volumes: [ '{}:/data' ]\n",
        site.world.reference("web"),
        data.display(),
    );
    site.world.project.write_text(&text);
    site.world.project.up();
    fs::write(&hook, format!("#!/bin/sh\nhead -c 12M /dev/zero > {}\n", other.display())).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let agent = |hooks: &Value| {
        let update = json!({ "snapshot": [data], "hooks": hooks });
        site.world.agent_for([site.world.entry("web", &["web:latest"]).set("update", update)])
    };
    let before = site.world.project.container("web").started_at;

    // Another program takes the room after it was judged.
    let first = agent(&json!({ "before": [hook] }));
    site.world.push("web", &migrating("v2", true));
    first.trigger("web");
    let entry = first.wait_entry(&Kind::ERROR, 1);
    Site::wait_done(&first);
    assert!(entry.message.contains("the data could not be copied, so nothing was deployed"), "{entry:#?}");
    let lacks = "the copy of the data needs 12.0 MiB, and 12.0 MiB to spare, 16.0 MiB free in ";
    assert!(entry.message.contains(lacks), "{entry:#?}");
    assert_eq!(site.world.assert_runs("web", "v1").started_at, before, "it was not stopped");
    let names = || fs::read_dir(&disk.0).unwrap().map(|found| found.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names().len(), 2, "nothing is left of the copy: {:?}", names());
    assert_eq!(fs::metadata(data.join("kept")).unwrap().len(), 12 << 20);
    assert_eq!(first.blocked().len(), 0, "the image has no part in it");

    // The next attempt is not made at once, and for a person who asks for it, it is known beforehand that it would fail.
    let waits_since = |start: &str| {
        wait_for("the update to wait", || {
            let service = first.service("web");
            let waiting = service.waiting.as_ref().filter(|waiting| waiting.why.starts_with(start));
            waiting.map(|waiting| waiting.gate.clone()).ok_or_else(|| format!("{service:#?}"))
        })
    };
    assert_eq!(waits_since("the data could not be copied: "), "snapshot");
    first.trigger("web");
    assert_eq!(waits_since(lacks), "snapshot");
    drop(first);

    fs::remove_file(&other).unwrap();
    let second = agent(&json!({}));
    second.trigger("web");
    second.wait_entry(&Kind::UPDATED, 1);
    site.world.assert_runs("web", "v2");
}
