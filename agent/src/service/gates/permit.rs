//! Permission requests to the fleet before an update, and the resulting leases (DECISIONS 8). A lease is kept while its
//! update is about to begin or in progress, and released as soon as it is no longer needed.

use evenkeel_common::wire::FleetAsk;
use jiff::{SignedDuration, Timestamp};

use crate::model::image::Digest;
use crate::service::action::Action;
use crate::service::fleet::FleetHold;

/// After a longer time without the same question, its silence begins anew: it was not asked, so it could not be answered.
const MAX_GAP: SignedDuration = SignedDuration::from_mins(5);

/// Permission requests to the wardens, and their results.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct Permits {
    pub(in crate::service) requested: Vec<Permit>,
    /// Requests that no warden answers.
    pub(in crate::service) unanswered: Vec<Unanswered>,
    /// Leases that this service has, or may have: the answer may have been lost.
    pub(in crate::service) leased: Vec<FleetAsk>,
    /// Leases that are being released: until that is done, there is no new request for the same digest.
    pub(in crate::service) releasing: Vec<FleetAsk>,
    /// Leases of the last deployment that ended with a verdict.
    pub(in crate::service) decided: Vec<FleetAsk>,
    /// The service is no longer configured: no new update begins.
    pub(in crate::service) is_retired: bool,
}

/// A permission request, and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) struct Permit {
    pub(in crate::service) image: String,
    pub(in crate::service) digest: Digest,
    pub(in crate::service) ask: FleetAsk,
    pub(in crate::service) state: PermitState,
    /// The fleet view changed after the request was sent: an answer that holds the update may be outdated.
    pub(in crate::service) is_outdated: bool,
}

/// A permission request that no warden answers.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) struct Unanswered {
    pub(in crate::service) ask: FleetAsk,
    /// When it first had no answer.
    since: Timestamp,
    /// When it last had none.
    last: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) enum PermitState {
    Asking,
    /// The update may begin.
    Granted,
    /// It was granted before the last check, and must be requested again.
    Lapsed,
    Held(FleetHold),
}

/// The fleet's permission for the pending update.
pub(in crate::service) enum FleetSays {
    /// The update may begin.
    Go,
    /// A request is in progress.
    Pending,
    /// Send this request first.
    Ask(Box<Action>),
}

pub(in crate::service) fn is_same(one: &FleetAsk, other: &FleetAsk) -> bool {
    one.image == other.image && one.digest == other.digest
}

impl Permits {
    /// Repeats requests for held updates with the next check, and those in progress if their answer is to wait.
    pub(in crate::service) fn ask_again(&mut self) {
        self.requested.retain(|permit| !matches!(permit.state, PermitState::Held(_)));
        for permit in &mut self.requested {
            permit.is_outdated = permit.state == PermitState::Asking;
        }
    }

    /// Until when an answer is waited for that did not come in time; `None` if there is none.
    pub(in crate::service) fn unanswered_until(&self, now: Timestamp) -> Option<Timestamp> {
        let holds = self.requested.iter().filter_map(|permit| match &permit.state {
            PermitState::Held(hold) if hold.is_unanswered && hold.until > now => Some(hold.until),
            _ => None,
        });
        holds.min()
    }

    /// The permits for the same service with a changed configuration, which keeps or releases possible leases as needed.
    pub(in crate::service) fn inherited(&self) -> Self {
        let asking = self.requested.iter().filter(|permit| permit.state == PermitState::Asking);
        let asked = asking.map(|permit| permit.ask.clone());
        let leased = self.leased.iter().chain(&self.releasing).cloned().chain(asked).collect();
        Self { leased, decided: self.decided.clone(), ..Self::default() }
    }

    /// Notes that a request has no answer. Returns for how long that has been so.
    pub(in crate::service) fn unanswered_for(&mut self, ask: &FleetAsk, now: Timestamp) -> SignedDuration {
        self.unanswered.retain(|known| now.duration_since(known.last) <= MAX_GAP);
        let Some(known) = self.unanswered.iter_mut().find(|known| is_same(&known.ask, ask)) else {
            self.unanswered.push(Unanswered { ask: ask.clone(), since: now, last: now });
            return SignedDuration::ZERO;
        };
        known.last = now;
        now.duration_since(known.since)
    }

    /// The times that are compared with the clock.
    pub(in crate::service) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.unanswered.iter_mut().flat_map(|known| [&mut known.since, &mut known.last])
    }

    pub(in crate::service) fn lease(&mut self, ask: FleetAsk) {
        if !self.leased.iter().any(|known| is_same(known, &ask)) {
            self.leased.push(ask);
        }
    }
}
