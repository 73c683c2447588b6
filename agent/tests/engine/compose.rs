//! Bringing up projects with compose.

use super::*;

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
        ..Project::default()
    };
    let compose = compose(&stage);
    compose.up(&shop, &UpMode::Changed, PullPolicy::Never).await.unwrap();
    let first = project(&stage).await;
    assert_eq!((first.len(), first[0].state), (1, State::Running));
    compose.up(&shop, &UpMode::Changed, PullPolicy::Never).await.unwrap();
    assert_eq!(project(&stage).await[0].id, first[0].id, "nothing to do");
    compose.up(&shop, &UpMode::All, PullPolicy::Never).await.unwrap();
    assert_ne!(project(&stage).await[0].id, first[0].id, "recreated");

    shop.env_file = None;
    let error = compose.up(&shop, &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert!(error.cause.contains("no tag"), "{}", error.cause);
    shop.env_file = Some(stage.file("vars.env", "TAG=absent\n"));
    let error = compose.up(&shop, &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert!(error.cause.contains("absent"), "never pulls: {}", error.cause);
    let again = compose.up(&shop, &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert_eq!(error.cause, again.cause);
}

/// DOMAIN: a compose run that is killed while it recreates a container leaves both the old and the new one behind.
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
    let shop = Project { name: stage.id.clone(), files, env_file: None, ..Project::default() };
    let compose = compose(&stage);
    compose.up(&shop, &UpMode::Changed, PullPolicy::Never).await.unwrap();
    let second = stage.image(&image, "two", &[]);
    let halfway = async {
        while project(&stage).await.len() < 2 {
            sleep(Duration::from_millis(50)).await;
        }
        sleep(Duration::from_millis(500)).await;
    };
    tokio::select! {
        done = compose.up(&shop, &UpMode::Changed, PullPolicy::Never) => panic!("it ended before it could be killed: {done:?}"),
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

    compose.up(&shop, &UpMode::Changed, PullPolicy::Never).await.unwrap();
    let seen = project(&stage).await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(
        (seen[0].name.as_str(), seen[0].state),
        (format!("{}-web-1", stage.id).as_str(), State::Running)
    );
    assert_eq!(seen[0].image, ImageId(second.into()));
}

mod nightly {
    use super::*;

    /// Takes half a minute, most of which the engine waits for the container.
    #[tokio::test]
    async fn up_waits_as_long_as_the_containers_that_it_stops_may_take() {
        let stage = Stage::new().await;
        let image = format!("{}/web:1", stage.id);
        stage.image(&image, "one", &[]);
        let text = format!(
            "services:\n  web:\n    image: {image}\n    network_mode: none\n    stop_grace_period: 15s\n    \
             command: [sh, -c, \"trap '' TERM; while :; do sleep 1; done\"]\n"
        );
        let files = vec![stage.file("compose.yml", &text)];
        let mut shop = Project { name: stage.id.clone(), files, env_file: None, ..Project::default() };
        let compose = compose(&stage).with_limit(Duration::from_secs(10));
        compose.up(&shop, &UpMode::Changed, PullPolicy::Never).await.unwrap();
        let grace = project(&stage).await[0].stop_timeout;
        assert_eq!(grace, Duration::from_secs(15), "as the engine knows it");
        let second = stage.image(&image, "two", &[]);
        let cut = compose.up(&shop, &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
        assert!(cut.cause.contains("timed out"), "{}", cut.cause);
        shop.stop_grace = grace;
        compose.up(&shop, &UpMode::Changed, PullPolicy::Never).await.unwrap();
        let seen = project(&stage).await;
        assert_eq!((seen.len(), &seen[0].image), (1, &ImageId(second.into())), "{seen:?}");
    }
}
