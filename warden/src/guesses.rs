//! Slows down whoever guesses tokens: each address has a few wrong ones, and gets another one from time to time.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_common::http::{Arrival, HeaderMap};
use tokio::time::Instant;

/// Wrong tokens that an address may show at once.
const AT_ONCE: u32 = 10;
/// Time after which it may show another one.
const ANOTHER: Duration = Duration::from_secs(6);
/// Wrong tokens of an address that are remembered: a program that is set up wrongly shows the same one again and
/// again, and guesses nothing.
const REMEMBERED: usize = 32;
/// Addresses that are remembered. Beyond it all new ones share one account.
const ADDRESSES: usize = 10_000;
/// Time between two lines of the log.
const LOG: Duration = Duration::from_secs(10);

/// Who has shown how many wrong tokens.
#[derive(Debug, Default)]
pub struct Guesses {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    clients: HashMap<IpAddr, Client>,
    /// When the log was last told, and what it was not told since.
    told: Option<Instant>,
    untold: u64,
}

#[derive(Debug)]
struct Client {
    /// When all its wrong tokens are forgiven: each puts it off by [`ANOTHER`].
    clean: Instant,
    wrong: VecDeque<[u8; 8]>,
}

impl Guesses {
    /// How long that client must wait before a token of its is looked at; `None` when it need not.
    pub fn wait(&self, client: IpAddr) -> Option<Duration> {
        let now = Instant::now();
        let mut state = self.lock();
        let client = state.of(client, now)?;
        let open = client.clean.checked_sub(ANOTHER * (AT_ONCE - 1))?;
        Some(open.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// Notes a wrong token.
    pub fn wrong(&self, client: IpAddr, digest: &[u8; 32], door: &str) {
        let now = Instant::now();
        let mut state = self.lock();
        state.untold += 1;
        if state.told.is_none_or(|told| now - told >= LOG) {
            let wrong = std::mem::take(&mut state.untold);
            state.told = Some(now);
            tracing::warn!(%client, door, wrong, "wrong tokens were shown, this one and others since the last such line");
        }
        let key = state.key(client, now);
        let client =
            state.clients.entry(key).or_insert_with(|| Client { clean: now, wrong: VecDeque::new() });
        let mut short = [0; 8];
        short.copy_from_slice(&digest[..8]);
        if !client.wrong.contains(&short) {
            client.clean = client.clean.max(now) + ANOTHER;
            client.wrong.push_back(short);
            if client.wrong.len() > REMEMBERED {
                client.wrong.pop_front();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The account of a client, if there is one.
    fn of(&mut self, client: IpAddr, now: Instant) -> Option<&Client> {
        let key = self.key(client, now);
        self.clients.get(&key)
    }

    /// Whose account is that client's.
    fn key(&mut self, client: IpAddr, now: Instant) -> IpAddr {
        let own = network(client);
        if self.clients.len() < ADDRESSES || self.clients.contains_key(&own) {
            return own;
        }
        let shared = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        if self.clients.get(&shared).is_none_or(|shared| shared.clean <= now) {
            // It is worth looking whether there is room again.
            self.clients.retain(|_, client| client.clean > now);
            if self.clients.len() < ADDRESSES {
                return own;
            }
        }
        shared
    }
}

/// What one person has: an address, or 2^64 of them.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// Address of the client: the peer, or for a proxy on this machine whom it names.
pub fn client(arrival: &Arrival, headers: &HeaderMap) -> IpAddr {
    let peer = arrival.peer.ip().to_canonical();
    if !peer.is_loopback() {
        return peer;
    }
    // The last one is the proxy's own word; what stands before it came with the request.
    let named = headers.get_all("x-forwarded-for").iter().next_back();
    let named =
        named.and_then(|named| named.to_str().ok()?.rsplit(',').next()?.trim().parse::<IpAddr>().ok());
    named.map_or(peer, |named| named.to_canonical())
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::access::digest;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_ten_wrong_tokens_and_then_one_in_six_seconds() {
        let guesses = Guesses::default();
        let (bad, good) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let guess = |n: u32| guesses.wrong(bad, &digest(&n.to_string()), "people");
        for n in 0..10 {
            assert_eq!(guesses.wait(bad), None, "{n}");
            guess(n);
        }
        assert_eq!(guesses.wait(bad), Some(ANOTHER));
        assert_eq!(guesses.wait(good), None, "others are not slowed");
        advance(ANOTHER).await;
        assert_eq!(guesses.wait(bad), None);
        guess(10);
        assert!(guesses.wait(bad).is_some());
        advance(ANOTHER * 11).await;
        assert_eq!(guesses.wait(bad), None, "all is forgiven");
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_with_one_wrong_token_guesses_nothing() {
        let guesses = Guesses::default();
        for _ in 0..1000 {
            guesses.wrong(ip("10.0.0.1"), &digest("old"), "agents");
        }
        assert_eq!(guesses.wait(ip("10.0.0.1")), None);
        assert!(guesses.lock().untold > 0, "the log is told once in a while only");
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_cost_a_bounded_memory_and_are_slowed_together() {
        let guesses = Guesses::default();
        for n in 0..20_000u32 {
            let address = IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + n));
            guesses.wrong(address, &digest(&n.to_string()), "people");
        }
        assert!(guesses.lock().clients.len() <= ADDRESSES + 1);
        assert!(guesses.wait(ip("192.0.2.1")).is_some());
        advance(ANOTHER * 20_001).await;
        assert_eq!(guesses.wait(ip("192.0.2.1")), None);
    }

    #[test]
    fn one_machine_has_one_account_whatever_its_address() {
        for (one, other) in
            [("127.0.0.1", "127.9.9.9"), ("::1", "127.0.0.1"), ("2001:db8::1", "2001:db8::ffff:1")]
        {
            assert_eq!(network(ip(one)), network(ip(other)));
        }
        assert_ne!(network(ip("2001:db8:0:1::1")), network(ip("2001:db8:0:2::1")));
        assert_eq!(network(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
    }

    #[test]
    fn a_proxy_on_this_machine_says_who_asks_and_others_do_not() {
        let of = |peer: &str, named: &[&str]| {
            let mut headers = HeaderMap::new();
            for named in named {
                headers.append("x-forwarded-for", named.parse().unwrap());
            }
            let arrival = Arrival { peer: (ip(peer), 1).into(), ..Arrival::default() };
            client(&arrival, &headers)
        };
        assert_eq!(of("127.0.0.1", &["192.0.2.9, 192.0.2.7"]), ip("192.0.2.7"));
        assert_eq!(of("127.0.0.1", &["192.0.2.9", "192.0.2.7"]), ip("192.0.2.7"));
        assert_eq!(of("127.0.0.1", &[]), ip("127.0.0.1"));
        assert_eq!(of("127.0.0.1", &["unknown"]), ip("127.0.0.1"));
        assert_eq!(of("192.0.2.1", &["127.0.0.1"]), ip("192.0.2.1"));
    }
}
