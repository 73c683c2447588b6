//! A machine with everything at once, and a fleet around it, made by the real programs on a real engine with a real
//! registry. With `EVENKEEL_PICTURES` set, what the pages show then becomes the pictures of the documentation.

mod browser;

use std::path::Path;
use std::time::Duration;

use browser::{ago, keep_picture};
use contract_tests::{
    Agent, Browser, Engine, Health, Image, PREFIX, PrivateEngine, Project, Registry, Shape, Warden, request,
    wait_for,
};
use evenkeel_common::wire::Kind;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const LONG: Duration = Duration::from_secs(90);

/// A program that keeps some memory and has something to do now and then.
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
    Image { command, ..Image::good(version) }
}

/// One that finds something wrong after some seconds and says so.
fn failing(version: &str) -> Image {
    let script = "echo 'msg=\"Starting Grafana\" version=11.3.0'
        echo 'msg=\"Executing migration\" id=\"add column org_id to dashboard_tag\"'
        sleep 3
        echo 'level=error msg=\"Server failed\" error=\"migration failed: no such column: org_id\"' >&2
        exit 1";
    let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    Image { command, ..Image::without_health_check(version) }
}

/// One whose health check finds something wrong for good.
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

    /// A project with these containers on its one image, and its part of the agent's configuration.
    fn project(
        &self,
        name: &str,
        containers: &[&str],
        image: &Image,
        limit: u32,
        more: &Value,
    ) -> (Project, Value) {
        self.push(name, image);
        let folder = self.folder.join(name);
        std::fs::create_dir(&folder).expect("a folder can be made");
        let mut project = Project::called(name, &folder, self.engine);
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
        let mut entry = json!({
            "name": name, "images": [format!("{name}:latest")], "compose_files": [project.file],
            "compose_project": name, "auto_update": true, "auto_heal": true, "auto_start": true, "health_grace": 3,
        });
        for (key, value) in more.as_object().expect("an object") {
            entry[key] = value.clone();
        }
        (project, entry)
    }
}

/// What the other machines of the fleet have sent in the last hours.
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
        let token = format!("Bearer {}", Warden::agent_token(machine));
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        let reply = request(warden.address(), "POST", "/ingest", &headers, entry.to_string().as_bytes());
        assert_eq!(reply.expect("the warden answers").status, 200);
    }
}

/// Each picture in light, dark, and on a phone.
fn take(browser: &Browser, name: &str, height: u32) {
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
        keep_picture(browser, &format!("{name}-{suffix}"));
    }
}

#[test]
fn a_machine_with_everything_at_once_and_its_fleet_look_as_in_the_documentation() {
    let folder =
        tempfile::Builder::new().prefix(&format!("{PREFIX}fleet-")).tempdir().expect("a folder can be made");
    let folder = folder.path();
    let registry = Registry::start_for_private_engine();
    let private = PrivateEngine::start(&registry);
    let engine = private.engine();
    let machine = Machine { folder, registry: &registry, engine: &engine };
    let plain = json!({});
    let made = [
        machine.project("home-assistant", &["app"], &app("v1", 180, 900), 512, &plain),
        machine.project("nextcloud", &["app", "db", "redis"], &app("v1", 90, 400), 256, &plain),
        machine.project("paperless", &["app"], &app("v1", 150, 600), 384, &json!({ "health_grace": 60 })),
        machine.project("grafana", &["app"], &app("v1", 60, 300), 256, &json!({ "health_grace": 10 })),
        machine.project("jellyfin", &["app"], &app("v1", 440, 4000), 512, &plain),
        machine.project(
            "pihole",
            &["app"],
            &ailing("v1", "no answer from upstream"),
            128,
            &json!({ "auto_heal": false }),
        ),
        machine.project(
            "zigbee2mqtt",
            &["app"],
            &ailing("v1", "adapter is gone"),
            128,
            &json!({ "heal_cooldown": 1, "heal_max_restarts": 2 }),
        ),
        machine.project("vaultwarden", &["app"], &app("v1", 25, 50), 128, &plain),
        machine.project("immich", &["server", "ml"], &app("v1", 210, 1500), 512, &plain),
    ];
    let (projects, entries): (Vec<Project>, Vec<Value>) = made.into_iter().unzip();
    std::thread::scope(|scope| {
        for project in &projects {
            scope.spawn(|| {
                let output = project.compose(&["up", "-d"]);
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            });
        }
    });
    let config = json!({
        "registry": { "url": format!("http://{}", registry.host), "poll_interval": 300 },
        "monitor": { "stats_interval": 2 },
        "services": entries,
    });
    let mut agent = Agent::start(folder, config, &[("DOCKER_HOST", &engine.host())]);
    agent.wait_first_poll();
    let page = Browser::start();
    page.open(&format!("http://{}/ui", agent.address()));

    // The fleet around it: two machines that answer, and one that does not.
    let others: Vec<(tempfile::TempDir, Agent)> = ["nas", "media-box"]
        .map(|_| {
            let folder = tempfile::tempdir().expect("a folder can be made");
            let config =
                json!({ "services": [{ "name": "app", "container_name": "app", "auto_heal": true }] });
            let socket = format!("unix://{}", folder.path().join("none.sock").display());
            let agent = Agent::start(folder.path(), config, &[("DOCKER_HOST", &socket)]);
            (folder, agent)
        })
        .into();
    let warden_folder = folder.join("warden");
    std::fs::create_dir(&warden_folder).expect("a folder can be made");
    let warden = Warden::start(
        &warden_folder,
        &[
            ("home-server", agent.address()),
            ("nas", others[0].1.address()),
            ("media-box", others[1].1.address()),
            ("garage-pi", "127.0.0.1:9"),
        ],
    );
    send_history(&warden);
    agent.reload(|config| config["push"] = warden.push("home-server"));
    agent.wait_entry(LONG, &Kind::CONFIG_RELOADED, 1);

    // One update that is good, one that is not, and one whose proof takes its time.
    machine.push("home-assistant", &app("v2", 190, 900));
    machine.push("grafana", &failing("v2"));
    agent.trigger("home-assistant");
    agent.trigger("grafana");
    agent.wait_entry(LONG, &Kind::UPDATED, 1);
    agent.wait_entry(LONG, &Kind::ROLLED_BACK, 1);
    agent.wait_entry(LONG, &Kind::EXHAUSTED, 1);
    machine.push("paperless", &app("v2", 160, 600));
    agent.trigger("paperless");
    let wanted = ["ok", "ok", "deploying", "blocked", "ok", "unhealthy", "exhausted", "ok", "ok"];
    wait_for(LONG, "the states of the services", || {
        let status = agent.ask("GET", "/status").json();
        let services = status["services"].as_array().cloned().unwrap_or_default();
        let words: Vec<&str> = services.iter().filter_map(|one| one["status"].as_str()).collect();
        let phase = &services[2]["deploy"]["phase"];
        if words == wanted && phase == "probation" { Ok(()) } else { Err(format!("{words:?} {phase}")) }
    });
    page.wait(
        "them on the page",
        &format!(
            "JSON.stringify([...document.querySelectorAll('#rows .state .badge span:last-child')].map((b) => b.textContent)) === {}",
            json!(json!(wanted).to_string())
        ),
    );
    page.wait_up_to(
        LONG,
        "some of its proof",
        "document.querySelector('#rows .deploying [role=progressbar]').ariaValueNow >= 15",
    );
    page.wait_up_to(
        LONG,
        "its stats",
        r"!/(^|\s)0\.0 MiB/.test(document.querySelector('#rows .deploying .resources').innerText)",
    );
    page.wait(
        "some course of the curves",
        "document.querySelector('#rows .curve path').getAttribute('d')?.split('L').length >= 4",
    );
    page.wait(
        "why nothing is done about one",
        "document.querySelector('#rows > tr:nth-child(6) .note').textContent.includes('pihole-app-1 is unhealthy. Auto heal is off')",
    );
    // The black box of what failed.
    page.click("#rows > tr:nth-child(4) .fold:nth-child(3)");
    page.click("#rows > tr:nth-child(4) .events .more > summary");
    page.wait(
        "its last words",
        "document.querySelector('#rows > tr:nth-child(4) .box')?.textContent.includes('no such column: org_id')",
    );
    take(&page, "agent", 1200);

    let fleet = Browser::start();
    fleet.bear(&["status of 401"]);
    fleet.open(&warden.url());
    fleet.size(900, 500);
    keep_picture(&fleet, "warden-login");
    fleet.write("#token", Warden::TOKEN);
    fleet.press(&['\u{e007}']);
    fleet.wait_up_to(LONG, "the fleet", "[...document.querySelectorAll('.card .badge span:last-child')].filter((b) => b.textContent === 'online').length === 3");
    fleet.wait(
        "the machine that does not answer",
        "document.querySelector('.card.offline')?.textContent.includes('3 entries missing')",
    );
    fleet.wait(
        "what was rolled back",
        "document.querySelector('#events').textContent.includes('rolled back')",
    );
    take(&fleet, "warden", 1080);
}
