//! The fleet's state as last read from the store, and the views that are served from it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evenkeel_common::wire::{
    CellVerdict, FailedDigest, FleetCell, FleetDecisions, FleetImage, FleetImages, InventoryImage, SeenDigest,
};
use jiff::{SignedDuration, Timestamp};

use super::decisions::{DECISIONS, Decisions};
use super::inventory::{self, Reported};
use super::lease::Leases;
use super::repository;
use super::retention::{self, Kept, Outdated};
use super::state::parse;
use super::verdict::{self, DigestRecord, Verdict};

/// Name of the value with the last poll of each agent without a URL.
pub const POLLS: &str = "polls";

/// Maximum number of digests of tags that one agent receives.
const MAX_SEEN: usize = 2000;

/// The complete state of the fleet.
#[derive(Debug, Default)]
pub struct View {
    revisions: HashMap<String, u64>,
    decisions: Decisions,
    /// By the name of their value.
    records: BTreeMap<String, DigestRecord>,
    /// By the name of their value.
    leases: BTreeMap<String, Leases>,
    /// By agent.
    inventories: BTreeMap<String, Reported>,
    /// By agent.
    polls: BTreeMap<String, Timestamp>,
    /// When a value was removed, by its name.
    gone: BTreeMap<String, Timestamp>,
}

impl View {
    /// Applies a value with its revision, unless a later one is known. A value that cannot be parsed counts as empty. Returns
    /// whether there may be something new for waiting agents.
    pub fn apply(&mut self, name: &str, revision: u64, value: &[u8]) -> bool {
        let known = self.revisions.entry(name.to_owned()).or_default();
        if revision <= *known {
            return false;
        }
        *known = revision;
        set(&mut self.gone, name, retention::marked_at(value));
        if name == DECISIONS {
            self.decisions = parse(value).unwrap_or_default();
        } else if let Some(agent) = name.strip_prefix(inventory::PREFIX) {
            set(&mut self.inventories, agent, parse(value));
        } else if name.starts_with("verdicts/") {
            set(&mut self.records, name, parse(value));
        } else {
            if name == POLLS {
                self.polls = parse(value).unwrap_or_default();
            } else if name.starts_with("leases/") {
                set(&mut self.leases, name, parse(value));
            }
            return false;
        }
        true
    }

    /// Returns the outdated values. `machines` are the configured agents.
    pub fn outdated(&self, machines: &[String], keep: SignedDuration, now: Timestamp) -> Vec<Outdated> {
        let kept = Kept {
            revisions: &|name| self.revisions.get(name).copied().unwrap_or_default(),
            records: &self.records,
            leases: &self.leases,
            inventories: &self.inventories,
            gone: &self.gone,
        };
        retention::outdated(&kept, machines, keep, now)
    }

    /// Forgets a value that was removed.
    pub fn forget(&mut self, name: &str) {
        self.gone.remove(name);
        self.revisions.remove(name);
    }

    /// Returns the revision of the decisions; 0 before the first. It is the same on every warden.
    pub fn revision(&self) -> u64 {
        self.revisions.get(DECISIONS).copied().unwrap_or(0)
    }

    /// Returns the revision of the latest verdict on a digest that an agent has found but does not run; 0 without one.
    pub fn verdicts_for(&self, agent: &str) -> u64 {
        let found = self.inventories.get(agent).into_iter().flat_map(|reported| &reported.inventory.images);
        let revision = |image: &InventoryImage| {
            let digest = image.available.as_deref().filter(|found| image.digest.as_deref() != Some(found))?;
            self.revisions.get(&verdict::name(repository(&image.image), digest)).copied()
        };
        found.filter_map(revision).max().unwrap_or(0)
    }

    /// Returns the decisions.
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// Returns the decisions in force that apply to an agent. The agent does not know its id on this warden, so the scope
    /// does not include it. `machines` are the configured agents; only their reports count.
    pub fn decisions_for(&self, agent: &str, machines: &[String], now: Timestamp) -> FleetDecisions {
        let mut found = self.decisions.at(self.revision(), now);
        found.freezes.retain(|freeze| freeze.scope.machine.as_deref().is_none_or(|only| only == agent));
        found.freezes.iter_mut().for_each(|freeze| freeze.scope.machine = None);
        found.failed =
            found.failed.into_iter().filter_map(|failed| self.withheld_from(agent, failed)).collect();
        found.seen = self.seen_by(agent, machines, now);
        found.verdicts = self.verdicts_for(agent);
        found
    }

    /// Returns a decision as it applies to an agent. The black box is omitted if the decisions omit it.
    fn withheld_from(&self, agent: &str, failed: FailedDigest) -> Option<FailedDigest> {
        let Some(record) = self.record(&failed.repository, &failed.digest) else { return Some(failed) };
        let own = record.withheld_from(agent)?;
        Some(FailedDigest { output: own.output.filter(|_| failed.output.is_some()), ..own })
    }

    /// Returns the digests that the tags of an agent's images refer to, and since when the fleet has known them.
    fn seen_by(&self, agent: &str, machines: &[String], now: Timestamp) -> Vec<SeenDigest> {
        let Some(own) = self.inventories.get(agent) else { return Vec::new() };
        let images: BTreeSet<&str> = own
            .inventory
            .images
            .iter()
            .flat_map(|image| [image.image.as_str(), inventory::named(image)])
            .collect();
        let reports = || machines.iter().filter_map(|machine| self.inventories.get(machine));
        let mut seen = Vec::new();
        for image in images {
            let mut first: BTreeMap<&str, Timestamp> = BTreeMap::new();
            for (digest, since) in reports().flat_map(|reported| reported.found_of(image)) {
                first.entry(digest).and_modify(|known| *known = since.min(*known)).or_insert(since);
            }
            seen.extend(first.into_iter().map(|(digest, since)| SeenDigest {
                image: image.to_owned(),
                digest: digest.to_owned(),
                seconds_ago: u64::try_from(now.duration_since(since).as_secs()).unwrap_or(0),
            }));
        }
        seen.truncate(MAX_SEEN);
        seen
    }

    /// Returns a machine's report.
    pub fn inventory(&self, agent: &str) -> Option<&Reported> {
        self.inventories.get(agent)
    }

    /// Returns the verdicts on a digest.
    pub fn record(&self, repository: &str, digest: &str) -> Option<&DigestRecord> {
        self.records.get(&verdict::name(repository, digest))
    }

    /// Returns when an agent last polled.
    pub fn last_poll(&self, agent: &str) -> Option<Timestamp> {
        self.polls.get(agent).copied()
    }

    /// Returns the number of leases in force.
    pub fn live_leases(&self, now: Timestamp) -> usize {
        let of = |name: &str, leases: &Leases| {
            let repository = name.strip_prefix("leases/").unwrap_or(name);
            let held = leases.held.iter();
            held.filter(|lease| lease.is_live(self.record(repository, &lease.digest), now)).count()
        };
        self.leases.iter().map(|(name, leases)| of(name, leases)).sum()
    }

    /// Returns the images of these machines.
    pub fn images(&self, machines: Vec<String>, now: Timestamp) -> FleetImages {
        let FleetDecisions { revision, freezes, failed, .. } = self.decisions.at(self.revision(), now);
        let mut images: BTreeMap<&str, Vec<FleetCell>> = BTreeMap::new();
        for machine in &machines {
            let Some(reported) = self.inventories.get(machine) else { continue };
            let mut sorted: Vec<&InventoryImage> = reported.inventory.images.iter().collect();
            sorted.sort_by(|a, b| a.service.cmp(&b.service));
            for image in sorted {
                images.entry(repository(&image.image)).or_default().push(FleetCell {
                    machine: machine.clone(),
                    ring: reported.inventory.ring,
                    reported: reported.at,
                    image: image.clone(),
                    verdict: self.verdict(machine, image, now),
                });
            }
        }
        let images = images
            .into_iter()
            .map(|(repository, cells)| FleetImage { repository: repository.to_owned(), cells })
            .collect();
        FleetImages { revision, machines, freezes, failed, images }
    }

    /// Returns a machine's latest verdict on the available digest if it is trying or has tried that, otherwise on the running
    /// one.
    fn verdict(&self, agent: &str, image: &InventoryImage, now: Timestamp) -> Option<CellVerdict> {
        let of = repository(&image.image);
        let word = |digest: &str| {
            let record = self.record(of, digest);
            let leases = self.leases.get(&super::lease::name(of));
            let is_trying = leases.is_some_and(|leases| {
                leases.held.iter().any(|lease| {
                    lease.agent == agent
                        && lease.service == image.service
                        && lease.digest == digest
                        && lease.is_live(record, now)
                })
            });
            if is_trying {
                return Some(CellVerdict::Trying);
            }
            Some(match record?.agents.get(agent)?.verdict {
                Verdict::Proven => CellVerdict::Proven,
                Verdict::Failed => CellVerdict::Failed,
            })
        };
        let proven = || image.proven_at.map(|_| CellVerdict::Proven);
        let available = image.available.as_deref().and_then(word);
        available.or_else(|| image.digest.as_deref().and_then(word)).or_else(proven)
    }
}

fn set<T>(values: &mut BTreeMap<String, T>, key: &str, value: Option<T>) {
    match value {
        Some(value) => drop(values.insert(key.to_owned(), value)),
        None => drop(values.remove(key)),
    }
}

/// Renders the images as CSV. A cell that a spreadsheet would interpret as a formula starts with an apostrophe.
pub fn csv(images: &FleetImages) -> String {
    let mut text = String::from(
        "repository,machine,ring,service,image,digest,proven_at,available,behind_since,blocked,gate,why,verdict,reported\r\n",
    );
    let field = |value: &str| {
        let guard = if value.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
        format!("\"{guard}{}\"", value.replace('"', "\"\""))
    };
    let time = |time: Option<Timestamp>| time.map(|time| time.to_string()).unwrap_or_default();
    for (repository, cell) in
        images.images.iter().flat_map(|image| image.cells.iter().map(|cell| (&image.repository, cell)))
    {
        let image = &cell.image;
        let word = |text: &Option<String>| text.clone().unwrap_or_default();
        let verdict = match cell.verdict {
            Some(CellVerdict::Trying) => "trying",
            Some(CellVerdict::Proven) => "proven",
            Some(CellVerdict::Failed) => "failed",
            None => "",
        };
        let row = [
            repository.clone(),
            cell.machine.clone(),
            cell.ring.to_string(),
            image.service.clone(),
            image.image.clone(),
            word(&image.digest),
            time(image.proven_at),
            word(&image.available),
            time(image.behind_since),
            word(&image.blocked),
            word(&image.gate),
            word(&image.why),
            verdict.to_owned(),
            cell.reported.to_string(),
        ];
        text.push_str(&row.map(|value| field(&value)).join(","));
        text.push_str("\r\n");
    }
    text
}
