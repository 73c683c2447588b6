//! When the wardens are asked for permission, their answers, and the leases (DECISIONS 8).

use evenkeel_common::wire::{FleetAnswer, FleetAsk, Permission};
use jiff::{SignedDuration, Timestamp};

use crate::model::image::{Digest, Reference};
use crate::ports::fleet::FleetError;
use crate::service::Service;
use crate::service::action::Action;
use crate::service::event::{Event, RollbackFailed};
use crate::service::fleet::{FleetHold, Link, line};
use crate::service::gates::candidate::Candidate;
use crate::service::gates::permit::{FleetSays, Permit, PermitState, is_same};
use crate::service::rollout::plan::{Cause, ImageChange};

/// Minimum and maximum delay before a warden that said "wait" is asked again. Seconds.
const MIN_RETRY: i64 = 1;
const MAX_RETRY: i64 = 3_600;
/// Delay before the next request if no warden answered and the machine's ring has to wait for one. Seconds.
const AWAY_RETRY: i64 = 30;
/// Delay before the next request if the warden was busy, or late. Seconds.
const BUSY_RETRY: i64 = 10;
/// A machine in ring 0 goes ahead after this time without an answer, even if its other requests are answered: something
/// between it and the warden may stop just these.
const UNANSWERED: SignedDuration = SignedDuration::from_mins(1);

impl Service {
    /// The warden's answer for a digest, if it holds the update.
    pub(in crate::service) fn fleet_hold(&self, image: &str, digest: &Digest) -> Option<FleetHold> {
        let is_it = |permit: &&Permit| permit.image == image && permit.digest == *digest;
        match &self.permits.requested.iter().find(is_it)?.state {
            PermitState::Held(hold) => Some(hold.clone()),
            _ => None,
        }
    }

    /// Whether the wardens permit the pending update. They are asked last, when no gate holds it.
    pub(in crate::service) fn fleet_says(&mut self, now: Timestamp) -> FleetSays {
        if self.wanted != Some(Cause::Update) || !self.fleet.is_asked() {
            return FleetSays::Go;
        }
        let mut next = None;
        let free = self.free_candidates(now);
        let is_any_free = !free.is_empty();
        for candidate in free {
            let (image, digest) = (&candidate.image, &candidate.digest);
            let known = self.permits.requested.iter().find(|p| p.image == *image && p.digest == *digest);
            match known.map(|permit| &permit.state) {
                Some(PermitState::Granted) => {}
                Some(PermitState::Asking) => return FleetSays::Pending,
                Some(PermitState::Held(_) | PermitState::Lapsed) | None => next = next.or(Some(candidate)),
            }
        }
        let Some(Candidate { image, reference, digest, .. }) = next else {
            return match self.permits.unanswered_until(now).filter(|_| is_any_free) {
                // One late answer must not split an update of several images. The next check asks for all of them again.
                Some(until) => {
                    self.wanted = None;
                    self.checks.request_by(until);
                    FleetSays::Pending
                }
                None => FleetSays::Go,
            };
        };
        let ask = self.ask_for(&reference, &digest);
        if self.permits.releasing.iter().any(|releasing| is_same(releasing, &ask)) {
            return FleetSays::Pending;
        }
        self.permits.requested.retain(|permit| permit.image != image);
        self.permits.requested.push(Permit {
            image: image.clone(),
            digest,
            ask: ask.clone(),
            state: PermitState::Asking,
            is_outdated: false,
        });
        FleetSays::Ask(Box::new(Action::AskFleet { image, ask }))
    }

    /// Candidates that no gate holds, and that are not postponed.
    fn free_candidates(&self, now: Timestamp) -> Vec<Candidate> {
        let decisions = self.seen_decisions(now).into_iter();
        let free = decisions.filter(|decision| decision.gate.is_none() && !decision.is_postponed);
        free.filter_map(|decision| decision.candidate).collect()
    }

    /// Handles the answer of the wardens, or its absence.
    pub(in crate::service) fn fleet_answered(
        &mut self,
        image: &str,
        ask: &FleetAsk,
        answer: Result<FleetAnswer, FleetError>,
        now: Timestamp,
    ) {
        let may_be_leased = match &answer {
            Ok(answer) => answer.answer == Permission::Go,
            // The lease may have been granted and the answer lost.
            Err(error) => matches!(error, FleetError::Unavailable(_)),
        };
        if may_be_leased {
            self.permits.lease(ask.clone());
        }
        let may_go_alone = self.may_go_alone(ask, &answer, now);
        let ring = self.fleet.ring;
        let is_asked = |permit: &&mut Permit| permit.image == image && is_same(&permit.ask, ask);
        let Some(permit) = self.permits.requested.iter_mut().find(is_asked) else { return };
        permit.state = match answer {
            Ok(FleetAnswer { answer: Permission::Go, .. }) | Err(FleetError::NoFleet) => PermitState::Granted,
            Ok(answer) => PermitState::Held(held(&answer, now)),
            Err(FleetError::Unavailable(_) | FleetError::Busy) if may_go_alone => PermitState::Granted,
            Err(FleetError::Unavailable(why)) if ring > 0 => PermitState::Held(FleetHold {
                why: format!("no warden can be asked ({}), and this machine is in ring {ring}", line(&why)),
                agent: None,
                until: now + SignedDuration::from_secs(AWAY_RETRY),
                // It may last for the whole patience, for which the other images do not wait.
                is_unanswered: false,
            }),
            // One late answer does not mean that no warden is there, and another agent may be trying the digest.
            Err(error) => PermitState::Held(FleetHold {
                why: format!("{}; the request is repeated soon", line(&error.to_string())),
                agent: None,
                until: now + SignedDuration::from_secs(BUSY_RETRY),
                is_unanswered: matches!(error, FleetError::Unavailable(_)),
            }),
        };
        let until = match &permit.state {
            PermitState::Held(hold) => hold.until,
            _ => return,
        };
        if std::mem::take(&mut permit.is_outdated) {
            self.permits.requested.retain(|permit| permit.image != image || !is_same(&permit.ask, ask));
            return;
        }
        self.checks.request_by(until);
        self.announce(self.held_candidates(now), now);
    }

    /// Whether a question has had no answer for so long that this machine goes ahead without one. Once no warden answers
    /// anything ([`Link::Away`]), one question without an answer is enough: the rings have waited before it is asked. A warden
    /// that stays busy counts as away, too.
    fn may_go_alone(
        &mut self,
        ask: &FleetAsk,
        answer: &Result<FleetAnswer, FleetError>,
        now: Timestamp,
    ) -> bool {
        let is_away = matches!(self.fleet.link, Link::Away { .. });
        if is_away && matches!(answer, Err(FleetError::Unavailable(_) | FleetError::Busy)) {
            return true;
        }
        if !matches!(answer, Err(FleetError::Unavailable(_))) {
            self.permits.unanswered.retain(|known| !is_same(&known.ask, ask));
            return false;
        }
        let patience = SignedDuration::try_from(self.fleet.patience).unwrap_or(SignedDuration::MAX);
        let limit = if self.fleet.ring == 0 { UNANSWERED } else { patience.max(UNANSWERED) };
        self.permits.unanswered_for(ask, now) >= limit
    }

    /// A lease was released, or no warden accepted the release; then the lease expires.
    pub(in crate::service) fn fleet_released(&mut self, ask: &FleetAsk) {
        self.permits.releasing.retain(|releasing| !is_same(releasing, ask));
    }

    /// Discards answers from earlier checks that no longer count: a "go" is only valid for the update about to begin.
    pub(in crate::service) fn forget_permits(&mut self, now: Timestamp) {
        self.permits.requested.retain(|permit| match &permit.state {
            PermitState::Held(hold) => hold.until > now,
            _ => true,
        });
        for permit in self.permits.requested.iter_mut().filter(|p| p.state == PermitState::Granted) {
            permit.state = PermitState::Lapsed;
        }
    }

    /// Consumes the granted permits: the update begins, or there is nothing left to begin.
    pub(in crate::service) fn use_permits(&mut self) {
        self.permits.requested.retain(|p| !matches!(p.state, PermitState::Granted | PermitState::Lapsed));
    }

    /// The leases of this service to renew: for updates that are in progress or about to begin.
    pub fn leases(&self) -> Vec<FleetAsk> {
        let mut leases = self.deployed_asks().filter(|_| self.is_deploying()).unwrap_or_default();
        let is_over = |ask: &FleetAsk| self.permits.decided.iter().any(|decided| is_same(decided, ask));
        for ask in self.permits.leased.iter().filter(|ask| !is_over(ask)) {
            if !leases.iter().any(|known| is_same(known, ask)) {
                leases.push(ask.clone());
            }
        }
        leases
    }

    /// The leases of the last deployment, if it has ended with a verdict.
    pub fn decided_leases(&self) -> &[FleetAsk] {
        &self.permits.decided
    }

    /// Returns the release of a lease that is no longer needed, if there is one.
    pub(in crate::service) fn lease_to_return(&mut self, now: Timestamp) -> Option<Action> {
        let leases = self.leases();
        let at = leases.iter().position(|ask| !self.needs_lease(ask, now));
        self.permits.leased = leases;
        let ask = self.permits.leased.remove(at?);
        self.permits
            .requested
            .retain(|permit| !is_same(&permit.ask, &ask) || matches!(permit.state, PermitState::Held(_)));
        self.permits.releasing.push(ask.clone());
        Some(Action::ReleaseFleet(ask))
    }

    /// Whether the leased digest is being deployed, or is about to be.
    fn needs_lease(&self, ask: &FleetAsk, now: Timestamp) -> bool {
        if self.is_deploying()
            && self.deployed_asks().is_some_and(|asks| asks.iter().any(|deployed| is_same(deployed, ask)))
        {
            return true;
        }
        let permit = self.permits.requested.iter().find(|permit| is_same(&permit.ask, ask));
        let Some(permit) = permit.filter(|permit| !matches!(permit.state, PermitState::Held(_))) else {
            return false;
        };
        if self.permits.is_retired {
            return permit.state == PermitState::Asking;
        }
        // A check in progress or due may still find the update.
        let is_checking = self.checks.is_running() || self.checks.is_due();
        let is_free = |free: &Candidate| free.image == permit.image && free.digest == permit.digest;
        let is_wanted =
            || self.wanted == Some(Cause::Update) && self.free_candidates(now).iter().any(is_free);
        permit.state == PermitState::Asking || is_checking || is_wanted()
    }

    /// Whether the service has, is requesting or is releasing a lease.
    pub fn has_leases(&self) -> bool {
        let is_asking = |permit: &Permit| permit.state == PermitState::Asking;
        !self.leases().is_empty()
            || !self.permits.releasing.is_empty()
            || self.permits.requested.iter().any(is_asking)
    }

    /// A deployment has begun: clears the verdicts of the previous one, and the triggers for the deployed digests. A trigger does
    /// not hold for a tag that appears during the deployment.
    pub(in crate::service) fn note_begun(&mut self) {
        self.permits.decided.clear();
        self.maintenance.pass_no_gate();
        let changes = self.deployed_changes().map(|(_, changes)| changes).unwrap_or_default();
        let digests: Vec<_> = changes.iter().map(|c| (c.configured.clone(), c.digest.clone())).collect();
        for (image, digest) in digests {
            self.end_trigger(&image, &digest);
        }
    }

    /// Records the requests that an event is a verdict on. Other digests of the deployment have no verdict, and their leases
    /// are released.
    pub(in crate::service) fn note_verdict(&mut self, event: &Event) {
        let verdicts = verdicts_of(event);
        if verdicts.is_empty() {
            return;
        }
        let has_verdict = |ask: &FleetAsk| {
            verdicts
                .iter()
                .any(|(image, digest)| ask.image == image.to_string() && ask.digest == digest.to_string())
        };
        let asks = self.deployed_asks().unwrap_or_default();
        self.permits.decided.extend(asks.into_iter().filter(has_verdict));
    }

    /// The cause and the image changes of the deployment in progress.
    fn deployed_changes(&self) -> Option<(&Cause, &[ImageChange])> {
        self.durable.deployment.as_ref().map(|d| (&d.plan().cause, &*d.plan().image_changes))
    }

    /// The permission requests of the deployment in progress; `None` if it needs no permission.
    pub(in crate::service) fn deployed_asks(&self) -> Option<Vec<FleetAsk>> {
        let (cause, changes) = self.deployed_changes()?;
        let is_asked = *cause == Cause::Update && self.fleet.is_gating();
        let ask = |change: &ImageChange| self.ask_for(&change.reference, &change.digest);
        is_asked.then(|| changes.iter().map(ask).collect())
    }

    /// The permission request for a digest.
    fn ask_for(&self, reference: &Reference, digest: &Digest) -> FleetAsk {
        FleetAsk {
            image: reference.to_string(),
            digest: digest.to_string(),
            service: self.config.name.clone(),
            ring: self.fleet.ring,
            progress: None,
        }
    }
}

/// The images and digests that an event is a verdict on. An image that no container runs has none (DECISIONS 8). Those of a
/// failed deployment that are not to blame are neither proven nor failed, and nodes that could not run an image say nothing
/// about it.
fn verdicts_of(event: &Event) -> Vec<(&Reference, &Digest)> {
    match event {
        Event::Updated(updated) if updated.used => vec![(&updated.change.reference, &updated.change.digest)],
        Event::RolledBack { failed, .. } | Event::RollbackFailed(RollbackFailed { failed, .. })
            if !failed.by_node =>
        {
            let first = failed.image.as_ref().zip(failed.digests.as_ref().map(|(_, digest)| digest));
            let others = failed.others.iter().map(|(image, digest)| (image, digest));
            first.into_iter().chain(others).collect()
        }
        _ => Vec::new(),
    }
}

fn held(answer: &FleetAnswer, now: Timestamp) -> FleetHold {
    let again = i64::try_from(answer.again).unwrap_or(MAX_RETRY).clamp(MIN_RETRY, MAX_RETRY);
    let until = now.checked_add(SignedDuration::from_secs(again)).unwrap_or(Timestamp::MAX);
    let agent = answer.agent.as_deref().map(line);
    FleetHold { why: line(&answer.why), agent, until, is_unanswered: false }
}
