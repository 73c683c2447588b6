//! Selects the newer tag that a check looks up in the registry.

use std::time::Duration;

use super::observe::{Check, within};

impl Check {
    /// Returns the newest tag that is newer than the one in the env file and has not failed. `None` if all have failed: the
    /// current tag is checked then, because a new digest under it is an update too. After a failed rollback, returns the
    /// newest failed tag instead, because the current one could not be restored.
    pub(super) async fn newer_than(&self, tag: &str, patience: Option<Duration>) -> Option<&str> {
        let variable = self.config.tag_variable()?;
        let newer = self.asked.newer.tags.iter().map(String::as_str);
        let newer: Vec<&str> =
            newer.filter(|newer| variable.pattern.newest(tag, [*newer]).is_some()).collect();
        for tag in &newer {
            if !self.has_failed(tag, patience).await {
                return Some(tag);
            }
        }
        newer.first().copied().filter(|_| self.asked.newer.is_stuck)
    }

    /// Reports whether a tag still points to a digest that failed; an unanswered request counts as unchanged. One image is
    /// enough, because all images of the variable are updated together.
    async fn has_failed(&self, tag: &str, patience: Option<Duration>) -> bool {
        for image in self.config.images_of_variable() {
            let failed = self.asked.newer.failed.get(&image.configured).and_then(|tags| tags.get(tag));
            let Some(failed) = failed else { continue };
            let reference = image.reference.with_tag(tag);
            let answer = within(patience, self.cycle.digest(&reference)).await;
            let is_other = answer.is_ok_and(|digest| digest != *failed);
            if !is_other {
                return true;
            }
        }
        false
    }
}
