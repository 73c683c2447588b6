//! Scenarios of ways back that fail, or do not begin.

use super::*;
use crate::model::ComposeError;

impl Scenario {
    /// Image 1, to which it goes back, crashes, and compose can't bring image 2 up again.
    fn fails_on_both_ways(&mut self) -> AuditEntry {
        self.comes_up_on('1');
        let exit = Container { state: State::Exited, exit_code: 1, ..on('1') };
        self.look(&[&exit]).later(1).look(&[&exit]);
        self.performs_step(StepResult::Diagnosed { log: String::new() });
        while !self.service.durable().rollback_failed {
            let up = Err(ComposeError::new("env file x does not exist"));
            self.performs_step(StepResult::Started { up, named: Vec::new(), containers: vec![on('1')] });
            self.later(40);
        }
        self.performs_step(StepResult::Unpinned);
        let told = self.entries.iter().rfind(|entry| entry.event == Kind::ROLLBACK_FAILED);
        told.expect("a person has to act").clone()
    }
}

#[test]
fn a_way_back_that_cannot_be_undone_says_nothing_against_the_earlier_image_and_stands() {
    let mut by_hand = Scenario::of(config());
    by_hand.updated_to(&[('1', '2')]);
    by_hand.asked_back(None);
    by_hand.check(seen('2', '2'));
    let mut late = on_watch();
    for _ in 0..3 {
        late.later(30).crashes();
    }
    late.later(30).looks();
    assert!(late.goes_back().is_some());
    for (mut scenario, blocked) in [(by_hand, None), (late, Some(digest('2')))] {
        let entry = scenario.fails_on_both_ways();
        let verdict = (entry.image, entry.new_digest, entry.also_failed);
        assert_eq!(verdict, (None, None, Vec::new()), "it is no verdict for the fleet");
        let clause = format!(" while going back to {}, and rollback failed", digest('1').short());
        assert!(entry.message.contains(&clause), "{}", entry.message);
        assert_eq!(scenario.blocked_digest(), blocked.as_ref());
        // The tag was set back to image 2, and the container of image 1 is left.
        let mut left = seen('2', '1');
        left.images[0].tagged = Some(LocalImage { id: id('2'), digests: vec![digest('2')], size: 1 });
        scenario.later(60).check(left);
        assert!(scenario.service.durable().rollback_failed, "it still needs a person");
        assert!(scenario.service.rollback_stands());
        assert_eq!(scenario.blocked_digest(), blocked.as_ref());
        if blocked.is_none() {
            // A person starts image 2.
            scenario.later(60).check(seen('2', '2')).later(60).check(seen('2', '2'));
            assert!(!scenario.service.durable().rollback_failed, "another image runs in its place");
        }
    }
}

#[test]
fn an_earlier_image_that_fails_once_stays_one_of_the_proven_images_that_are_kept() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2'), ('2', '3')]);
    let kept = |scenario: &Scenario| scenario.service.durable().images.get(IMAGE).deployed.clone();
    let before = kept(&scenario);
    assert!(before.iter().any(|image| image.id == id('2') && image.proven), "{before:?}");
    assert_eq!(scenario.asked_back(None), ServiceReply::RollingBack(digest('2')));
    scenario.check(seen('3', '3')).comes_up_on('2');
    let exit = Container { state: State::Exited, exit_code: 1, ..on('2') };
    scenario.look(&[&exit]).later(1).look(&[&exit]);
    scenario.performs_step(StepResult::Diagnosed { log: "no such column".into() });
    assert_eq!(kept(&scenario), before);
}

#[test]
fn the_late_watch_goes_on_after_a_rollback_by_hand_that_has_changed_nothing() {
    let crashes_late = |mut scenario: Scenario| {
        assert!(scenario.kinds().contains(&Kind::ROLLBACK_FAILED), "the rollback by hand");
        for _ in 0..3 {
            scenario.later(30).crashes();
        }
        scenario.later(30).looks();
        assert_eq!(scenario.goes_back(), Some(LateFailure::Crashes { crashes: 3, minutes: 10 }));
    };
    let mut not_begun = on_watch();
    assert_eq!(not_begun.asked_back(None), ServiceReply::RollingBack(digest('1')));
    let generation = not_begun.service.generation;
    let result = Err(CheckFault::EngineAway("the engine does not answer".into()));
    not_begun.input(Input::Checked { generation, is_manual: false, result });
    crashes_late(not_begun);

    let mut not_pulled = on_watch();
    assert_eq!(not_pulled.asked_back(None), ServiceReply::RollingBack(digest('1')));
    not_pulled.check(seen('2', '2'));
    not_pulled.performs_step(StepResult::ImagesPinned { missing: Vec::new() });
    not_pulled.performs_step(StepResult::Failed("the registry answered 500".into()));
    not_pulled.performs_step(StepResult::Unpinned);
    crashes_late(not_pulled);

    let mut left = on_watch();
    assert_eq!(left.asked_back(None), ServiceReply::RollingBack(digest('1')));
    left.check(seen('2', '2')).deploys('1');
    assert_eq!(left.service.durable().watch, [], "image 2 was watched");
}
