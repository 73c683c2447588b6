//! Metrics of the fleet: machines that are behind, freezes and withheld digests, and answers to agents.

use std::collections::BTreeMap;

use evenkeel_common::metrics::{family, single};
use evenkeel_common::wire::FleetImages;
use jiff::Timestamp;
use prometheus::proto::MetricFamily;

/// The current state of the fleet.
pub(super) struct FleetFigures {
    pub(super) images: FleetImages,
    pub(super) leases: usize,
    /// Requests answered with go, wait, and no.
    pub(super) answers: [u64; 3],
    /// Long polls in progress.
    pub(super) polls: usize,
    pub(super) now: Timestamp,
}

impl FleetFigures {
    /// Returns all metrics of the fleet.
    pub(super) fn families(&self) -> Vec<MetricFamily> {
        // For each image, how many machines are behind, and the longest time one has been behind.
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
                "Longest time that a machine has been behind with an image; 0 if none is behind.",
                behind.iter().map(|(image, (_, seconds))| (of(image), *seconds)).collect::<Vec<_>>(),
            ),
            family(
                "evenkeel_warden_behind_machines",
                "Machines that do not run the image that the registry has.",
                behind.iter().map(|(image, (count, _))| (of(image), *count)).collect::<Vec<_>>(),
            ),
            single("evenkeel_warden_freezes", "Freezes in force.", self.images.freezes.len() as f64),
            single(
                "evenkeel_warden_withheld_digests",
                "Digests that failed on more machines than they were proven on, and that a machine runs, is offered or has blocked.",
                self.images.failed.len() as f64,
            ),
            single(
                "evenkeel_warden_leases",
                "Services that are currently trying a digest.",
                self.leases as f64,
            ),
            single("evenkeel_warden_polls", "Long polls of agents in progress.", self.polls as f64),
            family(
                "evenkeel_warden_answers_total",
                "Answers to agents that asked whether they may start a deployment.",
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
