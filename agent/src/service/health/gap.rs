//! Gaps in the engine's event stream: whether the engine or an operator stopped the containers that ended meanwhile
//! (DECISIONS 5). The events of a gap are read again afterwards, as far as the engine still has them.

use std::time::Duration;

use jiff::Timestamp;

use crate::service::health::assess::{StopTimes, signed};

/// A stop within this time before the engine became unavailable was part of the engine's own shutdown.
const ENGINE_SHUTDOWN: Duration = Duration::from_secs(15);
/// The engine's last stops may be reported shortly before the end of its event stream is noticed.
const SHUTDOWN_SEEN: Duration = Duration::from_millis(500);
/// After a reconnect, events from at most this long before the disconnect are replayed.
const REPLAY: Duration = Duration::from_mins(1);
/// How long to wait for the event stream once the engine can be reached again.
const AWAIT_EVENTS: Duration = Duration::from_secs(15);
/// By how much the clock of an engine on another machine may be ahead.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(5);

/// A time without an event stream.
#[derive(Debug, Clone, PartialEq)]
struct Gap {
    /// When it began, or a moment before, by the clock of the events.
    from: Timestamp,
    /// The same by the clock as it is set now.
    began: Timestamp,
    /// When it ended.
    to: Option<Timestamp>,
    /// Stop requests that were attributed to the engine. If it turns out to have kept running, they were an operator's.
    stops: StopTimes,
    /// When the engine could first be reached again in the gap.
    reached_at: Option<Timestamp>,
    /// Whether the event stream was lost, or the engine was away, as opposed to a stream that has not been there yet.
    is_loss: bool,
}

impl Gap {
    fn includes(&self, at: Timestamp) -> bool {
        self.to.map_or(at >= self.from, |to| self.spans(at, to))
    }

    /// Whether a time is in the gap, which lasted until `to`: by the clock as it was when the gap began, or as it was set
    /// meanwhile.
    fn spans(&self, at: Timestamp, to: Timestamp) -> bool {
        let lasted = to.duration_since(self.began);
        [self.from, self.began].into_iter().any(|from| at >= from && at <= from + lasted)
    }
}

/// What happened to the engine in a gap of the event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Engine {
    /// It kept running: only the connection was gone, and whoever stopped a container meanwhile was not the engine.
    Survived,
    /// It was restarted, or may have been.
    Restarted,
}

/// Whether the state of containers can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Sight {
    /// It can.
    Clear,
    /// Stop requests may be missing until the event stream is back.
    Waiting,
    /// The event stream has not come back, although the engine answers.
    GivenUp,
}

/// The gaps, as long as their events may be replayed: containers that stopped in a gap in which the engine was restarted
/// were stopped by the engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct Gaps(Vec<Gap>);

impl Gaps {
    /// The engine became unavailable: recent stops are attributed to the engine, unless their events are replayed once it
    /// is back.
    pub(in crate::service) fn begin(
        &mut self,
        requested: &mut StopTimes,
        by_engine: &mut StopTimes,
        now: Timestamp,
    ) {
        self.await_events(now - SHUTDOWN_SEEN);
        let own: Vec<String> = requested
            .iter()
            // A stop in the future dates from before the clock was set back.
            .filter(|(_, at)| now.duration_since(**at).abs() <= signed(ENGINE_SHUTDOWN))
            .map(|(id, _)| id.clone())
            .collect();
        let gap = self.0.last_mut();
        if let Some(gap) = gap {
            (gap.reached_at, gap.is_loss) = (None, true);
            for id in own {
                if let Some(at) = requested.remove(&id) {
                    gap.stops.insert(id.clone(), at);
                    by_engine.insert(id, at);
                }
            }
        }
    }

    /// Events since `from` are missing until the event stream is back.
    pub(in crate::service) fn await_events(&mut self, from: Timestamp) {
        self.0.retain(|gap| gap.to.is_none_or(|to| from.duration_since(to).abs() <= signed(REPLAY)));
        if !self.is_open() {
            let stops = StopTimes::new();
            self.0.push(Gap { from, began: from, to: None, stops, reached_at: None, is_loss: false });
        }
    }

    /// The engine was found away while the event stream is awaited: it may have been restarted.
    pub(in crate::service) fn note_away(&mut self) {
        if let Some(gap) = self.0.last_mut().filter(|gap| gap.to.is_none()) {
            (gap.reached_at, gap.is_loss) = (None, true);
        }
    }

    /// Whether the event stream is awaited.
    pub(in crate::service) fn is_open(&self) -> bool {
        self.0.last().is_some_and(|gap| gap.to.is_none())
    }

    /// Whether the event stream was lost, or the engine was away, and the stream has not come back: the engine may have been
    /// restarted.
    pub(in crate::service) fn is_lost(&self) -> bool {
        self.0.last().is_some_and(|gap| gap.to.is_none() && gap.is_loss)
    }

    /// The engine was reached. Returns whether stop requests may be missing nevertheless.
    pub(in crate::service) fn sight(&mut self, now: Timestamp) -> Sight {
        let Some(gap) = self.0.last_mut().filter(|gap| gap.to.is_none()) else { return Sight::Clear };
        let reached_at = *gap.reached_at.get_or_insert(now);
        if now < reached_at + AWAIT_EVENTS { Sight::Waiting } else { Sight::GivenUp }
    }

    /// The event stream is back. An engine that was killed first stops the containers that survived it. `engine_since`: the
    /// engine has been running at least since then, if known. Returns what happened to it in the gap that ends, if any.
    pub(in crate::service) fn end(
        &mut self,
        requested: &mut StopTimes,
        by_engine: &mut StopTimes,
        engine_since: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Engine> {
        let gap = self.0.last_mut().filter(|gap| gap.to.is_none())?;
        // A time in the future dates from before the clock was set back, and so does the start of the engine.
        let is_restart = |since: Timestamp| gap.spans(since - SHUTDOWN_SEEN, now + CLOCK_DIFFERENCE);
        if engine_since.is_none_or(is_restart) {
            gap.to = Some(now);
            return Some(Engine::Restarted);
        }
        for (id, at) in self.0.pop()?.stops {
            if by_engine.get(&id) == Some(&at) {
                by_engine.remove(&id);
                requested.insert(id, at);
            }
        }
        Some(Engine::Survived)
    }

    /// Attributes a stop request to the engine or to an operator.
    pub(in crate::service) fn attribute(
        &mut self,
        requested: &mut StopTimes,
        by_engine: &mut StopTimes,
        id: String,
        at: Timestamp,
    ) {
        if let Some(gap) = self.0.iter_mut().find(|gap| gap.includes(at)) {
            gap.stops.insert(id.clone(), at);
            by_engine.insert(id, at);
        } else {
            by_engine.remove(&id);
            requested.insert(id, at);
        }
    }

    /// The times that deadlines are measured from.
    pub(in crate::service) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.0.iter_mut().flat_map(|gap| gap.reached_at.as_mut().into_iter().chain([&mut gap.began]))
    }

    /// The clock was set: past gaps can't be compared with times by the new clock.
    pub(in crate::service) fn clock_was_set(&mut self) {
        self.0.retain(|gap| gap.to.is_none());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_of_the_engine_is_known_whenever_the_clock_was_set() {
        // By how much the clock was set in the gap; seconds from the start of the gap to that of the engine, by the clock
        // then; whether that was in the gap.
        for (set_by, since, is_restart) in [
            (0, 2, true),
            (0, -10, false),
            (600, 2, true),
            (600, 602, true),
            (600, -10, false),
            (600, 300, false),
            (-600, 2, true),
            (-600, -598, true),
            (-600, -10, false),
            (-600, -700, false),
            // An engine without a daemon that containers depend on has run for as long as was asked for.
            (0, -1_000_000, false),
        ] {
            let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
            let mut gaps = Gaps::default();
            gaps.await_events(at(0));
            gaps.times().for_each(|time| *time = at(set_by));
            let (mut requested, mut by_engine) = (StopTimes::new(), StopTimes::new());
            let found = gaps.end(&mut requested, &mut by_engine, Some(at(since)), at(set_by + 3));
            let expected = if is_restart { Engine::Restarted } else { Engine::Survived };
            assert_eq!(found, Some(expected), "set by {set_by}, since {since}");
            // What was stopped when the gap began was stopped by the clock as it was then.
            gaps.attribute(&mut requested, &mut by_engine, "id".into(), at(1));
            assert_eq!(by_engine.len(), usize::from(is_restart), "set by {set_by}, since {since}");
        }
    }
}
