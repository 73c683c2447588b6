//! Tells the service manager how the program is (`sd_notify`, DOMAIN 9), and that it lives, not only exists.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::fleet::Fleet;

use super::worker::Command;

/// Variables as the service manager sets them.
pub type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The way to the service manager; there may be none.
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl ServiceManager {
    /// The one that `NOTIFY_SOCKET` names: a path, or an abstract name after `@`.
    pub fn new(variable: Variable<'_>) -> Self {
        let name = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let connect = |name: OsString| {
            let address = match name.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(&name)?,
            };
            let socket = UnixDatagram::unbound()?;
            // A service manager that does not read must not stop the program.
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>((socket, address))
        };
        let socket = name.and_then(|name| {
            connect(name).inspect_err(|error| tracing::warn!(%error, "NOTIFY_SOCKET can't be used")).ok()
        });
        Self { socket }
    }

    /// The program does what its configuration says.
    pub fn ready(&self, services: usize) {
        self.tell(&format!("READY=1\nSTATUS=watching {services} services\n"));
    }

    /// The configuration is being read again; [`ready`](Self::ready) follows.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reading the configuration again\n"));
    }

    fn tell(&self, state: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::debug!(%error, "the service manager could not be told");
        }
    }
}

/// The time in which the service manager wants a sign of life from this process.
pub fn watchdog(variable: Variable<'_>) -> Option<Duration> {
    let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
    let ours =
        variable("WATCHDOG_PID").is_none() || number("WATCHDOG_PID") == Some(u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|usec| ours && *usec > 0).map(Duration::from_micros)
}

/// The task that gives signs of life.
pub struct Watchdog {
    /// Whom to tell.
    pub manager: Arc<ServiceManager>,
    /// Who must be alive.
    pub fleet: Arc<Fleet>,
    /// Time in which a sign is wanted; `None` when nobody wants any.
    pub within: Option<Duration>,
}

impl Watchdog {
    /// Gives a sign at half that time, each only after every worker has answered. Says when the program stops.
    pub async fn run(self, stop: CancellationToken) {
        let signs = async {
            let Some(within) = self.within else { return std::future::pending().await };
            loop {
                self.round_trip().await;
                self.manager.tell("WATCHDOG=1\n");
                tokio::time::sleep(within / 2).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = signs => {}
        }
        // The last sign, for the time that stopping takes.
        self.manager.tell("STOPPING=1\nWATCHDOG=1\nSTATUS=stopping\n");
    }

    /// Ends when every worker has answered. One that is just being exchanged does not count.
    async fn round_trip(&self) {
        let ping = |worker: &super::worker::Handle| {
            let (reply, answer) = oneshot::channel();
            let _ = worker.inbox.send(Command::Ping(reply));
            answer
        };
        let answers: Vec<_> = self.fleet.workers().iter().map(ping).collect();
        join_all(answers).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abstract_socket_is_reached_and_a_socket_that_is_gone_is_no_fault() {
        let name = format!("evenkeel-test-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let manager = ServiceManager::new(&|_| Some(format!("@{name}").into()));
        manager.ready(3);
        manager.reloading();
        let mut buffer = [0; 200];
        let mut heard = || {
            let n = listener.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..n].to_vec()).unwrap()
        };
        assert_eq!(heard(), "READY=1\nSTATUS=watching 3 services\n");
        let reloading = heard();
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
        drop(listener);
        manager.ready(0);
        ServiceManager::new(&|_| None).ready(0);
        ServiceManager::new(&|_| Some("".into())).ready(0);
    }

    #[test]
    fn the_watchdog_is_for_this_process_only() {
        let with = |pid: Option<String>, usec: &'static str| {
            watchdog(&move |name| match name {
                "WATCHDOG_PID" => pid.clone().map(OsString::from),
                _ => Some(usec.into()),
            })
        };
        let second = Some(Duration::from_secs(1));
        assert_eq!(with(None, "1000000"), second);
        assert_eq!(with(Some(std::process::id().to_string()), "1000000"), second);
        assert_eq!(with(Some("1".into()), "1000000"), None);
        assert_eq!(with(None, "0"), None);
        assert_eq!(with(None, "soon"), None);
    }
}
