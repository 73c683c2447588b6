//! Metrics of the fleet: who is behind, what is held back, and how questions were answered.

use std::collections::BTreeMap;

use evenkeel_common::metrics::{family, single};
use evenkeel_common::wire::FleetImages;
use jiff::Timestamp;
use prometheus::proto::MetricFamily;

/// What is known of the fleet now.
pub(super) struct FleetFigures {
    pub(super) images: FleetImages,
    pub(super) leases: usize,
    /// Questions answered with go, wait, and no.
    pub(super) answers: [u64; 3],
    /// Long polls under way.
    pub(super) polls: usize,
    pub(super) now: Timestamp,
}

impl FleetFigures {
    /// All of them.
    pub(super) fn families(&self) -> Vec<MetricFamily> {
        // How many machines are behind with an image, and for how long the one that is most.
        let mut behind: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for image in &self.images.images {
            let (count, seconds) = behind.entry(image.repository.as_str()).or_default();
            let mut machines: Vec<&str> = Vec::new();
            for cell in &image.cells {
                let Some(since) = cell.image.behind_since else { continue };
                *seconds = seconds.max(self.now.duration_since(since).as_secs_f64());
                if !machines.contains(&cell.machine.as_str()) {
                    machines.push(&cell.machine);
                }
            }
            *count = machines.len() as f64;
        }
        vec![
            family(
                "evenkeel_warden_behind_seconds",
                "For how long the machine that is most behind with an image has been; 0 where none is.",
                behind.iter().map(|(image, (_, seconds))| (of(image), *seconds)).collect::<Vec<_>>(),
            ),
            family(
                "evenkeel_warden_behind_machines",
                "Machines that do not run what the registry has.",
                behind.iter().map(|(image, (count, _))| (of(image), *count)).collect::<Vec<_>>(),
            ),
            single("evenkeel_warden_freezes", "Freezes in force.", self.images.freezes.len() as f64),
            single(
                "evenkeel_warden_withheld_digests",
                "Digests that are withheld, since more machines failed than proved them.",
                self.images.failed.len() as f64,
            ),
            single("evenkeel_warden_leases", "Services that are trying a digest now.", self.leases as f64),
            single("evenkeel_warden_polls", "Agents that wait for decisions.", self.polls as f64),
            family(
                "evenkeel_warden_answers_total",
                "Answers to agents that asked whether they may begin.",
                ["go", "wait", "no"]
                    .into_iter()
                    .zip(self.answers)
                    .map(|(answer, count)| ([("answer", answer)], count as f64)),
            ),
        ]
    }
}

fn of<'a>(image: &&'a str) -> [(&'static str, &'a str); 1] {
    [("image", *image)]
}
