//! Going back to earlier images: by hand, or because an image has failed after its probation (DECISIONS 14).

use jiff::Timestamp;

use crate::model::image::Digest;
use crate::model::{Container, Difference};
use crate::service::decide::history::NoWayBack;
use crate::service::event::{Event, GoBackEnd, GoBackResult};
use crate::service::input::ServiceReply;
use crate::service::rollout::plan::{Cause, Earlier, GoBack, GoBackReason};
use crate::service::rollout::snapshot::KeptSnapshot;
use crate::service::{Service, wording};

impl Service {
    /// Handles a person's request. The next check begins it.
    pub(in crate::service) fn roll_back_by_hand(
        &mut self,
        to: Option<&Digest>,
        with_data: bool,
    ) -> ServiceReply {
        if self.config.swarm_service.is_some() {
            return ServiceReply::Refused(wording::NOT_IN_SWARM.to_owned());
        }
        match self.way_back(to, with_data) {
            Err(NoWayBack::NoEarlier) => ServiceReply::Skipped(wording::NO_EARLIER_IMAGE),
            Err(NoWayBack::Refused(why)) => ServiceReply::Refused(why),
            Ok((to, data)) => {
                let data = data.map(KeptSnapshot::earlier);
                let digest = to.first().map(|one| one.digest.clone());
                self.on_manual_action();
                self.retry_rollback = false;
                let data = data.filter(|_| with_data);
                self.redeploy_next(Some(GoBack { to, data, why: GoBackReason::ByHand }));
                digest.map_or(ServiceReply::Skipped(wording::NO_EARLIER_IMAGE), ServiceReply::RollingBack)
            }
        }
    }

    /// Returns the images to go back to, and the snapshot of the data that they had when they were left. With `with_data`, one
    /// is needed.
    pub fn way_back(
        &self,
        to: Option<&Digest>,
        with_data: bool,
    ) -> Result<(Vec<Earlier>, Option<&KeptSnapshot>), NoWayBack> {
        let to = self.earlier(to)?;
        let data = self.data_with(&to);
        if with_data && data.is_none() {
            return Err(NoWayBack::Refused(wording::go_back::NO_DATA.to_owned()));
        }
        Ok((to, data))
    }

    /// Returns the snapshot of the data that these images had when they were left.
    pub(in crate::service) fn data_with(&self, to: &[Earlier]) -> Option<&KeptSnapshot> {
        let images: Vec<_> = to.iter().map(|one| (one.configured.as_str(), &one.digest)).collect();
        self.data_of(&images)
    }

    /// Decides whether the deployment of earlier images can begin, after a check. Otherwise it says why not.
    pub(in crate::service) fn wants_back(&mut self, back: GoBack, now: Timestamp) -> Option<Cause> {
        let unreadable =
            self.known.observation.as_ref().and_then(|seen| seen.definition.as_ref()?.as_ref().err());
        let unreadable = unreadable.map(|text| wording::unreadable_definition(text));
        // What `docker update` or docker's proxies have set is lost, but an image that fails is left.
        let is_lost = |difference: &Difference| {
            matches!(back.why, GoBackReason::Late { .. }) && difference.is_beside_files()
        };
        let differs = back.to.iter().find_map(|to| {
            let hold = self.definition_hold(&to.configured)?;
            if hold.differences.iter().all(is_lost) {
                return None;
            }
            Some(wording::definition_differs(&hold, &self.config.name))
        });
        let stopped = (!self.runs_any_of(&back)).then(|| wording::go_back::STOPPED.to_owned());
        let outside = self.outside_project(self.containers());
        match outside.or(unreadable).or(differs).or_else(|| self.unlisted_files_fault()).or(stopped) {
            None => Some(Cause::GoBack(back)),
            Some(why) => {
                self.not_gone_back(back, why, String::new(), now);
                None
            }
        }
    }

    /// Whether containers of these images run, or have crashed. Those that a person has stopped are left alone.
    fn runs_any_of(&self, back: &GoBack) -> bool {
        let seen = self.known.observation.iter().flat_map(|seen| &seen.images);
        let views: Vec<_> =
            seen.filter(|view| back.to.iter().any(|to| to.configured == view.configured)).collect();
        let is_of = |c: &&Container| views.iter().any(|view| c.is_made_from(&view.from));
        self.containers().iter().filter(is_of).any(|c| self.is_wanted(c))
    }

    /// Reports that a service has not gone back, and that nothing has changed.
    pub(in crate::service) fn not_gone_back(
        &mut self,
        back: GoBack,
        why: String,
        output: String,
        now: Timestamp,
    ) {
        self.end_watch_that_asked(&back);
        // A deployment that has begun is counted by its end.
        if self.durable.deployment.is_none() {
            self.durable.totals.failures += 1;
        }
        let left = back.to.iter().filter_map(|to| Some((to.reference.clone(), self.digest_to_leave(to)?)));
        let left = left.collect();
        self.emit(
            Event::GoBack(GoBackEnd { back, result: GoBackResult::NotBegun { why, output, left } }),
            now,
        );
    }

    /// The digest that a way back to an earlier image leaves. What has crashed does not run, and was proven last.
    fn digest_to_leave(&self, to: &Earlier) -> Option<Digest> {
        let last = || self.durable.images.get(&to.configured).history.last().map(|last| last.digest.clone());
        self.running_digest(&to.configured).or_else(last).filter(|digest| *digest != to.digest)
    }

    /// The newest snapshot of the data that these images had written when they were left.
    pub fn data_of(&self, images: &[(&str, &Digest)]) -> Option<&KeptSnapshot> {
        let is_of = |kept: &&KeptSnapshot| {
            !(kept.is_expired || kept.folders.is_empty())
                && images.iter().all(|(image, digest)| kept.is_of(image, digest))
        };
        self.durable.snapshots.iter().rfind(is_of)
    }

    /// Ends a deployment of earlier images that are proven again: blocks what was left, and reports it.
    pub(in crate::service) fn gone_back(&mut self, back: &GoBack, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        let (changes, data) = (deployment.plan().image_changes.clone(), deployment.data_back());
        for (digest, change) in changes.iter().filter_map(|change| Some((change.left()?, change))) {
            self.durable.images.of(&change.configured).block(digest);
            self.note_failed_tags(&[crate::service::rollout::plan::ImageChange {
                reference: change.from.clone().unwrap_or_else(|| change.reference.clone()),
                digest: digest.clone(),
                ..change.clone()
            }]);
        }
        self.end_watch_over(&changes);
        // What was put back is used up.
        let is_used_up = |kept: &&mut KeptSnapshot| back.data.as_ref().is_some_and(|data| data.id == kept.id);
        self.durable.snapshots.iter_mut().filter(is_used_up).for_each(|kept| kept.is_expired = true);
        let back = back.clone();
        self.emit(Event::GoBack(GoBackEnd { back, result: GoBackResult::Proven { changes, data } }), now);
    }
}
