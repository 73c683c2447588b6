//! Speed, memory and size of the release build, measured from outside.
//!
//! After `cargo build --release -p evenkeel`, `cargo bench -p contract-tests --bench agent --profile dev` prints the table
//! and exits with status 1 if a target was missed. Names after `--` select parts (see `PARTS`); `lean` selects all parts
//! with this prefix. Do not run it at the same time as `dist/test.sh`, which removes such folders and containers.
//!
//! Registry and engine are fakes with negligible cost, unless a row says that they are real. On a busy machine, the spread
//! shows how reliable a figure is.

mod away;
mod fakes;
mod lean;
mod live;
mod subject;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use contract_tests::{Config, Engine, Health, Image, PREFIX, Registry, Service, World, request};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use fakes::{FakeImage, FakeProject};
use subject::{Subject, program};

const CYCLES: usize = 9;
const STARTS: usize = 15;
const UPDATES: usize = 5;
const MIB: f64 = 1_048_576.0;

/// One row of the table.
struct Row {
    what: String,
    figure: String,
    /// The target, and whether it was met.
    target: Option<(String, bool)>,
}

#[derive(Default)]
struct Table(Vec<Row>);

impl Table {
    fn add(&mut self, what: &str, figure: String, target: Option<(&str, bool)>) {
        eprintln!("{what}: {figure}");
        let target = target.map(|(text, met)| (text.to_owned(), met));
        self.0.push(Row { what: what.to_owned(), figure, target });
    }

    /// Adds the median and spread of durations. The median must be under `limit`.
    fn times(&mut self, what: &str, mut times: Vec<Duration>, limit: Option<Duration>) {
        times.sort_unstable();
        let median = times[times.len() / 2];
        let figure = format!(
            "{} (n = {}, {} to {})",
            shown(median),
            times.len(),
            shown(times[0]),
            shown(times[times.len() - 1])
        );
        let limit = limit.map(|limit| (format!("under {}", shown(limit)), median < limit));
        self.add(what, figure, limit.as_ref().map(|(text, met)| (text.as_str(), *met)));
    }

    fn print(&self) -> bool {
        println!("| what | median or value | target | |\n|---|---|---|---|");
        for Row { what, figure, target } in &self.0 {
            let (text, verdict) = match target {
                Some((text, true)) => (text.as_str(), "met"),
                Some((text, false)) => (text.as_str(), "MISSED"),
                None => ("", ""),
            };
            println!("| {what} | {figure} | {text} | {verdict} |");
        }
        self.0.iter().all(|row| row.target.as_ref().is_none_or(|(_, met)| *met))
    }
}

fn shown(time: Duration) -> String {
    match time.as_millis() {
        0..100 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        100..1000 => format!("{:.0} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB)
}

type Part = fn(&mut Table);

/// The parts of the benchmark, by name.
const PARTS: [(&str, Part); 17] = [
    ("size", size),
    ("starts", starts),
    ("rest", rest),
    ("cycles", cycles),
    ("gates", gates),
    ("registry", real_registry),
    ("updates", updates),
    ("answers", live::answers),
    ("hundred", live::hundred),
    ("away", away::warden_away),
    ("lean-size", lean::size),
    ("swarm", live::swarm),
    ("lean-starts", lean::first_answers),
    ("lean-resident", lean::resident),
    ("lean-watched", lean::watched),
    ("lean-idle", lean::idle),
    ("lean-status", lean::statuses),
];

fn main() -> std::process::ExitCode {
    // Cargo adds its own flags.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let facts = machine();
    let mut table = Table::default();
    for (name, measure) in PARTS {
        let is_wanted = |word: &String| name == word || name.starts_with(&format!("{word}-"));
        if wanted.is_empty() || wanted.iter().any(is_wanted) {
            measure(&mut table);
        }
    }
    println!("\n{facts}; at the end {}\n", load());
    if table.print() { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}

/// Returns projects for `services` services with `images` up-to-date images each.
fn fleet(services: usize, images: usize) -> Vec<FakeProject> {
    let project = |n: usize| FakeProject {
        name: format!("bench-{n}"),
        images: (0..images)
            .map(|i| {
                let (repository, tag) = (format!("bench/app-{n}-{i}"), format!("v{i}"));
                let digest = fakes::digest_in_registry(&repository, &tag);
                FakeImage { repository, tag, digest }
            })
            .collect(),
    };
    (0..services).map(project).collect()
}

fn config(folder: &Path, registry: &str, poll_interval: u64, projects: &[FakeProject]) -> Config {
    let services = projects.iter().map(|project| {
        let images: Vec<String> =
            project.images.iter().map(|image| format!("{}:{}", image.repository, image.tag)).collect();
        Service::idle(&project.name, folder)
            .set("images", images)
            .set("compose_project", &*project.name)
            .set("auto_update", true)
    });
    Config::of(services)
        .registry(registry)
        .set("registry.poll_interval", poll_interval)
        .set("registry.concurrency", 8)
}

fn folder() -> TempDir {
    tempfile::Builder::new().prefix(&format!("{PREFIX}bench-")).tempdir().expect("a folder can be created")
}

/// An agent on a fake engine and, unless a real one is given, a fake registry.
struct Fixture {
    agent: Subject,
    folder: TempDir,
    heads: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl Fixture {
    fn new(projects: &[FakeProject], poll_interval: u64, registry: Option<&str>) -> Self {
        Self::with_gates(projects, poll_interval, registry, None)
    }

    /// Like [`Self::new`], with these gates for every service.
    fn with_gates(
        projects: &[FakeProject],
        poll_interval: u64,
        registry: Option<&str>,
        gates: Option<&Value>,
    ) -> Self {
        let folder = folder();
        let (fake, heads) = fakes::registry();
        let host = registry.unwrap_or(&fake);
        let socket = folder.path().join("engine.sock");
        fakes::engine(&socket, host, projects);
        let mut config = config(folder.path(), host, poll_interval, projects);
        if let Some(gates) = gates {
            let mut tree = Value::from(config);
            tree["services"]
                .as_array_mut()
                .into_iter()
                .flatten()
                .for_each(|service| service["update"] = gates.clone());
            config = Config::from(tree);
        }
        let agent = Subject::start(folder.path(), &config, &format!("unix://{}", socket.display()));
        let fixture = Self { agent, folder, heads };
        fixture.agent.wait_polls(1, Duration::from_millis(50));
        fixture.assert_idle(projects.len());
        fixture
    }

    /// Asserts that all services are checked and up to date. Otherwise the benchmark would measure more than polling.
    fn assert_idle(&self, services: usize) {
        let status = self.agent.get("/status");
        let is_idle = |service: &&Value| {
            service["images"].is_array()
                && service["deploying"] == false
                && service.get("errored").is_none()
                && service.get("not_found").is_none()
        };
        let all = status["services"].as_array().expect("a status has services");
        assert_eq!(all.iter().filter(is_idle).count(), services, "all services are idle: {}", all[0]);
    }
}

fn size(table: &mut Table) {
    let size = fs::metadata(program()).expect("the program is there").len();
    table.add("size of the release binary", mib(size), Some(("under 15 MiB", size < 15 << 20)));
}

fn starts(table: &mut Table) {
    let projects = fleet(50, 1);
    let folder = folder();
    let (host, _) = fakes::registry();
    let socket = folder.path().join("engine.sock");
    fakes::engine(&socket, &host, &projects);
    let config = config(folder.path(), &host, 3600, &projects);
    let docker = format!("unix://{}", socket.display());
    let mut fresh = Vec::new();
    let mut killed = Vec::new();
    for _ in 0..STARTS {
        let _ = fs::remove_dir_all(folder.path().join("state"));
        let agent = Subject::start(folder.path(), &config, &docker);
        fresh.push(agent.first_answer);
        agent.wait_polls(1, Duration::from_millis(20));
        agent.kill9();
        let agent = Subject::start(folder.path(), &config, &docker);
        killed.push(agent.first_answer);
        agent.kill9();
    }
    let limit = Some(Duration::from_millis(100));
    table.times("start to the first answer, 50 services, no state", fresh, limit);
    table.times("start to the first answer, 50 services, after SIGKILL", killed, limit);
}

/// Measures memory and the bytes that routine cycles write to disk.
fn rest(table: &mut Table) {
    for (services, limit) in [(50, Some(15_u64 << 20)), (500, None)] {
        let projects = fleet(services, 1);
        let fixture = Fixture::new(&projects, 10, None);
        let agent = &fixture.agent;
        agent.wait_polls(2, Duration::from_millis(200));
        std::thread::sleep(Duration::from_secs(1));
        let files = |name: &str| {
            let path = fixture.folder.path().join(name);
            let content = fs::read(&path).expect("the file can be read");
            let modified = fs::metadata(&path).and_then(|data| data.modified()).expect("it has a time");
            (content.len(), Sha256::digest(&content).to_vec(), modified)
        };
        let on_disk = || (files("state/state.redb"), files("audit.jsonl"));
        let before = (agent.proc_number("io", "write_bytes"), on_disk());
        agent.wait_polls(5, Duration::from_millis(200));
        std::thread::sleep(Duration::from_secs(1));
        let written = agent.proc_number("io", "write_bytes") - before.0;
        let same = if on_disk() == before.1 { "state and audit file unchanged" } else { "FILES CHANGED" };
        table.add(
            &format!("written to disk by 3 routine cycles, {services} services, nothing new"),
            format!("{written} bytes, {same}"),
            Some(("nothing", written == 0 && on_disk() == before.1)),
        );
        let (rss, anonymous) = agent.resident();
        let figure = format!("{} (of it {} not from files)", mib(rss), mib(anonymous));
        let target = limit.map(|limit| ("under 15 MiB", rss < limit));
        table.add(&format!("resident memory after 5 cycles, {services} services"), figure, target);
    }
}

fn cycles(table: &mut Table) {
    for (services, images, limit) in
        [(50, 1, None), (50, 10, Some(Duration::from_secs(2))), (500, 1, Some(Duration::from_secs(2)))]
    {
        let projects = fleet(services, images);
        let fixture = Fixture::new(&projects, 3600, None);
        let before = fixture.heads.load(std::sync::atomic::Ordering::Relaxed);
        let children = fixture.agent.faults_of_children();
        let times: Vec<Duration> = (0..CYCLES).map(|_| fixture.agent.time_cycle()).collect();
        let children = fixture.agent.faults_of_children() - children;
        let asked = fixture.heads.load(std::sync::atomic::Ordering::Relaxed) - before;
        assert_eq!(asked, (services * images * CYCLES) as u64, "one request per image and cycle");
        fixture.assert_idle(services);
        let all = services * images;
        table.times(&format!("poll cycle, {all} images in {services} services, 8 at once"), times, limit);
        let figure =
            if children == 0 { "none".to_owned() } else { format!("{children} page faults of them") };
        let what = format!("programs run by {CYCLES} poll cycles of {services} up-to-date services");
        table.add(&what, figure, Some(("none: compose is not asked", children == 0)));
    }
}

/// Measures the cost of gates, and of what else `update` may ask, when there is no update to hold.
fn gates(table: &mut Table) {
    let projects = fleet(500, 1);
    let gates = json!({
        "min_age": 3600, "window": "02:00-05:00", "timezone": "Europe/Vienna", "approve": true, "gate": ["/bin/true"],
    });
    let more = json!({
        "probe": { "http": ":8080/health" }, "ask_on": true,
        "hooks": { "before": ["/bin/true"], "after": ["/bin/true"], "rolled_back": ["/bin/true"] },
    });
    let median = |update: Option<&Value>| {
        let fixture = Fixture::with_gates(&projects, 3600, None, update);
        let before = fixture.heads.load(std::sync::atomic::Ordering::Relaxed);
        let children = fixture.agent.faults_of_children();
        let mut times: Vec<Duration> = (0..CYCLES).map(|_| fixture.agent.time_cycle()).collect();
        fixture.assert_idle(projects.len());
        let asked = fixture.heads.load(std::sync::atomic::Ordering::Relaxed) - before;
        assert_eq!(asked, (projects.len() * CYCLES) as u64, "one request per image and cycle");
        assert_eq!(fixture.agent.faults_of_children(), children, "no program is run");
        times.sort();
        times[times.len() / 2]
    };
    let without = median(None);
    for (what, update) in [("four gates", &gates), ("probe, ask_on and hooks", &more)] {
        let with = median(Some(update));
        let ratio = with.as_secs_f64() / without.as_secs_f64();
        let figure = format!("{ratio:.2} ({} ms with, {} ms without)", with.as_millis(), without.as_millis());
        let row = format!("poll cycle of 500 services with {what}, to one without");
        table.add(&row, figure, Some(("under 1.25", ratio < 1.25)));
    }
}

/// Measures poll cycles against `registry:2` in a container.
fn real_registry(table: &mut Table) {
    let registry = Registry::start();
    let images = push_tags(&registry, "bench/app", 500);
    let projects: Vec<FakeProject> = images
        .into_iter()
        .enumerate()
        .map(|(n, image)| FakeProject { name: format!("bench-{n}"), images: vec![image] })
        .collect();
    let fixture = Fixture::new(&projects, 3600, Some(&registry.host));
    let times: Vec<Duration> = (0..CYCLES).map(|_| fixture.agent.time_cycle()).collect();
    fixture.assert_idle(projects.len());
    let limit = Some(Duration::from_secs(2));
    table.times("the same, 500 in 500, against a real registry in a container", times, limit);
}

/// Pushes `count` tags to a repository, each with a different manifest of one tiny blob.
fn push_tags(registry: &Registry, repository: &str, count: usize) -> Vec<FakeImage> {
    let send = |method: &str, path: &str, kind: &str, body: &[u8]| {
        let reply = request(&registry.host, method, path, &[("Content-Type", kind)], body);
        let reply = reply.expect("the registry answers");
        assert!(matches!(reply.status, 201 | 202), "{method} {path}: {}", reply.text());
        reply
    };
    let blob = "{}";
    let begun = send("POST", &format!("/v2/{repository}/blobs/uploads/"), "", &[]);
    let location = begun.header("location").expect("an upload has a location");
    let path = location.trim_start_matches(&format!("http://{}", registry.host));
    let blob_digest = fakes::digest_of(blob);
    let sign = if path.contains('?') { '&' } else { '?' };
    send("PUT", &format!("{path}{sign}digest={blob_digest}"), "application/octet-stream", blob.as_bytes());
    let part = |kind: &str| json!({"mediaType": kind, "size": blob.len(), "digest": blob_digest});
    let push = |n: usize| {
        let tag = format!("v{n}");
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": kind,
            "config": part("application/vnd.oci.image.config.v1+json"),
            "layers": [part("application/vnd.oci.image.layer.v1.tar")],
            "annotations": {"evenkeel.bench": tag},
        })
        .to_string();
        send("PUT", &format!("/v2/{repository}/manifests/{tag}"), kind, manifest.as_bytes());
        FakeImage { repository: repository.to_owned(), tag, digest: fakes::digest_of(&manifest) }
    };
    (0..count).map(push).collect()
}

/// Returns an image with the health check that `dist/docs/benchmarks.md` describes.
pub(crate) fn image(version: &str) -> Image {
    let check = Health { timeout: Duration::from_secs(3), ..Health::every_second("true", 3) };
    Image::good(version).with_health(check)
}

/// Measures complete updates on the real engine, half of them with a SIGKILL and restart during probation.
fn updates(table: &mut Table) {
    let (world, _) = World::with_web_of("bench", &image("v1"), &[]);
    let config = world.config([world.entry("web", &["web:latest"])]);
    let docker = world.engine.host();
    let start = || Subject::start(world.folder(), &config, &docker);
    let soon = Duration::from_millis(20);
    let runs = |version: &str| {
        world.project.containers().iter().any(|view| view.version == version && view.state == "running")
    };
    let mut agent = start();
    agent.wait_polls(1, soon);
    let (mut running, mut proven) = (Vec::new(), Vec::new());
    let (mut back, mut resumed, mut done) = (Vec::new(), Vec::new(), Vec::new());
    for n in 2..2 + 2 * UPDATES {
        let version = format!("v{n}");
        world.push("web", &image(&version));
        let updated = agent.count("updated");
        let began = Instant::now();
        agent.post("/trigger/web");
        agent.wait_until(soon, "the new container", || runs(&version));
        if n % 2 == 0 {
            running.push(began.elapsed());
        } else {
            agent
                .wait_until(soon, "probation", || agent.get("/status/web")["deploy"]["phase"] == "probation");
            let before = agent.count("resumed");
            agent.kill9();
            let began = Instant::now();
            agent = start();
            back.push(agent.first_answer);
            agent.wait_until(soon, "the deployment to be resumed", || agent.count("resumed") > before);
            resumed.push(began.elapsed());
        }
        agent.wait_until(soon, "the update to be proven", || agent.count("updated") > updated);
        let whole = began.elapsed();
        if n % 2 == 0 { proven.push(whole) } else { done.push(whole) }
    }
    table.times(
        "update: trigger to the new container running (real engine, compose and registry)",
        running,
        None,
    );
    table.times("update: trigger to `updated`, health_grace 3 s", proven, None);
    table.times("SIGKILL on probation: restart to the first answer", back, None);
    table.times("SIGKILL on probation: restart to `resumed`", resumed, None);
    table.times("the same update with a SIGKILL and restart on probation: trigger to `updated`", done, None);
}

/// Describes the machine.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = value(&read("/proc/meminfo"), "MemTotal");
    let memory = memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or_default();
    let engine = Engine::of_this_machine().get("/version");
    format!(
        "{} cores of {}, {} memory, Linux {}, engine {}; {} at the beginning",
        cores,
        value(&read("/proc/cpuinfo"), "model name"),
        mib(memory << 10),
        read("/proc/sys/kernel/osrelease").trim(),
        engine["Version"].as_str().unwrap_or("unknown"),
        load(),
    )
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load {}", text.split(' ').next().unwrap_or_default())
}
