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
pub struct Limiter<K: Eq + Hash = IpAddr> {
    taken: Arc<Mutex<Taken<K>>>,
    in_all: usize,
    per_key: usize,
}

#[derive(Debug)]
struct Taken<K> {
    in_all: usize,
    by_key: HashMap<K, usize>,
}

/// One place, given back on drop.
#[derive(Debug)]
pub struct Permit<K: Eq + Hash = IpAddr> {
    taken: Arc<Mutex<Taken<K>>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Limiter<K> {
    /// That many places in all and for one taker.
    pub fn new(in_all: usize, per_key: usize) -> Self {
        let taken = Arc::new(Mutex::new(Taken { in_all: 0, by_key: HashMap::new() }));
        Self { taken, in_all, per_key }
    }

    /// Takes a place; `None` when there is none for this taker.
    pub fn acquire(&self, key: K) -> Option<Permit<K>> {
        let mut taken = lock(&self.taken);
        if taken.in_all >= self.in_all {
            return None;
        }
        let of_key = taken.by_key.entry(key.clone()).or_default();
        if *of_key >= self.per_key {
            return None;
        }
        *of_key += 1;
        taken.in_all += 1;
        Some(Permit { taken: self.taken.clone(), key })
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        lock(&self.taken).in_all
    }
}

impl Limiter {
    /// The places for event streams (DECISIONS 6).
    pub fn for_streams() -> Self {
        Self::new(512, 32)
    }

    /// Takes a place for a peer's address, in whatever notation.
    pub fn take_for(&self, peer: IpAddr) -> Option<Permit> {
        self.acquire(peer.to_canonical())
    }

    /// Takes a place for a stream, or gives the answer that refuses it (429).
    pub fn admit(&self, peer: IpAddr) -> Result<Permit, Response> {
        self.take_for(peer).ok_or_else(|| {
            let text = format!(
                "too many open streams (at most {} in all and {} from one address)",
                self.in_all, self.per_key
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

impl<K: Eq + Hash> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        taken.in_all -= 1;
        if let Some(of_key) = taken.by_key.get_mut(&self.key) {
            *of_key -= 1;
            if *of_key == 0 {
                taken.by_key.remove(&self.key);
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
        let limiter = Limiter::new(3, 2);
        let (one, two): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "::1".parse().unwrap());
        let first = limiter.take_for(one).unwrap();
        let _second = limiter.take_for("::ffff:10.0.0.1".parse().unwrap()).unwrap();
        assert!(limiter.take_for(one).is_none(), "the same peer in another notation");
        let third = limiter.take_for(two).unwrap();
        assert_eq!(limiter.admit(two).unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(limiter.taken(), 3);
        drop(third);
        drop(first);
        assert!(limiter.take_for(one).is_some());
        assert_eq!(limiter.taken(), 1);
        assert_eq!(lock(&limiter.taken).by_key.len(), 1);
    }
}
