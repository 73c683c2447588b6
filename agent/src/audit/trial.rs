//! Test deliveries to the channels, and the machine name in entries.

use std::io::Write;
use std::time::Duration;

use evenkeel_common::clock::{Clock, SystemClock};
use evenkeel_common::wire::{AuditEntry, Kind, Level};

use super::channel::Channel;
use super::channels::{Push, Settings, WardenAnswer};
use crate::PROGRAM;
use crate::config::{Config, PushConfig};

/// Returns the machine name for entries sent to remote destinations: `push.machine_id`, or else the host name.
pub fn machine_name(config: &Config) -> String {
    if config.machine_id.is_empty() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        config.machine_id.clone()
    }
}

/// Probes all wardens concurrently: whether they answer and accept this agent's token. Each has `limit` to answer. The
/// wardens store nothing. The answers are in the order of the addresses.
pub async fn ask_wardens(config: &PushConfig, limit: Duration) -> Vec<Result<WardenAnswer, String>> {
    match Push::new(config) {
        Ok(push) => push.ask(limit).await,
        Err(why) => vec![Err(why); config.warden_urls.len()],
    }
}

/// The channels that receive a sample entry.
pub struct Trials {
    channels: Vec<Channel>,
    /// Channels that can't be used: name and cause.
    broken: Vec<(String, String)>,
    machine: String,
}

/// Selects the channel `only`, or all channels. A webhook can be given without the prefix `webhook/`.
pub fn trials(config: &Config, only: Option<&str>) -> Result<Trials, String> {
    let off = "it is off because of a fault in the configuration; see the warnings";
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
        let is_of =
            |name: &str, wanted: &str| name == wanted || (wanted == "smtp" && name.starts_with("smtp/"));
        let found = if names().any(|name| is_of(name, only)) { only } else { &webhook };
        channels.retain(|channel| is_of(channel.name(), found));
        broken.retain(|(name, _)| is_of(name, found));
    }
    match (only, channels.is_empty() && broken.is_empty()) {
        (_, false) => Ok(Trials { channels, broken, machine: machine_name(config) }),
        (Some(only), true) if known.is_empty() => {
            Err(format!("there is no channel \"{only}\"; no channels are configured"))
        }
        (Some(only), true) => Err(format!("there is no channel \"{only}\"; there are: {known}")),
        (None, true) => Err("neither a notification channel nor a push is configured".to_owned()),
    }
}

impl Trials {
    /// Sends a sample entry to each channel, ignoring its filter, and prints the answers. Returns whether all channels
    /// accepted it; a broken channel counts as a failure.
    pub async fn run(self, out: &mut (dyn Write + Send)) -> bool {
        let message = "this is a test: nothing has changed";
        let mut entry = AuditEntry::new(SystemClock.now(), PROGRAM, Kind::UPDATED, Level::Info, message);
        entry.machine = self.machine;
        entry.container = Some("sample-web-1".to_owned());
        entry.old_digest = Some(format!("sha256:{}", "0".repeat(64)));
        entry.new_digest = Some(format!("sha256:{}", "1".repeat(64)));
        entry.reason = Some("requested with test-notify".to_owned());
        let mut all_accepted = self.broken.is_empty();
        for (name, why) in self.broken {
            let _ = writeln!(out, "{name}: FAILED: {why}");
        }
        for channel in self.channels {
            let outcome = channel.send(&entry).await;
            all_accepted &= outcome.is_ok();
            // A failed write means that the output is closed; the exit code still reports the result.
            let _ = match outcome {
                Ok(answer) => writeln!(out, "{}: sent; the answer was: {answer}", channel.name()),
                Err(fault) => writeln!(out, "{}: FAILED: {fault}", channel.name()),
            };
        }
        all_accepted
    }
}
