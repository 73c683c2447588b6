//! The fleet's state as last read from the store, and the views that are served from it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evenkeel_common::telemetry::is_harmful;
use evenkeel_common::wire::{
    CellVerdict, FailedDigest, FleetCell, FleetDecisions, FleetImage, FleetImages, Freeze, InventoryImage,
    SeenDigest,
};
use jiff::{SignedDuration, Timestamp};

use super::decisions::{DECISIONS, Decisions};
use super::inventory::{self, Reported};
use super::lease::{self, Leases};
use super::repository;
use super::retention::{self, Kept, Outdated, Reduced};
use super::state::parse;
use super::verdict::{self, DigestRecord, Verdict};

/// Name of the value with the last poll of each agent without a URL.
pub const POLLS: &str = "polls";

/// An agent without a URL that has not polled for this long is offline (DECISIONS 8).
pub const NO_POLL: SignedDuration = SignedDuration::from_secs(120);

/// Maximum number of digests of tags that one agent receives.
const MAX_SEEN: usize = 2000;
/// Approximate size limit of the decisions that an agent receives, in bytes. Earlier agents read 4 MiB.
const MAX_DECISIONS: usize = 1024 * 1024;
/// Approximate size limit of the map, in bytes: clients read 16 MiB (DECISIONS 8).
const MAX_MAP: usize = 14 * 1024 * 1024;
/// Size of a JSON object of either without its texts.
const OBJECT: usize = 160;

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
        } else if name.starts_with(verdict::PREFIX) {
            set(&mut self.records, name, parse(value));
        } else {
            if name == POLLS {
                self.polls = parse(value).unwrap_or_default();
            } else if name.starts_with(lease::PREFIX) {
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

    /// Returns the values with parts of machines that are no longer configured, or with more of one machine than is kept.
    pub fn reduced(&self, is_configured: &dyn Fn(&str) -> bool) -> Vec<Reduced> {
        let revisions = |name: &str| self.revisions.get(name).copied().unwrap_or_default();
        retention::reduced(&self.records, &self.leases, &self.inventories, is_configured, &revisions)
    }

    /// Reports whether a service has taken a lease and not released it, whether it is in force or not.
    pub fn has_lease(&self, agent: &str, service: &str, repository: &str, digest: &str) -> bool {
        let leases = self.leases.get(&lease::name(repository));
        leases.is_some_and(|leases| leases.held.iter().any(|lease| lease.is_of(agent, service, digest)))
    }

    /// Returns how many leases an agent has.
    pub fn leases_of(&self, agent: &str, now: Timestamp) -> usize {
        let of = |(name, leases): (&String, &Leases)| {
            self.live_of(name, leases, now).filter(|lease| lease.agent == agent).count()
        };
        self.leases.iter().map(of).sum()
    }

    /// Returns how many leases and trials of an agent are remembered, of all repositories.
    pub fn traces_of(&self, agent: &str) -> usize {
        self.leases.values().map(|leases| leases.traces_of(agent)).sum()
    }

    fn live_of<'a>(
        &'a self,
        name: &'a str,
        leases: &'a Leases,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a lease::Lease> {
        let repository = name.strip_prefix(lease::PREFIX).unwrap_or(name);
        leases.live(move |digest| self.record(repository, digest), now)
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
    ///
    /// The response is limited in size: freezes come first, then the digests of the agent's own images, then the others.
    pub fn decisions_for(&self, agent: &str, machines: &[String], now: Timestamp) -> FleetDecisions {
        let mut found = self.decisions.at(self.revision(), now);
        found.freezes.retain(|freeze| freeze.scope.machine.as_deref().is_none_or(|only| only == agent));
        found.freezes.iter_mut().for_each(|freeze| freeze.scope.machine = None);
        let mut failed: Vec<FailedDigest> =
            found.failed.into_iter().filter_map(|failed| self.withheld_from(agent, failed)).collect();
        let own: BTreeSet<&str> =
            self.inventories.get(agent).into_iter().flat_map(Reported::repositories).collect();
        failed.sort_by_key(|failed| !own.contains(failed.repository.as_str()));
        let mut room = MAX_DECISIONS;
        room = room.saturating_sub(found.freezes.iter().map(size_of_freeze).sum());
        found.left_out += cut(&mut failed, &mut room, size_of_failed);
        let mut seen = self.seen_by(agent, machines, now);
        found.left_out += cut(&mut seen, &mut room, |seen| OBJECT + seen.image.len() + seen.digest.len());
        (found.failed, found.seen) = (failed, seen);
        found.verdicts = self.verdicts_for(agent);
        found
    }

    /// Returns a decision as it applies to an agent. Black boxes may contain secrets of the machine, so others do not get
    /// them.
    fn withheld_from(&self, agent: &str, failed: FailedDigest) -> Option<FailedDigest> {
        let decided = match self.record(&failed.repository, &failed.digest) {
            Some(record) => record.withheld_from(agent)?,
            None => failed,
        };
        Some(FailedDigest { output: None, ..decided })
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

    /// Returns the reports of all machines, whether they are configured or not, by agent.
    pub fn reports(&self) -> impl Iterator<Item = (&str, &Reported)> {
        self.inventories.iter().map(|(agent, reported)| (agent.as_str(), reported))
    }

    /// Returns the agents that have reported lately.
    pub fn reporting(&self, now: Timestamp) -> impl Iterator<Item = &str> {
        self.reports()
            .filter(move |(_, reported)| inventory::is_recent(reported.at, now))
            .map(|(agent, _)| agent)
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
        self.leases.iter().map(|(name, leases)| self.live_of(name, leases, now).count()).sum()
    }

    /// Returns the images of these machines, and the withheld digests that matter to them.
    pub fn images(&self, machines: Vec<String>, now: Timestamp) -> FleetImages {
        let FleetDecisions { revision, freezes, failed, .. } = self.decisions.at(self.revision(), now);
        let failed = self.in_use(failed, &machines);
        let mut left_out = 0;
        let least = self.least_share(&machines);
        let mut images: BTreeMap<&str, Vec<FleetCell>> = BTreeMap::new();
        for machine in &machines {
            let Some(reported) = self.inventories.get(machine) else { continue };
            let mut sorted: Vec<&InventoryImage> = reported.inventory.images.iter().collect();
            if let Some(mut room) = least {
                sorted.sort_by_key(|image| is_up_to_date(image));
                left_out += cut(&mut sorted, &mut room, |image| size_of_cell(machine, image));
            }
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
        FleetImages { revision, machines, freezes, failed, images, left_out, store: None }
    }

    /// Returns the digests that one of these machines runs, may run or has blocked. The others stay withheld, but there is
    /// nothing to do about them. An agent reports as soon as it finds a digest, so one that returns to a tag is listed again.
    fn in_use(&self, mut failed: Vec<FailedDigest>, machines: &[String]) -> Vec<FailedDigest> {
        if failed.is_empty() {
            return failed;
        }
        let reports = machines.iter().filter_map(|machine| self.inventories.get(machine));
        let names: BTreeSet<String> = reports.flat_map(retention::digests).collect();
        failed.retain(|failed| names.contains(&verdict::name(&failed.repository, &failed.digest)));
        failed
    }

    /// Returns the number of withheld digests that matter to those of these machines that still report.
    pub fn withheld(&self, machines: &[String], now: Timestamp) -> usize {
        let is_recent = |machine: &&String| {
            self.inventory(machine).is_some_and(|reported| inventory::is_recent(reported.at, now))
        };
        let machines: Vec<String> = machines.iter().filter(is_recent).cloned().collect();
        self.in_use(self.decisions.failed.clone(), &machines).len()
    }

    /// Returns the size, in bytes, that the images of one machine may take in the map; `None` if all fit. Machines that
    /// need less leave the rest to the others.
    fn least_share(&self, machines: &[String]) -> Option<usize> {
        let size = |machine: &String| {
            let images = self.inventories.get(machine).into_iter().flat_map(|own| &own.inventory.images);
            images.map(|image| size_of_cell(machine, image)).sum::<usize>()
        };
        let mut sizes: Vec<usize> = machines.iter().map(size).collect();
        if sizes.iter().sum::<usize>() <= MAX_MAP {
            return None;
        }
        sizes.sort_unstable();
        let (mut room, mut count) = (MAX_MAP, sizes.len());
        for size in sizes {
            if size > room / count {
                break;
            }
            (room, count) = (room - size, count - 1);
        }
        Some(room / count.max(1))
    }

    /// Returns a machine's latest verdict on the available digest if it is trying or has tried that, otherwise on the running
    /// one.
    fn verdict(&self, agent: &str, image: &InventoryImage, now: Timestamp) -> Option<CellVerdict> {
        let of = repository(&image.image);
        let word = |digest: &str| {
            let record = self.record(of, digest);
            let leases = self.leases.get_key_value(&lease::name(of));
            let is_trying = leases.is_some_and(|(name, leases)| {
                self.live_of(name, leases, now).any(|lease| lease.is_of(agent, &image.service, digest))
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

/// Removes what exceeds the size from the end of a list. Returns how many.
fn cut<T>(list: &mut Vec<T>, room: &mut usize, size: impl Fn(&T) -> usize) -> u64 {
    let before = list.len();
    let kept = list.iter().take_while(|item| {
        let size = size(item);
        let fits = size <= *room;
        *room = if fits { *room - size } else { 0 };
        fits
    });
    let kept = kept.count();
    list.truncate(kept);
    (before - kept) as u64
}

/// Returns the size of a text in JSON at most: of its characters, only control characters take six bytes.
fn size_of_text(text: &str) -> usize {
    text.len() + text.bytes().filter(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\')).count() * 5
}

fn size_of_freeze(freeze: &Freeze) -> usize {
    let scope = [&freeze.scope.machine, &freeze.scope.image];
    let texts = [&freeze.id, &freeze.reason, &freeze.by].into_iter().chain(scope.into_iter().flatten());
    OBJECT + texts.chain(&freeze.agents).map(|text| size_of_text(text) + 4).sum::<usize>()
}

fn size_of_failed(failed: &FailedDigest) -> usize {
    let more = [&failed.reason, &failed.output];
    let texts = [&failed.repository, &failed.digest].into_iter().chain(more.into_iter().flatten());
    OBJECT + texts.chain(&failed.agents).map(|text| size_of_text(text) + 4).sum::<usize>()
}

fn size_of_cell(machine: &str, image: &InventoryImage) -> usize {
    let more =
        [&image.digest, &image.available, &image.available_image, &image.blocked, &image.gate, &image.why];
    let texts = [&image.service, &image.image].into_iter().chain(more.into_iter().flatten());
    OBJECT + machine.len() + texts.map(|text| size_of_text(text) + 20).sum::<usize>()
}

/// Reports whether there is nothing to see about an image in the map.
fn is_up_to_date(image: &InventoryImage) -> bool {
    image.available.is_none() && image.blocked.is_none() && image.gate.is_none() && image.digest.is_some()
}

/// With what a spreadsheet begins a formula, also in full width.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}'];

/// Quotes a cell of a CSV file. What a spreadsheet would take for a formula begins with an apostrophe; control characters,
/// which could begin a new line, become spaces.
fn field(value: &str) -> String {
    let plain: String = value.chars().map(|c| if is_harmful(c) { ' ' } else { c }).collect();
    let guard = if plain.trim_start().starts_with(FORMULA) { "'" } else { "" };
    format!("\"{guard}{}\"", plain.replace('"', "\"\""))
}

/// Renders the images as CSV.
pub fn csv(images: &FleetImages) -> String {
    let mut text = String::from(
        "repository,machine,ring,service,image,digest,proven_at,available,behind_since,blocked,gate,why,verdict,reported\r\n",
    );
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

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::Inventory;

    use super::*;
    use crate::fleet::state::bytes;
    use crate::fleet::testing::at;

    #[test]
    fn a_machine_that_no_longer_reports_counts_no_digest_as_withheld() {
        let failed: FailedDigest = serde_json::from_value(serde_json::json!({
            "repository": "r/web", "digest": "bad", "agents": ["a"], "since": at(0),
        }))
        .unwrap();
        let decisions = Decisions { failed: vec![failed], ..Decisions::default() };
        let image = serde_json::from_str(r#"{"service":"web","image":"r/web:1","blocked":"bad"}"#).unwrap();
        let report = Reported::new(None, Inventory { ring: 0, images: vec![image] }, at(0));
        let mut view = View::default();
        view.apply(DECISIONS, 1, &bytes(&decisions));
        view.apply(&inventory::name("a"), 2, &bytes(&report));
        let machines = ["a".to_owned()];
        let counted = |seconds| {
            let shown = view.images(machines.to_vec(), at(seconds)).failed;
            (view.withheld(&machines, at(seconds)), shown.len())
        };
        assert_eq!(counted(24 * 3600 - 1), (1, 1));
        assert_eq!(counted(24 * 3600), (0, 1), "the map still shows it");
    }

    #[test]
    fn a_cell_is_neither_a_formula_nor_several_cells() {
        for (value, cell) in [
            ("web", "\"web\""),
            ("a \"b\"", "\"a \"\"b\"\"\""),
            ("=1+1", "\"'=1+1\""),
            ("\n=1+1", "\"' =1+1\""),
            ("\t-1", "\"' -1\""),
            ("\u{ff1d}1", "\"'\u{ff1d}1\""),
            (" @x", "\"' @x\""),
            ("a\r\nb,c", "\"a  b,c\""),
            ("a\u{202e}b", "\"a b\""),
        ] {
            assert_eq!(field(value), cell, "{value:?}");
        }
    }
}
