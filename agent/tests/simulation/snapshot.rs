//! Snapshots: the data goes back with the image, whenever the agent is killed.

use evenkeel_agent::model::snapshot::SnapshotRules;
use evenkeel_common::wire::AuditEntry;

use super::world::{Act, DiskFault};
use super::*;

/// An update of a service with data, which every new image migrates.
async fn with_data(behaviour: Behaviour) -> (FakeWorld, Arc<ServiceConfig>) {
    with_volumes(behaviour, None).await
}

/// The same, with a second volume and what the disk refuses.
async fn with_volumes(behaviour: Behaviour, more: Option<DiskFault>) -> (FakeWorld, Arc<ServiceConfig>) {
    let fake = new_world();
    let web = reference(WEB);
    fake.compose_service("web", &web);
    fake.has_data();
    let mut of = vec!["data".to_owned()];
    if let Some(fault) = more {
        fake.has_more_data(fault);
        of.push("more".to_owned());
    }
    fake.add_image(&web, "web v1", Behaviour::Good, true);
    fake.push(&web, "web v1", Behaviour::Good);
    fake.trust("web v1");
    fake.operator_up();
    until_healthy(&fake, "web").await;
    fake.push(&web, "web v2", behaviour);
    let snapshot = SnapshotRules { of, keep: 2, max_bytes: 1 << 20 };
    let update = UpdateConfig { snapshot: Some(snapshot), ..UpdateConfig::default() };
    let config = ServiceConfig { update: Some(Arc::new(update)), ..(*config(&[WEB])).clone() };
    (fake, Arc::new(config))
}

/// Every kind of image, with whether it ends proven.
const KINDS: [(Behaviour, bool); 6] = [
    (Behaviour::Good, true),
    (Behaviour::Unchecked, true),
    (Behaviour::Unhealthy, false),
    (Behaviour::Crash, false),
    (Behaviour::Flapping, false),
    (Behaviour::BadEntrypoint, false),
];

async fn assert_matches(fake: &FakeWorld, is_good: bool, what: &str) {
    let what = format!("{what}\n{}", fake.transcript().join("\n"));
    assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
    let durable = fake.durable(&state_key("shop")).await;
    assert_eq!(durable.deployment, None, "{what}: a deployment was left unfinished");
    let (image, version) = if is_good { ("web v2", 2) } else { ("web v1", 1) };
    assert_eq!(fake.running("web"), [id_of(image)], "{what}");
    let is_lost = |entry: &AuditEntry| entry.message.starts_with("not started again");
    assert!(!fake.entries().iter().any(is_lost), "{what}: compose has made it anew");
    let [live, copies, aside] = fake.data_versions();
    assert_eq!(live, [version], "{what}: image and data match");
    if is_good {
        assert_eq!((copies, aside), (vec![1], vec![]), "{what}: the copy is kept");
    } else {
        assert_eq!(copies, Vec::<u32>::new(), "{what}: the copy is used up");
        assert!(aside.len() <= 1, "{what}: {aside:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_data_goes_back_with_the_image() {
    for (behaviour, is_good) in KINDS {
        let (fake, config) = with_data(behaviour).await;
        assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
        let what = format!("an image that {}", behaviour.describe());
        assert_matches(&fake, is_good, &what).await;
        let kind = if is_good { Kind::UPDATED } else { Kind::ROLLED_BACK };
        assert_eq!(fake.entries().iter().filter(|entry| entry.event == kind).count(), 1, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_data_is_not_measured_again_and_again_for_an_image_that_has_failed() {
    let (fake, config) = with_data(Behaviour::Unhealthy).await;
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    let measured = fake.times_measured();
    assert!(measured > 0, "before the update");
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.times_measured(), measured, "it is blocked");
}

#[tokio::test(start_paused = true)]
async fn the_data_is_not_measured_again_and_again_while_its_update_waits() {
    let (fake, config) = with_data(Behaviour::Good).await;
    let update = config.update.as_deref().expect("it has a snapshot").clone();
    let update = Some(Arc::new(UpdateConfig { approve: true, ..update }));
    let config = Arc::new(ServiceConfig { update, ..(*config).clone() });
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    let measured = fake.times_measured();
    assert!((1..3).contains(&measured), "{measured} times in a dozen polls");
    assert_eq!(fake.up("web"), [id_of("web v1")], "it waits");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_failed_is_not_started_again_on_data_that_was_put_back_for_a_service_that_had_crashed()
{
    for behaviour in [Behaviour::Unhealthy, Behaviour::Flapping] {
        let (fake, config) = with_data(behaviour).await;
        fake.act(Act::Crash("web"));
        assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
        let what = fake.transcript().join("\n");
        assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
        assert!(fake.entries().iter().any(|entry| entry.event == Kind::ROLLED_BACK), "{what}");
        assert_eq!(
            (fake.data_versions()[0].clone(), fake.up("web")),
            (vec![1], vec![id_of("web v1")]),
            "{what}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_failed_does_not_run_on_data_that_was_put_back() {
    let (fake, config) = with_data(Behaviour::Unhealthy).await;
    fake.breaks_compose_with_restore();
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    let what = fake.transcript().join("\n");
    assert!(fake.durable(&state_key("shop")).await.rollback_failed, "{what}");
    assert!(fake.up("web").is_empty(), "{what}");
    assert_eq!(fake.data_versions()[0], [1], "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_can_not_be_put_back_leaves_no_data_of_two_times_to_an_image() {
    for (nr, fault) in
        [DiskFault::None, DiskFault::PutBack, DiskFault::PutBackAndUndo].into_iter().enumerate()
    {
        let kills = [None].into_iter().chain(every(47, nr).map(Some));
        for at in kills {
            let (fake, config) = with_volumes(Behaviour::Unhealthy, Some(fault)).await;
            fake.crash_at(at);
            let has_ended = run_agent(&fake, &config, LONG, Script::Poll).await;
            if at.is_some() && has_ended {
                break;
            }
            fake.crash_at(None);
            if !has_ended {
                assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
            }
            let what = format!("{fault:?}, killed at call {at:?}\n{}", fake.transcript().join("\n"));
            assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
            let durable = fake.durable(&state_key("shop")).await;
            assert_eq!(durable.deployment, None, "{what}");
            assert_eq!(durable.rollback_failed, fault != DiskFault::None, "{what}");
            let (image, live) = match fault {
                DiskFault::None => (Some("web v1"), [1, 1]),
                DiskFault::PutBack => (Some("web v2"), [2, 2]),
                // Nothing runs on it.
                DiskFault::PutBackAndUndo => (None, [1, 2]),
            };
            assert_eq!(fake.data_versions()[0], live, "{what}");
            assert_eq!(fake.up("web"), image.map(id_of).into_iter().collect::<Vec<_>>(), "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn image_and_data_match_whenever_the_agent_is_killed() {
    let mut runs = 0;
    for (nr, (behaviour, is_good)) in KINDS.into_iter().enumerate() {
        for at in every(31, nr) {
            let (fake, config) = with_data(behaviour).await;
            fake.crash_at(Some(at));
            if run_agent(&fake, &config, LONG, Script::Poll).await {
                assert!(at > 50, "only {at} calls, the crashes did not reach the update");
                break;
            }
            fake.crash_at(None);
            assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
            let what = format!("an image that {}, killed at call {at}", behaviour.describe());
            assert_matches(&fake, is_good, &what).await;
            runs += 1;
        }
    }
    assert!(runs > 15, "only {runs} runs");
}

/// A service with data that was updated, and then goes back with the data of before. `works`: whether the earlier image does.
async fn updated(works: bool) -> (FakeWorld, Arc<ServiceConfig>) {
    let (fake, config) = with_data(Behaviour::Good).await;
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    if !works {
        fake.image_turns("web v1", Behaviour::Unhealthy);
    }
    fake.operator_asked();
    fake.service_asked("shop", &ServiceRequest::Rollback { to: None, data: true });
    (fake, config)
}

async fn assert_went_back(fake: &FakeWorld, works: bool, what: &str) {
    let what = format!("{what}\n{}", fake.transcript().join("\n"));
    assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
    assert_eq!(fake.durable(&state_key("shop")).await.deployment, None, "{what}: left unfinished");
    let kept = fake.data_versions();
    if works {
        assert_eq!(fake.running("web"), [id_of("web v1")], "{what}");
        assert_eq!(kept, [vec![1], vec![], vec![2]], "{what}: the data of v2 is set aside");
    } else {
        assert_eq!(fake.running("web"), [id_of("web v2")], "{what}");
        assert_eq!(kept, [vec![2], vec![1], vec![]], "{what}: as if nothing had happened");
    }
}

#[tokio::test(start_paused = true)]
async fn a_person_goes_back_together_with_the_data() {
    for works in [true, false] {
        let (fake, config) = updated(works).await;
        assert!(run_agent(&fake, &config, LONG, Script::RollbackFirst).await);
        assert_went_back(&fake, works, if works { "good" } else { "bad" }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn image_and_data_match_whenever_an_agent_that_goes_back_is_killed() {
    let mut runs = 0;
    for (nr, works) in [true, false].into_iter().enumerate() {
        for at in every(23, nr) {
            let (fake, config) = updated(works).await;
            let entries = fake.entries().len();
            fake.crash_at(Some(at));
            if run_agent(&fake, &config, LONG, Script::RollbackFirst).await {
                assert!(at > 30, "only {at} calls, the crashes did not reach the way back");
                break;
            }
            fake.crash_at(None);
            let is_begun = fake.durable(&state_key("shop")).await.deployment.is_some();
            assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
            // A request of before the kill that had not begun is forgotten.
            let is_told = fake.entries().len() > entries;
            let went_back = works && (is_begun || is_told && fake.running("web") == [id_of("web v1")]);
            assert_went_back(&fake, went_back, &format!("works: {works}, killed at call {at}")).await;
            runs += 1;
        }
    }
    assert!(runs > 4, "only {runs} runs");
}

/// Runs the agent until the deployment is in this step, and stops it as the service manager does. Returns whether it has ended
/// before the world killed it at one of the calls that followed.
async fn stopped_in(step: &str, fake: &FakeWorld, config: &Arc<ServiceConfig>, kill: Option<usize>) -> bool {
    let key = state_key("shop");
    let world = world(fake, Arc::new(fake.clone())).await;
    let durable = fake.durable(&key).await;
    let (member, handle) = Member::new(config.clone(), durable, world.clone(), StartReason::Start);
    let (tasks, stop) = (TaskSet::new(), CancellationToken::new());
    Placement::new(world.clock.clone(), tasks.clone(), stop.clone()).place(vec![member]);
    let is_there = async {
        while fake.durable(&key).await.step().is_none_or(|(now, _)| now != step) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = run_script(&handle, &world, Script::Poll) => unreachable!("polling never ends"),
        () = is_there => {}
    }
    fake.crash_at(kill);
    stop.cancel();
    let has_ended = tokio::select! {
        biased;
        () = fake.crash.notified() => false,
        in_time = tasks.finish(Duration::from_secs(25)) => in_time,
    };
    fake.crash_at(None);
    tasks.finish(Duration::ZERO).await;
    has_ended
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_stopped_for_good_before_the_data_is_copied_leaves_the_service_running() {
    for step in ["quiesce", "copy"] {
        let (fake, config) = with_data(Behaviour::Good).await;
        assert!(stopped_in(step, &fake, &config, None).await, "{step}");
        let what = format!("stopped in {step}\n{}", fake.transcript().join("\n"));
        assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
        assert_eq!(fake.up("web"), [id_of("web v1")], "{what}");
        assert_eq!(fake.durable(&state_key("shop")).await.deployment, None, "{what}");
        assert_eq!(fake.data_versions(), [vec![1], vec![], vec![]], "{what}: what was copied is removed");
        assert_eq!(fake.leftovers(), Vec::<String>::new(), "{what}");
        // Once it runs again, it makes the update.
        assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
        assert_matches(&fake, true, &what).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_while_the_agent_stops_is_repeated() {
    let mut given_up = 0;
    for first in 0..3 {
        let (fake, config) = with_data(Behaviour::Good).await;
        let mut writes = first;
        fake.refuse_writes(move || {
            writes += 1;
            writes % 3 == 0
        });
        assert!(stopped_in("copy", &fake, &config, None).await, "{first}");
        fake.refuse_writes(|| false);
        let what = format!("from write {first}\n{}", fake.transcript().join("\n"));
        let step = fake.durable(&state_key("shop")).await.step().map(|(step, _)| step);
        // If it was not written at once that the update is given up, the copy was complete by then.
        assert!(step.is_none_or(|step| ["resume", "start"].contains(&step)), "left in {step:?}: {what}");
        if step.is_none() {
            assert_eq!(fake.up("web"), [id_of("web v1")], "{what}");
            given_up += 1;
        }
        assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
        assert_matches(&fake, true, &what).await;
    }
    assert!(given_up > 0);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_killed_while_it_stops_starts_again_what_it_has_stopped_for_the_copy() {
    let mut runs = 0;
    for at in every(3, 0) {
        let (fake, config) = with_data(Behaviour::Good).await;
        if stopped_in("copy", &fake, &config, Some(at)).await {
            break;
        }
        assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
        assert_matches(&fake, true, &format!("killed at call {at} of the stop")).await;
        runs += 1;
    }
    assert!(runs > 1, "only {runs} runs");
}
