//! Test deliveries to the channels, and the machine name that entries carry.

use std::io::Write;
use std::time::Duration;

use evenkeel_common::clock::{Clock, SystemClock};
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::SignedDuration;

use super::channel::{Channel, Settings};
use super::channels::Push;
use crate::PROGRAM;
use crate::config::{Config, PushConfig};

/// The machine name in entries that leave this machine: `push.machine_id`, else the host name.
pub fn machine_name(config: &Config) -> String {
    let configured = config.push.as_ref().map(|push| push.machine_id.as_str()).unwrap_or_default();
    if configured.is_empty() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        configured.to_owned()
    }
}

/// What a warden answers to an agent that has nothing to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WardenAnswer {
    /// Status code of `GET /health`.
    pub health: u16,
    /// Whether its body is JSON with a "status", as every warden's is.
    pub has_status: bool,
    /// Whether it says that its store is away.
    pub store_is_away: bool,
    /// Status code of `POST /ingest` without an entry: 400 where a warden knows the token, 401 where it does not.
    pub ingest: u16,
    /// Status code of `GET /fleet` with a revision that is none: 400 where the token is right and the warden decides for a
    /// fleet, 401 or 404 where not.
    pub fleet: u16,
    /// By how much this machine's clock is ahead of the warden's (`Date`), where it says so.
    pub clock_ahead: Option<SignedDuration>,
}

/// Asks all wardens at once whether they are there and know this agent's token; each has `limit` to answer. Nothing is
/// stored there. The answers are in the order of the addresses.
pub async fn ask_wardens(config: &PushConfig, limit: Duration) -> Vec<Result<WardenAnswer, String>> {
    match Push::new(config) {
        Ok(push) => push.ask(limit).await,
        Err(why) => vec![Err(why); config.warden_urls.len()],
    }
}

/// Channels that are to get a sample entry.
pub struct Trials {
    channels: Vec<Channel>,
    /// Those that can't get any: name and cause.
    broken: Vec<(String, String)>,
    machine: String,
}

/// The channel `only`, or all of them. A webhook's name stands for itself.
pub fn trials(config: &Config, only: Option<&str>) -> Result<Trials, String> {
    let off = "it is off by a fault in the configuration: see the warnings";
    let mut broken: Vec<(String, String)> =
        config.faulty_channels.iter().map(|name| (name.clone(), off.to_owned())).collect();
    let mut channels = Vec::new();
    for settings in Settings::of(config) {
        match settings.open() {
            Ok(channel) => channels.push(channel),
            Err(why) => broken.push((settings.name(), why)),
        }
    }
    let names = || channels.iter().map(Channel::name).chain(broken.iter().map(|(name, _)| name.as_str()));
    let known = names().collect::<Vec<_>>().join(", ");
    if let Some(only) = only {
        let webhook = format!("webhook/{only}");
        let found = if names().any(|name| name == only) { only } else { &webhook };
        channels.retain(|channel| channel.name() == found);
        broken.retain(|(name, _)| name == found);
    }
    match (only, channels.is_empty() && broken.is_empty()) {
        (_, false) => Ok(Trials { channels, broken, machine: machine_name(config) }),
        (Some(only), true) if known.is_empty() => {
            Err(format!("there is no channel \"{only}\", nor any other"))
        }
        (Some(only), true) => Err(format!("there is no channel \"{only}\"; there are: {known}")),
        (None, true) => Err("no notification channel is configured, nor a push".to_owned()),
    }
}

impl Trials {
    /// Sends a sample entry to each, regardless of its filters, and prints the answers. Returns whether all accepted it;
    /// one that is broken does not.
    pub async fn run(self, out: &mut (dyn Write + Send)) -> bool {
        let message = "this is a test: nothing has changed";
        let mut entry = AuditEntry::new(SystemClock.now(), PROGRAM, Kind::UPDATED, Level::Info, message);
        entry.machine = self.machine;
        entry.container = Some("sample-web-1".to_owned());
        entry.old_digest = Some(format!("sha256:{}", "0".repeat(64)));
        entry.new_digest = Some(format!("sha256:{}", "1".repeat(64)));
        entry.reason = Some("asked for with test-notify".to_owned());
        let mut all_took_it = self.broken.is_empty();
        for (name, why) in self.broken {
            let _ = writeln!(out, "{name}: FAILED: {why}");
        }
        for channel in self.channels {
            let outcome = channel.send(&entry).await;
            all_took_it &= outcome.is_ok();
            // The reader is gone; the exit code still tells.
            let _ = match outcome {
                Ok(answer) => writeln!(out, "{}: sent; the answer was: {answer}", channel.name()),
                Err(fault) => writeln!(out, "{}: FAILED: {fault}", channel.name()),
            };
        }
        all_took_it
    }
}
