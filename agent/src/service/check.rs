//! From what a check saw to what is wanted: up to date, blocked, not found, or a plan.

use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;

use crate::model::image::{Digest, ImageId, Reference};
use crate::model::{Container, State, UpMode};

use super::action::OldImage;
use super::compare::{self, Comparison};
use super::deploy::{Cause, Deployment, ImageChange, Phase};
use super::input::{CheckFault, ImageView, Observation};
use super::probation::Baseline;
use super::{Fault, Service};

impl Service {
    pub(super) fn checked(
        &mut self,
        asked: bool,
        result: Result<Observation, CheckFault>,
        now: Timestamp,
        entries: &mut Vec<AuditEntry>,
    ) {
        let observation = match result {
            Ok(observation) => observation,
            Err(fault) => {
                let text = match fault {
                    CheckFault::Failed(text) => {
                        self.last_check = Some(now);
                        self.set_fault(Some(Fault { text: text.clone(), from_check: true }), now, entries);
                        text
                    }
                    // Nothing is known, and the engine's own health says so for all services at once.
                    CheckFault::EngineAway(text) => text,
                };
                if std::mem::take(&mut self.redeploy_asked) {
                    entries.push(self.failed_redeploy(now, &text));
                } else if asked {
                    let message = "the check that was asked for could not be made";
                    let mut entry = self.entry(now, Kind::TRIGGER_FAILED, Level::Error, message);
                    entry.reason = Some(text);
                    entries.push(entry);
                }
                return;
            }
        };

        // Where a registry keeps its answer to itself, what does not depend on it is decided now; the rest follows.
        let pending = observation.is_pending();
        let registry_fault = observation.registry_fault();
        if !pending {
            self.last_check = Some(now);
        }
        let observation = self.without_left_behind(observation);
        let mut stale = false;
        let mut matching = true;
        for view in &observation.images {
            match self.compared(view, &observation) {
                Comparison::Pinned | Comparison::Managed | Comparison::Blocked => {}
                Comparison::Unanswered => matching &= self.ran_before(view, &observation.containers),
                Comparison::UpToDate => {
                    self.durable
                        .published
                        .extend(view.remote.clone().map(|remote| (view.configured.clone(), remote)));
                    self.durable.not_found.remove(&view.configured);
                    if let Some(blocked) = self.durable.blocked.remove(&view.configured) {
                        self.durable.rollback_failed = false;
                        let message = format!("{} runs on what the registry has again", view.configured);
                        let mut entry = self.entry(now, Kind::UNBLOCKED, Level::Info, message);
                        entry.old_digest = Some(blocked.to_string());
                        entry.new_digest = view.remote.as_ref().map(ToString::to_string);
                        entry.reason = Some("the remote digest changed".into());
                        entries.push(entry);
                    }
                }
                Comparison::NotFound { remote, new } => {
                    matching = false;
                    if new {
                        self.durable.not_found.insert(view.configured.clone(), remote.clone());
                        let message = format!(
                            "{} has no digest on this machine that it could be compared by; nothing is deployed until the registry has another digest",
                            view.configured
                        );
                        let mut entry = self.entry(now, Kind::NOT_FOUND, Level::Warning, message);
                        entry.new_digest = Some(remote.to_string());
                        entry.reason = Some(if view.running.is_empty() && view.tagged.is_none() {
                            "the image is not on this machine; a redeploy fetches it".into()
                        } else {
                            "the image has no registry digest here (built, loaded or untagged here); a redeploy replaces it"
                                .into()
                        });
                        entries.push(entry);
                    }
                }
                Comparison::Stale { remote } => {
                    stale = true;
                    if compare::is_comparable(view) {
                        self.durable.not_found.remove(&view.configured);
                    }
                    if let Some(blocked) = self.durable.blocked.remove(&view.configured) {
                        self.durable.rollback_failed = false;
                        let message = format!(
                            "the registry has another digest of {} than the blocked one",
                            view.configured
                        );
                        let mut entry = self.entry(now, Kind::UNBLOCKED, Level::Info, message);
                        entry.old_digest = Some(blocked.to_string());
                        entry.new_digest = Some(remote.to_string());
                        entry.reason = Some("the remote digest changed".into());
                        entries.push(entry);
                    }
                }
            }
        }
        let files = self.follow_files(&observation.files);
        self.compare_with_shutdown(&observation.containers, now);
        // What is there is started as it is then, and nothing is made anew but on a person's word.
        let held = !observation.left_out.is_empty();
        let start = self.start_wanted(&observation.containers, matching && (held || !stale), now);
        let start = start.filter(|cause| !held || *cause != Cause::ForceUp { down: true });
        self.containers = Some(observation.containers.clone());
        self.seen = Some(observation);
        self.fetched.clear();
        self.inspect_at = Some(now);

        let (drift, files_fault) = match files {
            Ok(drift) => (drift, None),
            Err(text) => (None, Some(text)),
        };
        let redeploy = !pending && std::mem::take(&mut self.redeploy_asked);
        let retry_rollback = !pending && std::mem::take(&mut self.retry_rollback);
        if let Some(text) = registry_fault.as_ref().filter(|_| redeploy) {
            entries.push(self.failed_redeploy(now, text));
        }
        self.wanted = if redeploy && registry_fault.is_none() {
            Some(Cause::Redeploy)
        } else if stale && self.config.auto_update && !held {
            Some(Cause::Update)
        } else if retry_rollback && self.durable.rollback_failed && self.is_on_unproven() {
            Some(Cause::RetryRollback)
        } else {
            drift.filter(|_| !held).or(start)
        };
        let bars_update = files_fault.or_else(|| self.left_out()).or_else(|| self.unused());
        if bars_update.is_some() {
            self.wanted = self.wanted.take().filter(|cause| *cause != Cause::Update);
        }
        if pending {
            return;
        }
        if let Some(text) = registry_fault.as_ref().filter(|_| asked && !redeploy) {
            let message = "the check that was asked for could not be made";
            let mut entry = self.entry(now, Kind::TRIGGER_FAILED, Level::Error, message);
            entry.reason = Some(text.clone());
            entries.push(entry);
        }
        let faults: Vec<String> = bars_update.into_iter().chain(registry_fault).collect();
        if !faults.is_empty() {
            // A start that fails again and again is one fault, not two in turn.
            let fails = self.wanted.is_some() && self.fault.as_ref().is_some_and(|fault| !fault.from_check);
            if !fails {
                let fault = Fault { text: faults.join("; "), from_check: true };
                self.set_fault(Some(fault), now, entries);
            }
            return;
        }
        // A deploy that failed is not made good by waiting: what it left half-made must be gone.
        let half_made = || self.containers.iter().flatten().any(|c| c.state == State::Created);
        let mended = |fault: &Fault| fault.from_check || (self.wanted.is_none() && !half_made());
        let over = self.fault.as_ref().is_some_and(mended);
        if over {
            self.set_fault(None, now, entries);
        }
        if asked && self.wanted.is_none() {
            let message = match (self.durable.blocked.is_empty(), self.durable.not_found.is_empty()) {
                (true, true) => "checked: everything is up to date",
                (false, _) => "checked: the registry still has a blocked digest",
                (true, false) => "checked: the local image is still not found",
            };
            entries.push(self.entry(now, Kind::CHECKED, Level::Info, message));
        }
    }

    /// Whether bringing up the project starts an image that the registry keeps silent about on what ran before.
    fn ran_before(&self, view: &ImageView, containers: &[Container]) -> bool {
        let Some(tagged) = &view.tagged else { return false };
        let known = |id: Option<&ImageId>| id.is_none_or(|id| *id == tagged.id);
        let mut made = containers.iter().filter(|c| c.is_made_from(&view.reference)).peekable();
        let is_same = if made.peek().is_some() {
            made.all(|c| c.image == tagged.id)
        } else {
            known(self.durable.proven.get(&view.configured).map(|proven| &proven.id))
        };
        is_same && self.durable.unproven.get(&view.configured) != Some(&tagged.id)
    }

    /// The fault of the last check that a deployment has not mended. Bringing up what is there mends no configuration.
    pub(super) fn remaining_fault(&self, about_images: bool) -> Option<Fault> {
        let seen = self.seen.as_ref()?;
        if seen.is_pending() {
            return self.fault.clone().filter(|fault| fault.from_check);
        }
        let left_out = self.left_out().filter(|_| !about_images);
        let texts: Vec<String> = left_out.into_iter().chain(seen.registry_fault()).collect();
        (!texts.is_empty()).then(|| Fault { text: texts.join("; "), from_check: true })
    }

    /// Whether an image runs that failed and could not be undone, and the one before is known.
    fn is_on_unproven(&self) -> bool {
        let is_unproven = |view: &ImageView| {
            let unproven = self.durable.unproven.get(&view.configured);
            self.durable.proven.contains_key(&view.configured)
                && view.running.iter().any(|image| Some(&image.id) == unproven)
        };
        self.seen.iter().flat_map(|seen| &seen.images).any(is_unproven)
    }

    /// How an image stands, where a block by another service of the project counts, too.
    fn compared(&self, view: &ImageView, observation: &Observation) -> Comparison {
        let elsewhere = |(reference, digest): &(Reference, Digest)| {
            *reference == view.reference && Some(digest) == view.remote.as_ref()
        };
        if observation.blocked_elsewhere.iter().any(elsewhere) {
            return Comparison::Blocked;
        }
        let of_others = |c: &Container| c.manager.is_some() && c.is_made_from(&view.reference);
        if observation.containers.iter().any(of_others) {
            return Comparison::Managed;
        }
        if observation.unanswered.contains_key(&view.configured) {
            // The registry may have the blocked digest still.
            let is_blocked = self.durable.blocked.contains_key(&view.configured);
            return if is_blocked { Comparison::Blocked } else { Comparison::Unanswered };
        }
        compare::compare(view, &self.durable)
    }

    /// The same without the images of containers that compose does not bring along.
    fn without_left_behind(&mut self, mut observation: Observation) -> Observation {
        let left = &mut self.durable.left_behind;
        left.retain(|id| observation.containers.iter().any(|c| c.id == *id));
        if left.is_empty() {
            return observation;
        }
        for view in &mut observation.images {
            let is_used = |c: &Container| !left.contains(&c.id) && c.is_made_from(&view.reference);
            let used: Vec<&ImageId> =
                observation.containers.iter().filter(|c| is_used(c)).map(|c| &c.image).collect();
            view.running.retain(|image| used.contains(&&image.id));
        }
        observation
    }

    /// What is wrong when the project runs, and none of it is made from a configured image: names that differ in
    /// the spelling are different images to an engine.
    fn unused(&self) -> Option<String> {
        let compared = self.config.auto_update && self.config.project().is_some();
        let observation = self.seen.as_ref().filter(|_| compared)?;
        let wanted: Vec<&ImageView> = observation.images.iter().collect();
        let is_used = |c: &Container| wanted.iter().any(|view| c.is_made_from(&view.reference));
        let all = &observation.containers;
        if wanted.is_empty() || all.iter().any(is_used) || !all.iter().any(Container::is_live) {
            return None;
        }
        let mut theirs: Vec<&str> = all.iter().map(|c| c.config_image.as_str()).collect();
        theirs.sort_unstable();
        theirs.dedup();
        let ours: Vec<String> = wanted.iter().map(|view| view.reference.to_string()).collect();
        Some(format!(
            "no container of the project is made from {}; they are made from {}",
            ours.join(", "),
            theirs.join(", ")
        ))
    }

    /// What is wrong when the project was brought up with more files than are configured: compose takes an override
    /// file beside the first one by itself, but not when files are named.
    pub(super) fn left_out(&self) -> Option<String> {
        let files = &self.seen.as_ref()?.left_out;
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "the containers were made with {}, too, which compose_files does not name: without it they would lose \
                 what it sets, so they are not made anew; name it there, or redeploy to go on without it",
                names.join(", ")
            )
        })
    }

    /// Plans a deployment from what was seen. Whether there is one to do.
    pub(super) fn begin(&mut self, cause: Cause, now: Timestamp) -> bool {
        let Some(observation) = &self.seen else { return false };
        let mut image_changes = Vec::new();
        let mut kept_tags = Vec::new();
        for view in &observation.images {
            let old = view.running.first().or(view.tagged.as_ref());
            let unproven = self.durable.unproven.get(&view.configured);
            let proven = self.durable.proven.get(&view.configured);
            // What to go back to: what runs, unless that is known to be unproven.
            let is_unproven = proven.is_some() && old.is_some_and(|old| Some(&old.id) == unproven);
            let rolling_back =
                if is_unproven { proven.cloned() } else { old.map(|old| compare::old_image(view, old)) };
            let verdict = self.compared(view, observation);
            let digest = match (&verdict, &cause) {
                (Comparison::Stale { remote }, _) => remote,
                (Comparison::UpToDate | Comparison::NotFound { .. }, Cause::Redeploy) => {
                    let Some(remote) = &view.remote else { continue };
                    remote
                }
                (Comparison::Blocked, _) => {
                    // What runs stays. When nothing runs, the tag may name the blocked image itself.
                    let kept = if view.running.is_empty() { proven.cloned() } else { rolling_back };
                    kept_tags.extend(kept.map(|kept| (view.reference.clone(), kept)));
                    continue;
                }
                _ => continue,
            };
            if !cause.is_about_images() {
                continue;
            }
            image_changes.push(ImageChange {
                configured: view.configured.clone(),
                reference: view.reference.clone(),
                old_digest: if is_unproven {
                    rolling_back.as_ref().and_then(|old| old.source.as_ref()?.digest.clone())
                } else {
                    old.and_then(|old| compare::shown_digest(old, view.remote.as_ref()))
                },
                old: rolling_back,
                digest: digest.clone(),
                new_id: None,
            });
        }
        for (reference, digest) in &observation.blocked_elsewhere {
            let running = observation
                .containers
                .iter()
                .find(|c| c.state == State::Running && c.is_made_from(reference));
            let own = image_changes.iter().any(|m| m.reference == *reference);
            if let (Some(container), false) = (running, own) {
                tracing::debug!(%reference, %digest, "the tag of a blocked image is kept where it is");
                kept_tags.push((reference.clone(), OldImage { id: container.image.clone(), source: None }));
            }
        }
        if image_changes.is_empty() && cause == Cause::Update {
            return false;
        }
        let up_mode = match &cause {
            Cause::Redeploy => UpMode::All,
            Cause::Start | Cause::ForceUp { .. } if !observation.left_out.is_empty() => UpMode::StartOnly,
            _ => UpMode::Changed,
        };
        self.durable.rollback_failed = false;
        let mut deployment = Deployment {
            project: self.config.project(),
            grace: self.config.health_grace,
            begun: now,
            image_changes,
            kept_tags,
            sibling_tags: Vec::new(),
            displaced: None,
            before: Baseline::all(&observation.containers),
            up_mode,
            phase: if cause.is_about_images() { Phase::PinImages } else { Phase::Start },
            cause,
            since: now,
            attempt: 0,
            also_recreated: Vec::new(),
        };
        deployment.refresh_sibling_tags(&observation.containers);
        // Compose applies whatever the files say now, so that is what counts as deployed; an edit that an update
        // leaves alone is still to be applied.
        let whole = deployment.up_mode != UpMode::StartOnly && deployment.scope().is_none();
        if let Some(hash) = self.files_seen.clone().filter(|_| whole) {
            self.durable.files_hash = Some(hash);
            self.durable.files_pending =
                deployment.cause == Cause::ComposeChanged || self.durable.files_pending;
        }
        self.durable.deployment = Some(deployment);
        true
    }
}
