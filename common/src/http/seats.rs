//! A limited number of places, in all and for one peer address: for streams and for connections.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;

use super::{Response, error};

/// The places. Clones share them.
#[derive(Debug, Clone)]
pub struct Seats {
    taken: Arc<Mutex<Taken>>,
    in_all: usize,
    per_peer: usize,
}

#[derive(Debug, Default)]
struct Taken {
    in_all: usize,
    by_peer: HashMap<IpAddr, usize>,
}

/// One place, given back on drop.
#[derive(Debug)]
pub struct Seat {
    taken: Arc<Mutex<Taken>>,
    peer: IpAddr,
}

impl Seats {
    /// That many places in all and for one peer.
    pub fn new(in_all: usize, per_peer: usize) -> Self {
        Self { taken: Arc::default(), in_all, per_peer }
    }

    /// The places for event streams (DECISIONS 6).
    pub fn for_streams() -> Self {
        Self::new(512, 32)
    }

    /// Takes a place; `None` when there is none for this peer.
    pub fn take(&self, peer: IpAddr) -> Option<Seat> {
        let peer = peer.to_canonical();
        let mut taken = lock(&self.taken);
        if taken.in_all >= self.in_all {
            return None;
        }
        let of_peer = taken.by_peer.entry(peer).or_default();
        if *of_peer >= self.per_peer {
            return None;
        }
        *of_peer += 1;
        taken.in_all += 1;
        Some(Seat { taken: self.taken.clone(), peer })
    }

    /// Takes a place for a stream, or gives the answer that refuses it (429).
    pub fn admit(&self, peer: IpAddr) -> Result<Seat, Response> {
        self.take(peer).ok_or_else(|| {
            let text = format!(
                "too many open streams (at most {} in all and {} from one address)",
                self.in_all, self.per_peer
            );
            let mut refusal = error(StatusCode::TOO_MANY_REQUESTS, text);
            refusal.headers_mut().insert(http::header::RETRY_AFTER, 10.into());
            refusal
        })
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        lock(&self.taken).in_all
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        taken.in_all -= 1;
        if let Entry::Occupied(mut of_peer) = taken.by_peer.entry(self.peer) {
            *of_peer.get_mut() -= 1;
            if *of_peer.get() == 0 {
                of_peer.remove();
            }
        }
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_in_all_and_per_peer_and_given_back() {
        let seats = Seats::new(3, 2);
        let (one, two): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "::1".parse().unwrap());
        let first = seats.take(one).unwrap();
        let _second = seats.take("::ffff:10.0.0.1".parse().unwrap()).unwrap();
        assert!(seats.take(one).is_none(), "the same peer in another notation");
        let third = seats.take(two).unwrap();
        assert_eq!(seats.admit(two).unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(seats.taken(), 3);
        drop(third);
        drop(first);
        assert!(seats.take(one).is_some());
        assert_eq!(seats.taken(), 1);
        assert_eq!(lock(&seats.taken).by_peer.len(), 1);
    }
}
