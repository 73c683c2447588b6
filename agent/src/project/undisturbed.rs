//! Looks at a project while no other compose run changes it. What a person's `down` or `up` is about to do can't be seen in the
//! containers yet, and would be undone by what is prepared from them.

use crate::ports::Compose;
use crate::service::action::BringUp;

/// How often the project is looked at while one other run follows another: a rollback, and all else that brings up what is down,
/// must not wait for ever.
const LOOKS: usize = 2;

/// Returns what `look` finds while no other compose run changes the project. If one does so for too long, or one follows another,
/// that counts nevertheless, or, if the containers must be as they were before, `None` is returned.
pub(super) async fn undisturbed<T, F: Future<Output = T>>(
    compose: &dyn Compose,
    start: &BringUp,
    mut look: impl FnMut() -> F,
) -> Option<T> {
    let mut seen = None;
    for _ in 0..LOOKS {
        compose.settle(&start.project).await;
        let is_busy = compose.is_in_use(&start.project).await;
        if is_busy && start.must_look {
            return None;
        }
        seen = Some(look().await);
        // Another one may have begun meanwhile: it takes compose some seconds to render the files.
        if is_busy || !compose.is_in_use(&start.project).await {
            return seen;
        }
    }
    seen.filter(|_| !start.must_look)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use parking_lot::Mutex;

    use super::*;
    use crate::model::{ComposeError, Model, Project, PullPolicy, UpMode};
    use crate::ports::{Hashes, Priority};
    use crate::service::action::{Expects, IfGone};

    /// What is done to a project, in order, and whether another run works on it each time that is asked.
    #[derive(Default)]
    struct Beside {
        in_use: Mutex<Vec<bool>>,
        done: Mutex<Vec<&'static str>>,
    }

    #[async_trait]
    impl Compose for Beside {
        async fn settle(&self, _: &Project) {
            self.done.lock().push("settle");
        }

        async fn is_in_use(&self, _: &Project) -> bool {
            self.in_use.lock().remove(0)
        }

        async fn up(&self, _: &Project, _: &UpMode, _: PullPolicy) -> Result<String, ComposeError> {
            unreachable!("nothing is brought up")
        }

        async fn validate(&self, _: &Project) -> Result<(), ComposeError> {
            Ok(())
        }

        async fn model(&self, _: &Project) -> Result<Model, ComposeError> {
            Ok(Model::default())
        }

        async fn hashes(&self, _: &Project) -> Result<Hashes, ComposeError> {
            Ok(Hashes::default())
        }
    }

    fn start(must_look: bool) -> BringUp {
        BringUp {
            tags: Vec::new(),
            displaced: Vec::new(),
            project: Project::default(),
            down: false,
            up_mode: UpMode::Changed,
            scope: None,
            next: Vec::new(),
            pull: PullPolicy::Never,
            definition: None,
            is_guarded: false,
            must_look,
            if_gone: IfGone::Stop,
            priority: Priority::Routine,
            expects: Expects::Nothing,
        }
    }

    /// Returns whether it has looked in the end, and all that was done.
    async fn looks(must_look: bool, in_use: &[bool]) -> (bool, Vec<&'static str>) {
        let compose = Beside { in_use: Mutex::new(in_use.to_vec()), ..Beside::default() };
        let start = start(must_look);
        let look = || async { compose.done.lock().push("look") };
        let has_seen = undisturbed(&compose, &start, look).await.is_some();
        assert!(compose.in_use.lock().is_empty(), "it has asked each time");
        (has_seen, compose.done.into_inner())
    }

    #[tokio::test]
    async fn the_containers_are_looked_at_once_no_other_run_changes_them_and_again_if_one_has_begun() {
        for must_look in [true, false] {
            assert_eq!(looks(must_look, &[false, false]).await, (true, vec!["settle", "look"]));
            let again = vec!["settle", "look", "settle", "look"];
            assert_eq!(looks(must_look, &[false, true, false, false]).await, (true, again));
        }
    }

    #[tokio::test]
    async fn an_update_does_not_run_beside_another_run_that_does_not_end_and_a_rollback_does() {
        assert_eq!(looks(true, &[true]).await, (false, vec!["settle"]));
        assert_eq!(looks(false, &[true]).await, (true, vec!["settle", "look"]));
    }

    #[tokio::test]
    async fn runs_that_follow_one_another_do_not_hold_up_a_rollback_for_ever() {
        let twice = vec!["settle", "look", "settle", "look"];
        assert_eq!(looks(false, &[false, true, false, true]).await, (true, twice.clone()));
        assert_eq!(looks(true, &[false, true, false, true]).await, (false, twice), "an update waits");
    }
}
