//! The event stream, and engines that become unavailable or hang.

use super::*;

/// Returns the events of a container, up to and including `last`.
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
async fn events_are_delivered_from_the_call_on_without_health_probe_noise() {
    let stage = Stage::new().await;
    let image = format!("{}/web:1", stage.id);
    stage.image(&image, "one", &[]);
    let name = format!("{}-x", stage.id);
    let mut events = stage.engine.events(now_nano(), None).await.unwrap();
    // Events that occur before the first read are not lost.
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
    let (died, stopped) = (EventKind::Die { exit_code: 137 }, EventKind::Stop);
    let mut seen = until(&mut events, &name, &stopped).await;
    // Newer engines report the two in either order.
    if !seen.contains(&died) {
        seen.extend(until(&mut events, &name, &died).await);
    }
    assert_eq!(seen[0], EventKind::Kill { signal: Some(9) });
    assert!(seen.len() == 3 && seen.contains(&died) && seen.contains(&stopped), "{seen:?}");
    stage.docker(["rm", &name]);
    until(&mut events, &name, &EventKind::Destroy).await;
}

/// Forwards connections to the engine's socket until it is dropped.
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
    let engine = DockerEngine::new(endpoint.clone(), Arc::new(AnonymousPulls));
    engine.ping().await.unwrap();
    let mut events = engine.events(now_nano(), None).await.unwrap();
    let idle = timeout(Duration::from_millis(500), async {
        while let Some(event) = events.next().await {
            assert!(!event.id.is_empty());
        }
    });
    assert!(idle.await.is_err(), "an idle stream does not end");
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
    drop(engine.events(now_nano(), None).await.unwrap());
}

#[tokio::test]
async fn a_hanging_engine_is_reported_as_unavailable_in_time() {
    let stage = Stage::new().await;
    let path = stage.folder.path().join("hanging.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let engine = DockerEngine::new(Endpoint::Unix(path), Arc::new(AnonymousPulls));
    let begin = Instant::now();
    let error = engine.ping().await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().ends_with("no answer within 5 s"), "{error}");
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
}
