//! The cost of an idle agent: time to the first response, memory and wake-ups. If `$EVENKEEL_OTHER` names another program,
//! it is measured under the same load for comparison.
//!
//! Registry and engine are fakes. The other program gets the same configuration file and must respond to `GET /health`
//! and `GET /status` (spec 4.1).

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use contract_tests::Config;
use tempfile::TempDir;

use crate::subject::{Program, Subject};
use crate::{MIB, Table, config, fakes, fleet, folder};

/// Number of repetitions of each measurement.
const STARTS: usize = 15;
const RUNS: usize = 3;
/// How many clients request the status at the same time, and for how long.
const CLIENTS: usize = 4;
const ASKED: Duration = Duration::from_secs(5);
/// Period over which wake-ups are counted.
const WATCHED: Duration = Duration::from_secs(30);
/// An interval after which nothing is due during a measurement.
const HOUR: u64 = 3600;

/// Upper limit of a figure.
type Limit = Option<f64>;

/// The measured values of one figure for both programs.
struct Figure {
    what: String,
    unit: &'static str,
    limit: Limit,
    ours: Vec<f64>,
    others: Vec<f64>,
}

impl Figure {
    fn new(what: impl Into<String>, unit: &'static str, limit: Limit) -> Self {
        Self { what: what.into(), unit, limit, ours: Vec::new(), others: Vec::new() }
    }

    fn note(&mut self, is_other: bool, value: f64) {
        let values = if is_other { &mut self.others } else { &mut self.ours };
        values.push(value);
    }

    fn show(mut self, table: &mut Table) {
        let ours = median(&mut self.ours);
        let mut figure = format!("{ours:.1}{} {}", self.unit, spread(&self.ours));
        if !self.others.is_empty() {
            let other = median(&mut self.others);
            let ratio = if other > 0.0 { format!("{:.2}", ours / other) } else { "none".to_owned() };
            figure.push_str(&format!(
                "; the other {other:.1}{} {}, ratio {ratio}",
                self.unit,
                spread(&self.others)
            ));
        }
        let target = self.limit.map(|limit| (format!("at most {limit}{}", self.unit), ours <= limit));
        table.add(&self.what, figure, target.as_ref().map(|(text, met)| (text.as_str(), *met)));
    }
}

/// Returns the median and sorts the values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn spread(values: &[f64]) -> String {
    format!("(n = {}, {:.1} to {:.1})", values.len(), values[0], values[values.len() - 1])
}

/// Measures the size of the program's file.
pub(crate) fn size(table: &mut Table) {
    let mut size = Figure::new("size of the release binary", " MB", Some(9.0));
    for (is_other, program) in programs() {
        size.note(is_other, program.size() as f64 / 1e6);
    }
    size.show(table);
}

/// A fake registry and engine with services, and the folder of an agent's files.
struct Fixture {
    folder: TempDir,
    config: Config,
    docker: String,
    connections: Arc<AtomicU64>,
}

impl Fixture {
    /// Creates fakes with one container per service, and a configuration with these intervals in seconds.
    fn new(services: usize, poll_interval: u64, stats_interval: u64) -> Self {
        let projects = fleet(services, 1);
        let folder = folder();
        let (host, _) = fakes::registry();
        let socket = folder.path().join("engine.sock");
        let connections = fakes::engine(&socket, &host, &projects);
        let config = config(folder.path(), &host, poll_interval, &projects)
            .set("monitor.stats_interval", stats_interval)
            .set("docker_health.check_interval", HOUR);
        Self { docker: format!("unix://{}", socket.display()), folder, config, connections }
    }

    fn start(&self, program: &Program) -> Subject {
        Subject::start_as(program, self.folder.path(), &self.config, &self.docker)
    }

    /// Deletes the state and the audit file, so that the next agent starts without a state.
    fn reset(&self) {
        let _ = fs::remove_dir_all(self.folder.path().join("state"));
        let _ = fs::remove_file(self.folder.path().join("audit.jsonl"));
    }
}

/// Returns the measured program and, if configured, the other one, each with the flag whether it is the other one.
fn programs() -> Vec<(bool, Program)> {
    let mut all = vec![(false, Program::ours())];
    all.extend(Program::other().map(|other| (true, other)));
    all
}

/// Measures the time to the first response, which should not depend on the number of services.
pub(crate) fn first_answers(table: &mut Table) {
    for services in [1, 50, 300] {
        first_answer(table, services);
    }
}

fn first_answer(table: &mut Table, services: usize) {
    let mut fresh = Figure::new(format!("first answer, {services} services, no state"), " ms", Some(10.0));
    let mut again =
        Figure::new(format!("first answer, {services} services, after SIGKILL"), " ms", Some(10.0));
    for (is_other, program) in programs() {
        let fixture = Fixture::new(services, HOUR, HOUR);
        for _ in 0..STARTS {
            fixture.reset();
            for figure in [&mut fresh, &mut again] {
                let agent = fixture.start(&program);
                figure.note(is_other, agent.first_answer.as_secs_f64() * 1e3);
                agent.wait_polls(1, Duration::from_millis(50));
                agent.kill9();
            }
        }
    }
    fresh.show(table);
    again.show(table);
}

/// Measures memory with many services.
pub(crate) fn resident(table: &mut Table) {
    let mut whole = Figure::new("resident after 3 cycles, 300 services", " MiB", Some(13.0));
    let mut own = Figure::new("of it not from files", " MiB", Some(5.0));
    for (is_other, program) in programs() {
        for _ in 0..RUNS {
            let fixture = Fixture::new(300, 10, HOUR);
            let agent = fixture.start(&program);
            agent.wait_polls(3, Duration::from_millis(500));
            std::thread::sleep(Duration::from_secs(2));
            assert_checked(&agent);
            let (rss, anonymous) = agent.resident();
            whole.note(is_other, rss as f64 / MIB);
            own.note(is_other, anonymous as f64 / MIB);
        }
    }
    whole.show(table);
    own.show(table);
}

/// Measures the cost of collecting the stats of fifty containers every ten seconds.
pub(crate) fn watched(table: &mut Table) {
    let mut whole = Figure::new("resident, 50 containers measured every 10 s", " MiB", Some(11.0));
    let mut own = Figure::new("of it not from files", " MiB", None);
    let mut opened = Figure::new("connections to the engine meanwhile", " a second", Some(0.0));
    let mut woken = Figure::new("wake-ups meanwhile", " a second", None);
    for (is_other, program) in programs() {
        for _ in 0..RUNS {
            let fixture = Fixture::new(50, HOUR, 10);
            let agent = fixture.start(&program);
            let measured = || {
                let status = agent.get("/status");
                let services = status["services"].as_array().cloned().unwrap_or_default();
                services.iter().filter(|one| one["has_stats"] == true).count() == 50
            };
            agent.wait_until(Duration::from_millis(200), "all containers to be measured", measured);
            std::thread::sleep(Duration::from_secs(5));
            let before = (fixture.connections.load(Ordering::Relaxed), agent.wake_ups());
            std::thread::sleep(WATCHED);
            let connections = fixture.connections.load(Ordering::Relaxed) - before.0;
            opened.note(is_other, connections as f64 / WATCHED.as_secs_f64());
            woken.note(is_other, agent.woken_since(&before.1) as f64 / WATCHED.as_secs_f64());
            let (rss, anonymous) = agent.resident();
            whole.note(is_other, rss as f64 / MIB);
            own.note(is_other, anonymous as f64 / MIB);
        }
    }
    for figure in [whole, own, opened, woken] {
        figure.show(table);
    }
}

/// Measures how many requests for the status of all services are answered, on connections that stay open.
pub(crate) fn statuses(table: &mut Table) {
    for services in [50, 300] {
        let name = format!("GET /status, {services} services, {CLIENTS} connections");
        let mut rate = Figure::new(name, " a second", None);
        let mut slowest = Figure::new("the slowest of a hundred", " ms", None);
        for (is_other, program) in programs() {
            let fixture = Fixture::new(services, HOUR, HOUR);
            let agent = fixture.start(&program);
            agent.wait_polls(1, Duration::from_millis(200));
            for _ in 0..RUNS {
                let mut times: Vec<f64> = std::thread::scope(|scope| {
                    let clients: Vec<_> =
                        (0..CLIENTS).map(|_| scope.spawn(|| ask_for(agent.address(), ASKED))).collect();
                    clients.into_iter().flat_map(|client| client.join().expect("a client ends")).collect()
                });
                times.sort_by(f64::total_cmp);
                rate.note(is_other, times.len() as f64 / ASKED.as_secs_f64());
                slowest.note(is_other, times[times.len() * 99 / 100] * 1e3);
            }
        }
        rate.show(table);
        slowest.show(table);
    }
}

/// Requests the status again and again for this long. Returns the seconds that each response took.
fn ask_for(address: &str, period: Duration) -> Vec<f64> {
    let stream = TcpStream::connect(address).expect("the agent listens");
    stream.set_nodelay(true).expect("a socket has this option");
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let (began, mut times) = (Instant::now(), Vec::new());
    let mut body = Vec::new();
    while began.elapsed() < period {
        let asked = Instant::now();
        write!(reader.get_mut(), "GET /status HTTP/1.1\r\nhost: {address}\r\n\r\n").expect("it is sent");
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("it is answered");
            let (name, value) = line.trim().split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().expect("it is a number");
            }
            if line.trim().is_empty() {
                break;
            }
        }
        assert!(length > 0, "the response has a length and is not empty");
        body.resize(length, 0);
        reader.read_exact(&mut body).expect("it is answered");
        times.push(asked.elapsed().as_secs_f64());
    }
    times
}

/// Asserts that the checks of all services have succeeded. Otherwise the benchmark would measure something else.
fn assert_checked(agent: &Subject) {
    let status = agent.get("/status");
    let services = status["services"].as_array().expect("a status has services");
    let errored = services.iter().find(|service| service["errored"].is_string());
    assert!(errored.is_none(), "{errored:?}");
}

/// Measures wake-ups while nothing is due.
pub(crate) fn idle(table: &mut Table) {
    let mut woken = Figure::new("wake-ups, 50 services, nothing due", " a second", Some(1.0));
    for (is_other, program) in programs() {
        let fixture = Fixture::new(50, HOUR, HOUR);
        for _ in 0..RUNS {
            let agent = fixture.start(&program);
            agent.wait_polls(1, Duration::from_millis(50));
            std::thread::sleep(Duration::from_secs(15));
            let before = agent.wake_ups();
            std::thread::sleep(WATCHED);
            woken.note(is_other, agent.woken_since(&before) as f64 / WATCHED.as_secs_f64());
        }
    }
    woken.show(table);
}
