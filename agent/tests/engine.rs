//! The adapters against a real engine, a real compose and a real registry.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_stage;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use engine_stage::{Nobody, Registry, Stage};
use evenkeel_agent::adapters::compose::ComposeCli;
use evenkeel_agent::adapters::docker::{DockerEngine, Endpoint};
use evenkeel_agent::config;
use evenkeel_agent::model::image::{Digest, ImageId, Reference};
use evenkeel_agent::model::{
    ContainerEvent, EngineError, EventKind, HealthState, Members, Project, State, UpMode,
};
use evenkeel_agent::ports::{Compose as _, Engine as _, PullProgress};
use evenkeel_common::testing::wait_for_async;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

fn reference(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

async fn project(stage: &Stage) -> Vec<evenkeel_agent::model::Container> {
    stage.engine.containers(&Members::Project(stage.id.clone())).await.unwrap()
}

#[tokio::test]
async fn a_projects_containers_are_seen_as_they_are() {
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
    stage.run(&format!("{id}-held"), &with(&["--label", "evenkeel.hold=x"]), &image, &[]);
    stage.run(&format!("{id}-other"), &["--label", "com.docker.compose.project=other"], &image, &[]);
    // The tag moves on; what the container was made from stays.
    stage.image(&image, "two", &[]);
    wait_for_async("one to be exited and one healthy", async || {
        let seen = project(&stage).await;
        let so =
            seen.len() == 2 && seen[0].state == State::Exited && seen[1].health == Some(HealthState::Healthy);
        if so { Ok(()) } else { Err(format!("{seen:#?}")) }
    })
    .await;

    let seen = project(&stage).await;
    let (a, b) = (&seen[0], &seen[1]);
    assert_eq!((a.name.as_str(), a.exit_code, a.health), (format!("{id}-a").as_str(), 7, None));
    assert!(!a.restarts_itself && a.status.starts_with("Exited (7)"), "{a:?}");
    assert_eq!((b.id.as_str(), b.compose_service.as_str()), (running.as_str(), "web"));
    assert_eq!((b.config_image.as_str(), &b.image), (image.as_str(), &ImageId(image_id)));
    assert!(b.restarts_itself && b.started_at.is_some() && b.status.contains("healthy"), "{b:?}");
    assert_eq!(b.health_output, "fine");
    let timing = b.health_timing.unwrap();
    assert_eq!((timing.interval, timing.retries), (Duration::from_secs(1), 3));
    assert_eq!((timing.start_period, timing.timeout), (Duration::from_secs(3), Duration::from_secs(30)));
    let mount = &b.mounts[0];
    assert_eq!((mount.kind.as_str(), mount.source.as_str(), mount.read_only), ("bind", "/tmp", true));

    stage.docker(["pause", &running]);
    let paused = project(&stage).await;
    assert_eq!((paused[1].state, paused[1].health), (State::Paused, None), "a paused one is not unhealthy");
    stage.docker(["unpause", &running]);
}

#[tokio::test]
async fn a_name_means_exactly_one_container() {
    let stage = Stage::new().await;
    let image = format!("{}/web:1", stage.id);
    stage.image(&image, "one", &[]);
    let (dotted, similar) = (format!("{}.x", stage.id), format!("{}ax", stage.id));
    for name in [&dotted, &similar, &format!("{dotted}x"), &format!("x{dotted}")] {
        stage.run(name, &[], &image, &[]);
    }
    let seen = stage.engine.containers(&Members::Name(dotted.clone())).await.unwrap();
    assert_eq!(seen.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), [dotted]);
    let none = stage.engine.containers(&Members::Name(format!("{}b", stage.id))).await.unwrap();
    assert_eq!(none, []);
}

#[tokio::test]
async fn a_container_that_could_not_be_started_says_why() {
    let stage = Stage::new().await;
    let image = format!("{}/web:1", stage.id);
    stage.image(&image, "one", &[]);
    let name = format!("{}-bad", stage.id);
    let label = format!("{}=1", stage.id);
    stage.docker(["create", "--network", "none", "--name", &name, "--label", &label, &image, "/nope"]);
    let mut start = tokio::process::Command::new("docker");
    start.env("DOCKER_HOST", stage.endpoint.to_string()).args(["start", &name]);
    assert!(!start.output().await.unwrap().status.success());
    let seen = stage.engine.containers(&Members::Name(name)).await.unwrap();
    assert_eq!((seen[0].state, seen[0].started_at), (State::Created, None));
    assert!(seen[0].error.contains("/nope"), "{:?}", seen[0].error);
}

#[tokio::test]
async fn images_are_found_by_tag_and_by_id() {
    let stage = Stage::new().await;
    let tag = format!("{}/web:1", stage.id);
    let id = stage.image(&tag, "one", &[]);
    let by_tag = stage.engine.image(&format!("docker.io/{tag}")).await.unwrap().unwrap();
    assert_eq!(by_tag.id, ImageId(id.clone()));
    assert!(by_tag.size > 100_000 && by_tag.repo_digests.is_empty(), "{by_tag:?}");
    assert_eq!(stage.engine.image(&id).await.unwrap(), Some(by_tag));
    assert_eq!(stage.engine.image(&format!("{}/none:1", stage.id)).await.unwrap(), None);
    assert!(stage.engine.image("../containers/json").await.is_err());
}

#[tokio::test]
async fn a_pull_brings_exactly_the_digest_and_tells_how_far_it_is() {
    let stage = Stage::new().await;
    let registry = Registry::start().await;
    let tag = format!("{}/{}:1", registry.host, stage.id);
    let id = stage.image(&tag, "one", &[]);
    let pushed = stage.docker(["push", "-q", &tag]);
    assert_eq!(pushed, tag);
    let digest = stage.docker(["image", "inspect", "-f", "{{index .RepoDigests 0}}", &tag]);
    let digest = Digest::parse(digest.split_once('@').unwrap().1).unwrap();
    stage.docker(["rmi", "-f", &id]);

    let pinned = Reference { digest: Some(digest.clone()), ..reference(&tag) };
    let (progress, mut seen) = watch::channel(PullProgress::default());
    stage.engine.pull(&pinned, &progress).await.unwrap();
    let last = *seen.borrow_and_update();
    assert!(last.total > 100_000 && last.bytes == last.total, "{last:?}");
    let image = stage.engine.image(&pinned.repository.at(&digest)).await.unwrap().unwrap();
    assert_eq!(image.id, ImageId(id.clone()));
    assert_eq!(stage.engine.image(&tag).await.unwrap(), None, "the tag has not moved");

    stage.engine.tag(&image.id, &reference(&tag)).await.unwrap();
    assert_eq!(stage.engine.image(&tag).await.unwrap().unwrap().id, image.id);
    stage.engine.pull(&pinned, &progress).await.unwrap();

    let absent = Reference { digest: Some(Digest::of(b"nothing")), ..reference(&tag) };
    let error = stage.engine.pull(&absent, &progress).await.unwrap_err();
    assert!(!error.is_unavailable(), "{error:?}");
    assert!(error.to_string().starts_with(&format!("pull {absent}: ")), "{error}");
    let again = stage.engine.pull(&absent, &progress).await.unwrap_err();
    assert_eq!(error, again, "the same fault gives the same text");

    let host = registry.host.clone();
    drop(registry);
    let error = stage.engine.pull(&absent, &progress).await.unwrap_err();
    assert!(!error.is_unavailable(), "the engine is there, the registry is not: {error:?}");
    assert!(error.to_string().contains(&host), "{error}");
}

#[tokio::test]
async fn tags_come_and_go_and_never_take_a_used_image_with_them() {
    let stage = Stage::new().await;
    let first = reference(&format!("{}/web:1", stage.id));
    let held = reference(&format!("evenkeel.hold/{}:1", stage.id));
    let id = ImageId(stage.image(&first.tagged(), "one", &[]));
    stage.engine.tag(&id, &held).await.unwrap();
    assert_eq!(stage.engine.image(&held.tagged()).await.unwrap().unwrap().id, id);
    assert_eq!(stage.engine.tags(&held.repository).await.unwrap(), std::slice::from_ref(&held));
    let longer = reference(&format!("evenkeel.hold/{}x:1", stage.id));
    assert_eq!(stage.engine.tags(&longer.repository).await.unwrap(), []);
    stage.engine.untag(&held).await.unwrap();
    stage.engine.untag(&held).await.unwrap();
    assert_eq!(stage.engine.image(&held.tagged()).await.unwrap(), None);

    stage.run(&format!("{}-x", stage.id), &[], &first.tagged(), &["true"]);
    stage.engine.untag(&first).await.unwrap();
    assert!(stage.engine.image(&id.0).await.unwrap().is_some(), "a stopped container still needs it");

    let gone = ImageId(format!("sha256:{}", "0".repeat(64)));
    let error = stage.engine.tag(&gone, &held).await.unwrap_err();
    assert!(matches!(error, EngineError::NotFound(_)), "{error:?}");
}

#[tokio::test]
async fn an_anchor_holds_an_image_and_is_no_container_of_the_project() {
    let stage = Stage::new().await;
    let (id, name) = (&stage.id, format!("{}-anchor", stage.id));
    let compose_label = format!("LABEL com.docker.compose.project={id} com.docker.compose.service=web");
    let changes = [compose_label.as_str(), "VOLUME /data", r#"ENTRYPOINT ["/nope"]"#];
    let one = ImageId(stage.image(&format!("{id}/web:1"), "one", &changes));
    let two = ImageId(stage.image(&format!("{id}/web:2"), "two", &changes));

    for _ in 0..2 {
        stage.engine.anchor(&name, &one, id).await.unwrap();
    }
    assert_eq!(stage.engine.anchors(id).await.unwrap(), [name.as_str()]);
    assert_eq!(stage.engine.anchors("other").await.unwrap(), [] as [&str; 0]);
    assert_eq!(project(&stage).await, []);
    let listed = stage.docker(["ps", "-aq", "--filter", &format!("label=com.docker.compose.project={id}")]);
    assert_eq!(listed, "", "compose does not see it either");
    let image_of = || stage.docker(["inspect", "-f", "{{.Image}} {{.State.Status}}", &name]);
    assert_eq!(image_of(), format!("{one} created"));

    let volume = stage.docker(["inspect", "-f", "{{(index .Mounts 0).Name}}", &name]);
    stage.engine.anchor(&name, &two, id).await.unwrap();
    assert_eq!(image_of(), format!("{two} created"));
    assert!(!stage.docker(["volume", "ls", "-q"]).contains(&volume), "its volumes went with it");

    stage.engine.remove_anchor(&name).await.unwrap();
    stage.engine.remove_anchor(&name).await.unwrap();
    assert_eq!(stage.engine.anchors(id).await.unwrap(), [] as [&str; 0]);

    let foreign = format!("{id}-foreign");
    stage.run(&foreign, &["--entrypoint", "sleep"], &format!("{id}/web:1"), &["1000"]);
    assert!(stage.engine.anchor(&foreign, &one, id).await.is_err());
    assert!(stage.engine.remove_anchor(&foreign).await.is_err());
    assert_eq!(stage.docker(["inspect", "-f", "{{.State.Status}}", &foreign]), "running");

    let gone = ImageId(format!("sha256:{}", "0".repeat(64)));
    let error = stage.engine.anchor(&name, &gone, id).await.unwrap_err();
    assert!(matches!(error, EngineError::NotFound(_)), "{error:?}");
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
    // The engine reads the two kinds from two pipes, so their order among each other may differ.
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

/// Events about one container until one of them is `last`.
async fn until(
    stream: &mut BoxStream<'static, ContainerEvent>,
    name: &str,
    last: &EventKind,
) -> Vec<EventKind> {
    let mut seen = Vec::new();
    let reading = timeout(Duration::from_mins(1), async {
        while let Some(event) = stream.next().await {
            assert!(event.time_nano > 1_600_000_000_000_000_000, "{event:?}");
            if event.name == name {
                seen.push(event.what);
                if seen.last() == Some(last) {
                    return;
                }
            }
        }
        panic!("the stream ended");
    });
    let end = reading.await;
    assert!(end.is_ok(), "{last:?} never came: {seen:?}");
    seen
}

#[tokio::test]
async fn events_are_seen_from_the_call_on_and_without_the_probes_noise() {
    let stage = Stage::new().await;
    let image = format!("{}/web:1", stage.id);
    stage.image(&image, "one", &[]);
    let name = format!("{}-x", stage.id);
    let mut events = stage.engine.events(now_nano()).await.unwrap();
    // Nobody reads yet, and still nothing is lost.
    let label = format!("com.docker.compose.project={}", stage.id);
    let flags = [
        "--label",
        label.as_str(),
        "--health-cmd",
        "true",
        "--health-interval",
        "1s",
        "--stop-signal",
        "KILL",
    ];
    stage.run(&name, &flags, &image, &[]);
    let seen = until(&mut events, &name, &EventKind::Health(HealthState::Healthy)).await;
    assert_eq!(
        seen,
        [EventKind::Other("create".into()), EventKind::Start, EventKind::Health(HealthState::Healthy)]
    );
    stage.docker(["stop", &name]);
    let seen = until(&mut events, &name, &EventKind::Stop).await;
    assert_eq!(
        seen,
        [EventKind::Kill { signal: Some(9) }, EventKind::Die { exit_code: 137 }, EventKind::Stop]
    );
    stage.docker(["rm", &name]);
    until(&mut events, &name, &EventKind::Destroy).await;
}

/// Forwards a socket to the engine's, until it is dropped.
struct Proxy {
    _connections: JoinSet<()>,
}

impl Proxy {
    fn start(stage: &Stage) -> (Self, Endpoint) {
        let Endpoint::Unix(engine) = stage.endpoint.clone() else { panic!("needs a unix socket") };
        let path = stage.folder.path().join("proxy.sock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let mut far = UnixStream::connect(&engine).await.unwrap();
                open.spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        (Self { _connections: connections }, Endpoint::Unix(path))
    }
}

#[tokio::test]
async fn an_engine_that_goes_away_ends_the_events_and_is_used_again_when_it_is_back() {
    let stage = Stage::new().await;
    let (proxy, endpoint) = Proxy::start(&stage);
    let engine = DockerEngine::new(endpoint.clone(), Arc::new(Nobody));
    engine.ping().await.unwrap();
    let mut events = engine.events(now_nano()).await.unwrap();
    let idle = timeout(Duration::from_millis(500), async {
        while let Some(event) = events.next().await {
            assert!(!event.id.is_empty());
        }
    });
    assert!(idle.await.is_err(), "silence is not an end");
    drop(proxy);
    let end = timeout(Duration::from_mins(1), async { while events.next().await.is_some() {} });
    assert!(end.await.is_ok(), "a broken connection ends the stream");

    let error = engine.ping().await.unwrap_err();
    assert_eq!(error.to_string(), format!("container engine unavailable: {endpoint}: connection refused"));
    let Endpoint::Unix(path) = &endpoint else { panic!("needs a unix socket") };
    std::fs::remove_file(path).unwrap();
    let error = engine.image("x").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("container engine unavailable: {endpoint}: there is no such socket")
    );
    let (_proxy, _) = Proxy::start(&stage);
    engine.ping().await.unwrap();
    drop(engine.events(now_nano()).await.unwrap());
}

#[tokio::test]
async fn an_engine_that_hangs_is_unavailable_in_time() {
    let stage = Stage::new().await;
    let path = stage.folder.path().join("deaf.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let engine = DockerEngine::new(Endpoint::Unix(path), Arc::new(Nobody));
    let begin = Instant::now();
    let error = engine.ping().await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().ends_with("no answer within 5 s"), "{error}");
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
}

fn compose(stage: &Stage) -> ComposeCli {
    ComposeCli::new(config::Runtime::Docker, &stage.endpoint, std::env::vars_os())
}

#[tokio::test]
async fn compose_brings_a_project_up_with_the_variables_of_its_env_file() {
    let stage = Stage::new().await;
    stage.image(&format!("{}/web:1", stage.id), "one", &[]);
    let text = format!(
        "services:\n  web:\n    image: {}/web:${{TAG:?no tag}}\n    network_mode: none\n    init: true\n",
        stage.id
    );
    let mut shop = Project {
        name: stage.id.clone(),
        files: vec![stage.file("compose.yml", &text)],
        env_file: Some(stage.file("vars.env", "TAG=1 # now\n")),
    };
    let compose = compose(&stage);
    compose.up(&shop, &UpMode::Changed).await.unwrap();
    let first = project(&stage).await;
    assert_eq!((first.len(), first[0].state), (1, State::Running));
    compose.up(&shop, &UpMode::Changed).await.unwrap();
    assert_eq!(project(&stage).await[0].id, first[0].id, "nothing to do");
    compose.up(&shop, &UpMode::All).await.unwrap();
    assert_ne!(project(&stage).await[0].id, first[0].id, "made anew");

    shop.env_file = None;
    let error = compose.up(&shop, &UpMode::Changed).await.unwrap_err();
    assert!(error.cause.contains("no tag"), "{}", error.cause);
    shop.env_file = Some(stage.file("vars.env", "TAG=absent\n"));
    let error = compose.up(&shop, &UpMode::Changed).await.unwrap_err();
    assert!(error.cause.contains("absent"), "never pulls: {}", error.cause);
    let again = compose.up(&shop, &UpMode::Changed).await.unwrap_err();
    assert_eq!(error.cause, again.cause);
}

/// DOMAIN: a compose run that is killed while it makes a container anew leaves two halves behind.
#[tokio::test]
async fn a_run_that_was_killed_halfway_is_repaired_by_the_next() {
    let stage = Stage::new().await;
    let image = format!("{}/web:1", stage.id);
    stage.image(&image, "one", &[]);
    let text = format!(
        "services:\n  web:\n    image: {image}\n    network_mode: none\n    stop_grace_period: 4s\n    \
         command: [sh, -c, \"trap '' TERM; while :; do sleep 1; done\"]\n"
    );
    let files = vec![stage.file("compose.yml", &text)];
    let shop = Project { name: stage.id.clone(), files, env_file: None };
    let compose = compose(&stage);
    compose.up(&shop, &UpMode::Changed).await.unwrap();
    let second = stage.image(&image, "two", &[]);
    let halfway = async {
        while project(&stage).await.len() < 2 {
            sleep(Duration::from_millis(50)).await;
        }
        sleep(Duration::from_millis(500)).await;
    };
    tokio::select! {
        done = compose.up(&shop, &UpMode::Changed) => panic!("it was done before it could be killed: {done:?}"),
        () = halfway => {}
    }
    wait_for_async("the engine to have stopped the old one", async || {
        let seen = project(&stage).await;
        let stopped = seen.iter().all(|container| container.state != State::Running);
        if stopped { Ok(()) } else { Err(format!("{seen:#?}")) }
    })
    .await;
    let states: HashMap<_, _> = project(&stage).await.into_iter().map(|c| (c.name, c.state)).collect();
    assert_eq!(states.len(), 2, "{states:?}");

    compose.up(&shop, &UpMode::Changed).await.unwrap();
    let seen = project(&stage).await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(
        (seen[0].name.as_str(), seen[0].state),
        (format!("{}-web-1", stage.id).as_str(), State::Running)
    );
    assert_eq!(seen[0].image, ImageId(second));
}

fn now_nano() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap()
}

/// All in one pass, as the monitor does it.
async fn stats_of(
    stage: &Stage,
    ids: &[String],
) -> Vec<Result<Option<evenkeel_agent::model::Usage>, EngineError>> {
    futures_util::stream::iter(ids.to_vec())
        .map(|id| async move { stage.engine.stats(&id).await })
        .buffered(evenkeel_agent::tasks::monitor::PARALLEL)
        .collect()
        .await
}

#[tokio::test]
async fn twenty_containers_are_measured_in_one_pass_and_the_busy_one_shows() {
    let stage = Stage::new().await;
    let image = format!("{}/web:1", stage.id);
    stage.image(&image, "one", &[]);
    // More by hand: EVENKEEL_TEST_CONTAINERS=100.
    let count = std::env::var("EVENKEEL_TEST_CONTAINERS").map_or(20, |text| text.parse().unwrap());
    let mut ids: Vec<String> = (1..count)
        .map(|n| stage.run(&format!("{}-{n}", stage.id), &[], &image, &["sleep", "10000"]))
        .collect();
    let busy = ["sh", "-c", "while true; do head -c 1000000 /dev/zero > /dev/null; done"];
    ids.push(stage.run(&format!("{}-busy", stage.id), &["--memory", "64m"], &image, &busy));

    // An engine that has no time for an answer is asked again, as the monitor does.
    let usage = async || -> Result<Vec<evenkeel_agent::model::Usage>, String> {
        let all = stats_of(&stage, &ids).await.into_iter();
        all.map(|one| one.map_err(|error| error.to_string())?.ok_or("it does not run".to_owned())).collect()
    };
    let first = wait_for_async("the engine to answer for all", &usage).await;
    // Where others are busy, too, it takes its time until this one has had some of the processor.
    let used = |second: &[evenkeel_agent::model::Usage]| -> Vec<Duration> {
        first.iter().zip(second).map(|(first, second)| second.cpu.saturating_sub(first.cpu)).collect()
    };
    let (second, took) = wait_for_async("the busy one to have worked for a second", async || {
        let begin = Instant::now();
        let second = usage().await?;
        let used = used(&second);
        if *used.last().unwrap() > Duration::from_secs(1) {
            Ok((second, begin.elapsed()))
        } else {
            Err(format!("{used:?}"))
        }
    })
    .await;
    println!("stats of {count} containers in one pass: {took:?}");
    // One after the other they would take longer: some engines answer for one container once a second. A machine that is
    // slow at everything is slow at one, too.
    let begin = Instant::now();
    stage.engine.stats(&ids[0]).await.unwrap();
    let alone = begin.elapsed();
    let limit = Duration::from_secs(15).max(alone * u32::try_from(count / 2).unwrap());
    assert!(took < limit, "{took:?}, one alone {alone:?}");

    let machine = stage.engine.machine_memory().await.unwrap();
    for second in &second {
        assert!(second.cores > 0 && second.memory > 0 && second.memory < machine, "{second:?}");
    }
    let used = used(&second);
    let (busy, idle) = used.split_last().unwrap();
    let time = second[ids.len() - 1].read.duration_since(first[ids.len() - 1].read).as_secs_f64();
    assert!(busy.as_secs_f64() / time < 1.5, "it has one thread: {used:?} in {time} s");
    assert!(idle.iter().all(|used| *used < *busy / 20), "{used:?}");
}

#[tokio::test]
async fn stats_know_the_limit_and_a_stopped_or_unknown_container_has_none() {
    let stage = Stage::new().await;
    let image = format!("{}/web:1", stage.id);
    stage.image(&image, "one", &[]);
    let limited =
        stage.run(&format!("{}-limited", stage.id), &["--memory", "64m"], &image, &["sleep", "100"]);
    let free = stage.run(&format!("{}-free", stage.id), &[], &image, &["sleep", "100"]);
    let machine = stage.engine.machine_memory().await.unwrap();
    let limit = |id: String| async { stage.engine.stats(&{ id }).await.unwrap().unwrap().memory_limit };
    assert_eq!(limit(limited.clone()).await, Some(64 << 20));
    assert!(limit(free).await.is_none_or(|limit| limit >= machine));
    stage.docker(["kill", &limited]);
    wait_for_async("no stats once it is stopped", async || {
        match stage.engine.stats(&limited).await.unwrap() {
            None => Ok(()),
            Some(usage) => Err(format!("{usage:?}")),
        }
    })
    .await;
    assert_eq!(stage.engine.stats(&format!("{}-none", stage.id)).await, Ok(None));
}
