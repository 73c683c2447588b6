//! Tells the service manager how the program is (`sd_notify`, DOMAIN 9), and that it lives, not only exists.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

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

    /// The program does what its configuration says, which is `what`, on one line.
    pub fn ready(&self, what: &str) {
        self.tell(&format!("READY=1\nSTATUS={what}\n"));
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

/// The task that gives signs of life: at half the time `within` which one is wanted, each only after `proof` has ended.
/// `None` when nobody wants any. Says when the program stops.
pub async fn watchdog_loop<P: Future<Output = ()>>(
    manager: Arc<ServiceManager>,
    within: Option<Duration>,
    proof: impl Fn() -> P,
    stop: CancellationToken,
) {
    let signs = async {
        let Some(within) = within else { return std::future::pending().await };
        loop {
            proof().await;
            manager.tell("WATCHDOG=1\n");
            tokio::time::sleep(within / 2).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = signs => {}
    }
    // The last sign, for the time that stopping takes.
    manager.tell("STOPPING=1\nWATCHDOG=1\nSTATUS=stopping\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abstract_socket_is_reached_and_a_socket_that_is_gone_is_no_fault() {
        let name = format!("evenkeel-test-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let manager = ServiceManager::new(&|_| Some(format!("@{name}").into()));
        manager.ready("watching 3 services");
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
        manager.ready("watching");
        ServiceManager::new(&|_| None).ready("watching");
        ServiceManager::new(&|_| Some("".into())).ready("watching");
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
