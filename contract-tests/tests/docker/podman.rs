//! Podman with a booted systemd. These tests are excluded by default. `dist/test.sh` starts such a machine, and
//! `dist/scripts/with-engine.sh podman-5` does so for a single test. No other engine can run them.

use contract_tests::{Agent, Health, Image, LABEL, Service, World, on_engine_host, wait_for};
use evenkeel_common::wire::Kind;
use std::io::Write;
use std::process::Stdio;

/// A started unit of a quadlet file. Stopped and removed on drop.
struct Unit {
    name: String,
}

impl Unit {
    #[track_caller]
    fn start(name: &str, quadlet: &str) -> Self {
        let script = "mkdir -p /run/containers/systemd && cat >/run/containers/systemd/$0.container &&
            systemctl daemon-reload && systemctl start $0";
        let mut child = on_engine_host("sh")
            .args(["-euc", script, name])
            .stdin(Stdio::piped())
            .spawn()
            .expect("the machine can be entered");
        child.stdin.take().expect("stdin is piped").write_all(quadlet.as_bytes()).expect("cat reads");
        let unit = Self { name: name.to_owned() };
        assert!(child.wait().expect("sh ends").success(), "the unit {name} can be started");
        unit
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let script = "systemctl stop $0; rm -f /run/containers/systemd/$0.container; systemctl daemon-reload";
        let _ = on_engine_host("sh").args(["-c", script, &self.name]).status();
    }
}

fn healer(world: &World, more: Option<Service>) -> Agent {
    world.agent_for([world.entry("web", &["web:latest"]).healing(3)].into_iter().chain(more))
}

#[test]
fn a_container_that_crashed_or_turned_unhealthy_is_restarted() {
    let mut world = World::new("podheal");
    world.push("web", &Image::good("v1"));
    world.push("ill", &Image::relapsing("v1"));
    world.service("web", "web", &["stop_grace_period: 1s"]);
    world.service("ill", "ill", &["stop_grace_period: 1s"]);
    world.project.up();
    let agent = healer(&world, None);
    let name = world.project.container("ill").name;
    wait_for("the unhealthy container to be restarted", || {
        let restarted = agent.entries(&Kind::RESTARTED);
        let found = restarted.iter().any(|entry| entry.container.as_deref() == Some(&*name));
        if found { Ok(()) } else { Err(format!("{:#?}", agent.audit())) }
    });
    world.crash(&["web"]);
    let name = world.project.container("web").name;
    wait_for("the crashed container to be restarted", || {
        let restarted = agent.entries(&Kind::RESTARTED);
        let found = restarted.iter().any(|entry| entry.container.as_deref() == Some(&*name));
        if found { Ok(()) } else { Err(format!("{:#?}", agent.audit())) }
    });
    wait_for("the container to run", || {
        let view = world.project.container("web");
        if view.state == "running" { Ok(()) } else { Err(format!("{view:#?}")) }
    });
}

#[test]
fn a_container_of_a_systemd_unit_is_not_healed() {
    let mut world = World::new("podunit");
    world.push("web", &Image::good("v1"));
    world.service("web", "web", &["stop_grace_period: 1s"]);
    world.project.up();
    let ill = Image::good("v1").with_health(Health::every_second("false", 1));
    world.push("ill", &ill);
    let name = format!("{}-unit", world.project.name);
    let quadlet = format!(
        "[Container]\nImage={}\nContainerName={name}\nNetwork=none\nLabel={LABEL}={}\n",
        world.reference("ill"),
        world.project.name
    );
    let _unit = Unit::start(&name, &quadlet);
    let owner = world.engine.docker(&["inspect", "-f", "{{json .Config.Labels}}", &name]);
    assert!(owner.contains("PODMAN_SYSTEMD_UNIT"), "{owner}");
    let started = || world.engine.docker(&["inspect", "-f", "{{.State.StartedAt}}", &name]);
    let before = started();
    let unit = Service::named("unit").set("container_name", &*name).healing(3).set("health_grace", 3);
    let agent = healer(&world, Some(unit));
    wait_for("the container to be unhealthy", || {
        let health = world.engine.docker(&["inspect", "-f", "{{.State.Health.Status}}", &name]);
        if health == "unhealthy" { Ok(()) } else { Err(health) }
    });
    // Crash this one last: once it has been restarted, the agent has also handled the other one.
    world.crash(&["web"]);
    agent.wait_entry(&Kind::RESTARTED, 1);
    agent.trigger("unit");
    let touched: Vec<_> = agent
        .audit()
        .into_iter()
        .filter(|entry| entry.service == "unit" && [Kind::RESTARTING, Kind::EXHAUSTED].contains(&entry.event))
        .collect();
    assert_eq!(touched, []);
    assert_eq!(started(), before);
}

#[test]
fn a_project_with_a_container_of_a_systemd_unit_is_not_updated() {
    let mut world = World::new("podowned");
    world.push("web", &Image::good("v1"));
    world.service("web", "web", &["  PODMAN_SYSTEMD_UNIT: web.service"]);
    world.project.up();
    let before = world.project.container("web");
    let agent = world.agent();
    world.push("web", &Image::good("v2"));
    for _ in 0..2 {
        agent.check("web");
    }
    let after = world.assert_runs("web", "v1");
    assert_eq!((before.id, before.started_at), (after.id, after.started_at));
    assert_eq!(agent.steps(), Vec::<String>::new());
    let reported = agent.log().into_iter().any(|line| line.0.contains("systemd"))
        || agent.audit().iter().any(|entry| format!("{entry:?}").contains("systemd"))
        || agent.request("GET", "/health").text().contains("systemd");
    assert!(reported, "the agent reports that it belongs to systemd: {:#?}", agent.audit());
}

#[test]
fn a_container_whose_network_others_share_is_not_stopped_for_an_update() {
    let mut world = World::new("podnet");
    world.push("vpn", &Image::good("v1"));
    world.push("client", &Image::good("v1"));
    let host = world.host.clone();
    world.project.write_text(&format!(
        "services:
  vpn: {{ image: '{host}/vpn:latest', labels: {{labels}}, stop_grace_period: 1s }}
  client: {{ image: '{host}/client:latest', labels: {{labels}}, stop_grace_period: 1s, network_mode: 'service:vpn' }}
"
    ));
    world.project.up();
    let before = world.project.container("vpn");
    let agent = world.agent_for([world.entry("tunnel", &["vpn:latest"])]);
    world.push("vpn", &Image::good("v2"));
    agent.trigger("tunnel");
    wait_for("the reason to be told", || match agent.errored().get("tunnel") {
        Some(text) if text.contains("whose network other containers share") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let after = world.assert_runs("vpn", "v1");
    assert_eq!((before.id, before.started_at), (after.id, after.started_at));
    assert!(agent.blocked().is_empty());
}
