//! From what a check saw to what is wanted: up to date, blocked, not found, or a plan.

use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;

use crate::image::{Digest, ImageId, Reference};
use crate::ports::{Container, Recreate, State};

use super::action::OldImage;
use super::compare::{self, Verdict as Compared};
use super::deploy::{Cause, Deployment, Move, Phase};
use super::fact::{CheckFault, ImageView, Observation};
use super::judge::Was;
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
                Compared::Pinned | Compared::Managed | Compared::Blocked => {}
                Compared::Unanswered => matching &= self.ran_before(view, &observation.containers),
                Compared::UpToDate => {
                    self.durable
                        .published
                        .extend(view.remote.clone().map(|remote| (view.text.clone(), remote)));
                    self.durable.not_found.remove(&view.text);
                    if let Some(blocked) = self.durable.blocked.remove(&view.text) {
                        self.durable.given_up = false;
                        let message = format!("{} runs on what the registry has again", view.text);
                        let mut entry = self.entry(now, Kind::UNBLOCKED, Level::Info, message);
                        entry.old_digest = Some(blocked.to_string());
                        entry.new_digest = view.remote.as_ref().map(ToString::to_string);
                        entry.reason = Some("the remote digest changed".into());
                        entries.push(entry);
                    }
                }
                Compared::NotFound { remote, new } => {
                    matching = false;
                    if new {
                        self.durable.not_found.insert(view.text.clone(), remote.clone());
                        let message = format!(
                            "{} has no digest on this machine that it could be compared by; nothing is deployed until the registry has another digest",
                            view.text
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
                Compared::Stale { remote } => {
                    stale = true;
                    if compare::is_comparable(view) {
                        self.durable.not_found.remove(&view.text);
                    }
                    if let Some(blocked) = self.durable.blocked.remove(&view.text) {
                        self.durable.given_up = false;
                        let message =
                            format!("the registry has another digest of {} than the blocked one", view.text);
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
        self.compare_with_left(&observation.containers, now);
        // What is there is started as it is then, and nothing is made anew but on a person's word.
        let held = !observation.left_out.is_empty();
        let start = self.start_wanted(&observation.containers, matching && (held || !stale), now);
        let start = start.filter(|cause| !held || *cause != Cause::Unstick { down: true });
        self.containers = Some(observation.containers.clone());
        self.seen = Some(observation);
        self.fetched.clear();
        self.look_at = Some(now);

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
        } else if retry_rollback && self.durable.given_up && self.is_on_unproven() {
            Some(Cause::WayBack)
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
            known(self.durable.proven.get(&view.text).map(|proven| &proven.id))
        };
        is_same && self.durable.unproven.get(&view.text) != Some(&tagged.id)
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
            let unproven = self.durable.unproven.get(&view.text);
            self.durable.proven.contains_key(&view.text)
                && view.running.iter().any(|image| Some(&image.id) == unproven)
        };
        self.seen.iter().flat_map(|seen| &seen.images).any(is_unproven)
    }

    /// How an image stands, where a block by another service of the project counts, too.
    fn compared(&self, view: &ImageView, observation: &Observation) -> Compared {
        let elsewhere = |(reference, digest): &(Reference, Digest)| {
            *reference == view.reference && Some(digest) == view.remote.as_ref()
        };
        if observation.blocked_elsewhere.iter().any(elsewhere) {
            return Compared::Blocked;
        }
        let of_others = |c: &Container| c.manager.is_some() && c.is_made_from(&view.reference);
        if observation.containers.iter().any(of_others) {
            return Compared::Managed;
        }
        if observation.unanswered.contains_key(&view.text) {
            // The registry may have the blocked digest still.
            let is_blocked = self.durable.blocked.contains_key(&view.text);
            return if is_blocked { Compared::Blocked } else { Compared::Unanswered };
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
        let mut moves = Vec::new();
        let mut pins = Vec::new();
        for view in &observation.images {
            let old = view.running.first().or(view.tagged.as_ref());
            let unproven = self.durable.unproven.get(&view.text);
            let proven = self.durable.proven.get(&view.text);
            // What to go back to: what runs, unless that is known to be unproven.
            let is_unproven = proven.is_some() && old.is_some_and(|old| Some(&old.id) == unproven);
            let way_back =
                if is_unproven { proven.cloned() } else { old.map(|old| compare::old_image(view, old)) };
            let verdict = self.compared(view, observation);
            let digest = match (&verdict, &cause) {
                (Compared::Stale { remote }, _) => remote,
                (Compared::UpToDate | Compared::NotFound { .. }, Cause::Redeploy) => {
                    let Some(remote) = &view.remote else { continue };
                    remote
                }
                (Compared::Blocked, _) => {
                    // What runs stays. When nothing runs, the tag may name the blocked image itself.
                    let kept = if view.running.is_empty() { proven.cloned() } else { way_back };
                    pins.extend(kept.map(|kept| (view.reference.clone(), kept)));
                    continue;
                }
                _ => continue,
            };
            if !cause.is_about_images() {
                continue;
            }
            moves.push(Move {
                text: view.text.clone(),
                reference: view.reference.clone(),
                old_digest: if is_unproven {
                    way_back.as_ref().and_then(|old| old.source.as_ref()?.digest.clone())
                } else {
                    old.and_then(|old| compare::shown_digest(old, view.remote.as_ref()))
                },
                old: way_back,
                digest: digest.clone(),
                new_id: None,
            });
        }
        for (reference, digest) in &observation.blocked_elsewhere {
            let running = observation
                .containers
                .iter()
                .find(|c| c.state == State::Running && c.is_made_from(reference));
            let own = moves.iter().any(|m| m.reference == *reference);
            if let (Some(container), false) = (running, own) {
                tracing::debug!(%reference, %digest, "the tag of a blocked image is kept where it is");
                pins.push((reference.clone(), OldImage { id: container.image.clone(), source: None }));
            }
        }
        if moves.is_empty() && cause == Cause::Update {
            return false;
        }
        let recreate = match &cause {
            Cause::Redeploy => Recreate::All,
            Cause::Start | Cause::Unstick { .. } if !observation.left_out.is_empty() => Recreate::Nothing,
            _ => Recreate::Changed,
        };
        self.durable.given_up = false;
        let mut deployment = Deployment {
            project: self.config.project(),
            grace: self.config.health_grace,
            begun: now,
            moves,
            pins,
            others: Vec::new(),
            displaced: None,
            before: Was::all(&observation.containers),
            recreate,
            phase: if cause.is_about_images() { Phase::Hold } else { Phase::Start },
            cause,
            since: now,
            attempt: 0,
            also_recreated: Vec::new(),
        };
        deployment.keep_others(&observation.containers);
        // Compose applies whatever the files say now, so that is what counts as deployed; an edit that an update
        // leaves alone is still to be applied.
        let whole = deployment.recreate != Recreate::Nothing && deployment.scope().is_none();
        if let Some(hash) = self.files_seen.clone().filter(|_| whole) {
            self.durable.files_hash = Some(hash);
            self.durable.files_owed = deployment.cause == Cause::Drift || self.durable.files_owed;
        }
        self.durable.deployment = Some(deployment);
        true
    }
}
