//! Which newer tag a check asks the registry for.

use std::time::Duration;

use super::observe::{Check, within};

impl Check {
    /// The newest tag that has not failed, where it is newer than what the env file sets. Where all have, it is the one in
    /// force: another digest under that one is an update, too. After a rollback that failed it is the newest of those that
    /// failed, since the one in force has failed to come back.
    pub(super) async fn newer_than(&self, tag: &str, patience: Option<Duration>) -> Option<&str> {
        let variable = self.config.tag_variable()?;
        let newer = self.newer.tags.iter().map(String::as_str);
        let newer: Vec<&str> =
            newer.filter(|newer| variable.pattern.newest(tag, [*newer]).is_some()).collect();
        for tag in &newer {
            if !self.has_failed(tag, patience).await {
                return Some(tag);
            }
        }
        newer.first().copied().filter(|_| self.newer.is_stuck)
    }

    /// Whether the registry has what failed under a tag, as far as it answers. One image is enough: they move together.
    async fn has_failed(&self, tag: &str, patience: Option<Duration>) -> bool {
        for image in self.config.images_of_variable() {
            let failed = self.newer.failed.get(&image.configured).and_then(|tags| tags.get(tag));
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
