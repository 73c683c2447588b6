//! Resource usage of containers.

use super::*;

/// Queries all containers in one pass, as the monitor does.
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
    // Set EVENKEEL_TEST_CONTAINERS=100 for a manual run with more.
    let count = std::env::var("EVENKEEL_TEST_CONTAINERS").map_or(20, |text| text.parse().unwrap());
    let mut ids: Vec<String> = (1..count)
        .map(|n| stage.run(&format!("{}-{n}", stage.id), &[], &image, &["sleep", "10000"]))
        .collect();
    let busy = ["sh", "-c", "while true; do head -c 1000000 /dev/zero > /dev/null; done"];
    ids.push(stage.run(&format!("{}-busy", stage.id), &["--memory", "64m"], &image, &busy));

    // A busy engine is asked again, as the monitor does.
    let usage = async || -> Result<Vec<evenkeel_agent::model::Usage>, String> {
        let all = stats_of(&stage, &ids).await.into_iter();
        all.map(|one| one.map_err(|error| error.to_string())?.ok_or("it is not running".to_owned())).collect()
    };
    let first = wait_for_async("the engine to return stats of all", &usage).await;
    // On a busy machine it takes a while until this container gets some processor time.
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
    // Sequential queries would take longer: some engines take a second per container. The limit grows with the time of a
    // single query, for slow machines.
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
async fn stats_have_the_memory_limit_and_stopped_or_unknown_containers_have_no_stats() {
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
