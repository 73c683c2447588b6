//! Every way in which a container can stop (DOMAIN 4.2) on a real engine, and whether the agent then restarts it.

use contract_tests::{Image, World, wait_for};
use evenkeel_common::wire::{AuditEntry, Kind};

/// How the agent must react.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Not restarted; the container is in this state (empty: removed).
    LeftAlone(&'static str),
    /// Restarted, once.
    Healed,
}
use Verdict::{Healed, LeftAlone};

/// What stops a container.
#[derive(Debug, Clone, Copy)]
enum Blow {
    /// `docker` with arguments and the container's name.
    Docker(&'static [&'static str]),
    /// Several of these.
    Dockers(&'static [&'static [&'static str]]),
    /// `compose` with arguments and the service's name.
    Compose(&'static [&'static str]),
    /// Exits by itself with these exit codes, one per run.
    Exits(&'static str),
    /// Killed from outside the engine.
    Crash,
    /// Survives a signal that the engine sends, and is then killed from outside the engine.
    SignalThenCrash(&'static str),
}
use Blow::{Compose, Crash, Docker, Dockers, Exits, SignalThenCrash};

/// Service name, lines of the compose file, what stops the container, and the expected reaction.
const CASES: &[(&str, &[&str], Blow, Verdict)] = &[
    ("stop", &[], Docker(&["stop"]), LeftAlone("exited")),
    ("stop-deaf", &["environment: { ON_TERM: '' }"], Docker(&["stop", "-t", "1"]), LeftAlone("exited")),
    ("stop-int", &["stop_signal: SIGINT"], Docker(&["stop"]), LeftAlone("exited")),
    ("stop-code", &["environment: { ON_TERM: exit 9 }"], Docker(&["stop"]), LeftAlone("exited")),
    ("stop-always", &["restart: always"], Docker(&["stop"]), LeftAlone("exited")),
    ("stop-hup", &["stop_signal: SIGHUP", ENDS_ON_HUP], Docker(&["kill", "-s", "HUP"]), LeftAlone("exited")),
    ("kill", &[], Docker(&["kill"]), LeftAlone("exited")),
    ("kill-int", &[], Docker(&["kill", "-s", "INT"]), LeftAlone("exited")),
    ("kill-unless", &["restart: unless-stopped"], Docker(&["kill"]), LeftAlone("exited")),
    ("kill-hup", &[], Docker(&["kill", "-s", "HUP"]), LeftAlone("running")),
    ("exec-kill", &[], Docker(&["exec", "-d", "%", "sh", "-c", "kill -TERM 1"]), LeftAlone("exited")),
    ("pause", &[], Docker(&["pause"]), LeftAlone("paused")),
    ("unpause", &[], Dockers(&[&["pause"], &["unpause"]]), LeftAlone("running")),
    ("pause-stop", &[], Dockers(&[&["pause"], &["stop", "-t", "1"]]), LeftAlone("exited")),
    ("restart", &[], Docker(&["restart", "-t", "1"]), LeftAlone("running")),
    ("remove", &[], Docker(&["rm", "-f"]), LeftAlone("")),
    ("compose-stop", &[], Compose(&["stop"]), LeftAlone("exited")),
    ("compose-kill", &[], Compose(&["kill"]), LeftAlone("exited")),
    ("compose-rm", &[], Compose(&["rm", "-sf"]), LeftAlone("")),
    ("recreate", &[], Compose(&["up", "-d", "--force-recreate", "--no-deps"]), LeftAlone("running")),
    ("oneshot", &[], Exits("0"), LeftAlone("exited")),
    ("oom-child", LITTLE_MEMORY, Exits("oom-child"), LeftAlone("exited")),
    ("crash-always", &["restart: always"], Crash, LeftAlone("running")),
    ("exit-unless", &["restart: unless-stopped"], Exits("3"), LeftAlone("running")),
    ("exit-failure", &["restart: on-failure:5"], Exits("3"), LeftAlone("running")),
    (
        "exec-oom",
        LITTLE_MEMORY,
        Docker(&["exec", "%", "sh", "-c", "tail /dev/zero; true"]),
        LeftAlone("running"),
    ),
    ("exit", &[], Exits("3"), Healed),
    ("exit-143", &[], Exits("143"), Healed),
    ("exit-failures", &["restart: on-failure:2"], Exits("3\n3\n3"), Healed),
    ("oom", LITTLE_MEMORY, Exits("oom"), Healed),
    ("hup", &[ENDS_ON_HUP], Docker(&["kill", "-s", "HUP"]), Healed),
    ("cont-crash", &[], SignalThenCrash("CONT"), Healed),
    ("ttin-crash", &[], SignalThenCrash("TTIN"), Healed),
    ("crash", &[], Crash, Healed),
];

const ENDS_ON_HUP: &str = "environment: { ON_HUP: exit 5 }";
const LITTLE_MEMORY: &[&str] = &["mem_limit: 24m", "memswap_limit: 24m"];

/// Returns an image that exits with the next exit code from a file in the container, and runs while there is none.
fn scripted() -> Image {
    let script = r#"
        trap "${ON_TERM-exit 0}" TERM; trap "exit 0" INT; trap "${ON_HUP-:}" HUP
        while :; do
            if [ -s /tmp/codes ]; then
                read -r code </tmp/codes
                tail -n +2 /tmp/codes >/tmp/rest; cat /tmp/rest >/tmp/codes
                [ "$code" != oom ] || exec tail /dev/zero
                [ "$code" != oom-child ] || { tail /dev/zero; code=0; }
                exit "$code"
            fi
            sleep 1 & wait $!
        done"#;
    let mut image = Image::good("v1");
    image.command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    image
}

fn strike(world: &World, service: &str, blow: Blow) {
    let name = world.project.container(service).name;
    let docker = |words: &[&str]| {
        let mut words = words.to_vec();
        match words.iter_mut().find(|word| **word == "%") {
            Some(place) => *place = &name,
            None => words.push(&name),
        }
        world.engine.docker(&words);
    };
    match blow {
        Docker(words) => docker(words),
        Dockers(all) => all.iter().for_each(|words| docker(words)),
        Compose(words) => {
            let output = world.project.compose(&[words, &[service]].concat());
            assert!(output.status.success(), "{service}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Exits(codes) => docker(&["exec", "%", "sh", "-c", &format!("echo '{codes}' >/tmp/codes")]),
        Crash => world.crash(&[service]),
        SignalThenCrash(signal) => {
            docker(&["kill", "-s", signal]);
            world.crash(&[service]);
        }
    }
}

#[test]
fn manual_stops_and_engine_restarts_are_left_alone_and_crashes_are_healed() {
    let mut world = World::new("matrix");
    world.push("web", &scripted());
    for (service, more, _, _) in CASES {
        world.service(service, "web", more);
    }
    world.project.up();
    let agent = world.agent_for([world.entry("web", &["web:latest"]).healing(3)]);
    for (service, _, blow, _) in CASES {
        strike(&world, service, *blow);
    }
    // The last one is a crash: once all are healed, the agent has also handled those that it must not restart.
    let healed: Vec<&str> =
        CASES.iter().filter(|(.., verdict)| *verdict == Healed).map(|(name, ..)| *name).collect();
    let name_of = |service: &str| format!("{}-{service}-1", world.project.name);
    let of = |kind: &Kind, service: &str| -> Vec<AuditEntry> {
        let name = name_of(service);
        agent.entries(kind).into_iter().filter(|entry| entry.container.as_ref() == Some(&name)).collect()
    };
    wait_for("all crashed containers to be healed", || {
        let open: Vec<&&str> = healed.iter().filter(|name| of(&Kind::RESTARTED, name).is_empty()).collect();
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?} not: {:#?}", agent.audit())) }
    });
    let views = world.project.containers();
    let mut wrong = Vec::new();
    for (service, _, _, verdict) in CASES {
        let view = views.iter().find(|view| view.service == *service);
        let state = view.map_or("", |view| view.state.as_str());
        let counts = [Kind::DIED, Kind::RESTARTING, Kind::RESTARTED].map(|kind| of(&kind, service).len());
        let right = match verdict {
            LeftAlone(wanted) => state == *wanted && counts == [0, 0, 0],
            Healed => state == "running" && counts == [1, 1, 1],
        };
        if !right {
            wrong.push(format!(
                "{service}: {verdict:?}, but it is '{state}'; died, restarting, restarted {counts:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}\n{:#?}", agent.audit());
    assert_eq!(agent.service("web").restarts_total, healed.len() as u64);
}
