//! Measurements on the real engine: API latency during updates and outages, memory with a hundred containers, and updates
//! of a swarm service.

use std::time::{Duration, Instant};

use contract_tests::{
    BackgroundClient, Config, Fault, Image, PrivateEngine, Pushed, Registry, Swarm, World, wait_for,
};

use crate::subject::Subject;
use crate::{Table, image, mib, shown};

pub(crate) const PATHS: &[&str] = &["/status", "/health", "/audit?limit=100"];
const SOON: Duration = Duration::from_millis(20);
/// Duration of the measurement while registry or engine hang.
const HANGS: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_millis(50);

/// Stops the client and adds its latencies to the table.
pub(crate) fn add_latencies(table: &mut Table, what: &str, client: BackgroundClient) {
    let all = client.stop();
    let answered = all.iter().all(|one| one.answer.as_ref().is_ok_and(|code| [200, 503].contains(code)));
    let mut times: Vec<Duration> = all.iter().map(|one| one.took).collect();
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    let figure = format!(
        "p50 {}, p99 {}, greatest {} (n = {}{})",
        shown(at(50)),
        shown(at(99)),
        shown(times[times.len() - 1]),
        times.len(),
        if answered { "" } else { "; NOT ALL ANSWERED" },
    );
    let what = format!("/status, /health, /audit in turn while {what}");
    table.add(&what, figure, Some(("p99 under 50 ms", answered && at(99) < LIMIT)));
}

/// Measures the API's latency during updates, and while registry or engine hang.
pub(crate) fn answers(table: &mut Table) {
    let (world, proxy, _) = World::behind_proxy("bench-api");
    let config = world.config([world.entry("web", &["web:latest"])]);
    let agent = Subject::start(world.folder(), &config, &world.engine.host());
    agent.wait_polls(1, SOON);
    let client = BackgroundClient::start(agent.address(), PATHS);
    for n in 2..5 {
        world.push("web", &image(&format!("v{n}")));
        let updated = agent.count("updated");
        agent.post("/trigger/web");
        agent.wait_until(Duration::from_millis(500), "the update", || agent.count("updated") > updated);
    }
    add_latencies(table, "three updates are pulled, started and proven", client);
    proxy.set(Fault::Hang);
    agent.post("/trigger/web");
    let client = BackgroundClient::start(agent.address(), PATHS);
    std::thread::sleep(HANGS);
    add_latencies(table, "the registry hangs", client);
    drop(agent);

    let registry = Registry::start_for_private_engine();
    let private = PrivateEngine::start(&registry);
    let mut world = World::with("bench-hang", &private.engine(), registry);
    world.push("web", &Image::good("v1"));
    world.service("web", "web", &[]);
    world.project.up();
    let config = world
        .config([world.entry("web", &["web:latest"])])
        .set("docker_health.check_interval", 5)
        .set("docker_health.timeout", 1);
    let agent = Subject::start(world.folder(), &config, &world.engine.host());
    agent.wait_polls(1, SOON);
    private.hang();
    agent.post("/trigger/web");
    let client = BackgroundClient::start(agent.address(), PATHS);
    std::thread::sleep(HANGS);
    add_latencies(table, "the engine hangs", client);
    private.resume();
}

/// Measures the memory of an agent that collects the stats of a hundred containers.
pub(crate) fn hundred(table: &mut Table) {
    let mut world = World::new("bench-hundred");
    world.push("web", &Image::good("v1"));
    world.service("web", "web", &["scale: 100", "stop_grace_period: 1s"]);
    world.project.up();
    let config = world.config([world.entry("web", &["web:latest"])]).set("monitor.stats_interval", 3);
    let agent = Subject::start(world.folder(), &config, &world.engine.host());
    let measured = || {
        let service = agent.get("/status/web");
        let all = service["containers"].as_array().cloned().unwrap_or_default();
        all.iter().filter(|one| one["cpu_percent"].is_number()).count()
    };
    agent.wait_until(Duration::from_millis(200), "a hundred containers to be measured", || measured() == 100);
    // Let it run for several more passes.
    std::thread::sleep(Duration::from_secs(30));
    let figure = agent.resident();
    table.add(
        "resident memory after half a minute of measuring 100 containers every 3 s",
        format!("{} (of it {} not from files)", mib(figure.0), mib(figure.1)),
        Some(("under 20 MiB", figure.0 < 20 << 20)),
    );
}

/// Number of updates of the swarm service, both by hand and by the agent.
const ROUNDS: usize = 5;

/// Compares updates of a swarm service by the agent with `docker service update` by hand, alternately on the same swarm.
pub(crate) fn swarm(table: &mut Table) {
    let swarm = Swarm::start();
    swarm.push(&Image::good("v0"));
    swarm.create(&["--replicas", "3"]);
    let config = Config::of([swarm.entry()]).registry(&swarm.registry.host);
    // For a moment the new specification still has the status of the previous update.
    let started = || swarm.service()["UpdateStatus"]["StartedAt"].clone();
    let converged = |pushed: &Pushed, began: Instant, before: &serde_json::Value| {
        wait_for("the swarm to complete the update", || {
            let service = swarm.service();
            let is_new = swarm.spec_image().ends_with(&pushed.digest);
            let status = &service["UpdateStatus"];
            if is_new && status["StartedAt"] != *before && status["State"] == "completed" {
                Ok(began.elapsed())
            } else {
                Err(service["UpdateStatus"].to_string())
            }
        })
    };
    let (mut by_hand, mut by_agent, mut proven) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let pushed = swarm.push(&Image::good(&format!("by-hand-{round}")));
        let (before, began) = (started(), Instant::now());
        swarm.change(&["--image", &swarm.image()]);
        by_hand.push(converged(&pushed, began, &before));
        let agent = Subject::start(swarm.folder(), &config, &swarm.engine().host());
        agent.wait_polls(1, SOON);
        let pushed = swarm.push(&Image::good(&format!("by-agent-{round}")));
        let (before, updated, began) = (started(), agent.count("updated"), Instant::now());
        agent.post("/trigger/web");
        by_agent.push(converged(&pushed, began, &before));
        agent.wait_until(SOON, "the proof", || agent.count("updated") > updated);
        proven.push(began.elapsed());
    }
    let median = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    };
    let ratio = median(&by_agent) / median(&by_hand);
    table.times("swarm, 3 replicas: `docker service update` by hand to `completed`", by_hand, None);
    table.times("swarm, 3 replicas: `POST /trigger` to `completed`", by_agent, None);
    table.add("swarm: ratio of the two medians", format!("{ratio:.2}"), None);
    table.times("swarm, 3 replicas: `POST /trigger` to `updated`, health_grace 3 s", proven, None);
}
