//! Metrics of the fleet: machines that are behind, freezes and withheld digests, and answers to agents.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::metrics::{family, single};
use evenkeel_common::wire::FleetImages;
use jiff::Timestamp;
use prometheus::proto::MetricFamily;

use crate::fleet::decisions::BY_FUSE;
use crate::fleet::inventory::is_recent;

/// How many images of one machine have series of their own: the first by name. The others are counted together, because a
/// series stays in a scraper's database, and a machine can report ever new names.
const MAX_NAMED: usize = 200;
/// The label of the others.
const OTHERS: &str = "other";

/// The machines that are behind with an image.
#[derive(Debug, Default, PartialEq)]
struct Behind<'a> {
    machines: BTreeSet<&'a str>,
    /// The longest time that one of them has been.
    seconds: f64,
}

/// The current state of the fleet.
pub(super) struct FleetFigures {
    pub(super) images: FleetImages,
    /// Withheld digests that matter to the machines that still report.
    pub(super) withheld: usize,
    pub(super) leases: usize,
    /// Requests answered with go, wait, and no.
    pub(super) answers: [u64; 3],
    /// Long polls in progress.
    pub(super) polls: usize,
    pub(super) now: Timestamp,
}

impl FleetFigures {
    /// Returns the machines that are behind, by image. One that no longer reports may be switched off, so it is not.
    fn behind(&self) -> BTreeMap<&str, Behind<'_>> {
        let mut behind: BTreeMap<&str, Behind<'_>> = BTreeMap::new();
        let mut named: BTreeMap<&str, usize> = BTreeMap::new();
        // They are sorted by name.
        for image in &self.images.images {
            let machines: BTreeSet<&str> = image.cells.iter().map(|cell| cell.machine.as_str()).collect();
            let mut is_named = false;
            for machine in machines {
                let count = named.entry(machine).or_default();
                is_named |= *count < MAX_NAMED;
                *count += 1;
            }
            let label = if is_named { image.repository.as_str() } else { OTHERS };
            let of_image = behind.entry(label).or_default();
            for cell in image.cells.iter().filter(|cell| is_recent(cell.reported, self.now)) {
                let Some(since) = cell.image.behind_since else { continue };
                of_image.seconds = of_image.seconds.max(self.now.duration_since(since).as_secs_f64());
                of_image.machines.insert(&cell.machine);
            }
        }
        behind
    }

    /// Returns all metrics of the fleet.
    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let behind = self.behind();
        let by_fuse = self.images.freezes.iter().filter(|freeze| freeze.by == BY_FUSE).count();
        vec![
            family(
                "evenkeel_warden_behind_seconds",
                "Longest time that a machine has been behind with an image; 0 if none is behind.",
                behind.iter().map(|(image, of_image)| (of(image), of_image.seconds)).collect::<Vec<_>>(),
            ),
            family(
                "evenkeel_warden_behind_machines",
                "Machines that do not run the image that the registry has.",
                behind
                    .iter()
                    .map(|(image, of_image)| (of(image), of_image.machines.len() as f64))
                    .collect::<Vec<_>>(),
            ),
            single("evenkeel_warden_freezes", "Freezes in force.", self.images.freezes.len() as f64),
            single(
                "evenkeel_warden_fuse_freezes",
                "Freezes in force that the fuse has set after rollbacks of several images.",
                by_fuse as f64,
            ),
            single(
                "evenkeel_warden_withheld_digests",
                "Digests that failed on more machines than they were proven on, and that a machine runs, is offered or has blocked.",
                self.withheld as f64,
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

#[cfg(test)]
mod tests {
    use evenkeel_common::metrics;
    use evenkeel_common::wire::{FleetCell, FleetImage, Freeze};

    use super::*;
    use crate::fleet::testing::at;

    fn image(number: usize, machines: &[&str]) -> FleetImage {
        let cell = |machine: &&str| -> FleetCell {
            serde_json::from_value(serde_json::json!({
                "machine": machine, "ring": 0, "reported": at(0), "service": "web",
                "image": format!("r/web-{number:04}:1"), "behind_since": at(0),
            }))
            .unwrap()
        };
        FleetImage { repository: format!("r/web-{number:04}"), cells: machines.iter().map(cell).collect() }
    }

    fn figures(images: FleetImages, seconds: i64) -> FleetFigures {
        FleetFigures { images, withheld: 0, leases: 0, answers: [0; 3], polls: 0, now: at(seconds) }
    }

    #[test]
    fn a_machine_that_reports_many_images_gets_a_limited_number_of_series() {
        let mut images: Vec<FleetImage> = (0..1000).map(|number| image(number, &["a"])).collect();
        images.push(image(1000, &["a", "b"]));
        let figures = figures(FleetImages { images, ..FleetImages::default() }, 60);
        let behind = figures.behind();
        assert_eq!(behind.len(), MAX_NAMED + 2, "those of a, the one of b, and the others");
        let of = |machines: &[&'static str]| Behind {
            machines: machines.iter().copied().collect(),
            seconds: 60.0,
        };
        assert_eq!(behind.get("r/web-0199"), Some(&of(&["a"])));
        assert_eq!(behind.get("r/web-0200"), None);
        assert_eq!(behind.get("r/web-1000"), Some(&of(&["a", "b"])));
        assert_eq!(behind.get(OTHERS), Some(&of(&["a"])));
    }

    #[test]
    fn a_machine_that_no_longer_reports_is_not_behind() {
        let behind = |seconds| {
            let images = FleetImages { images: vec![image(0, &["a"])], ..FleetImages::default() };
            let figures = figures(images, seconds);
            let behind = figures.behind();
            let of_image = behind.get("r/web-0000").expect("its series stays");
            (of_image.machines.len(), of_image.seconds)
        };
        assert_eq!(behind(86_399), (1, 86_399.0));
        assert_eq!(behind(86_400), (0, 0.0));
    }

    #[test]
    fn the_freezes_of_the_fuse_are_counted_apart() {
        let freeze = |by: &str| -> Freeze {
            serde_json::from_value(serde_json::json!({
                "id": "1", "reason": "x", "by": by, "since": at(0), "until": at(60),
            }))
            .unwrap()
        };
        let freezes = vec![freeze("operator"), freeze(BY_FUSE), freeze("operator")];
        let figures = figures(FleetImages { freezes, ..FleetImages::default() }, 1);
        let text = String::from_utf8(metrics::text(figures.families()).unwrap()).unwrap();
        assert!(text.contains("evenkeel_warden_freezes 3\n"), "{text}");
        assert!(text.contains("evenkeel_warden_fuse_freezes 1\n"), "{text}");
    }
}
