//! Service manager notifications (`sd_notify`, DOMAIN 9), including the watchdog.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Looks up an environment variable set by the service manager.
pub type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The notification socket of the service manager, if there is one.
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl ServiceManager {
    /// Uses the socket in `NOTIFY_SOCKET`: a path, or an abstract name after `@`.
    pub fn new(variable: Variable<'_>) -> Self {
        let name = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let connect = |name: OsString| {
            let address = match name.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(&name)?,
            };
            let socket = UnixDatagram::unbound()?;
            // A service manager that does not read must not block the program.
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>((socket, address))
        };
        let socket = name.and_then(|name| {
            connect(name).inspect_err(|error| tracing::warn!(%error, "cannot use NOTIFY_SOCKET")).ok()
        });
        Self { socket }
    }

    /// Reports readiness, with the one-line status `what`.
    pub fn ready(&self, what: &str) {
        self.notify(&format!("READY=1\nSTATUS={what}\n"));
    }

    /// Reports that the configuration is being reloaded; [`ready`](Self::ready) follows.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading the configuration\n"));
    }

    /// Reports that the program runs and waits, so that nothing waits for its start; [`ready`](Self::ready) follows. Keeps the
    /// watchdog quiet.
    pub fn waiting(&self) {
        self.notify("READY=1\nWATCHDOG=1\n");
    }

    /// Reports a one-line status without any change of state, for example what the start waits for.
    pub fn status(&self, what: &str) {
        self.notify(&format!("STATUS={}\n", what.replace('\n', " ")));
    }

    fn notify(&self, state: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::debug!(%error, "cannot notify the service manager");
        }
    }
}

/// The watchdog timeout that the service manager has set for this process.
pub fn watchdog(variable: Variable<'_>) -> Option<Duration> {
    let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
    let ours =
        variable("WATCHDOG_PID").is_none() || number("WATCHDOG_PID") == Some(u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|usec| ours && *usec > 0).map(Duration::from_micros)
}

/// The watchdog task: sends a keep-alive at half of `timeout`, each only after `probe` has completed. Without a timeout it sends
/// none. Reports `STOPPING=1` on shutdown.
pub async fn watchdog_loop<P: Future<Output = ()>>(
    manager: Arc<ServiceManager>,
    timeout: Option<Duration>,
    probe: impl Fn() -> P,
    stop: CancellationToken,
) {
    let keep_alive = async {
        let Some(timeout) = timeout else { return std::future::pending().await };
        loop {
            probe().await;
            manager.notify("WATCHDOG=1\n");
            tokio::time::sleep(timeout / 2).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = keep_alive => {}
    }
    // The last keep-alive, to cover the time that the shutdown takes.
    manager.notify("STOPPING=1\nWATCHDOG=1\nSTATUS=stopping\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abstract_socket_works_and_a_missing_socket_is_not_an_error() {
        let name = format!("evenkeel-test-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let manager = ServiceManager::new(&|_| Some(format!("@{name}").into()));
        manager.ready("watching 3 services");
        manager.reloading();
        let mut buffer = [0; 200];
        let mut received = || {
            let n = listener.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..n].to_vec()).unwrap()
        };
        assert_eq!(received(), "READY=1\nSTATUS=watching 3 services\n");
        let reloading = received();
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
        manager.status("waits for the disk\nREADY=1");
        assert_eq!(received(), "STATUS=waits for the disk READY=1\n", "a text is no message of its own");
        manager.waiting();
        assert_eq!(received(), "READY=1\nWATCHDOG=1\n", "the status stays");
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
