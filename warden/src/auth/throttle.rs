//! Limits wrong tokens per client address with a leaky bucket: a burst, then one at a time.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use evenkeel_common::http::{Arrival, HeaderMap};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Wrong tokens that a client may send in a burst.
const BURST: u32 = 10;
/// Time after which it may send another one.
const INTERVAL: Duration = Duration::from_secs(6);
/// Wrong tokens remembered per client. A misconfigured program repeats the same one, which is not guessing.
const REMEMBERED_TOKENS: usize = 32;
/// Number of tracked clients; beyond it, all new ones share one bucket.
const MAX_CLIENTS: usize = 10_000;
/// Minimum time between two log lines.
const MIN_LOG_PAUSE: Duration = Duration::from_secs(10);

/// Wrong tokens by client.
#[derive(Debug, Default)]
pub struct LoginThrottle {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    clients: HashMap<IpAddr, Bucket>,
    last_logged: Option<Instant>,
    unlogged: u64,
}

#[derive(Debug)]
struct Bucket {
    /// When the bucket is empty again: each wrong token adds [`INTERVAL`].
    empty_at: Instant,
    tokens: VecDeque<[u8; 8]>,
}

impl LoginThrottle {
    /// Returns how long a client must wait before its next token is checked; `None` if it need not wait.
    pub fn retry_after(&self, client: IpAddr) -> Option<Duration> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let bucket = state.bucket(client, now)?;
        let allowed_at = bucket.empty_at.checked_sub(INTERVAL * (BURST - 1))?;
        Some(allowed_at.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// Counts a wrong token; `kind` tells the log whether it was sent by a user or an agent.
    pub fn record_failure(&self, client: IpAddr, digest: &[u8; 32], kind: &str) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.unlogged += 1;
        if state.last_logged.is_none_or(|last| now - last >= MIN_LOG_PAUSE) {
            let count = std::mem::take(&mut state.unlogged);
            state.last_logged = Some(now);
            tracing::warn!(%client, kind, count, "wrong tokens since the last such message, the latest from this client");
        }
        let key = state.key(client, now);
        let bucket =
            state.clients.entry(key).or_insert_with(|| Bucket { empty_at: now, tokens: VecDeque::new() });
        let mut short = [0; 8];
        short.copy_from_slice(&digest[..8]);
        if !bucket.tokens.contains(&short) {
            bucket.empty_at = bucket.empty_at.max(now) + INTERVAL;
            bucket.tokens.push_back(short);
            if bucket.tokens.len() > REMEMBERED_TOKENS {
                bucket.tokens.pop_front();
            }
        }
    }
}

impl State {
    /// Returns the bucket of a client, if it has one.
    fn bucket(&mut self, client: IpAddr, now: Instant) -> Option<&Bucket> {
        let key = self.key(client, now);
        self.clients.get(&key)
    }

    /// Returns the key of the client's bucket.
    fn key(&mut self, client: IpAddr, now: Instant) -> IpAddr {
        let own = network(client);
        if self.clients.len() < MAX_CLIENTS || self.clients.contains_key(&own) {
            return own;
        }
        let shared = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        if self.clients.get(&shared).is_none_or(|shared| shared.empty_at <= now) {
            self.clients.retain(|_, bucket| bucket.empty_at > now);
            if self.clients.len() < MAX_CLIENTS {
                return own;
            }
        }
        shared
    }
}

/// Maps an address to the client it counts for: an IPv4 address, an IPv6 /64 prefix, or this machine.
pub fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// Returns the address of the client: the peer, or the address that a proxy on this machine forwards.
pub fn client_address(arrival: &Arrival, headers: &HeaderMap) -> IpAddr {
    let peer = arrival.peer.ip().to_canonical();
    if !peer.is_loopback() {
        return peer;
    }
    // Only the last value was added by the proxy; those before it came with the request.
    let named = headers.get_all("x-forwarded-for").iter().next_back();
    let named =
        named.and_then(|named| named.to_str().ok()?.rsplit(',').next()?.trim().parse::<IpAddr>().ok());
    named.map_or(peer, |named| named.to_canonical())
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::auth::tokens::digest;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_send_ten_wrong_tokens_and_then_one_every_six_seconds() {
        let throttle = LoginThrottle::default();
        let (bad, good) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let guess = |n: u32| throttle.record_failure(bad, &digest(&n.to_string()), "user");
        for n in 0..10 {
            assert_eq!(throttle.retry_after(bad), None, "{n}");
            guess(n);
        }
        assert_eq!(throttle.retry_after(bad), Some(INTERVAL));
        assert_eq!(throttle.retry_after(good), None, "others are not throttled");
        advance(INTERVAL).await;
        assert_eq!(throttle.retry_after(bad), None);
        guess(10);
        assert!(throttle.retry_after(bad).is_some());
        advance(INTERVAL * 11).await;
        assert_eq!(throttle.retry_after(bad), None, "the bucket is empty again");
    }

    #[tokio::test(start_paused = true)]
    async fn repeating_one_wrong_token_is_not_throttled() {
        let throttle = LoginThrottle::default();
        for _ in 0..1000 {
            throttle.record_failure(ip("10.0.0.1"), &digest("old"), "agent");
        }
        assert_eq!(throttle.retry_after(ip("10.0.0.1")), None);
        assert!(throttle.state.lock().unlogged > 0, "the log is rate-limited");
    }

    #[tokio::test(start_paused = true)]
    async fn many_clients_take_bounded_memory_and_share_a_bucket() {
        let throttle = LoginThrottle::default();
        for n in 0..20_000u32 {
            let address = IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + n));
            throttle.record_failure(address, &digest(&n.to_string()), "user");
        }
        assert!(throttle.state.lock().clients.len() <= MAX_CLIENTS + 1);
        assert!(throttle.retry_after(ip("192.0.2.1")).is_some());
        advance(INTERVAL * 20_001).await;
        assert_eq!(throttle.retry_after(ip("192.0.2.1")), None);
    }

    #[test]
    fn one_machine_has_one_bucket_whatever_its_address() {
        for (one, other) in
            [("127.0.0.1", "127.9.9.9"), ("::1", "127.0.0.1"), ("2001:db8::1", "2001:db8::ffff:1")]
        {
            assert_eq!(network(ip(one)), network(ip(other)));
        }
        assert_ne!(network(ip("2001:db8:0:1::1")), network(ip("2001:db8:0:2::1")));
        assert_eq!(network(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
    }

    #[test]
    fn only_a_proxy_on_this_machine_may_name_the_client() {
        let of = |peer: &str, named: &[&str]| {
            let mut headers = HeaderMap::new();
            for named in named {
                headers.append("x-forwarded-for", named.parse().unwrap());
            }
            let arrival = Arrival { peer: (ip(peer), 1).into(), ..Arrival::default() };
            client_address(&arrival, &headers)
        };
        assert_eq!(of("127.0.0.1", &["192.0.2.9, 192.0.2.7"]), ip("192.0.2.7"));
        assert_eq!(of("127.0.0.1", &["192.0.2.9", "192.0.2.7"]), ip("192.0.2.7"));
        assert_eq!(of("127.0.0.1", &[]), ip("127.0.0.1"));
        assert_eq!(of("127.0.0.1", &["unknown"]), ip("127.0.0.1"));
        assert_eq!(of("192.0.2.1", &["127.0.0.1"]), ip("192.0.2.1"));
    }
}
