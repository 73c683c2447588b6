//! Scenarios with probes (DECISIONS 15).

use super::*;
use crate::config::UpdateConfig;
use crate::model::probe::{Answer, Ask, HttpAsk, Probe, StatusCodes, Target};
use crate::model::{NetworkOwner, NetworkOwnerState};

const OLD: &str = "sha256:v1";
const NEW: &str = "sha256:v2";
const TERM: EventKind = EventKind::Kill { signal: Some(15) };

fn probe() -> Probe {
    Probe {
        ask: Ask::Http(HttpAsk {
            port: 8080,
            path: "/health".into(),
            status: StatusCodes::parse("200-399").unwrap(),
            host: None,
            tls: None,
        }),
        service: None,
        from: None,
        interval: Duration::from_secs(2),
        timeout: Duration::from_secs(5),
    }
}

fn with(probe: Probe) -> Scenario {
    let update = UpdateConfig { probe: Some(probe), ..UpdateConfig::default() };
    Scenario::of(ServiceConfig { update: Some(Arc::new(update)), ..config() })
}

fn new_container() -> Container {
    Container { id: "web-2".into(), image: ImageId(NEW.into()), ..running("web-1") }
}

fn old_container() -> Container {
    Container { image: ImageId(OLD.into()), ..running("web-1") }
}

#[allow(clippy::unnecessary_wraps)] // the type of an answer
fn ok() -> Answer {
    Ok("status 200 OK".to_owned())
}

#[allow(clippy::unnecessary_wraps)] // the type of an answer
fn refused() -> Answer {
    Err("connection refused".to_owned())
}

impl Scenario {
    /// An update of which these containers have come up.
    fn comes_up_probed(&mut self, containers: &[&Container]) -> &mut Self {
        self.comes_up_probed_beside(&[], containers)
    }

    /// The same while these ran beside the old one.
    fn comes_up_probed_beside(&mut self, others: &[&Container], containers: &[&Container]) -> &mut Self {
        let old = old_container();
        let before: Vec<&Container> = std::iter::once(&old).chain(others.iter().copied()).collect();
        self.check(observed('2', &[local(OLD, &['1'])], &before));
        self.proceeds(StepResult::ImagesPinned { missing: Vec::new() });
        let ids = vec![(IMAGE.into(), ImageId(NEW.into()))];
        self.proceeds(StepResult::Pulled { ids, labels: BTreeMap::new() });
        let containers = containers.iter().map(|c| (*c).clone()).collect();
        self.proceeds(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers })
    }

    fn proceeds(&mut self, result: StepResult) -> &mut Self {
        let action = self.act();
        assert!(matches!(action, Some(Action::Step(_))), "no step is due, but {action:?}");
        self.input(Input::Stepped(result))
    }

    /// Returns whom the probe asks now.
    fn asks(&mut self) -> (Timestamp, Vec<Target>) {
        match self.act() {
            Some(Action::Probe { since, targets, .. }) => (since, targets),
            other => panic!("no probe, but {other:?}"),
        }
    }

    /// Expects one try, with this answer of every target; then the containers are inspected.
    fn probe_gets(&mut self, answer: &Answer, containers: &[&Container]) -> &mut Self {
        let (since, targets) = self.asks();
        let answers = targets.into_iter().map(|target| (target, answer.clone())).collect();
        self.input(Input::Probed { since, answers }).look(containers)
    }

    /// The same, if a try is due.
    fn probe_may_get(&mut self, answer: &Answer, containers: &[&Container]) -> &mut Self {
        if let Some(Action::Probe { since, targets, .. }) = self.act() {
            let answers = targets.into_iter().map(|target| (target, answer.clone())).collect();
            self.input(Input::Probed { since, answers });
        }
        self.look(containers)
    }

    /// Asserts that the probation has ended, and that nothing is blocked or brought up for it.
    fn has_proven_nothing(&mut self) {
        assert!(self.service.durable().images.get(IMAGE).blocked.is_none());
        let next = self.act();
        assert!(matches!(next, Some(Action::Step(Step::Unpin { .. }))), "{next:?} {:?}", self.entries);
    }

    /// Why the image was rejected.
    fn reason(&self) -> String {
        match &self.service.durable.deployment.as_ref().expect("it is rolled back").phase {
            crate::service::rollout::step::Phase::Diagnose(failed) => {
                crate::service::wording::rejection(&failed.failure.reason)
            }
            other => panic!("{other:?}"),
        }
    }

    fn is_on_probation(&self) -> bool {
        self.service.durable.deployment.as_ref().is_some_and(|deployment| deployment.phase.is_probation())
    }
}

#[test]
fn an_image_that_never_listens_is_rolled_back_at_the_end_of_its_probation() {
    let new = new_container();
    let mut scenario = with(probe());
    scenario.comes_up_probed(&[&new]);
    for second in [0, 2, 4, 6, 8] {
        scenario.at(second).probe_gets(&refused(), &[&new]);
        assert!(scenario.is_on_probation(), "failures before the first success are a slow start");
    }
    let progress = scenario.record().deploy.and_then(|deploy| deploy.probe).expect("it is shown");
    assert_eq!(progress.probe, "GET http://:8080/health");
    assert_eq!((progress.passed, progress.answer.as_deref()), (false, Some("connection refused")));
    scenario.at(11).look(&[&new]);
    assert_eq!(
        scenario.reason(),
        "container web-1 did not answer its probe by the end of its probation (GET http://:8080/health): connection refused"
    );
    let Some(Action::Step(Step::Diagnose { container })) = scenario.act() else { panic!("no diagnosis") };
    assert_eq!(container, "web-2");
    assert!(scenario.service.durable().images.get(IMAGE).blocked.is_some());
    scenario.input(Input::Stepped(StepResult::Diagnosed { log: "listening on nothing".into() }));
    scenario.proceeds(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![old_container()],
    });
    // The probe does not judge the image that is put back.
    scenario.at(12).look(&[&old_container()]).at(40).look(&[&old_container()]);
    scenario.proceeds(StepResult::Unpinned);
    let entry = scenario.entries.iter().find(|entry| entry.event == Kind::ROLLED_BACK).expect("it is told");
    assert!(entry.output.contains("last probe: GET http://:8080/health: connection refused"), "{entry:#?}");
}

#[test]
fn a_slow_start_within_the_probation_is_fine() {
    let new = new_container();
    let mut scenario = with(probe());
    scenario.comes_up_probed(&[&new]);
    for second in [0, 2, 4, 6] {
        scenario.at(second).probe_gets(&refused(), &[&new]);
    }
    scenario.at(9).probe_gets(&ok(), &[&new]);
    scenario.at(11).look(&[&new]);
    scenario.proceeds(StepResult::Unpinned);
    assert!(scenario.kinds().contains(&Kind::UPDATED));
}

#[test]
fn three_failures_in_a_row_after_a_success_end_the_probation() {
    let new = new_container();
    let mut scenario = with(probe());
    scenario.comes_up_probed(&[&new]);
    // Two in a row are none.
    for (second, answer) in [(0, ok()), (2, refused()), (4, refused()), (6, ok()), (8, refused())] {
        scenario.at(second).probe_gets(&answer, &[&new]);
        assert!(scenario.is_on_probation(), "second {second}");
    }
    let mut lost = with(probe());
    lost.comes_up_probed(&[&new]);
    lost.probe_gets(&ok(), &[&new]);
    for second in [2, 4] {
        lost.at(second).probe_gets(&refused(), &[&new]);
        assert!(lost.is_on_probation());
    }
    lost.at(6).probe_gets(&Err("status 503 Service Unavailable".into()), &[&new]);
    assert_eq!(
        lost.reason(),
        "container web-1 stopped answering its probe (GET http://:8080/health): status 503 Service Unavailable"
    );
}

#[test]
fn the_probe_adds_to_the_health_check() {
    let sick = Container {
        id: "web-2".into(),
        image: ImageId(NEW.into()),
        ..with_health("web-1", HealthState::Unhealthy)
    };
    let mut scenario = with(probe());
    scenario.comes_up_probed(&[&sick]);
    scenario.probe_gets(&ok(), &[&sick]);
    scenario.at(60).look(&[&sick]);
    assert!(scenario.reason().contains("unhealthy"), "{}", scenario.reason());
}

#[test]
fn every_container_of_the_image_is_asked_and_no_other() {
    let two = [new_container(), Container { id: "web-3".into(), name: "web-2".into(), ..new_container() }];
    let other = Container {
        config_image: "localhost:5000/db:1".into(),
        compose_service: "db".into(),
        ..running("db-1")
    };
    let mut scenario = with(probe());
    scenario.comes_up_probed(&[&two[0], &two[1], &other]);
    let (since, targets) = scenario.asks();
    assert_eq!(targets, [Target("web-2".into()), Target("web-3".into())]);
    let answers = [(Target("web-2".into()), ok()), (Target("web-3".into()), refused())].into();
    scenario.input(Input::Probed { since, answers });
    let progress = scenario.record().deploy.and_then(|deploy| deploy.probe).expect("it is shown");
    assert!(!progress.passed, "the worst one is shown");
    scenario.at(11).look(&[&two[0], &two[1], &other]);
    assert!(scenario.reason().starts_with("container web-2 did not answer"), "{}", scenario.reason());
}

#[test]
fn a_named_service_is_asked_although_its_image_has_not_changed() {
    let front =
        Container { id: "front".into(), config_image: "localhost:5000/front:1".into(), ..running("front") };
    let new = new_container();
    let mut scenario = with(Probe { service: Some("front".into()), ..probe() });
    scenario.comes_up_probed(&[&new, &front]);
    let front = Container { compose_service: "front".into(), ..front };
    scenario.look(&[&new, &front]).at(2);
    let (since, targets) = scenario.asks();
    assert_eq!(targets, [Target("front".into())]);
    scenario.input(Input::Probed { since, answers: [(Target("front".into()), refused())].into() });
    scenario.at(11).look(&[&new, &front]);
    assert!(scenario.reason().starts_with("container front did not answer"), "{}", scenario.reason());
    assert!(
        scenario.service.durable().images.get(IMAGE).blocked.is_some(),
        "the image that was deployed is to blame"
    );
}

#[test]
fn an_address_of_its_own_is_asked_once() {
    let new = new_container();
    let mut scenario = with(Probe { from: Some("127.0.0.1".into()), ..probe() });
    scenario.comes_up_probed(&[&new]);
    let (since, targets) = scenario.asks();
    assert_eq!(targets, [Target::own_address()]);
    scenario.input(Input::Probed { since, answers: [(Target::own_address(), refused())].into() });
    scenario.at(11).look(&[&new]);
    assert_eq!(
        scenario.reason(),
        "GET http://127.0.0.1:8080/health did not succeed by the end of the probation: connection refused"
    );
}

#[test]
fn nothing_fails_that_was_not_asked() {
    let new = new_container();
    let mut scenario = with(probe());
    scenario.comes_up_probed(&[&new]);
    // The time is over before the first answer.
    let (since, targets) = scenario.asks();
    scenario.at(30).look(&[&new]);
    assert!(scenario.is_on_probation());
    let answers = targets.into_iter().map(|target| (target, ok())).collect();
    scenario.input(Input::Probed { since, answers }).look(&[&new]);
    scenario.proceeds(StepResult::Unpinned);
    assert!(scenario.kinds().contains(&Kind::UPDATED));
}

#[test]
fn a_try_without_an_answer_counts_neither_for_nor_against_an_image() {
    let new = new_container();
    let mut scenario = with(probe());
    scenario.comes_up_probed(&[&new]);
    for second in [0, 2, 4, 6, 8, 20] {
        scenario.at(second);
        let (since, _) = scenario.asks();
        scenario.input(Input::Probed { since, answers: BTreeMap::new() }).look(&[&new]);
        assert!(scenario.is_on_probation(), "second {second}");
    }
    scenario.at(22).probe_gets(&ok(), &[&new]);
    scenario.proceeds(StepResult::Unpinned);
    assert!(scenario.kinds().contains(&Kind::UPDATED));
}

#[test]
fn a_container_that_can_be_neither_asked_nor_inspected_ends_the_probation_without_a_block() {
    let new = new_container();
    let hung = Container { state: State::Unknown, ..new.clone() };
    let mut scenario = with(probe());
    scenario.comes_up_probed(&[&new]);
    let (since, _) = scenario.asks();
    scenario.input(Input::Probed { since, answers: BTreeMap::new() }).look(&[&hung]);
    assert!(scenario.is_on_probation());
    scenario.at(12).look(&[&hung]).at(30).look(&[&hung]);
    assert!(!scenario.is_on_probation());
    assert!(scenario.service.durable().images.get(IMAGE).blocked.is_none());
}

#[test]
fn a_container_that_the_engine_does_not_find_for_the_probe_ends_the_probation_without_a_block() {
    let hung = Container {
        state: State::Unknown,
        config_image: "localhost:5000/vpn:1".into(),
        compose_service: "vpn".into(),
        ..running("vpn")
    };
    let owner = NetworkOwner { id_or_name: hung.id.clone(), resolved: Some(NetworkOwnerState::of(&hung)) };
    let behind = Container { network_of: Some(owner), ..new_container() };
    for (new, named) in [(new_container(), "web-1"), (behind, "vpn")] {
        let mut scenario = with(probe());
        scenario.comes_up_probed(&[&new, &hung]);
        for second in [0, 11, 69] {
            scenario.at(second);
            let (since, targets) = scenario.asks();
            assert_eq!(targets, [Target("web-2".into())]);
            scenario.input(Input::Probed { since, answers: BTreeMap::new() }).look(&[&new, &hung]);
            assert!(scenario.is_on_probation(), "second {second}");
        }
        scenario.at(70).look(&[&new, &hung]);
        assert!(!scenario.is_on_probation());
        assert!(scenario.service.durable().images.get(IMAGE).blocked.is_none());
        let fault = scenario.record().errored.unwrap_or_default();
        let expected = format!("the engine answers no inspection of container {named}");
        assert!(fault.contains(&expected), "{fault}");
    }
}

#[test]
fn answers_from_before_a_new_start_of_the_probation_do_not_count() {
    let new = new_container();
    let mut scenario = with(probe());
    scenario.comes_up_probed(&[&new]);
    scenario.probe_gets(&ok(), &[&new]);
    scenario.at(2);
    let (since, targets) = scenario.asks();
    // Somebody restarts the container.
    scenario.event("web-2", EventKind::Stop);
    let again = Container { started_at: scenario.seconds(3), ..new.clone() };
    scenario.at(3).look(&[&again]);
    let answers = targets.into_iter().map(|target| (target, ok())).collect();
    scenario.input(Input::Probed { since, answers });
    scenario.probe_gets(&refused(), &[&again]);
    scenario.at(20).look(&[&again]);
    assert!(scenario.reason().contains("did not answer"), "{}", scenario.reason());
}

fn front() -> Container {
    let (id, compose_service) = ("front".to_owned(), "front".to_owned());
    Container { id, compose_service, config_image: "localhost:5000/front:1".into(), ..running("front") }
}

fn probe_of_front() -> Probe {
    Probe { service: Some("front".into()), ..probe() }
}

fn probe_of_address() -> Probe {
    Probe { from: Some("127.0.0.1".into()), ..probe() }
}

#[test]
fn a_stop_breaks_the_probation_off_although_nothing_answers_any_more() {
    // It may drain for longer than its own timeout (`docker stop --time 120`).
    for (probe, ends) in [(probe(), 8), (probe(), 100), (probe_of_address(), 3), (probe_of_address(), 100)] {
        let update = Some(Arc::new(UpdateConfig { probe: Some(probe), ..UpdateConfig::default() }));
        let health_grace = Duration::from_mins(1);
        let mut scenario = Scenario::of(ServiceConfig { health_grace, update, ..config() });
        let new = new_container();
        let finished_at = scenario.seconds(ends);
        let down = Container { state: State::Exited, exit_code: 143, finished_at, ..new.clone() };
        scenario.comes_up_probed(&[&new]).probe_gets(&ok(), &[&new]);
        scenario.at(2).event("web-2", TERM);
        let seen = |second| if second < ends { &new } else { &down };
        for second in (2..60).step_by(2) {
            scenario.at(second).probe_may_get(&refused(), &[seen(second)]);
            assert!(scenario.is_on_probation(), "second {second}, ends at {ends}");
        }
        scenario.at(61).look(&[seen(61)]).has_proven_nothing();
    }
}

#[test]
fn what_is_taken_down_on_probation_is_not_rolled_back_because_its_address_does_not_answer() {
    let new = new_container();
    let mut scenario = with(probe_of_address());
    scenario.comes_up_probed(&[&new]).probe_gets(&ok(), &[&new]);
    scenario.at(2).event("web-2", TERM).event("web-2", EventKind::Destroy).look(&[]);
    for second in [4, 6, 8, 10] {
        scenario.at(second).probe_may_get(&refused(), &[]);
    }
    scenario.at(11).look(&[]).has_proven_nothing();
}

#[test]
fn what_is_probed_has_the_whole_probation_to_answer_again_after_a_restart() {
    for (probe, id) in [(probe_of_front(), "front"), (probe_of_address(), "web-2")] {
        let mut scenario = with(probe);
        let mut containers = [new_container(), front()];
        scenario.comes_up_probed_beside(&[&containers[1]], &[&containers[0], &containers[1]]);
        scenario.probe_gets(&ok(), &[&containers[0], &containers[1]]);
        scenario.at(4).event(id, TERM);
        let again = containers.iter_mut().find(|container| container.id == id).unwrap();
        again.started_at = scenario.seconds(5);
        let [new, front] = &containers;
        scenario.at(5).look(&[new, front]);
        for second in [6, 8, 10, 12] {
            scenario.at(second).probe_may_get(&refused(), &[new, front]);
            assert!(scenario.is_on_probation(), "{id}, second {second}");
        }
        scenario.at(14).probe_may_get(&ok(), &[new, front]).at(16).look(&[new, front]);
        scenario.proceeds(StepResult::Unpinned);
        assert!(scenario.kinds().contains(&Kind::UPDATED), "{id}");
    }
}

#[test]
fn a_named_service_that_somebody_stops_pauses_or_removes_or_that_is_unknown_says_nothing_about_an_image() {
    let front = front();
    let in_state = |state, exit_code| {
        let finished_at = Some("2026-01-01T00:00:05Z".parse().unwrap());
        Some(Container { state, finished_at, exit_code, ..front.clone() })
    };
    for (last, is_stopped, is_blocked) in [
        (in_state(State::Exited, 143), true, false),
        (in_state(State::Paused, 0), false, false),
        (in_state(State::Unknown, 0), false, false),
        (None, false, false),
        // By itself.
        (in_state(State::Exited, 1), false, true),
    ] {
        let new = new_container();
        let mut scenario = with(probe_of_front());
        scenario.comes_up_probed_beside(&[&front], &[&new, &front]);
        scenario.probe_gets(&ok(), &[&new, &front]).at(4);
        if is_stopped {
            scenario.event("front", TERM);
        }
        let seen: Vec<&Container> = std::iter::once(&new).chain(&last).collect();
        scenario.at(5).look(&seen).at(11).look(&seen);
        let has_time = last.as_ref().is_some_and(|last| last.state == State::Unknown);
        assert_eq!(scenario.is_on_probation(), has_time, "{last:?}");
        scenario.at(16).look(&seen);
        if is_blocked {
            assert!(scenario.reason().starts_with("no container of front"), "{}", scenario.reason());
        } else {
            scenario.has_proven_nothing();
        }
    }
}

#[test]
fn a_named_service_that_was_down_before_the_update_is_not_missed() {
    for state in [State::Exited, State::Paused] {
        let new = new_container();
        let mut scenario = with(probe_of_front());
        let down = Container { state, exit_code: 143, finished_at: scenario.seconds(1), ..front() };
        scenario.event("front", TERM).at(2);
        scenario.comes_up_probed_beside(&[&down], &[&new, &down]);
        scenario.look(&[&new, &down]).at(13).look(&[&new, &down]);
        scenario.proceeds(StepResult::Unpinned);
        assert!(scenario.kinds().contains(&Kind::UPDATED), "{state:?}");
    }
}

#[test]
fn a_job_that_has_ended_is_not_asked() {
    let new = new_container();
    let job =
        Container { id: "job".into(), name: "job".into(), compose_service: "job".into(), ..new_container() };
    let mut scenario = with(probe());
    scenario.comes_up_probed(&[&new, &job]);
    scenario.probe_gets(&ok(), &[&new, &job]);
    let done = Container { state: State::Exited, exit_code: 0, ..job };
    scenario.at(2);
    scenario.look(&[&new, &done]);
    assert_eq!(scenario.asks().1, [Target("web-2".into())]);
    scenario.at(11).look(&[&new, &done]);
    scenario.proceeds(StepResult::Unpinned);
    assert!(scenario.kinds().contains(&Kind::UPDATED));
}

#[test]
fn a_service_that_the_files_do_not_have_holds_updates() {
    let mut scenario = with(Probe { service: Some("wbe".into()), ..probe() });
    let mut seen = observed('2', &[local(OLD, &['1'])], &[&old_container()]);
    let model = serde_json::from_value(serde_json::json!({"services": {"web": {"image": IMAGE}}})).unwrap();
    seen.definition = Some(Ok(crate::service::observation::Definition {
        model: Arc::new(model),
        ..crate::service::observation::Definition::default()
    }));
    scenario.check(seen);
    assert_eq!(scenario.act(), None);
    let waiting = scenario.record().waiting.expect("it is held");
    assert_eq!(waiting.gate, "config");
    assert!(waiting.why.contains("the compose files have no service wbe"), "{waiting:?}");
}
