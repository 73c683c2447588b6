//! A limited number of places, in all and for each of those who take them: streams and connections of one address,
//! requests of one login.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;

use super::{Response, error};

/// The places. Clones share them.
#[derive(Debug, Clone)]
pub struct Seats<K: Eq + Hash = IpAddr> {
    taken: Arc<Mutex<Taken<K>>>,
    in_all: usize,
    per_taker: usize,
}

#[derive(Debug)]
struct Taken<K> {
    in_all: usize,
    by_taker: HashMap<K, usize>,
}

/// One place, given back on drop.
#[derive(Debug)]
pub struct Seat<K: Eq + Hash = IpAddr> {
    taken: Arc<Mutex<Taken<K>>>,
    taker: K,
}

impl<K: Eq + Hash + Clone> Seats<K> {
    /// That many places in all and for one taker.
    pub fn new(in_all: usize, per_taker: usize) -> Self {
        let taken = Arc::new(Mutex::new(Taken { in_all: 0, by_taker: HashMap::new() }));
        Self { taken, in_all, per_taker }
    }

    /// Takes a place; `None` when there is none for this taker.
    pub fn take(&self, taker: K) -> Option<Seat<K>> {
        let mut taken = lock(&self.taken);
        if taken.in_all >= self.in_all {
            return None;
        }
        let of_taker = taken.by_taker.entry(taker.clone()).or_default();
        if *of_taker >= self.per_taker {
            return None;
        }
        *of_taker += 1;
        taken.in_all += 1;
        Some(Seat { taken: self.taken.clone(), taker })
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        lock(&self.taken).in_all
    }
}

impl Seats {
    /// The places for event streams (DECISIONS 6).
    pub fn for_streams() -> Self {
        Self::new(512, 32)
    }

    /// Takes a place for a peer's address, in whatever notation.
    pub fn take_for(&self, peer: IpAddr) -> Option<Seat> {
        self.take(peer.to_canonical())
    }

    /// Takes a place for a stream, or gives the answer that refuses it (429).
    pub fn admit(&self, peer: IpAddr) -> Result<Seat, Response> {
        self.take_for(peer).ok_or_else(|| {
            let text = format!(
                "too many open streams (at most {} in all and {} from one address)",
                self.in_all, self.per_taker
            );
            too_many(text, 10)
        })
    }
}

/// 429, and after how many seconds to come back.
pub fn too_many(text: impl Into<String>, seconds: u16) -> Response {
    let mut refusal = error(StatusCode::TOO_MANY_REQUESTS, text);
    refusal.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
    refusal
}

impl<K: Eq + Hash> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        taken.in_all -= 1;
        if let Some(of_taker) = taken.by_taker.get_mut(&self.taker) {
            *of_taker -= 1;
            if *of_taker == 0 {
                taken.by_taker.remove(&self.taker);
            }
        }
    }
}

fn lock<K>(taken: &Mutex<Taken<K>>) -> MutexGuard<'_, Taken<K>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_in_all_and_per_peer_and_given_back() {
        let seats = Seats::new(3, 2);
        let (one, two): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "::1".parse().unwrap());
        let first = seats.take_for(one).unwrap();
        let _second = seats.take_for("::ffff:10.0.0.1".parse().unwrap()).unwrap();
        assert!(seats.take_for(one).is_none(), "the same peer in another notation");
        let third = seats.take_for(two).unwrap();
        assert_eq!(seats.admit(two).unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(seats.taken(), 3);
        drop(third);
        drop(first);
        assert!(seats.take_for(one).is_some());
        assert_eq!(seats.taken(), 1);
        assert_eq!(lock(&seats.taken).by_taker.len(), 1);
    }
}
