//! Leases that are renewed without end, and what is remembered of those that are lost.

use super::*;
use crate::fleet::testing::{at, entry};
use crate::fleet::verdict::Verdict;

fn record() -> DigestRecord {
    DigestRecord { repository: "r/web".to_owned(), digest: "d".to_owned(), ..DigestRecord::default() }
}

fn holder(progress: Option<u64>, probation: u32) -> Holder<'static> {
    Holder { agent: "a", service: "web", progress, probation, proof_after: 0 }
}

/// Renews a lease every 30 s until it ends, and returns when that is.
fn lasts(progress: impl Fn(i64) -> Option<u64>, probation: u32) -> i64 {
    let (record, mut leases) = (record(), Leases::default());
    for now in (0..200_000).step_by(30) {
        if now > 0 && !leases.has("a", "web", &record, at(now)) {
            return now;
        }
        leases = leases.with(&holder(progress(now), probation), &record, at(now));
    }
    i64::MAX
}

#[test]
fn a_lease_ends_after_three_renewals_without_progress() {
    assert_eq!(lasts(|_| Some(7), 0), 120);
    assert_eq!(
        lasts(|now| Some(u64::try_from(now / 60).unwrap()), 0),
        3630,
        "it gets on, but has had its time"
    );
}

#[test]
fn a_lease_without_reported_progress_ends_after_its_time_and_its_probation() {
    assert_eq!(lasts(|_| None, 0), 3630);
    assert_eq!(lasts(|_| None, 7200), 3600 + 7200 + 30);
    assert!(lasts(|_| None, u32::MAX) < 80_000, "whatever probation it reports");
}

#[test]
fn a_machine_that_has_used_up_its_time_can_take_the_lease_again_a_day_later() {
    let (record, mut leases) = (record(), Leases::default());
    for now in (0..=4000).step_by(30) {
        leases = leases.with(&holder(None, 0), &record, at(now));
    }
    assert!(leases.has_spent("a", "d", at(4000)) && !leases.has_spent("b", "d", at(4000)));
    assert!(!leases.has_spent("a", "e", at(4000)), "another digest");
    assert!(!leases.has("a", "web", &record, at(4000)));
    assert!(!leases.has_spent("a", "d", at(86_401)));
    leases = leases.with(&holder(None, 0), &record, at(86_401));
    assert!(leases.has("a", "web", &record, at(86_402)));
}

#[test]
fn taking_and_releasing_a_lease_again_and_again_uses_up_the_time_as_well() {
    let (record, mut leases) = (record(), Leases::default());
    let mut count = 0;
    while !leases.has_spent("a", "d", at(count)) {
        leases = leases.with(&holder(None, 0), &record, at(count));
        leases = leases.without("a", "web", "d", at(count)).unwrap();
        count += 1;
    }
    assert_eq!(count, 360);
    // And so does letting it expire.
    let mut leases = Leases::default();
    let mut now = 0;
    while !leases.has_spent("a", "d", at(now)) {
        leases = leases.with(&holder(None, 0), &record, at(now));
        now += 91;
    }
    assert!((3000..4000).contains(&now), "{now}");
}

#[test]
fn a_request_that_comes_too_soon_renews_nothing() {
    let record = record();
    let first = Leases::default().with(&holder(None, 0), &record, at(0));
    assert_eq!(first.with(&holder(None, 0), &record, at(19)), first);
    assert_ne!(first.with(&holder(None, 0), &record, at(20)), first);
}

#[test]
fn a_lease_in_force_when_the_store_went_away_lasts_for_a_minute_after_it_is_back() {
    let record = record();
    let taken = Leases::default().with(&holder(Some(7), 0), &record, at(0));
    let is_live = |leases: &Leases, record: &DigestRecord, (since, until), now| {
        let kept = leases.after_outage(at(since), at(until), |digest| (digest == "d").then_some(record));
        kept.has("a", "web", record, at(now))
    };
    for (outage, now, expected) in [
        ((80, 200), 259, true),
        ((80, 200), 260, false),
        ((90, 200), 201, false),
        ((10, 15), 89, true),
        ((10, 15), 90, false),
        // It was taken in a moment in which the store was there.
        ((-100, 200), 259, true),
        ((-100, 200), 260, false),
        ((-100, 20), 90, false),
    ] {
        assert_eq!(is_live(&taken, &record, outage, now), expected, "{outage:?}, at {now}");
    }
    let mut stalled = taken.clone();
    stalled.held[0].stalled = MAX_STALLED;
    assert!(!is_live(&stalled, &record, (80, 200), 201), "it had ended before");
    let mut decided = record.clone();
    let said = entry("a", "updated", "r/web", "d");
    decided.record(&said, Verdict::Proven, 7, (at(0), at(0)));
    assert!(!is_live(&taken, &decided, (80, 200), 201), "a verdict ends it");
}

#[test]
fn a_lease_that_outlasts_an_outage_is_stored_with_the_time_of_its_last_renewal() {
    let (record, other) = (record(), Holder { agent: "b", ..holder(None, 0) });
    let stored = Leases::default().with(&holder(None, 0), &record, at(0)).with(&other, &record, at(10));
    let extended = stored.after_outage(at(20), at(200), |_| None);
    let mut next = extended.with(&other, &record, at(205));
    let renewed = |leases: &Leases| leases.held.iter().map(|lease| lease.renewed).collect::<Vec<Timestamp>>();
    assert_eq!(renewed(&next), [at(170), at(205)]);
    next.restore(&stored, &extended);
    assert_eq!(renewed(&next), [at(0), at(205)]);
}

/// Takes and releases the lease of another digest.
fn touch(leases: &Leases, digest: &str, now: i64) -> Leases {
    let record = DigestRecord { digest: digest.to_owned(), ..record() };
    leases.with(&holder(None, 0), &record, at(now)).without("a", "web", digest, at(now)).unwrap()
}

#[test]
fn time_that_was_used_is_not_forgotten_when_other_digests_are_tried() {
    let (record, mut leases) = (record(), Leases::default());
    for now in (0..=3500).step_by(50) {
        leases = leases.with(&holder(None, 0), &record, at(now));
    }
    leases = leases.without("a", "web", "d", at(3500)).unwrap();
    for n in 0..8 {
        leases = touch(&leases, &format!("e{n}"), 3500);
    }
    for now in (3500..=3700).step_by(50) {
        leases = leases.with(&holder(None, 0), &record, at(now));
    }
    assert!(leases.has_spent("a", "d", at(3700)));
}

#[test]
fn an_agent_that_has_tried_many_digests_without_a_verdict_has_to_wait() {
    let mut leases = Leases::default();
    for n in 0..MAX_TRIALS_OF_AGENT {
        assert!(leases.has_room("a", "another", at(0)), "{n}");
        leases = touch(&leases, &format!("d{n}"), 0);
    }
    assert!(!leases.has_room("a", "another", at(0)));
    assert!(leases.has_room("a", "d0", at(0)), "it is known");
    assert!(leases.has_room("b", "another", at(0)), "another agent");
    assert!(leases.has_room("a", "another", at(86_400)), "a day later");
    // A verdict makes room, and so does nothing else.
    let mut decided = DigestRecord { digest: "d3".to_owned(), ..record() };
    let verdict = |leases: &Leases, decided: &DigestRecord| {
        leases.without_decided("a", "another", |digest| (digest == decided.digest).then_some(decided))
    };
    assert_eq!(verdict(&leases, &decided), leases);
    let said = entry("a", "rolled_back", "r/web", "d3");
    decided.record(&said, Verdict::Failed, 7, (at(0), at(0)));
    let fewer = verdict(&leases, &decided);
    assert!(fewer.has_room("a", "another", at(0)) && !fewer.tried.iter().any(|trial| trial.digest == "d3"));
    assert_eq!(fewer.tried.len(), MAX_TRIALS_OF_AGENT - 1);
}

#[test]
fn the_trials_of_a_repository_are_limited_and_the_least_used_are_forgotten() {
    let (record, mut leases) = (record(), Leases::default());
    leases = leases.with(&holder(None, 0), &record, at(0)).with(&holder(None, 0), &record, at(60));
    leases = leases.without("a", "web", "d", at(60)).unwrap();
    for n in 0..1000 {
        leases = touch(&leases, &format!("d{n}"), n);
    }
    assert_eq!((leases.tried.len(), leases.held.len()), (MAX_TRIALS, 0));
    assert!(leases.tried.iter().any(|trial| trial.digest == "d"), "it has used the most");
    assert!(leases.tried.iter().any(|trial| trial.digest == "d999"), "it is the latest");
}

#[test]
fn a_lease_from_an_earlier_version_is_evidence_of_a_trial() {
    let text =
        r#"{"held":[{"agent":"a","service":"web","digest":"d","renewed":"2026-01-02T03:04:05Z","after":0}]}"#;
    let leases: Leases = serde_json::from_str(text).unwrap();
    assert_eq!(leases.proof("a", &record(), at(500)), Some(at(500)));
    assert_eq!(leases.proof("b", &record(), at(500)), None);
    assert_eq!(serde_json::to_string(&leases).unwrap().matches("progress").count(), 0);
}

#[test]
fn a_trial_from_an_earlier_version_is_proven_after_its_probation() {
    let text = r#"{"held":[],"tried":[{"agent":"a","digest":"d","since":"2026-01-02T03:04:05Z","held":0,"probation":60,
        "after":0}]}"#;
    let leases: Leases = serde_json::from_str(text).unwrap();
    assert_eq!(leases.proof("a", &record(), at(1)), Some(at(60)));
    let holder = Holder { proof_after: 90, ..holder(None, 60) };
    let asked = leases.with(&holder, &record(), at(2));
    assert_eq!(asked.proof("a", &record(), at(3)), Some(at(90)), "it still asks");
}

#[test]
fn a_trial_from_the_time_of_a_wrong_clock_neither_delays_a_proof_nor_uses_up_a_machine() {
    let (record, year) = (record(), 365 * 86_400);
    let mut leases = Leases::default().with(&holder(None, 60), &record, at(year));
    leases.spend("a", "d");
    assert!(leases.has_spent("a", "d", at(year)) && !leases.has_spent("a", "d", at(0)));
    assert_eq!(leases.proof("a", &record, at(0)), Some(at(60)), "after its probation");
    for n in 0..MAX_TRIALS_OF_AGENT {
        leases = touch(&leases, &format!("d{n}"), year);
    }
    assert!(leases.has_room("a", "another", at(0)));
}

#[test]
fn a_machine_uses_up_its_time_although_its_trial_began_while_the_clock_was_ahead() {
    let record = record();
    let mut leases = Leases::default().with(&holder(None, 60), &record, at(365 * 86_400));
    for now in (0..4000).step_by(30) {
        leases = leases.with(&holder(None, 60), &record, at(now));
    }
    assert!(leases.has_spent("a", "d", at(4000)));
    assert!(!leases.has("a", "web", &record, at(4000)));
}

#[test]
fn a_trial_is_remembered_for_a_year_and_a_day_at_most_whatever_probation_is_reported() {
    let leases = Leases::default().with(&holder(None, u32::MAX), &record(), at(0));
    let leases = leases.without("a", "web", "d", at(0)).unwrap();
    let end = 86_400 + 365 * 86_400;
    assert!(!leases.is_outdated(SignedDuration::ZERO, at(end - 1)));
    assert!(leases.is_outdated(SignedDuration::ZERO, at(end)));
    // One that an earlier version has stored.
    let mut stored = leases.clone();
    stored.tried[0].probation = u32::MAX;
    assert!(stored.is_outdated(SignedDuration::ZERO, at(end)));
}
