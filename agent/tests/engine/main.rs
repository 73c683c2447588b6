//! The adapters against a real engine, a real compose and a real registry.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod compose;
#[path = "../engine_stage/mod.rs"]
mod engine_stage;
mod events;
mod images;
mod stats;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use engine_stage::{AnonymousPulls, Registry, Stage};
use evenkeel_agent::adapters::compose::ComposeCli;
use evenkeel_agent::adapters::docker::{DockerEngine, Endpoint};
use evenkeel_agent::config;
use evenkeel_agent::model::image::{Digest, ImageId, Reference};
use evenkeel_agent::model::{
    Container, ContainerEvent, EngineError, EventKind, HealthState, Members, Project, PullPolicy,
    RestartPolicy, State, UpMode,
};
use evenkeel_agent::ports::{Compose as _, Engine as _, PullProgress};
use evenkeel_common::testing::wait_for_async;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

fn now_nano() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap()
}

fn reference(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

async fn project(stage: &Stage) -> Vec<Container> {
    containers(stage, Members::Project(stage.id.clone())).await
}

/// The containers, once the engine has told the state of each: on a busy machine it does not always do so in time.
async fn containers(stage: &Stage, members: Members) -> Vec<Container> {
    wait_for_async("the state of each container", async || {
        let seen = stage.engine.containers(&members).await.unwrap();
        let is_known = seen.iter().all(|container| container.state != State::Unknown);
        if is_known { Ok(seen) } else { Err(format!("{seen:#?}")) }
    })
    .await
}

#[tokio::test]
async fn the_containers_of_a_project_are_listed_with_their_state() {
    let stage = Stage::new().await;
    let (id, image) = (&stage.id, format!("{}/web:1", stage.id));
    let image_id = stage.image(&image, "one", &[]);
    let label = format!("com.docker.compose.project={id}");
    let member = ["--label", label.as_str(), "--label", "com.docker.compose.service=web"];
    let with = |extra: &[&'static str]| [member.as_slice(), extra].concat();
    let healthy = [
        "--health-cmd",
        "echo fine",
        "--health-interval",
        "1s",
        "--health-start-period",
        "3s",
        "--restart",
        "unless-stopped",
        "-v",
        "/tmp:/host:ro",
    ];
    let running = stage.run(&format!("{id}-b"), &with(&healthy), &image, &[]);
    stage.run(&format!("{id}-a"), &with(&[]), &image, &["sh", "-c", "exit 7"]);
    stage.run(&format!("{id}-once"), &with(&["--label", "com.docker.compose.oneoff=True"]), &image, &[]);
    stage.run(&format!("evenkeel-hold-{id}"), &with(&["--label", "evenkeel.hold=x"]), &image, &[]);
    stage.run(&format!("{id}-other"), &["--label", "com.docker.compose.project=other"], &image, &[]);
    // The tag moves; the image of the container stays.
    stage.image(&image, "two", &[]);
    wait_for_async("one container to be exited and one healthy", async || {
        let seen = project(&stage).await;
        let so =
            seen.len() == 2 && seen[0].state == State::Exited && seen[1].health == Some(HealthState::Healthy);
        if so { Ok(()) } else { Err(format!("{seen:#?}")) }
    })
    .await;

    let seen = project(&stage).await;
    let (a, b) = (&seen[0], &seen[1]);
    assert_eq!((a.name.as_str(), a.exit_code, a.health), (format!("{id}-a").as_str(), 7, None));
    assert_eq!(a.restart_policy, RestartPolicy::No, "{a:?}");
    assert_eq!((b.id.as_str(), b.compose_service.as_str()), (running.as_str(), "web"));
    assert_eq!((b.config_image.as_str(), &b.image), (image.as_str(), &ImageId(image_id.into())));
    assert!(b.restart_policy != RestartPolicy::No && b.started_at.is_some(), "{b:?}");
    assert_eq!(b.health_output, "fine");
    let timing = b.health_timing.unwrap();
    assert_eq!((timing.interval, timing.retries), (Duration::from_secs(1), 3));
    assert_eq!((timing.start_period, timing.timeout), (Duration::from_secs(3), Duration::from_secs(30)));
    let mount = &b.mounts[0];
    assert_eq!((mount.kind.as_str(), mount.source.as_str(), mount.read_only), ("bind", "/tmp", true));

    stage.docker(["pause", &running]);
    let paused = project(&stage).await;
    assert_eq!(
        (paused[1].state, paused[1].health),
        (State::Paused, None),
        "a paused container is not unhealthy"
    );
    stage.docker(["unpause", &running]);
}

#[tokio::test]
async fn a_name_matches_exactly_one_container() {
    let stage = Stage::new().await;
    let image = format!("{}/web:1", stage.id);
    stage.image(&image, "one", &[]);
    let (dotted, similar) = (format!("{}.x", stage.id), format!("{}ax", stage.id));
    for name in [&dotted, &similar, &format!("{dotted}x"), &format!("x{dotted}")] {
        stage.run(name, &[], &image, &[]);
    }
    let seen = containers(&stage, Members::Name(dotted.clone())).await;
    assert_eq!(seen.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), [dotted]);
    let none = containers(&stage, Members::Name(format!("{}b", stage.id))).await;
    assert_eq!(none, []);
}

#[tokio::test]
async fn a_container_that_could_not_be_started_has_the_reason() {
    let stage = Stage::new().await;
    let image = format!("{}/web:1", stage.id);
    stage.image(&image, "one", &[]);
    let name = format!("{}-bad", stage.id);
    let label = format!("{}=1", stage.id);
    stage.docker(["create", "--network", "none", "--name", &name, "--label", &label, &image, "/nope"]);
    let mut start = tokio::process::Command::new("docker");
    start.env("DOCKER_HOST", stage.endpoint.to_string()).args(["start", &name]);
    assert!(!start.output().await.unwrap().status.success());
    let seen = containers(&stage, Members::Name(name)).await;
    assert_eq!((seen[0].state, seen[0].started_at), (State::Created, None));
    assert!(seen[0].error.contains("/nope"), "{:?}", seen[0].error);
}

#[tokio::test]
async fn the_end_of_a_log_is_clean_and_bounded() {
    let stage = Stage::new().await;
    let image = format!("{}/web:1", stage.id);
    stage.image(&image, "one", &[]);
    let say = |name: &str, flags: &[&str], script: &str| {
        let name = format!("{}-{name}", stage.id);
        stage.run(&name, flags, &image, &["sh", "-c", script]);
        stage.docker(["wait", &name]);
        name
    };
    let script = "echo one; echo two; echo err >&2; printf '\\033[31mred\\033[0m\\tx\\a\\n'; printf 'no end'";
    let plain = say("plain", &[], script);
    // The engine reads stdout and stderr from two pipes, so their relative order may differ.
    let text = stage.engine.log_tail(&plain, 5).await.unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["err", "no end", "one", "red\tx", "two"]);
    assert_eq!(stage.engine.log_tail(&plain, 2).await.unwrap().lines().count(), 2);
    let tty = say("tty", &["-t"], script);
    assert_eq!(stage.engine.log_tail(&tty, 50).await.unwrap(), "one\ntwo\nerr\nred\tx\nno end");
    let flood = say("flood", &[], "head -c 300000 /dev/zero | tr '\\0' x; echo; echo last");
    let text = stage.engine.log_tail(&flood, 50).await.unwrap();
    assert!(text.len() <= 8 * 1024 && text.ends_with("last"), "{}", text.len());
    let error = stage.engine.log_tail(&format!("{}-none", stage.id), 5).await.unwrap_err();
    assert!(matches!(error, EngineError::NotFound(_)), "{error:?}");
}
