//! Progress of a pull, summed over its layers.

use std::collections::{HashMap, HashSet};

use bollard::models::CreateImageInfo;

use crate::ports::PullProgress;

/// Layers seen so far.
#[derive(Debug, Default)]
pub(super) struct Layers {
    /// Fetched and total bytes by layer.
    bytes: HashMap<String, (u64, u64)>,
    /// Layers that are not yet completely fetched.
    missing: HashSet<String>,
    /// A layer was announced.
    is_announced: bool,
    /// This pull has downloaded a layer completely.
    has_downloaded: bool,
}

impl Layers {
    /// Applies a message. Only downloads count, as unpacking reports the same bytes again.
    pub(super) fn note(&mut self, message: &CreateImageInfo) {
        let Some(id) = &message.id else { return };
        let amount = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        match message.status.as_deref() {
            Some("Pulling fs layer" | "Waiting") => {
                self.is_announced = true;
                self.missing.insert(id.clone());
            }
            Some("Downloading") => {
                self.is_announced = true;
                self.missing.insert(id.clone());
                let detail = message.progress_detail.as_ref();
                let layer = self.bytes.entry(id.clone()).or_default();
                layer.1 = layer.1.max(amount(detail.and_then(|d| d.total)));
                layer.0 = layer.0.max(amount(detail.and_then(|d| d.current)));
            }
            Some("Verifying Checksum" | "Download complete" | "Extracting" | "Pull complete") => {
                self.missing.remove(id);
                self.has_downloaded = true;
                if let Some(layer) = self.bytes.get_mut(id) {
                    layer.0 = layer.0.max(layer.1);
                }
            }
            // Also of a layer that an interrupted pull has fetched, but not unpacked.
            Some("Already exists") => {
                self.is_announced = true;
                self.missing.remove(id);
            }
            _ => {}
        }
    }

    /// Reports whether all announced layers are fetched and only unpacking remains.
    pub(super) fn are_fetched(&self) -> bool {
        self.is_announced && self.missing.is_empty()
    }

    /// Reports whether this pull downloads nothing more. While the layers are announced, the first ones may exist already and
    /// the others be unknown, so that it is certain only after a download.
    pub(super) fn is_download_over(&self) -> bool {
        self.has_downloaded && self.are_fetched()
    }

    /// Returns the progress summed over all layers.
    pub(super) fn pulled(&self) -> PullProgress {
        self.bytes.values().fold(PullProgress::default(), |sum, (bytes, total)| PullProgress {
            bytes: sum.bytes.saturating_add(*bytes),
            total: sum.total.saturating_add(*total),
        })
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    fn message(id: &str, status: &str, current: i64, total: i64) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(id.into()),
            status: Some(status.into()),
            progress_detail: Some(ProgressDetail { current: Some(current), total: Some(total) }),
            ..CreateImageInfo::default()
        }
    }

    #[test]
    fn bytes_are_summed_over_the_layers_and_unpacking_does_not_count_again() {
        let mut layers = Layers::default();
        for step in [
            message("a", "Pulling fs layer", 0, 0),
            message("a", "Downloading", 10, 100),
            message("b", "Downloading", 5, 50),
            message("c", "Already exists", 0, 0),
            message("a", "Download complete", 0, 0),
            message("a", "Extracting", 3, 100),
        ] {
            layers.note(&step);
        }
        layers
            .note(&CreateImageInfo {
                status: Some("Digest: sha256:…".into()), ..CreateImageInfo::default()
            });
        assert_eq!(layers.pulled(), PullProgress { bytes: 105, total: 150 });
        assert!(!layers.are_fetched());
        layers.note(&message("b", "Download complete", 0, 0));
        assert!(layers.are_fetched());
    }

    #[test]
    fn a_pull_that_was_interrupted_while_it_unpacked_has_all_its_layers() {
        let mut layers = Layers::default();
        assert!(!layers.are_fetched(), "nothing is known yet");
        for (id, status) in [
            ("a", "Pulling fs layer"),
            ("b", "Pulling fs layer"),
            ("a", "Already exists"),
            ("b", "Already exists"),
        ] {
            assert!(!layers.are_fetched(), "{id}: {status}");
            layers.note(&message(id, status, 0, 0));
        }
        assert!(layers.are_fetched());
        // One of which nothing was there.
        layers.note(&message("c", "Pulling fs layer", 0, 0));
        assert!(!layers.are_fetched());
        layers.note(&message("c", "Downloading", 1, 2));
        assert!(!layers.are_fetched());
        layers.note(&message("c", "Download complete", 0, 0));
        assert!(layers.are_fetched());
    }

    #[test]
    fn a_download_is_not_over_while_the_layers_are_announced() {
        let mut layers = Layers::default();
        for (id, status) in [
            ("a", "Already exists"),
            ("b", "Pulling fs layer"),
            ("c", "Pulling fs layer"),
            ("b", "Pull complete"),
        ] {
            layers.note(&message(id, status, 0, 0));
            assert!(!layers.is_download_over(), "{id}: {status}");
        }
        layers.note(&message("c", "Download complete", 0, 0));
        assert!(layers.is_download_over());
    }

    #[test]
    fn the_progress_of_a_layer_that_is_fetched_again_does_not_decrease() {
        let mut layers = Layers::default();
        layers.note(&message("a", "Downloading", 90, 100));
        layers.note(&message("a", "Downloading", -1, 100));
        assert_eq!(layers.pulled(), PullProgress { bytes: 90, total: 100 });
    }
}
