//! What a service asks its fleet before an update, and the leases that come of it (DECISIONS 8). A lease is kept while its
//! update is about to begin or under way, and given back as soon as nothing comes of it.

use evenkeel_common::wire::{FleetAnswer, FleetAsk, Permission};
use jiff::{SignedDuration, Timestamp};

use crate::model::image::{Digest, Reference};
use crate::ports::fleet::FleetError;

use super::Service;
use super::action::Action;
use super::candidate::Candidate;
use super::event::Event;
use super::fleet::line;
use super::rollout::plan::{Cause, ImageChange};

/// Shortest and longest wait before a warden that said "wait" is asked again. Seconds.
const SOONEST: i64 = 1;
const LATEST: i64 = 3_600;
/// Wait before it is asked again where no warden answered and its ring has to wait for one. Seconds.
const UNANSWERED: i64 = 30;
/// The same where one is there and had no time. Seconds.
const BUSY: i64 = 10;

/// What the warden said to an update that it holds back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetHold {
    /// Why, in one sentence.
    pub why: String,
    /// The agent that is trying the digest, or on which it failed.
    pub agent: Option<String>,
    /// When the warden is asked again.
    pub until: Timestamp,
}

/// What is asked of the wardens, and what came of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Permits {
    asked: Vec<Permit>,
    /// Leases that this service has, or may have: the answer may have been lost.
    leased: Vec<FleetAsk>,
    /// Those that are being given back: nothing of the same digest is asked until that is over.
    releasing: Vec<FleetAsk>,
    /// What of the last deployment has a verdict: that ends the lease.
    pub(super) decided: Vec<FleetAsk>,
    /// The service is configured no more: nothing that is not under way begins.
    is_retired: bool,
}

/// A question to the warden, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Permit {
    image: String,
    digest: Digest,
    ask: FleetAsk,
    state: PermitState,
    /// There was news after it was asked: an answer that holds may be older than that.
    is_outdated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PermitState {
    Asking,
    /// It may begin.
    Granted,
    /// It might have begun before the last check, and is to be asked for once more.
    Lapsed,
    Held(FleetHold),
}

/// What the wardens say to the update that is wanted.
pub(super) enum FleetSays {
    /// It may begin.
    Go,
    /// One of them is being asked.
    Pending,
    /// This is to be asked first.
    Ask(Box<Action>),
}

fn is_same(one: &FleetAsk, other: &FleetAsk) -> bool {
    one.image == other.image && one.digest == other.digest
}

impl Permits {
    /// What was held back is asked again with the next check, and so is what is being asked if it is held back.
    pub(super) fn ask_again(&mut self) {
        self.asked.retain(|permit| !matches!(permit.state, PermitState::Held(_)));
        for permit in &mut self.asked {
            permit.is_outdated = permit.state == PermitState::Asking;
        }
    }

    /// The same for a service with another configuration: leases that it may have are kept or given back by what it wants.
    pub(super) fn inherited(&self) -> Self {
        let asking = self.asked.iter().filter(|permit| permit.state == PermitState::Asking);
        let asked = asking.map(|permit| permit.ask.clone());
        let leased = self.leased.iter().chain(&self.releasing).cloned().chain(asked).collect();
        Self { leased, decided: self.decided.clone(), ..Self::default() }
    }

    fn lease(&mut self, ask: FleetAsk) {
        if !self.leased.iter().any(|known| is_same(known, &ask)) {
            self.leased.push(ask);
        }
    }
}

impl Service {
    /// What the warden said to a digest that it holds back.
    pub(super) fn fleet_hold(&self, image: &str, digest: &Digest) -> Option<FleetHold> {
        let is_it = |permit: &&Permit| permit.image == image && permit.digest == *digest;
        match &self.permits.asked.iter().find(is_it)?.state {
            PermitState::Held(hold) => Some(hold.clone()),
            _ => None,
        }
    }

    /// What the wardens say to the update that is wanted. They are asked last, when every gate lets go.
    pub(super) fn fleet_says(&mut self, now: Timestamp) -> FleetSays {
        if self.wanted != Some(Cause::Update) || !self.fleet.is_asked() {
            return FleetSays::Go;
        }
        let mut next = None;
        for candidate in self.free_candidates(now) {
            let (image, digest) = (&candidate.image, &candidate.digest);
            let known = self.permits.asked.iter().find(|p| p.image == *image && p.digest == *digest);
            match known.map(|permit| &permit.state) {
                Some(PermitState::Granted) => {}
                Some(PermitState::Asking) => return FleetSays::Pending,
                Some(PermitState::Held(_) | PermitState::Lapsed) | None => next = next.or(Some(candidate)),
            }
        }
        let Some(Candidate { image, reference, digest, .. }) = next else { return FleetSays::Go };
        let ask = FleetAsk {
            image: reference.to_string(),
            digest: digest.to_string(),
            service: self.config.name.clone(),
            ring: self.fleet.ring,
        };
        if self.permits.releasing.iter().any(|releasing| is_same(releasing, &ask)) {
            return FleetSays::Pending;
        }
        self.permits.asked.retain(|permit| permit.image != image);
        self.permits.asked.push(Permit {
            image: image.clone(),
            digest,
            ask: ask.clone(),
            state: PermitState::Asking,
            is_outdated: false,
        });
        FleetSays::Ask(Box::new(Action::AskFleet { image, ask }))
    }

    /// What was found and is held by no gate.
    fn free_candidates(&self, now: Timestamp) -> Vec<Candidate> {
        let Some(rules) = self.rules(now) else { return Vec::new() };
        let mut candidates = self.seen_candidates();
        candidates.retain(|candidate| rules.first_hold(candidate).is_none());
        candidates
    }

    /// The wardens have answered, or have not.
    pub(super) fn fleet_answered(
        &mut self,
        image: &str,
        ask: &FleetAsk,
        answer: Result<FleetAnswer, FleetError>,
        now: Timestamp,
    ) {
        let may_be_leased = match &answer {
            Ok(answer) => answer.answer == Permission::Go,
            // It may have been given, and the answer lost.
            Err(error) => matches!(error, FleetError::Away(_)),
        };
        if may_be_leased {
            self.permits.lease(ask.clone());
        }
        let ring = self.fleet.ring;
        let is_asked = |permit: &&mut Permit| permit.image == image && is_same(&permit.ask, ask);
        let Some(permit) = self.permits.asked.iter_mut().find(is_asked) else { return };
        permit.state = match answer {
            Ok(FleetAnswer { answer: Permission::Go, .. }) => PermitState::Granted,
            Ok(answer) => PermitState::Held(held(&answer, now)),
            // Without a warden nobody else is known to try it; a ring waits for one.
            Err(FleetError::Away(why)) if ring > 0 => PermitState::Held(FleetHold {
                why: format!("no warden answers, and this machine is in ring {ring}: {}", line(&why)),
                agent: None,
                until: now + SignedDuration::from_secs(UNANSWERED),
            }),
            // It is there: whoever else tries the digest is known to it.
            Err(FleetError::Busy) => PermitState::Held(FleetHold {
                why: "the warden has too much to do; it is asked again soon".to_owned(),
                agent: None,
                until: now + SignedDuration::from_secs(BUSY),
            }),
            Err(FleetError::Away(_) | FleetError::NoFleet) => PermitState::Granted,
        };
        let until = match &permit.state {
            PermitState::Held(hold) => hold.until,
            _ => return,
        };
        if std::mem::take(&mut permit.is_outdated) {
            self.permits.asked.retain(|permit| permit.image != image || !is_same(&permit.ask, ask));
            return;
        }
        self.recheck_at = Some(self.recheck_at.map_or(until, |at| at.min(until)));
        let candidates = self.seen_candidates();
        self.announce(&candidates, now);
    }

    /// A lease was given back, or nobody took it: then it ends by itself.
    pub(super) fn fleet_released(&mut self, ask: &FleetAsk) {
        self.permits.releasing.retain(|releasing| !is_same(releasing, ask));
    }

    /// Answers of earlier checks that do not count any more: a "go" is for what was about to begin.
    pub(super) fn forget_permits(&mut self, now: Timestamp) {
        self.permits.asked.retain(|permit| match &permit.state {
            PermitState::Held(hold) => hold.until > now,
            _ => true,
        });
        for permit in self.permits.asked.iter_mut().filter(|p| p.state == PermitState::Granted) {
            permit.state = PermitState::Lapsed;
        }
    }

    /// The update begins, or nothing of it is left to begin.
    pub(super) fn use_permits(&mut self) {
        self.permits.asked.retain(|p| !matches!(p.state, PermitState::Granted | PermitState::Lapsed));
    }

    /// What this service has asked for and is about to deploy, or deploys: its leases are to be kept.
    pub(super) fn leases(&self) -> Vec<FleetAsk> {
        let mut leases = self.deployed_asks().filter(|_| self.is_deploying()).unwrap_or_default();
        let is_over = |ask: &FleetAsk| self.permits.decided.iter().any(|decided| is_same(decided, ask));
        for ask in self.permits.leased.iter().filter(|ask| !is_over(ask)) {
            if !leases.iter().any(|known| is_same(known, ask)) {
                leases.push(ask.clone());
            }
        }
        leases
    }

    /// A lease that nothing comes of any more, to be given back.
    pub fn lease_to_return(&mut self, now: Timestamp) -> Option<Action> {
        let leases = self.leases();
        let at = leases.iter().position(|ask| !self.needs_lease(ask, now));
        self.permits.leased = leases;
        let ask = self.permits.leased.remove(at?);
        self.permits
            .asked
            .retain(|permit| !is_same(&permit.ask, &ask) || matches!(permit.state, PermitState::Held(_)));
        self.permits.releasing.push(ask.clone());
        Some(Action::ReleaseFleet(ask))
    }

    /// Whether what was asked for is deployed, or is about to be.
    fn needs_lease(&self, ask: &FleetAsk, now: Timestamp) -> bool {
        if self.is_deploying()
            && self.deployed_asks().is_some_and(|asks| asks.iter().any(|deployed| is_same(deployed, ask)))
        {
            return true;
        }
        let permit = self.permits.asked.iter().find(|permit| is_same(&permit.ask, ask));
        let Some(permit) = permit.filter(|permit| !matches!(permit.state, PermitState::Held(_))) else {
            return false;
        };
        if self.permits.is_retired {
            return permit.state == PermitState::Asking;
        }
        // What a check finds decides.
        let is_checking = self.checking || self.check_due;
        let is_free = |free: &Candidate| free.image == permit.image && free.digest == permit.digest;
        let is_wanted =
            || self.wanted == Some(Cause::Update) && self.free_candidates(now).iter().any(is_free);
        permit.state == PermitState::Asking || is_checking || is_wanted()
    }

    /// It is configured no more: what it has asked for and not begun is given back.
    pub fn retire(&mut self) {
        self.permits.is_retired = true;
    }

    /// Whether it has, may be about to get, or is giving back a lease.
    pub fn has_leases(&self) -> bool {
        let is_asking = |permit: &Permit| permit.state == PermitState::Asking;
        !self.leases().is_empty()
            || !self.permits.releasing.is_empty()
            || self.permits.asked.iter().any(is_asking)
    }

    /// Takes over what a service with another configuration may have leased.
    pub fn inherit_leases(&mut self, before: &Self) {
        self.permits = before.permits.inherited();
    }

    /// A deployment has begun: what the last one was asked for is over, and so are triggers for what this one brings.
    pub(super) fn note_begun(&mut self) {
        self.permits.decided.clear();
        let changes = self.deployed_changes().map(|(_, changes)| changes).unwrap_or_default();
        let digests: Vec<_> = changes.iter().map(|c| (c.configured.clone(), c.digest.clone())).collect();
        for (image, digest) in digests {
            self.end_trigger(&image, &digest);
        }
    }

    /// Notes what the event is a verdict on. What else was deployed has none, and its lease is given back.
    pub(super) fn note_verdict(&mut self, event: &Event) {
        let Some((image, digest)) = verdict_on(event) else { return };
        let (image, digest) = (image.to_string(), digest.to_string());
        let asks = self.deployed_asks().unwrap_or_default();
        self.permits
            .decided
            .extend(asks.into_iter().filter(|ask| ask.image == image && ask.digest == digest));
    }

    /// The deployment under way: what it is for, and what it brings.
    fn deployed_changes(&self) -> Option<(&Cause, &[ImageChange])> {
        let in_swarm = || self.durable.swarm.as_ref().map(|r| (&r.plan.cause, r.plan.change.as_slice()));
        let deployment = self.durable.deployment.as_ref();
        deployment.map(|d| (&d.plan().cause, &*d.plan().image_changes)).or_else(in_swarm)
    }

    /// What the deployment under way would have been asked for; `None` where it is none that is asked for.
    pub(super) fn deployed_asks(&self) -> Option<Vec<FleetAsk>> {
        let (cause, changes) = self.deployed_changes()?;
        let is_asked = *cause == Cause::Update && self.fleet.is_gating();
        let ask = |change: &ImageChange| FleetAsk {
            image: change.reference.to_string(),
            digest: change.digest.to_string(),
            service: self.config.name.clone(),
            ring: self.fleet.ring,
        };
        is_asked.then(|| changes.iter().map(ask).collect())
    }
}

/// The image and the digest that an event is a verdict on. An image that no container runs on has none (DECISIONS 8).
fn verdict_on(event: &Event) -> Option<(&Reference, &Digest)> {
    match event {
        Event::Updated(updated) if updated.used => Some((&updated.change.reference, &updated.change.digest)),
        Event::RolledBack { failed, .. } | Event::RollbackFailed { failed, .. } => {
            Some((failed.image.as_ref()?, &failed.digests.as_ref()?.1))
        }
        _ => None,
    }
}

fn held(answer: &FleetAnswer, now: Timestamp) -> FleetHold {
    let again = i64::try_from(answer.again).unwrap_or(LATEST).clamp(SOONEST, LATEST);
    let until = now.checked_add(SignedDuration::from_secs(again)).unwrap_or(Timestamp::MAX);
    FleetHold { why: line(&answer.why), agent: answer.agent.as_deref().map(line), until }
}
