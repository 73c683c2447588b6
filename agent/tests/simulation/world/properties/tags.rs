//! The properties of a project's tags after a deployment.

use std::collections::BTreeMap;

use evenkeel_agent::model::image::ImageId;
use evenkeel_agent::service::rollout::deployment::Deployment;

use super::super::{Definition, Inner};
use super::Baseline;

const TAGS: &str = "a deployment does not change tags of other images";
const OWN_TAGS: &str = "after a deployment, a tag names the running image or the image that it named before";

impl Inner {
    pub(super) fn tags(&self) -> BTreeMap<String, ImageId> {
        let named = |service: &Definition| {
            let tag = service.reference.tagged();
            Some((tag.clone(), self.by_name(&tag)?.0))
        };
        self.definitions(None).iter().filter_map(named).collect()
    }

    /// Checks the tags when a deployment is over.
    pub(super) fn check_tags(&mut self, service: &str, deployment: &Deployment) {
        let Some(baseline) = self.truth.baselines.remove(service) else { return };
        if baseline.are_tags_moved || self.truth.is_write_lost {
            return;
        }
        self.check_own_tags(&baseline, deployment);
        let is_own = |tag: &str| {
            let plan = deployment.plan();
            let changes = plan.image_changes.iter();
            let changed = changes.flat_map(|change| change.from.iter().chain([&change.reference]));
            changed.chain(plan.kept_tags.iter().map(|(r, _)| r)).any(|r| r.tagged() == tag)
        };
        for (tag, image) in self.tags() {
            let before = baseline.tags.get(&tag);
            let holds = is_own(&tag) || before.is_none_or(|before| *before == image);
            self.unless(holds, TAGS, |inner| format!("{tag} names {}", inner.truth.image_name(&image)));
        }
    }

    /// Checks that the tag of an image that was not deployed is unchanged.
    fn check_own_tags(&mut self, baseline: &Baseline, deployment: &Deployment) {
        let (tags, services) = (self.tags(), self.definitions(None));
        for change in &deployment.plan().image_changes {
            let tag = change.reference.tagged();
            let Some(service) = services.iter().find(|s| s.reference == change.reference) else {
                continue;
            };
            let Some(names) = tags.get(&tag) else { continue };
            let mut of_service = self.containers.iter().filter(|c| c.service == service.name).peekable();
            if of_service.peek().is_none() {
                continue;
            }
            // A container that was stopped before is not started, but its tag moves.
            let may_differ =
                baseline.touched.contains(&service.name) || !baseline.images.contains_key(&service.name);
            let runs = of_service.any(|c| c.image == *names);
            let holds = may_differ || runs || baseline.tags.get(&tag) == Some(names);
            self.unless(holds, OWN_TAGS, |inner| format!("{tag} names {}", inner.truth.image_name(names)));
        }
    }
}
