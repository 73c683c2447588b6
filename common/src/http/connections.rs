//! The connections of a server. When the limit is reached, the connection that has kept the server waiting longest is closed.
//! A new client is therefore always served, and stalling clients only lose their own connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Limits;
use super::connection::Connection;

/// The open connections, and the response bytes that their clients have not read yet.
#[derive(Debug)]
pub(super) struct Connections {
    state: Mutex<State>,
    total: usize,
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
    conn: Arc<Connection>,
    unsent: usize,
}

/// The slot of one connection, released on drop.
#[derive(Debug)]
pub(super) struct Slot {
    connections: Arc<Connections>,
    id: u64,
}

impl Connections {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            total: limits.connections,
            per_peer: limits.connections_per_peer,
            unsent_bytes: limits.unsent_bytes,
        })
    }

    /// Reserves a slot for a connection. Returns `None` if there is none and no other connection can be closed for it.
    pub(super) fn admit(self: &Arc<Self>, conn: Arc<Connection>) -> Option<Slot> {
        let mut state = self.state.lock();
        if state.by_peer.get(&conn.peer).is_some_and(|count| *count >= self.per_peer) {
            state.evict_oldest(|member| member.conn.peer == conn.peer)?;
        } else if state.members.len() >= self.total {
            // Prefer a connection of the peer that has most.
            let largest = state.by_peer.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer);
            state
                .evict_oldest(|member| Some(member.conn.peer) == largest)
                .or_else(|| state.evict_oldest(|_| true))?;
        }
        let id = state.next;
        state.next += 1;
        *state.by_peer.entry(conn.peer).or_default() += 1;
        state.members.insert(id, Member { conn, unsent: 0 });
        Some(Slot { connections: self.clone(), id })
    }
}

impl State {
    /// Closes the one of these connections that has waited longest for its client.
    fn evict_oldest(&mut self, among: impl Fn(&Member) -> bool) -> Option<()> {
        let waiting = self.members.iter().filter(|(_, member)| among(member));
        let waiting = waiting.filter_map(|(id, member)| Some((member.conn.waiting_since()?, *id)));
        let (_, id) = waiting.min()?;
        self.remove(id)?.conn.evicted.cancel();
        Some(())
    }

    fn remove(&mut self, id: u64) -> Option<Member> {
        let member = self.members.remove(&id)?;
        self.unsent -= member.unsent;
        if let Some(count) = self.by_peer.get_mut(&member.conn.peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&member.conn.peer);
            }
        }
        Some(member)
    }
}

impl Slot {
    /// Records that `bytes` of a response are held for this client. If the total exceeds the limit, the connections that
    /// have been waiting longest for their clients are closed.
    pub(super) fn set_unsent(&self, bytes: usize) {
        let mut state = self.connections.state.lock();
        let Some(member) = state.members.get_mut(&self.id) else { return };
        let before = std::mem::replace(&mut member.unsent, bytes);
        state.unsent = state.unsent - before + bytes;
        while state.unsent > self.connections.unsent_bytes {
            let own = self.id;
            let others = state.members.iter().filter(|(id, member)| **id != own && member.unsent > 0);
            let oldest = others.min_by_key(|(id, member)| (member.conn.waiting_since(), **id));
            let Some(id) = oldest.map(|(id, _)| *id) else { return };
            if let Some(member) = state.remove(id) {
                member.conn.evicted.cancel();
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.connections.state.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, Instant, advance};

    use super::super::connection::Phase;
    use super::*;

    fn connections(connections: usize, connections_per_peer: usize) -> Arc<Connections> {
        Connections::new(&Limits {
            connections,
            connections_per_peer,
            unsent_bytes: 100,
            ..Limits::default()
        })
    }

    fn conn(peer: &str) -> Arc<Connection> {
        Connection::new(peer.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_has_waited_longest_is_closed() {
        let connections = connections(3, 2);
        let conns = [conn("10.0.0.1"), conn("10.0.0.1"), conn("10.0.0.2")];
        let mut slots = Vec::new();
        for conn in &conns {
            slots.push(connections.admit(conn.clone()).unwrap());
            advance(Duration::from_secs(1)).await;
        }
        conns[0].enter(Phase::Handling);
        // The peer is at its limit: one of its own connections is closed, but not the one with a request in progress.
        let fourth = conn("10.0.0.1");
        slots.push(connections.admit(fourth.clone()).unwrap());
        let evicted = |conn: &Connection| conn.evicted.is_cancelled();
        assert_eq!((evicted(&conns[0]), evicted(&conns[1]), evicted(&conns[2])), (false, true, false));
        // The server is full: a connection of the peer that has most is closed.
        slots.push(connections.admit(conn("10.0.0.3")).unwrap());
        assert!(evicted(&fourth) && !evicted(&conns[2]));
        conns[2].enter(Phase::Streaming);
        connections.state.lock().members.values().for_each(|member| member.conn.enter(Phase::Handling));
        assert!(connections.admit(conn("10.0.0.4")).is_none(), "all are busy");
        drop(slots);
        let state = connections.state.lock();
        assert_eq!((state.members.len(), state.by_peer.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn unread_responses_are_held_within_a_budget_and_the_newest_is_served() {
        let connections = connections(10, 10);
        let conns: Vec<_> = (0..5).map(|_| conn("10.0.0.1")).collect();
        let mut slots = Vec::new();
        for conn in &conns {
            conn.enter(Phase::Sending(Instant::now()));
            let slot = connections.admit(conn.clone()).unwrap();
            slot.set_unsent(40);
            slots.push(slot);
            assert!(connections.state.lock().unsent <= 100);
            advance(Duration::from_secs(1)).await;
        }
        let evicted: Vec<_> = conns.iter().map(|conn| conn.evicted.is_cancelled()).collect();
        assert_eq!(evicted, [true, true, true, false, false]);
        slots[4].set_unsent(0);
        assert_eq!(connections.state.lock().unsent, 40);
        // A response larger than the budget is still served, alone.
        slots[4].set_unsent(1000);
        assert!(conns[3].evicted.is_cancelled() && !conns[4].evicted.is_cancelled());
        drop(slots);
        assert_eq!(connections.state.lock().unsent, 0);
    }
}
