//! Scenarios of how long deployments interrupt their services.

use super::*;

fn on(version: &str, started: Option<Timestamp>) -> Container {
    Container {
        id: format!("web-{version}"),
        image: ImageId(format!("sha256:{version}").into()),
        started_at: started,
        ..running("web")
    }
}

impl Scenario {
    fn steps(&mut self, result: StepResult) {
        let action = self.act();
        assert!(matches!(action, Some(Action::Step(_))), "no step is due, but {action:?}");
        self.input(Input::Stepped(result));
    }

    fn compose_starts(&mut self, container: &Container) -> &mut Self {
        let containers = vec![container.clone()];
        self.steps(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers });
        self
    }

    /// Finds version 2 at the start, and has compose replace the container: the old one ends after 2 seconds, the new one is
    /// up after 5.
    fn replaces(&mut self) -> Container {
        let old = running("web");
        let old = Container { id: "web-v1".into(), image: ImageId("sha256:v1".into()), ..old };
        self.check(observed('2', &[local("sha256:v1", &['1'])], &[&old]));
        self.steps(StepResult::ImagesPinned { missing: Vec::new() });
        let ids = vec![(IMAGE.into(), ImageId("sha256:v2".into()))];
        self.steps(StepResult::Pulled { ids, labels: BTreeMap::new() });
        self.at(2).event("web-v1", EventKind::Die { exit_code: 0 });
        let new = on("v2", self.seconds(5));
        self.at(6).compose_starts(&new);
        new
    }

    fn outage(&self) -> Option<f64> {
        self.entries.last().and_then(|entry| entry.outage_seconds).map(f64::from)
    }
}

#[test]
fn an_update_says_how_long_the_service_was_interrupted() {
    let mut scenario = Scenario::of(config());
    let new = scenario.replaces();
    scenario.at(17).look(&[&new]);
    assert_eq!(scenario.entries.last().map(|entry| &entry.event), Some(&Kind::UPDATED));
    assert_eq!(scenario.outage(), Some(3.0));
    assert_eq!(scenario.service.take_ended().and_then(|ended| ended.outage), Some(Duration::from_secs(3)));
    // What follows is not about the deployment.
    assert!(
        scenario.entries[..scenario.entries.len() - 1].iter().all(|entry| entry.outage_seconds.is_none())
    );
}

#[test]
fn a_rollback_counts_until_the_old_image_is_up_again_and_survives_a_kill() {
    let mut scenario = Scenario::of(config());
    let new = scenario.replaces();
    let failed = Container {
        state: State::Exited,
        exit_code: 1,
        finished_at: scenario.seconds(9),
        restart_policy: RestartPolicy::No,
        ..new
    };
    scenario.at(10).look(&[&failed]).at(17).look(&[&failed]);
    let written = serde_json::to_value(scenario.service.durable()).unwrap();
    scenario.service.durable = serde_json::from_value(written).unwrap();
    scenario.steps(StepResult::Diagnosed { log: String::new() });
    let old = on("v1", scenario.seconds(19));
    scenario.at(20).compose_starts(&old);
    scenario.at(31).look(&[&old]);
    assert_eq!(scenario.entries.last().map(|entry| &entry.event), Some(&Kind::ROLLED_BACK));
    assert_eq!(scenario.outage(), Some(3.0 + 10.0));
}

#[test]
fn an_outage_that_can_not_be_measured_is_omitted() {
    let mut scenario = Scenario::of(config());
    let new = scenario.replaces();
    scenario.service.shift(SignedDuration::from_hours(1));
    scenario.at(3_617).look(&[&new]);
    assert_eq!(scenario.entries.last().map(|entry| &entry.event), Some(&Kind::UPDATED));
    assert_eq!(scenario.outage(), None, "the clock was set");
}
