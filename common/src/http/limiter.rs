//! Limits concurrency, in total and per key: streams per client address, requests per login.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;

use super::{Response, retry_later};

/// A limited number of permits. Clones share them.
#[derive(Debug, Clone)]
pub struct Limiter<K: Eq + Hash = IpAddr> {
    taken: Arc<Mutex<Taken<K>>>,
    total: usize,
    per_key: usize,
}

#[derive(Debug)]
struct Taken<K> {
    total: usize,
    by_key: HashMap<K, usize>,
}

/// One permit, released on drop.
#[derive(Debug)]
pub struct Permit<K: Eq + Hash = IpAddr> {
    taken: Arc<Mutex<Taken<K>>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Limiter<K> {
    /// Creates a limiter with `total` permits, at most `per_key` of them for one key.
    pub fn new(total: usize, per_key: usize) -> Self {
        let taken = Arc::new(Mutex::new(Taken { total: 0, by_key: HashMap::new() }));
        Self { taken, total, per_key }
    }

    /// Acquires a permit; `None` if none is available for this key.
    pub fn acquire(&self, key: K) -> Option<Permit<K>> {
        let mut taken = self.taken.lock();
        if taken.total >= self.total {
            return None;
        }
        let of_key = taken.by_key.entry(key.clone()).or_default();
        if *of_key >= self.per_key {
            return None;
        }
        *of_key += 1;
        taken.total += 1;
        Some(Permit { taken: self.taken.clone(), key })
    }

    /// Permits currently in use.
    pub fn taken(&self) -> usize {
        self.taken.lock().total
    }
}

impl Limiter {
    /// The limits for event streams (DECISIONS 6).
    pub fn for_streams() -> Self {
        Self::new(512, 32)
    }

    /// Acquires a permit for the address of a peer, in any notation.
    pub fn take_for(&self, peer: IpAddr) -> Option<Permit> {
        self.acquire(peer.to_canonical())
    }

    /// Acquires a permit for a stream, or returns the error response (429).
    pub fn admit(&self, peer: IpAddr) -> Result<Permit, Response> {
        self.take_for(peer).ok_or_else(|| {
            let text = format!(
                "too many open streams (at most {} in total and {} per address)",
                self.total, self.per_key
            );
            too_many(text, 10)
        })
    }
}

/// A 429 response with `Retry-After`.
pub fn too_many(text: impl Into<String>, seconds: u16) -> Response {
    retry_later(StatusCode::TOO_MANY_REQUESTS, text, seconds)
}

impl<K: Eq + Hash> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.total -= 1;
        if let Some(of_key) = taken.by_key.get_mut(&self.key) {
            *of_key -= 1;
            if *of_key == 0 {
                taken.by_key.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_limited_in_total_and_per_peer_and_released() {
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
        assert_eq!(limiter.taken.lock().by_key.len(), 1);
    }
}
