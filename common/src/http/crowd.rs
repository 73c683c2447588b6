//! All connections of a server. Where there is no room, the one that has kept the server waiting longest is cut: so a
//! new client always gets its turn, and clients that stall only lose their own connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Limits;
use super::line::Line;

/// The connections, and the bytes of answers that their clients have not taken yet.
#[derive(Debug)]
pub(super) struct Crowd {
    state: Mutex<State>,
    in_all: usize,
    per_peer: usize,
    unsent_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    members: HashMap<u64, Member>,
    by_peer: HashMap<IpAddr, usize>,
    unsent: usize,
}

#[derive(Debug)]
struct Member {
    line: Arc<Line>,
    unsent: usize,
}

/// The place of one connection, given back on drop.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Arc<Crowd>,
    id: u64,
}

impl Crowd {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            in_all: limits.connections,
            per_peer: limits.connections_per_peer,
            unsent_bytes: limits.unsent_bytes,
        })
    }

    /// A place for a connection; `None` when there is none and nobody waits whose place it could get.
    pub(super) fn admit(self: &Arc<Self>, line: Arc<Line>) -> Option<Place> {
        let mut state = self.lock();
        if state.by_peer.get(&line.peer).is_some_and(|count| *count >= self.per_peer) {
            state.cut_oldest(|member| member.line.peer == line.peer)?;
        } else if state.members.len() >= self.in_all {
            // Whoever has most can best do with one less.
            let largest = state.by_peer.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer);
            state
                .cut_oldest(|member| Some(member.line.peer) == largest)
                .or_else(|| state.cut_oldest(|_| true))?;
        }
        let id = state.next;
        state.next += 1;
        *state.by_peer.entry(line.peer).or_default() += 1;
        state.members.insert(id, Member { line, unsent: 0 });
        Some(Place { crowd: self.clone(), id })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Cuts the connection among these that has waited longest for its client.
    fn cut_oldest(&mut self, among: impl Fn(&Member) -> bool) -> Option<()> {
        let waiting = self.members.iter().filter(|(_, member)| among(member));
        let waiting = waiting.filter_map(|(id, member)| Some((member.line.waits_since()?, *id)));
        let (_, id) = waiting.min()?;
        self.remove(id)?.line.cut.cancel();
        Some(())
    }

    fn remove(&mut self, id: u64) -> Option<Member> {
        let member = self.members.remove(&id)?;
        self.unsent -= member.unsent;
        if let Some(count) = self.by_peer.get_mut(&member.line.peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&member.line.peer);
            }
        }
        Some(member)
    }
}

impl Place {
    /// Notes that so many bytes of an answer are held for this client. Beyond what all may hold together, the clients
    /// that have been taking theirs longest are cut.
    pub(super) fn holds(&self, bytes: usize) {
        let mut state = self.crowd.lock();
        let Some(member) = state.members.get_mut(&self.id) else { return };
        let before = std::mem::replace(&mut member.unsent, bytes);
        state.unsent = state.unsent - before + bytes;
        while state.unsent > self.crowd.unsent_bytes {
            let own = self.id;
            let others = state.members.iter().filter(|(id, member)| **id != own && member.unsent > 0);
            let oldest = others.min_by_key(|(id, member)| (member.line.waits_since(), **id));
            let Some(id) = oldest.map(|(id, _)| *id) else { return };
            if let Some(member) = state.remove(id) {
                member.line.cut.cancel();
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, Instant, advance};

    use super::super::line::Phase;
    use super::*;

    fn crowd(connections: usize, connections_per_peer: usize) -> Arc<Crowd> {
        Crowd::new(&Limits { connections, connections_per_peer, unsent_bytes: 100, ..Limits::default() })
    }

    fn line(peer: &str) -> Arc<Line> {
        Line::new(peer.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_has_waited_longest_makes_room() {
        let crowd = crowd(3, 2);
        let lines = [line("10.0.0.1"), line("10.0.0.1"), line("10.0.0.2")];
        let mut places = Vec::new();
        for line in &lines {
            places.push(crowd.admit(line.clone()).unwrap());
            advance(Duration::from_secs(1)).await;
        }
        lines[0].enter(Phase::Handling);
        // The peer is at its own limit: its own connection goes, and not the one that the server works for.
        let fourth = line("10.0.0.1");
        places.push(crowd.admit(fourth.clone()).unwrap());
        let cut = |line: &Line| line.cut.is_cancelled();
        assert_eq!((cut(&lines[0]), cut(&lines[1]), cut(&lines[2])), (false, true, false));
        // The server is full: the peer that has most gives one.
        places.push(crowd.admit(line("10.0.0.3")).unwrap());
        assert!(cut(&fourth) && !cut(&lines[2]));
        lines[2].enter(Phase::Streaming);
        crowd.lock().members.values().for_each(|member| member.line.enter(Phase::Handling));
        assert!(crowd.admit(line("10.0.0.4")).is_none(), "all are at work");
        drop(places);
        let state = crowd.lock();
        assert_eq!((state.members.len(), state.by_peer.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_nobody_takes_are_held_within_a_budget_and_the_newest_is_served() {
        let crowd = crowd(10, 10);
        let lines: Vec<_> = (0..5).map(|_| line("10.0.0.1")).collect();
        let mut places = Vec::new();
        for line in &lines {
            line.enter(Phase::Sending(Instant::now()));
            let place = crowd.admit(line.clone()).unwrap();
            place.holds(40);
            places.push(place);
            assert!(crowd.lock().unsent <= 100);
            advance(Duration::from_secs(1)).await;
        }
        let cut: Vec<_> = lines.iter().map(|line| line.cut.is_cancelled()).collect();
        assert_eq!(cut, [true, true, true, false, false]);
        places[4].holds(0);
        assert_eq!(crowd.lock().unsent, 40);
        // One that is larger than the budget is served all the same, alone.
        places[4].holds(1000);
        assert!(lines[3].cut.is_cancelled() && !lines[4].cut.is_cancelled());
        drop(places);
        assert_eq!(crowd.lock().unsent, 0);
    }
}
