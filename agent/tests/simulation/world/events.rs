//! The engine's event stream: a short buffer that can be read again, and readers that may miss events or receive them
//! twice.

use std::collections::VecDeque;

use evenkeel_agent::model::{ContainerEvent, EventKind};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;

use super::Inner;

/// What happens to events on their way to a reader. They are stored in the engine's buffer in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EventFault {
    #[default]
    None,
    Lost,
    Doubled,
    /// 3 s late.
    Late,
}

/// The number of events that the engine keeps.
const BUFFER: usize = 256;
const LATE: SignedDuration = SignedDuration::from_secs(3);

#[derive(Default)]
pub(super) struct EventLog {
    buffer: VecDeque<ContainerEvent>,
    readers: Vec<mpsc::UnboundedSender<ContainerEvent>>,
    late: VecDeque<(Timestamp, ContainerEvent)>,
    /// From when to when events were read.
    pub(super) reads: Vec<(i64, Option<i64>)>,
}

impl EventLog {
    fn send(&mut self, event: &ContainerEvent) {
        self.readers.retain(|reader| reader.send(event.clone()).is_ok());
    }

    pub(super) fn next_late(&self) -> Option<Timestamp> {
        self.late.front().map(|(at, _)| *at)
    }

    pub(super) fn flush_late(&mut self, now: Timestamp) {
        while let Some((_, event)) = self.late.pop_front_if(|(at, _)| *at <= now) {
            self.send(&event);
        }
    }

    /// Closes all connections.
    pub(super) fn disconnect(&mut self) {
        self.readers.clear();
        self.late.clear();
    }

    /// The engine itself goes away, and its buffer is lost.
    pub(super) fn forget(&mut self) {
        self.disconnect();
        self.buffer.clear();
    }

    pub(super) fn read(
        &mut self,
        since_nano: i64,
        until_nano: Option<i64>,
    ) -> BoxStream<'static, ContainerEvent> {
        self.reads.push((since_nano, until_nano));
        let known = self.buffer.iter().filter(|event| event.time_nano >= since_nano);
        let known: Vec<ContainerEvent> = known.cloned().collect();
        if let Some(until) = until_nano {
            return stream::iter(known.into_iter().filter(move |event| event.time_nano <= until)).boxed();
        }
        let (sender, reader) = mpsc::unbounded_channel();
        self.readers.push(sender);
        let live = stream::unfold(reader, |mut reader| async { Some((reader.recv().await?, reader)) });
        stream::iter(known).chain(live).boxed()
    }
}

impl Inner {
    /// Emits an event of a container.
    pub(super) fn container_event(&mut self, container: usize, at: Timestamp, what: EventKind) {
        let (id, name) = (self.containers[container].id.clone(), self.containers[container].name());
        if matches!(what, EventKind::Die { .. }) {
            self.trace("engine", &format!("{name} has ended"));
        }
        self.emit(id, name, at, what);
    }

    pub(super) fn emit(&mut self, id: String, name: String, at: Timestamp, what: EventKind) {
        let time_nano = i64::try_from(self.wall(at).as_nanosecond()).expect("not in 300 years");
        let event = ContainerEvent { time_nano, id, name, project: "shop".into(), what };
        let log = &mut self.events;
        log.buffer.push_back(event.clone());
        if log.buffer.len() > BUFFER {
            log.buffer.pop_front();
        }
        match self.faults.events {
            EventFault::None => log.send(&event),
            EventFault::Lost => {}
            EventFault::Doubled => {
                log.send(&event);
                log.send(&event);
            }
            EventFault::Late => log.late.push_back((self.now + LATE, event)),
        }
    }
}
