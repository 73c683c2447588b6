//! A machine with services in every state, and a fleet around it, created by the real programs on a real engine with a real
//! registry. With `EVENKEEL_PICTURES` set, the screenshots become the pictures of the documentation.

use contract_tests::{
    Agent, Browser, Config, Engine, Health, Image, PREFIX, PrivateEngine, Project, Registry, Service, Shape,
    Warden, wait_for,
};
use evenkeel_common::wire::Kind;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::Duration;

use crate::scene::{ago, save_screenshot};

/// Returns an image whose container uses some memory and works now and then.
fn app(version: &str, mebibytes: u32, work: u32) -> Image {
    let script = format!(
        "trap 'exit 0' TERM INT
         n=0; while [ $n -lt {mebibytes} ]; do tail -c 1048576 /bin/busybox; n=$((n + 1)); done >/dev/shm/memory
         k=1; while :; do
             k=$(((k * 7 + 3) % 11)); n=0; while [ $n -lt $((k * {work})) ]; do n=$((n + 1)); done
             sleep 1 & wait $!
         done"
    );
    let command = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    // Eleven of these share the machine with the browser.
    let check = Health { interval: Duration::from_secs(3), ..Health::every_second("true", 2) };
    Image { command, ..Image::good(version).with_health(check) }
}

/// Returns an image whose container logs an error after some seconds and exits.
fn failing(version: &str) -> Image {
    let script = "echo 'msg=\"Starting Grafana\" version=11.3.0'
        echo 'msg=\"Executing migration\" id=\"add column org_id to dashboard_tag\"'
        sleep 3
        echo 'level=error msg=\"Server failed\" error=\"migration failed: no such column: org_id\"' >&2
        exit 1";
    let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    Image { command, ..Image::good(version) }
}

/// Returns an image whose health check always fails.
fn ailing(version: &str, says: &str) -> Image {
    let check = Health::every_second(&format!("echo {says}; false"), 2);
    Image { health: Some(check), ..app(version, 20, 200) }
}

struct Machine<'a> {
    folder: &'a Path,
    registry: &'a Registry,
    engine: &'a Engine,
}

impl Machine<'_> {
    fn push(&self, name: &str, image: &Image) {
        self.registry.push(name, "latest", image, Shape::Docker, name);
    }

    /// Creates a project with these containers of one image. Returns it with its part of the agent's configuration.
    fn project(
        &self,
        name: &str,
        containers: &[&str],
        image: &Image,
        limit: u32,
        more: &[(&str, Value)],
    ) -> (Project, Service) {
        self.push(name, image);
        let folder = self.folder.join(name);
        std::fs::create_dir(&folder).expect("a folder can be created");
        let mut project = Project::named(name, &folder, self.engine);
        let reference = format!("{}/{name}:latest", self.registry.host);
        let lines =
            [format!("mem_limit: {limit}m"), format!("shm_size: {limit}m"), "restart: \"no\"".to_owned()];
        let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        for container in containers {
            if *container == "app" {
                lines.push("volumes: [\"/etc/localtime:/etc/localtime:ro\"]");
            }
            project.service(container, &reference, &lines);
            lines.truncate(3);
        }
        let entry = Service::of_project(name, &project, &[&format!("{name}:latest")])
            .set("auto_heal", true)
            .set("auto_start", true);
        let entry = more.iter().fold(entry, |entry, (key, value)| entry.set(key, value.clone()));
        (project, entry)
    }
}

/// Sends the entries of the other machines of the fleet, from the last hours.
fn send_history(warden: &Warden) {
    let history: &[(&str, u32, u32, &str, &str, &str, &str)] = &[
        ("garage-pi", 41, 30_000, "evenkeel", "started", "info", "watching 2 services"),
        ("nas", 118, 26_000, "syncthing", "updated", "info", "the new image passed its probation"),
        ("garage-pi", 42, 22_000, "zigbee2mqtt", "updated", "info", "the new image passed its probation"),
        ("media-box", 77, 19_500, "sonarr", "unhealthy", "warning", "container sonarr-app-1 is unhealthy"),
        ("media-box", 78, 19_480, "sonarr", "restarted", "info", "container sonarr-app-1 is healthy again"),
        (
            "garage-pi",
            46,
            11_000,
            "zigbee2mqtt",
            "error",
            "error",
            "cannot ask the registry for zigbee2mqtt:latest",
        ),
        (
            "nas",
            119,
            6_000,
            "minio",
            "resource_alert",
            "warning",
            "memory is at 91.4 % of its limit, over the threshold of 90 %",
        ),
        ("media-box", 79, 2_400, "navidrome", "updated", "info", "the new image passed its probation"),
    ];
    for (machine, seq, seconds, service, event, level, message) in history {
        let mut entry = json!({ "timestamp": ago(*seconds), "service": service, "event": event, "level": level,
            "message": message, "machine": machine, "seq": seq });
        if *event == "updated" {
            for key in ["old_digest", "new_digest"] {
                let sum = Sha256::digest(format!("{machine} {service} {key}"));
                entry[key] = json!(format!("sha256:{}", hex::encode(sum)));
            }
        }
        warden.ingest(machine, &entry);
    }
}

/// Takes screenshots in light, dark, and on a phone.
fn take_screenshots(browser: &Browser, name: &str, height: u32) {
    for (scheme, width, height, suffix) in
        [("light", 1440, height, "light"), ("dark", 1440, height, "dark"), ("light", 390, 844, "phone")]
    {
        browser.prefers(scheme, true);
        browser.size(width, height);
        browser.run("window.scrollTo(0, 0);");
        assert_eq!(
            browser.value("document.documentElement.scrollWidth <= innerWidth"),
            true,
            "{name} {width}"
        );
        save_screenshot(browser, &format!("{name}-{suffix}"));
    }
}

/// Starts the projects of the machine: name, containers, image, memory limit in MiB, and additional configuration.
fn projects(machine: &Machine) -> (Vec<Project>, Vec<Service>) {
    let made = [
        machine.project("home-assistant", &["app"], &app("v1", 180, 900), 512, &[]),
        machine.project("nextcloud", &["app", "db", "redis"], &app("v1", 90, 400), 256, &[]),
        // Long enough to take all pictures during its probation, even on a slow machine.
        machine.project("paperless", &["app"], &app("v1", 150, 600), 384, &[("health_grace", 120.into())]),
        machine.project("grafana", &["app"], &app("v1", 60, 300), 256, &[("health_grace", 10.into())]),
        machine.project("jellyfin", &["app"], &app("v1", 440, 4000), 512, &[]),
        machine.project(
            "pihole",
            &["app"],
            &ailing("v1", "no answer from upstream"),
            128,
            &[("auto_heal", false.into())],
        ),
        machine.project(
            "zigbee2mqtt",
            &["app"],
            &ailing("v1", "adapter is gone"),
            128,
            &[("heal_cooldown", 1.into()), ("heal_max_restarts", 2.into())],
        ),
        machine.project("vaultwarden", &["app"], &app("v1", 25, 50), 128, &[]),
        machine.project("immich", &["server", "ml"], &app("v1", 210, 1500), 512, &[]),
    ];
    let (projects, entries): (Vec<Project>, Vec<Service>) = made.into_iter().unzip();
    std::thread::scope(|scope| {
        for project in &projects {
            scope.spawn(|| {
                let output = project.compose(&["up", "-d"]);
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            });
        }
    });
    (projects, entries)
}

/// The services' status words, in order.
const WANTED: [&str; 9] = ["ok", "ok", "deploying", "blocked", "ok", "unhealthy", "exhausted", "ok", "ok"];

/// One good update, one bad one, and one with a long probation.
fn update(machine: &Machine, agent: &Agent) {
    machine.push("home-assistant", &app("v2", 190, 900));
    machine.push("grafana", &failing("v2"));
    agent.trigger("home-assistant");
    agent.trigger("grafana");
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_entry(&Kind::EXHAUSTED, 1);
    machine.push("paperless", &app("v2", 160, 600));
    agent.trigger("paperless");
    wait_for("the states of the services", || {
        let status = agent.request("GET", "/status").json();
        let services = status["services"].as_array().cloned().unwrap_or_default();
        let words: Vec<&str> = services.iter().filter_map(|one| one["status"].as_str()).collect();
        let phase = &services[2]["deploy"]["phase"];
        if words == WANTED && phase == "probation" { Ok(()) } else { Err(format!("{words:?} {phase}")) }
    });
}

/// Waits until the agent's page shows everything.
fn wait_shown(page: &Browser) {
    page.wait(
        "the states on the page",
        &format!(
            "JSON.stringify([...document.querySelectorAll('#rows .state .badge span:last-child')].map((b) => b.textContent)) === {}",
            json!(json!(WANTED).to_string())
        ),
    );
    page.wait(
        "the progress of the probation",
        "document.querySelector('#rows .deploying [role=progressbar]').ariaValueNow >= 10",
    );
    page.wait(
        "its stats",
        r"!/(^|\s)0\.0 MiB/.test(document.querySelector('#rows .deploying .resources').innerText)",
    );
    page.wait(
        "the curves to have several points",
        "document.querySelector('#rows .curve path').getAttribute('d')?.split('L').length >= 4",
    );
    page.wait(
        "the reason for which one service is not restarted",
        "document.querySelector('#rows > tr:nth-child(6) .note').textContent.includes('pihole-app-1 is unhealthy. Auto heal is off')",
    );
    // The black box of the failed deployment.
    page.click("#rows > tr:nth-child(4) .fold:nth-child(3)");
    page.click("#rows > tr:nth-child(4) .events .more > summary");
    page.wait(
        "its logs",
        "document.querySelector('#rows > tr:nth-child(4) .box')?.textContent.includes('no such column: org_id')",
    );
}

fn show_fleet(warden: &Warden) {
    let fleet = Browser::start();
    fleet.allow_console_errors(&["status of 401"]);
    fleet.open(&warden.url());
    fleet.size(900, 500);
    save_screenshot(&fleet, "warden-login");
    fleet.write("#token", Warden::TOKEN);
    fleet.press(&['\u{e007}']);
    fleet.wait("the fleet", "[...document.querySelectorAll('.card .badge span:last-child')].filter((b) => b.textContent === 'online').length === 3");
    fleet.wait(
        "the offline machine",
        "document.querySelector('.card.offline')?.textContent.includes('3 entries missing')",
    );
    fleet.wait("the rollback", "document.querySelector('#events').textContent.includes('rolled back')");
    take_screenshots(&fleet, "warden", 1080);
}

#[test]
fn a_machine_with_services_in_every_state_and_its_fleet_look_as_in_the_documentation() {
    let folder = tempfile::Builder::new()
        .prefix(&format!("{PREFIX}fleet-"))
        .tempdir()
        .expect("a folder can be created");
    let folder = folder.path();
    let registry = Registry::start_for_private_engine();
    let private = PrivateEngine::start(&registry);
    let engine = private.engine();
    let machine = Machine { folder, registry: &registry, engine: &engine };
    let (_projects, services) = projects(&machine);
    let config = Config::of(services)
        .registry(&registry.host)
        .set("registry.poll_interval", 300)
        .set("monitor.stats_interval", 2);
    let mut agent = Agent::start(folder, config, &[("DOCKER_HOST", &engine.host())]);
    agent.wait_first_poll();
    let page = Browser::start();
    page.open(&format!("http://{}/ui", agent.address()));

    // The rest of the fleet: two machines that are online, and one that is offline.
    let others = ["nas", "media-box"].map(|name| {
        let app = Service::named("app").set("container_name", "app").set("auto_heal", true);
        Agent::without_engine(name, |_| Config::of([app]))
    });
    let warden_folder = folder.join("warden");
    std::fs::create_dir(&warden_folder).expect("a folder can be created");
    let warden = Warden::start(
        &warden_folder,
        &[
            ("home-server", agent.address()),
            ("nas", others[0].address()),
            ("media-box", others[1].address()),
            ("garage-pi", "127.0.0.1:9"),
        ],
    );
    send_history(&warden);
    agent.reload(|config| config["push"] = warden.push("home-server"));
    agent.wait_entry(&Kind::CONFIG_RELOADED, 1);

    update(&machine, &agent);
    wait_shown(&page);
    take_screenshots(&page, "agent", 1200);
    show_fleet(&warden);
}
