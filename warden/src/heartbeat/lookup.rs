//! Looks up the names of agents with the system's resolver, on a limited number of threads.
//!
//! A lookup blocks its thread until the resolver gives up, long after nobody waits for it any more. The embedded store runs
//! on threads of the same pool: without a limit, a resolver that does not answer would take all of them.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustix::io::Errno;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

/// Timeout of a lookup: shorter than that of a probe, so that a resolver without a network does not look like an agent that
/// hangs.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Limit on concurrent lookups: half of the threads that the packaged unit allows.
pub(super) const MAX_CONCURRENT: usize = 32;

/// Blocks until the addresses of a name are known.
type System = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Looks up names.
#[derive(Clone)]
pub(super) struct Lookup {
    system: Arc<System>,
    threads: Arc<Semaphore>,
}

impl Lookup {
    pub(super) fn new() -> Self {
        Self::with(|name| Ok((name, 0).to_socket_addrs()?.collect()))
    }

    fn with(system: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Self {
        Self { system: Arc::new(system), threads: Arc::new(Semaphore::new(MAX_CONCURRENT)) }
    }

    /// Returns the addresses of a name. If it got no thread, or got one late, the error is `EAGAIN`: that other lookups have no
    /// answer says nothing about this name.
    async fn look_up(&self, name: String) -> io::Result<Vec<SocketAddr>> {
        let (system, mut begun) = (self.system.clone(), None::<Instant>);
        let looking_up = async {
            let thread = self.threads.clone().acquire_owned().await.map_err(io::Error::other)?;
            begun = Some(Instant::now());
            let call = move || {
                // Held until the call returns, whether or not somebody still waits for it.
                let _thread = thread;
                system(&name)
            };
            spawn_blocking(call).await.map_err(io::Error::other)?
        };
        match timeout(TIMEOUT, looking_up).await {
            Ok(found) => found,
            Err(_) if begun.is_some_and(|begun| begun.elapsed() >= TIMEOUT / 2) => {
                let why = format!("no answer to the lookup of its name within {} s", TIMEOUT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
            Err(_) => Err(io::Error::from_raw_os_error(Errno::AGAIN.raw_os_error())),
        }
    }

    /// Returns the addresses of a URL's host; none if it cannot be looked up.
    pub(super) async fn addresses_of(&self, url: &str) -> Vec<SocketAddr> {
        let Ok(url) = Url::parse(url) else { return Vec::new() };
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Vec::new();
        };
        let host = host.trim_matches(['[', ']']);
        if let Ok(address) = host.parse::<IpAddr>() {
            return vec![(address, port).into()];
        }
        let found = self.look_up(host.to_owned()).await.unwrap_or_default();
        let with_port = |mut address: SocketAddr| {
            address.set_port(port);
            address
        };
        found.into_iter().map(with_port).collect()
    }
}

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        let lookup = self.clone();
        Box::pin(async move {
            let found = lookup.look_up(name.as_str().to_owned()).await?;
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use futures_util::future::{join, join_all};
    use parking_lot::Mutex;
    use tokio::runtime::{Builder, Handle};
    use tokio::time::advance;

    use super::*;

    #[test]
    fn lookups_without_an_answer_leave_threads_to_the_store() {
        let runtime = Builder::new_multi_thread()
            .enable_time()
            .max_blocking_threads(MAX_CONCURRENT + 1)
            .build()
            .unwrap();
        let (started, answers) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (begun, answer, running, peak) = (started.clone(), answers.clone(), now.clone(), most.clone());
        let lookup = Lookup::with(move |_| {
            peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            begun.add_permits(1);
            // Closed once the resolver answers.
            let _ = Handle::current().block_on(answer.acquire());
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(vec![([192, 0, 2, 1], 0).into()])
        });
        let names = (0..3 * MAX_CONCURRENT).map(|n| lookup.look_up(format!("agent-{n}.example")));
        let meanwhile = async {
            let all = started.acquire_many(u32::try_from(MAX_CONCURRENT).unwrap()).await;
            assert!(all.is_ok());
            assert_eq!(spawn_blocking(|| "stored").await.unwrap(), "stored");
            answers.close();
        };
        runtime.block_on(async {
            timeout(Duration::from_mins(1), join(join_all(names), meanwhile)).await.unwrap();
        });
        assert_eq!(most.load(Ordering::SeqCst), MAX_CONCURRENT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_could_not_be_looked_up_is_not_one_without_an_answer() {
        let lookup = Lookup::with(|_| Ok(Vec::new()));
        let others =
            lookup.threads.clone().acquire_many_owned(u32::try_from(MAX_CONCURRENT).unwrap()).await.unwrap();
        let error = lookup.look_up("agent.example".to_owned()).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::AGAIN.raw_os_error()));
        drop(others);
        assert!(lookup.look_up("agent.example".to_owned()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_got_its_thread_late_is_not_one_without_an_answer() {
        let again = Some(Errno::AGAIN.raw_os_error());
        for (wait, expected) in
            [(Duration::ZERO, None), (TIMEOUT.saturating_sub(Duration::from_millis(100)), again)]
        {
            let (end, never) = mpsc::channel::<()>();
            let begun = Arc::new(Semaphore::new(0));
            let (begins, never) = (begun.clone(), Mutex::new(never));
            let lookup = Lookup::with(move |_| {
                begins.add_permits(1);
                let _ = never.lock().recv();
                Ok(Vec::new())
            });
            let all = u32::try_from(MAX_CONCURRENT).unwrap();
            let others = lookup.threads.clone().acquire_many_owned(all).await.unwrap();
            // The name is asked first.
            let name = lookup.look_up("agent.example".to_owned());
            let meanwhile = async {
                advance(wait).await;
                drop(others);
                assert!(begun.acquire().await.is_ok());
                advance(TIMEOUT.saturating_sub(wait) + Duration::from_millis(10)).await;
            };
            let (found, ()) = join(name, meanwhile).await;
            assert_eq!(found.unwrap_err().raw_os_error(), expected, "{wait:?}");
            drop(end);
        }
    }

    #[tokio::test]
    async fn an_address_needs_no_lookup() {
        let lookup = Lookup::with(|_| Err(io::ErrorKind::NotFound.into()));
        for (url, address) in [
            ("http://192.0.2.1:9/health", "192.0.2.1:9"),
            ("http://[2001:db8::1]/health", "[2001:db8::1]:80"),
        ] {
            assert_eq!(lookup.addresses_of(url).await, [address.parse::<SocketAddr>().unwrap()]);
        }
        assert!(lookup.addresses_of("http://agent.example/").await.is_empty());
    }
}
