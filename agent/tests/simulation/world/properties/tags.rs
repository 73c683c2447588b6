//! What must hold of the tags of a project when a deployment is over.

use std::collections::BTreeMap;

use evenkeel_agent::model::image::ImageId;
use evenkeel_agent::service::rollout::deployment::Deployment;

use super::super::{Definition, Inner};
use super::Begun;

const TAGS: &str = "a deployment leaves the tags of others where they were";
const OWN_TAGS: &str = "after a deployment a tag names what runs, or what it named before";

impl Inner {
    pub(super) fn tags(&self) -> BTreeMap<String, ImageId> {
        let named = |service: &Definition| {
            let tag = service.reference.tagged();
            Some((tag.clone(), self.by_name(&tag)?.0))
        };
        self.definitions(None).iter().filter_map(named).collect()
    }

    /// A deployment is over.
    pub(super) fn check_tags(&mut self, service: &str, deployment: &Deployment) {
        let Some(begun) = self.truth.begun.remove(service) else { return };
        if begun.are_tags_moved || self.truth.is_write_lost {
            return;
        }
        self.check_own_tags(&begun, deployment);
        let is_own = |tag: &str| {
            let plan = deployment.plan();
            let changes = plan.image_changes.iter();
            let changed = changes.flat_map(|change| change.from.iter().chain([&change.reference]));
            changed.chain(plan.kept_tags.iter().map(|(r, _)| r)).any(|r| r.tagged() == tag)
        };
        for (tag, image) in self.tags() {
            let before = begun.tags.get(&tag);
            let holds = is_own(&tag) || before.is_none_or(|before| *before == image);
            self.unless(holds, TAGS, |inner| format!("{tag} names {}", inner.truth.word(&image)));
        }
    }

    /// What a deployment has not brought leaves its tag where it was.
    fn check_own_tags(&mut self, begun: &Begun, deployment: &Deployment) {
        let (tags, services) = (self.tags(), self.definitions(None));
        for change in &deployment.plan().image_changes {
            let tag = change.reference.tagged();
            let Some(service) = services.iter().find(|s| s.reference == change.reference) else {
                continue;
            };
            let (Some(names), Some(runs)) = (tags.get(&tag), self.container(&service.name)) else { continue };
            // What somebody had stopped before is not started; its tag moves all the same.
            let may_differ =
                begun.touched.contains(&service.name) || !begun.images.contains_key(&service.name);
            let holds = may_differ || runs.image == *names || begun.tags.get(&tag) == Some(names);
            self.unless(holds, OWN_TAGS, |inner| format!("{tag} names {}", inner.truth.word(names)));
        }
    }
}
