//! Snapshots of much data, and of a database. `dist/scripts/snapshot-load.sh` makes what they need.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use contract_tests::{Agent, Health, Image, World, wait_for};
use evenkeel_common::wire::Kind;
use rustix::fs::XattrFlags;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The image with Debian's PostgreSQL server.
const POSTGRES: &str = "evenkeel-test/postgres:15";

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Files of all kinds, `mib` in sum: 20,000 of them for a gibibyte.
fn fill(root: &Path, mib: u32) -> io::Result<()> {
    let mut content = vec![0_u8; 1024 * 1024 / 20];
    for nth in 0..mib * 20 {
        let folder = root.join(format!("{:03}", nth % 200));
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{nth}"));
        let seed = Sha256::digest(nth.to_le_bytes());
        content.iter_mut().zip(seed.iter().cycle()).for_each(|(byte, seed)| *byte = *seed);
        fs::write(&path, &content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + nth % 64))?;
        chown(&path, Some(1000 + nth % 7), Some(999))?;
        if nth.is_multiple_of(20) {
            fs::hard_link(&path, folder.join(format!("{nth} too")))?;
            rustix::fs::lsetxattr(&path, "user.origin", nth.to_string().as_bytes(), XattrFlags::empty())?;
        }
        if nth.is_multiple_of(1000) {
            let sparse = File::create(folder.join(format!("{nth} sparse")))?;
            sparse.set_len(64 * 1024 * 1024)?;
            sparse.write_all_at(b"island", 33 * 1024 * 1024)?;
        }
    }
    File::open(root)?.sync_all()
}

/// What tells an entry of a folder from another one.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// Mode, owner, group, seconds and nanoseconds of the modification time, size.
    facts: (u32, u32, u32, i64, i64, u64),
    /// Digest of the content.
    content: Vec<u8>,
    attribute: Vec<u8>,
    /// The first of the names of the same file.
    first: PathBuf,
}

fn manifest(root: &Path) -> io::Result<BTreeMap<PathBuf, Entry>> {
    let (mut all, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    let mut names: BTreeMap<u64, PathBuf> = BTreeMap::new();
    while let Some(path) = left.pop() {
        let seen = fs::symlink_metadata(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path).to_owned();
        let (mut content, mut size) = (Vec::new(), 0);
        if seen.is_dir() {
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
            }
        } else {
            (content, size) = (Sha256::digest(fs::read(&path)?).to_vec(), seen.len());
            assert!(size < 1024 * 1024 || seen.blocks() < 1024, "{} has lost its holes", path.display());
        }
        let mut value = [0; 64];
        let length = rustix::fs::lgetxattr(&path, "user.origin", &mut value).unwrap_or(0);
        let first = names.entry(seen.ino()).or_insert_with(|| name.clone());
        if name < *first {
            first.clone_from(&name);
        }
        let facts = (seen.mode(), seen.uid(), seen.gid(), seen.mtime(), seen.mtime_nsec(), size);
        all.insert(name, (seen.ino(), facts, content, value[..length].to_vec()));
    }
    let entry = |(name, (inode, facts, content, attribute))| {
        let first = names.get(&inode).cloned().unwrap_or_default();
        (name, Entry { facts, content, attribute, first })
    };
    Ok(all.into_iter().map(entry).collect())
}

/// Migrates the data when it starts, badly: removes, overwrites, appends, changes modes, and is never healthy.
fn spoiling(version: &str) -> Image {
    let script = "cd /data; rm -rf 000 001 002; for one in 01*; do echo junk >> $one/$(ls $one | head -n 1); done; chmod -R 777 05*; \
                  echo new > added; trap 'exit 0' TERM INT; sleep 86400 & wait";
    let image = Image::good(version);
    Image { command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(), ..image }
        .with_health(Health::every_second("false", 1))
}

struct Site {
    world: World,
    agent: Agent,
    data: tempfile::TempDir,
}

impl Site {
    fn new(about: &str, mib: u32) -> Self {
        let root = std::env::var_os("EVENKEEL_DATA").map_or_else(std::env::temp_dir, PathBuf::from);
        let parent = tempfile::Builder::new().prefix("ektest-data-").tempdir_in(root);
        let parent = parent.expect("a folder can be made");
        let data = parent.path().join("data");
        fs::create_dir(&data).and_then(|()| fill(&data, mib)).expect("the data can be written");
        let mut world = World::new(about);
        world.push("web", &Image::healthy("v1"));
        let text = format!(
            "services:\n  web:\n    image: {}\n    labels: {{labels}}\n    network_mode: none\n    volumes: [ '{}:/data' ]\n",
            world.reference("web"),
            data.display(),
        );
        world.project.write_text(&text);
        world.project.up();
        let update = json!({ "snapshot": { "of": [data], "keep": 1 } });
        let agent = world
            .agent_for([world.entry("web", &["web:latest"]).set("health_grace", 3).set("update", update)]);
        Self { world, agent, data: parent }
    }

    fn data(&self) -> PathBuf {
        self.data.path().join("data")
    }

    /// Deploys a bad image and waits for its rollback. With `kill`, the agent is killed this long after the trigger.
    fn roll_back(&mut self, nth: u32, kill: Option<Duration>) {
        self.world.push("web", &spoiling(&format!("bad-{nth}")));
        self.agent.trigger("web");
        if let Some(after) = kill {
            std::thread::sleep(after);
            self.agent.kill9(true);
            self.agent.restart();
        }
        let agent = &self.agent;
        wait_for("the rollback", || {
            let service = agent.service("web");
            match (service.deploying, service.rollbacks_total) {
                (false, done) if done > u64::from(nth) => return Ok(()),
                (false, _) => drop(agent.trigger("web")),
                (true, _) => {}
            }
            Err(format!("{service:#?}"))
        });
    }
}

mod nightly {
    use super::*;

    #[test]
    fn much_data_that_a_migration_spoils_goes_back_byte_for_byte() {
        let (rounds, mib) = (number("EVENKEEL_ROUNDS", 2), number("EVENKEEL_MIB", 64));
        let mut site = Site::new("snapshot-much", mib);
        let before = manifest(&site.data()).unwrap();
        let mut killed = 0;
        for nth in 0..rounds {
            // Spread over all steps, whatever they take here: the numbers of a Weyl sequence.
            let kill = (nth % 2 == 1).then(|| Duration::from_millis((u64::from(nth) * 6_180_339) % 15_000));
            killed += u32::from(kill.is_some());
            let began = Instant::now();
            site.roll_back(nth, kill);
            let after = manifest(&site.data()).unwrap();
            let differing: Vec<_> =
                before.iter().filter(|(name, entry)| after.get(*name) != Some(entry)).collect();
            assert!(
                differing.is_empty() && after.len() == before.len(),
                "round {nth}: {:#?}",
                &differing[..differing.len().min(3)]
            );
            site.world.assert_runs("web", "v1");
            println!(
                "round {nth}: killed after {kill:?}, {} entries equal, {:.0} s",
                after.len(),
                began.elapsed().as_secs_f64()
            );
        }
        println!("{rounds} rollbacks of {mib} MiB, {killed} with a kill: all equal");
    }

    #[test]
    fn the_outage_against_the_size_of_the_data() {
        let sizes = std::env::var("EVENKEEL_SIZES").unwrap_or_else(|_| "0,64".to_owned());
        for mib in sizes.split(',').filter_map(|text| text.parse().ok()) {
            let mut outages = Vec::new();
            let mut site = Site::new("snapshot-size", mib);
            for nth in 0..number("EVENKEEL_ROUNDS", 2) {
                let good = Image::healthy(&format!("good-{nth}"));
                site.world.push("web", &good);
                site.agent.trigger("web");
                let entry = site.agent.wait_entry(&Kind::UPDATED, nth as usize + 1);
                outages.push(f64::from(entry.outage_seconds.expect("it is known")));
                wait_for("the deployment to complete", || {
                    if site.agent.service("web").deploying { Err("not yet".to_owned()) } else { Ok(()) }
                });
            }
            outages.sort_by(f64::total_cmp);
            site.roll_back(0, None);
            let last = site.agent.service("web").last_deployment.and_then(|last| last.outage_seconds);
            println!(
                "{mib} MiB: updates {outages:?} s, median {:.1} s; the rollback {last:?}",
                outages[outages.len() / 2]
            );
        }
    }

    /// Runs a query in the service's container.
    fn query(world: &World, sql: &str) -> String {
        let id = world.project.container("db").id;
        world
            .engine
            .docker(&["exec", &id, "psql", "-h", "/tmp", "-U", "postgres", "-tAc", sql])
            .trim()
            .to_owned()
    }

    /// Builds a version of the database's image, which runs `migration` when it starts, and pushes it.
    fn push_database(world: &World, version: &str, migration: &str, is_good: bool) {
        const SERVER: &str =
            "setpriv --reuid=postgres --regid=postgres --clear-groups /usr/lib/postgresql/15/bin";
        let script = format!(
            "set -e; cd /; if [ ! -e /data/pg ]; then install -d -o postgres -g postgres -m 700 /data/pg; \
             {SERVER}/initdb -D /data/pg --auth=trust; fi; \
             {SERVER}/pg_ctl -D /data/pg -w -o '-k /tmp -c listen_addresses=' start; \
             psql -h /tmp -U postgres -v ON_ERROR_STOP=1 -c \\\"{migration}\\\"; \
             {SERVER}/pg_ctl -D /data/pg -w -m fast stop; exec {SERVER}/postgres -D /data/pg -k /tmp -c listen_addresses="
        );
        let check =
            if is_good { "psql -h /tmp -U postgres -tAc 'select count(name) from users'" } else { "false" };
        let reference = world.reference("db");
        let text = format!(
            "FROM {POSTGRES}\nLABEL evenkeel.version={version} evenkeel.test={}\nSTOPSIGNAL SIGINT\n\
             HEALTHCHECK --interval=1s --retries=5 --timeout=10s CMD {check}\nCMD [\"/bin/sh\", \"-c\", \"{script}\"]\n",
            world.project.name,
        );
        let mut build = world.engine.cli(&["build", "-q", "-t", &reference, "-"]);
        let build = build
            .env("DOCKER_BUILDKIT", "0")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null());
        let mut child = build.spawn().expect("docker can be run");
        let written = child.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
        assert!(written.is_some_and(|written| written.is_ok()));
        assert!(child.wait().is_ok_and(|status| status.success()), "{text}");
        world.engine.docker(&["push", "-q", &reference]);
    }

    #[test]
    fn a_database_that_a_new_version_has_migrated_is_read_by_the_old_one_again() {
        let mut world = World::new("snapshot-sql");
        let rows = "create table if not exists users (id int primary key, name text); \
                    insert into users select n, 'user ' || n from generate_series(1, 1000) n on conflict do nothing";
        push_database(&world, "v1", rows, true);
        let text = format!(
            "services:\n  db:\n    image: {}\n    labels: {{labels}}\n    network_mode: none\n    volumes: [ 'pg:/data' ]\n\
             volumes:\n  pg:\n    labels: {{labels}}\n",
            world.reference("db"),
        );
        world.project.write_text(&text);
        world.project.up();
        wait_for("the database to be healthy", || {
            let id = world.project.container("db").id;
            let health = world.engine.docker(&["inspect", "-f", "{{.State.Health.Status}}", &id]);
            if health.trim() == "healthy" { Ok(()) } else { Err(health) }
        });
        let hook = world.folder().join("dump");
        let dump = format!(
            "#!/bin/sh\nset -e\nid=$(docker ps -q --no-trunc --filter label=com.docker.compose.project={})\n\
             docker exec $id pg_dump -h /tmp -U postgres postgres > $EK_SNAPSHOT/db.sql\n",
            world.project.name,
        );
        fs::write(&hook, dump).unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        let update = json!({ "snapshot": ["pg"], "hooks": { "before": [hook] } });
        let agent = world.agent_for([world.entry("db", &["db:latest"]).set("update", update)]);

        let migration = "alter table users rename column name to full_name; delete from users where id > 10";
        push_database(&world, "v2", migration, false);
        agent.trigger("db");
        let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
        assert!(entry.reason.clone().unwrap_or_default().contains("was put back"), "{entry:#?}");
        world.assert_runs("db", "v1");
        assert_eq!(query(&world, "select count(*) || ' ' || max(name) from users"), "1000 user 999");

        wait_for("the deployment to complete", || {
            if agent.service("db").deploying { Err("not yet".to_owned()) } else { Ok(()) }
        });
        let kept = agent.service("db").snapshots;
        let dump = kept[0].dump.clone().expect("the hook has left a dump");
        let dump = fs::read_to_string(Path::new(&dump).join("db.sql")).unwrap();
        assert!(dump.contains("CREATE TABLE public.users") && dump.contains("user 1000"), "{dump}");
        assert_eq!(fs::metadata(kept[0].dump.as_ref().unwrap()).unwrap().mode() & 0o777, 0o700);
        let left = format!("{}:/left:ro", kept[0].places[0].volume.clone().unwrap());
        let shown = world.engine.docker(&[
            "run",
            "--rm",
            "-v",
            &left,
            &world.reference("db"),
            "cat",
            "/left/pg/PG_VERSION",
        ]);
        assert_eq!(shown.trim(), "15", "what the new version has left is kept");
        world.engine.docker(&["volume", "rm", "-f", kept[0].places[0].volume.as_deref().unwrap()]);
        fs::remove_dir_all(&kept[0].places[0].path).unwrap();
    }
}
