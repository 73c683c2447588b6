//! Subcommands for a warden: the fleet's images, freezes (DECISIONS 8 and 11).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{FleetImages, FreezeReply, FreezeRequest, FreezeScope, ThawReply, ThawRequest};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};

use super::answer::show;
use super::client::{Client, ClientError};
use super::fleet_views;
use super::remote::answered;
use super::terminal::Terminal;

/// Variable with the warden's `api.token`. There is no flag for it: arguments are visible to every user of the machine.
const TOKEN: &str = "EVENKEEL_TOKEN";
/// Longest freeze that a warden accepts (DECISIONS 8).
const LONGEST: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The address and token of the warden, and the output format.
#[derive(Debug, Clone, clap::Args)]
pub struct WardenTarget {
    /// URL of the warden [default: `push.warden_url` of the configuration file]
    #[arg(long, value_name = "URL")]
    warden: Option<String>,
    /// File with the warden's api.token [default: the token in the variable `EVENKEEL_TOKEN`]
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// Print the API's JSON
    #[arg(long)]
    json: bool,
}

/// Requests to a warden.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum FleetTask {
    /// Show which machine of the fleet runs which image; exits with 1 if a digest has failed
    Fleet {
        /// Warden and output format
        #[command(flatten)]
        target: WardenTarget,
    },
    /// Freeze all updates of the fleet, or of a part of it, for some time
    Freeze(FreezeArgs),
    /// End a freeze early
    Thaw {
        /// Only the freeze with this id, as shown by `fleet` [default: all]
        id: Option<String>,
        /// Warden and output format
        #[command(flatten)]
        target: WardenTarget,
    },
}

/// Reason, duration and scope of a freeze.
#[derive(Debug, Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("end").required(true).args(["until", "length"]))]
pub struct FreezeArgs {
    /// Reason, shown wherever the freeze is shown
    reason: String,
    /// End time: 2026-01-02T03:04:05Z, or in this machine's time zone 2026-01-02T03:04
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    /// Duration, at most 30 days: 90m, 4h, 2d
    #[arg(long = "for", id = "length", value_name = "DURATION", value_parser = length)]
    length: Option<SignedDuration>,
    /// Only the agent with this id
    #[arg(long, value_name = "ID")]
    machine: Option<String>,
    /// Only this image, with any tag
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Warden and output format
    #[command(flatten)]
    target: WardenTarget,
}

/// Parses a timestamp, or a local time without zone.
fn time(text: &str) -> Result<Timestamp, String> {
    let local = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::system()).ok();
    let parsed = text.parse().ok().or_else(|| local().map(|zoned| zoned.timestamp()));
    parsed.ok_or_else(|| "allowed: 2026-01-02T03:04:05Z or 2026-01-02T03:04".to_owned())
}

fn length(text: &str) -> Result<SignedDuration, String> {
    let span = text.parse::<Span>().ok();
    let length = span.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()).ok());
    length
        .filter(|length| *length > SignedDuration::ZERO && *length <= LONGEST)
        .ok_or_else(|| "allowed: 1s to 30d, for example 90m, 4h, 2d".to_owned())
}

/// Sends the request and prints the answer. Exit codes: 0: fine; 1: bad news, or rejected; 2: usage; 69: no warden answers;
/// 78: no warden or no token is configured.
pub(super) fn perform(task: &FleetTask, config: &Path) -> ExitCode {
    answered(ask(task, config))
}

/// Truncates to whole seconds: the end of a freeze is shown to users.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Returns whether the answer is good news.
async fn ask(task: &FleetTask, config: &Path) -> Result<bool, ClientError> {
    let (terminal, now) = (Terminal::of_process(), Timestamp::now());
    match task {
        FleetTask::Fleet { target } => {
            let map: FleetImages = target.client(config)?.get(&["fleet", "images"]).await?;
            show(target.json, &map, || fleet_views::map(&map, terminal, now));
            Ok(map.failed.is_empty() && map.store.is_none())
        }
        FleetTask::Freeze(args) => {
            let request = FreezeRequest {
                reason: args.reason.clone(),
                until: args
                    .until
                    .or_else(|| whole_seconds(now).checked_add(args.length?).ok())
                    .unwrap_or(now),
                scope: FreezeScope { machine: args.machine.clone(), image: args.image.clone() },
            };
            let reply: FreezeReply = args.target.client(config)?.post_json(&["freeze"], &request).await?;
            show(args.target.json, &reply, || format!("frozen until {}, id {}\n", reply.until, reply.id));
            Ok(true)
        }
        FleetTask::Thaw { id, target } => {
            let request = ThawRequest { id: id.clone() };
            let reply: ThawReply = target.client(config)?.post_json(&["thaw"], &request).await?;
            show(target.json, &reply, || format!("{}\n", reply.status.replace('_', " ")));
            // A freeze given by its id is expected to exist.
            Ok(id.is_none() || reply.status == "thawed")
        }
    }
}

impl WardenTarget {
    fn client(&self, config: &Path) -> Result<Client, ClientError> {
        Client::of_warden(self.warden.as_deref(), self.token()?, config)
    }

    fn token(&self) -> Result<Secret, ClientError> {
        let text = match &self.token_file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| ClientError::Setup(format!("--token-file {}: {error}", path.display())))?,
            None => std::env::var(TOKEN).unwrap_or_default(),
        };
        let token = Secret::new(text.trim());
        if token.is_empty() {
            let place = self.token_file.as_ref().map(|path| format!("{} is empty", path.display()));
            let place = place.unwrap_or_else(|| format!("{TOKEN} is not set"));
            return Err(ClientError::Setup(format!(
                "{place}; allowed: the warden's api.token in the variable {TOKEN} or in a file given by --token-file"
            )));
        }
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freeze_lasts_from_a_second_to_thirty_days() {
        for (text, seconds) in [
            ("1s", 1),
            ("90m", 5400),
            ("4h", 14_400),
            ("2d", 172_800),
            ("30d", 2_592_000),
            ("1w 1h", 608_400),
        ] {
            assert_eq!(length(text), Ok(SignedDuration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0s", "-1h", "31d", "4", "1 month", "soon"] {
            assert!(length(text).unwrap_err().contains("allowed: 1s to 30d"), "{text}");
        }
    }

    #[test]
    fn an_end_is_an_instant_or_a_local_time() {
        assert_eq!(time("2026-01-02T03:04:05Z").unwrap().to_string(), "2026-01-02T03:04:05Z");
        assert!(time("2026-01-02T03:04").is_ok() && time("2026-01-02 03:04").is_ok());
        for text in ["", "tomorrow", "2026-13-01T00:00"] {
            assert!(time(text).unwrap_err().contains("allowed: "), "{text}");
        }
    }
}
