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
        self.last_check = Some(now);
        let observation = match result {
            Ok(observation) => observation,
            Err(fault) => {
                let text = match fault {
                    CheckFault::Failed(text) => {
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

        let observation = self.without_left_behind(observation);
        let mut stale = false;
        let mut matching = true;
        for view in &observation.images {
            match self.compared(view, &observation) {
                Compared::Pinned | Compared::Blocked => {}
                Compared::UpToDate => {
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
        self.look_at = Some(now);

        let (drift, files_fault) = match files {
            Ok(drift) => (drift, None),
            Err(text) => (None, Some(text)),
        };
        self.wanted = if std::mem::take(&mut self.redeploy_asked) {
            Some(Cause::Redeploy)
        } else if stale && self.config.auto_update && !held {
            Some(Cause::Update)
        } else if asked && self.durable.given_up && self.is_on_unproven() {
            Some(Cause::WayBack)
        } else {
            drift.filter(|_| !held).or(start)
        };
        if let Some(text) = files_fault.or_else(|| self.left_out()).or_else(|| self.unused()) {
            self.wanted = self.wanted.take().filter(|cause| *cause != Cause::Update);
            // A start that fails again and again is one fault, not two in turn.
            let fails = self.wanted.is_some() && self.fault.as_ref().is_some_and(|fault| !fault.from_check);
            if !fails {
                self.set_fault(Some(Fault { text, from_check: true }), now, entries);
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
        let observation = self.seen.as_ref().filter(|_| self.config.project().is_some())?;
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
        // Compose applies whatever the files say now, so that is what counts as deployed.
        if let Some(hash) = self.files_seen.clone().filter(|_| recreate != Recreate::Nothing) {
            self.durable.files_hash = Some(hash);
            self.durable.files_owed = cause == Cause::Drift || self.durable.files_owed;
        }
        self.durable.given_up = false;
        let mut deployment = Deployment {
            project: self.config.project(),
            grace: self.config.health_grace,
            begun: now,
            moves,
            pins,
            others: Vec::new(),
            before: observation.containers.iter().map(Was::of).collect(),
            recreate,
            phase: if cause.is_about_images() { Phase::Hold } else { Phase::Start },
            cause,
            since: now,
            attempt: 0,
        };
        deployment.keep_others(&observation.containers);
        self.durable.deployment = Some(deployment);
        true
    }
}
