//! Scenarios of the late watch over several updates, and across a change of the clock.

use super::*;

/// The container of the second image.
fn api(n: char) -> Container {
    Container { id: format!("api-{n}"), config_image: API.into(), image: id(n), ..running("api") }
}

/// What is seen of both images: their digests in the registry, and what runs.
fn seen_both(remote: [char; 2], runs: [char; 2]) -> Observation {
    let mut both = seen(remote[0], runs[0]);
    let running = vec![LocalImage { id: id(runs[1]), digests: vec![digest(runs[1])], size: 1 }];
    both.images.push(ImageView {
        remote: Some(digest(remote[1])),
        tagged: running.first().cloned(),
        running,
        ..ImageView::new(API.into(), Reference::parse(API).unwrap())
    });
    both.containers = vec![on(runs[0]), api(runs[1])].into();
    both
}

/// A service of both images, which run on 1 and 5.
fn of_both() -> Scenario {
    let mut images = config().images;
    images.push(ConfiguredImage { configured: API.into(), reference: Reference::parse(API).unwrap() });
    Scenario::of(ServiceConfig { images, ..watched() })
}

impl Scenario {
    /// Replaces one of the images that run, or both.
    fn updates_both(&mut self, from: [char; 2], to: [char; 2]) -> &mut Self {
        self.later(60).check(seen_both(to, from));
        self.deploys_both(from, to)
    }

    fn deploys_both(&mut self, from: [char; 2], to: [char; 2]) -> &mut Self {
        let changed = [IMAGE, API].into_iter().zip(from).zip(to).filter(|((_, from), to)| from != to);
        let ids = changed.map(|((image, _), to)| (image.to_owned(), id(to))).collect();
        self.performs_step(StepResult::ImagesPinned { missing: Vec::new() });
        self.performs_step(StepResult::Pulled { ids, labels: BTreeMap::new() });
        let containers = vec![on(to[0]), api(to[1])];
        self.performs_step(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers });
        self.looks_at_both(to).later(20).looks_at_both(to);
        self.performs_step(StepResult::Unpinned);
        self
    }

    fn looks_at_both(&mut self, runs: [char; 2]) -> &mut Self {
        self.look(&[&on(runs[0]), &api(runs[1])])
    }

    /// The images that are watched, each with the number of crashes.
    fn watched_images(&self) -> Vec<(Vec<&str>, usize)> {
        let watches = self.service.durable().watch.iter();
        watches.map(|watch| (watch.images.iter().map(String::as_str).collect(), watch.exits.len())).collect()
    }
}

#[test]
fn an_update_of_one_image_does_not_end_the_watch_over_another_one() {
    let mut scenario = of_both();
    scenario.updates_both(['1', '5'], ['2', '5']).updates_both(['2', '5'], ['2', '6']);
    for _ in 0..3 {
        scenario.later(30).crashes();
    }
    scenario.later(30).looks_at_both(['2', '6']);
    scenario.check(seen_both(['2', '6'], ['2', '6']));
    let Some(Cause::GoBack(back)) = scenario.service.wanted.clone() else { panic!("it does not go back") };
    let to: Vec<_> = back.to.iter().map(|to| (to.configured.as_str(), to.digest.clone())).collect();
    assert_eq!(to, [(IMAGE, digest('1'))]);
    scenario.deploys_both(['2', '6'], ['1', '6']);
    assert!(scenario.kinds().contains(&Kind::ROLLED_BACK));
    assert_eq!(scenario.watched_images(), [(vec![API], 0)]);
}

#[test]
fn what_was_updated_together_with_an_image_that_is_updated_again_is_watched_on() {
    let mut scenario = of_both();
    scenario.updates_both(['1', '5'], ['2', '6']);
    scenario.later(30).crashes().later(30).event("api-6", EventKind::Die { exit_code: 1 });
    assert_eq!(scenario.watched_images(), [(vec![IMAGE, API], 2)]);
    scenario.updates_both(['2', '6'], ['2', '7']);
    assert_eq!(scenario.watched_images(), [(vec![IMAGE], 1), (vec![API], 0)]);
}

#[test]
fn a_person_is_told_the_digest_to_go_back_to_if_another_image_was_updated_since() {
    let mut scenario = of_both();
    scenario.updates_both(['1', '5'], ['2', '5']).updates_both(['2', '5'], ['2', '6']);
    let rules = SnapshotRules { of: vec!["/srv/a".into()], keep: 2, max_bytes: 1 << 30 };
    let update = UpdateConfig { snapshot: Some(rules), ..UpdateConfig::default() };
    let config = scenario.service.config().clone();
    scenario.service.config = Arc::new(ServiceConfig { update: Some(Arc::new(update)), ..config });
    for _ in 0..3 {
        scenario.later(30).crashes();
    }
    scenario.later(30).looks_at_both(['2', '6']);
    let told = scenario.entries.iter().rfind(|entry| entry.event == Kind::ROLLBACK_FAILED);
    let reason = told.and_then(|entry| entry.reason.clone()).expect("it is told");
    assert!(reason.contains(&format!("`evenkeel rollback web --to {}`", digest('1'))), "{reason}");
}

#[test]
fn crashes_count_after_the_clock_was_set_back() {
    let mut scenario = on_watch();
    scenario.later(30).crashes();
    scenario.service.shift(SignedDuration::from_hours(-1));
    scenario.later(-3600).later(30).crashes().later(30).crashes();
    scenario.later(30).looks();
    assert_eq!(scenario.goes_back(), Some(LateFailure::Crashes { crashes: 3, minutes: 10 }));
}

/// As after a restart of the agent, or after a cut connection.
#[test]
fn a_crash_that_is_reported_again_after_the_clock_was_set_counts_once() {
    for set_by in [&[5][..], &[-5], &[40, -3]] {
        let mut scenario = on_watch();
        let mut reported = Vec::new();
        for _ in 0..2 {
            scenario.later(30).crashes();
            reported.push(scenario.now);
        }
        for by in set_by {
            scenario.later(60).service.shift(SignedDuration::from_secs(*by));
            scenario.later(*by);
        }
        for at in reported {
            scenario.input(Input::Event { at, id: "web-2".into(), what: EventKind::Die { exit_code: 1 } });
        }
        assert_eq!(scenario.watched_images(), [(vec![IMAGE], 2)], "{set_by:?}");
    }
}
