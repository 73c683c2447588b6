//! The steps on a compose project. What proves an image there is in `rollout/probation.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::image::Reference;
use crate::model::{HookEvent, Model, ModelService, Project, PullPolicy};
use crate::ports::{HookCall, Priority};
use crate::service::action::{BringUp, Expects, IfGone, Keeps, Replaced, Step};
use crate::service::images::OldImage;
use crate::service::rollout::baseline::Baseline;
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::plan::{Cause, ImageChange, PlannedHooks};
use crate::service::rollout::step::Phase;
use crate::service::rollout::tag::{LineState, TagChange};

impl Deployment {
    /// The compose services that hand over once the others are brought up.
    fn brought_up_next(&self) -> Vec<String> {
        let handover = self.plan().handover.as_ref().filter(|_| self.phase == Phase::Start);
        handover.map(|handover| handover.services.keys().cloned().collect()).unwrap_or_default()
    }

    /// Returns the step of the current phase; `None` if the phase only waits.
    pub(super) fn step_on_compose(&self, project: &Project) -> Option<Step> {
        let plan = self.plan();
        let displaced = || self.displaced.clone().unwrap_or_default();
        let up = |tags, down| {
            if self.displaced.is_none() && !self.sibling_tags.is_empty() {
                return Step::ReadTags { sibling_tags: self.sibling_tags.clone() };
            }
            let pull = if plan.pull_missing && self.phase == Phase::Start {
                PullPolicy::Missing
            } else {
                PullPolicy::Never
            };
            let definition = self.definition();
            let is_guarded =
                definition.is_none() && !matches!(plan.cause, Cause::Redeploy | Cause::ComposeChanged);
            Step::Start(BringUp {
                tags,
                displaced: displaced(),
                project: self.with_tag(project),
                down,
                up_mode: self.up_mode.clone(),
                scope: self.scope(),
                next: self.brought_up_next(),
                pull,
                definition,
                is_guarded,
                must_look: self.must_look && self.phase == Phase::Start,
                if_gone: match self.phase {
                    Phase::Start | Phase::Spread if plan.cause == Cause::Update => IfGone::Stop,
                    _ => IfGone::GoOn,
                },
                priority: self.priority(),
                expects: self.expects(),
            })
        };
        if let (Some(step), Phase::Unpin) = (self.snapshot_step(), &self.phase) {
            return Some(Step::Snapshot(step));
        }
        if let Some(tag) = self.line_to_restore() {
            return Some(self.write_tag(project, tag, true));
        }
        Some(match &self.phase {
            Phase::PinImages => Step::PinImages { project: project.name.clone(), images: plan.old_images() },
            Phase::Pull => self.pull(project),
            Phase::WriteTag => self.write_tag(project, plan.tag.as_ref()?, false),
            Phase::Start | Phase::Spread => up(self.new_tags(), plan.cause == Cause::ForceUp { down: true }),
            Phase::Rollback(_) => up(plan.old_tags(), false),
            Phase::RestoreTags => Step::RestoreTags { tags: plan.tags_of_running() },
            Phase::Diagnose(failed) => Step::Diagnose { container: failed.failure.container_id.clone() },
            Phase::Unpin => Step::Unpin {
                project: project.name.clone(),
                displaced: displaced(),
                onto: plan.image_changes.iter().find_map(|m| self.new_ids.get(&m.configured)).cloned(),
            },
            Phase::BeforeHook => Step::RunHook {
                call: self.hook_call(HookEvent::Before)?,
                look_at: Some(project.name.clone()),
            },
            Phase::LastHook { event } => Step::RunHook { call: self.hook_call(*event)?, look_at: None },
            // They wait, or are of another target.
            Phase::Probation { .. }
            | Phase::VerifyRollback { .. }
            | Phase::Soak { .. }
            | Phase::Admit
            | Phase::Update
            | Phase::Converge { .. }
            | Phase::VerifyTasks { .. } => return None,
            Phase::Drain
            | Phase::Retire
            | Phase::Settle { .. }
            | Phase::Revive(_)
            | Phase::Withdraw { .. }
            | Phase::Abort { .. } => {
                Step::Handover { project: project.name.clone(), step: self.handover_step()? }
            }
            Phase::Quiesce
            | Phase::Copy
            | Phase::Restore(_)
            | Phase::Resume { .. }
            | Phase::Expire { .. } => Step::Snapshot(self.snapshot_step()?),
        })
    }

    /// Once compose has run, what there is of the project is what it has made.
    fn expects(&self) -> Expects {
        let is_first = self.plan().ran_before && self.phase == Phase::Start;
        if is_first { Expects::Volumes } else { Expects::Nothing }
    }

    fn priority(&self) -> Priority {
        let plan = self.plan();
        let is_replaced = |was: &Baseline| {
            plan.cause == Cause::ComposeChanged
                || was
                    .made_from()
                    .is_some_and(|image| plan.image_changes.iter().any(|change| change.is_of(&image)))
        };
        let is_down = |was: &Baseline| was.live && !was.running && is_replaced(was);
        // Stopped for its snapshot, left by a run that was interrupted, or down before.
        let is_outage = self.must_resume()
            || self.interruptions > 0
            || plan.starts_project
            || plan.before.iter().any(is_down);
        match (&plan.cause, &self.phase) {
            // What they replace runs.
            (Cause::Update | Cause::ComposeChanged, Phase::Start | Phase::Spread) if !is_outage => {
                Priority::Routine
            }
            _ => Priority::Urgent,
        }
    }

    fn pull(&self, project: &Project) -> Step {
        let plan = self.plan();
        let source = |m: &ImageChange| (m.configured.clone(), m.source(&m.digest));
        let old = |m: &ImageChange| {
            let replaced = Replaced {
                id: m.old.as_ref()?.id.clone(),
                tag: m.from.as_ref().unwrap_or(&m.reference).tag.clone(),
                new_tag: m.reference.tag.clone(),
            };
            Some((m.configured.clone(), replaced))
        };
        Step::Pull {
            images: plan.image_changes.iter().map(source).collect(),
            old: plan.image_changes.iter().filter_map(old).collect(),
            local: match &plan.cause {
                Cause::GoBack(back) => {
                    back.to.iter().map(|to| (to.configured.clone(), to.id.clone())).collect()
                }
                _ => BTreeMap::new(),
            },
            keeps: self.keeps(project),
        }
    }

    /// What must not stay behind in volumes. What a person has asked for is not refused, and neither is a way back, which is
    /// from an image that may not serve.
    fn keeps(&self, project: &Project) -> Option<Keeps> {
        let plan = self.plan();
        if plan.cause != Cause::Update {
            return None;
        }
        let (scope, definition) = (plan.scope()?, self.definition()?);
        let up = scope.services(Some(&definition));
        let is_replaced = |was: &Baseline, change: &ImageChange| {
            let image = definition.service(&was.compose_service).and_then(ModelService::image);
            let is_on_change = image.is_some_and(|image| change.is_of(&image));
            was.live && is_on_change && up.services().contains(&was.compose_service)
        };
        let of_change = |change: &ImageChange| {
            let replaced = scope.before.iter().filter(|was| is_replaced(was, change));
            let ids: BTreeSet<String> = replaced.map(|was| was.id.clone()).collect();
            (change.configured.clone(), ids)
        };
        let replaced: BTreeMap<_, _> = plan.image_changes.iter().map(of_change).collect();
        Some(Keeps { project: project.name.clone(), definition, replaced })
    }

    /// Returns the tag whose env file line must be restored before anything else.
    fn line_to_restore(&self) -> Option<&TagChange> {
        let is_restoring = matches!(self.phase, Phase::Rollback(_) | Phase::RestoreTags);
        self.plan().tag.as_ref().filter(|_| is_restoring && self.line == LineState::Written)
    }

    /// Reports whether the current step restores the env file line.
    pub(in crate::service) fn restores_line(&self) -> bool {
        self.line_to_restore().is_some()
    }

    fn write_tag(&self, project: &Project, tag: &TagChange, back: bool) -> Step {
        let users = self.plan().changed_containers().filter(|(_, m)| m.from.is_some());
        let mut images: Vec<Reference> = users.map(|(_, m)| m.reference.clone()).collect();
        images.dedup();
        Step::WriteTag {
            project: self.with_tag(project),
            variable: tag.variable.clone(),
            tag: if back { tag.old.clone() } else { tag.new.clone() },
            line: tag.line.clone(),
            back,
            images,
        }
    }

    /// Returns the project with the tag that compose must bring up, whatever the env file says now.
    fn with_tag(&self, project: &Project) -> Project {
        let mut project = project.clone();
        if let Some(tag) = self.tag() {
            let is_new = matches!(self.phase, Phase::WriteTag | Phase::Start | Phase::Spread);
            let wanted = if is_new { &tag.new } else { &tag.old };
            project.set.insert(tag.variable.clone(), wanted.clone());
        }
        project
    }

    /// Returns the recorded definition with the image references of the current direction.
    fn definition(&self) -> Option<Arc<Model>> {
        let recorded = self.plan().definition.as_ref()?;
        let is_new = matches!(self.phase, Phase::Start | Phase::Spread);
        let moves: Vec<(&Reference, &Reference)> = if is_new && self.tag().is_some() {
            self.plan().image_changes.iter().filter_map(|m| Some((m.from.as_ref()?, &m.reference))).collect()
        } else {
            Vec::new()
        };
        if moves.is_empty() {
            return Some(recorded.clone());
        }
        let image = |service: ModelService<'_>| {
            let image = service.image()?;
            let (_, to) = moves.iter().find(|(from, _)| **from == image)?;
            let tag = to.tag.as_deref()?;
            Some(with_tag(service.element().get("image")?.as_str()?, tag))
        };
        Some(Arc::new(Model::clone(recorded).with_images(image)))
    }

    /// Returns the tags with the images that they must point to for the new images.
    fn new_tags(&self) -> Vec<(Reference, OldImage)> {
        let target = |m: &ImageChange| {
            let id = self.new_ids.get(&m.configured)?.clone();
            Some((m.reference.clone(), OldImage { id, source: Some(m.source(&m.digest)) }))
        };
        let used = self.plan().image_changes.iter().filter(|change| self.plan().is_used(change));
        let new = used.filter_map(target);
        new.chain(self.plan().kept_tags.iter().cloned()).collect()
    }

    /// Returns the call of a hook; `None` if there is none for this event.
    pub(in crate::service) fn hook_call(&self, event: HookEvent) -> Option<HookCall> {
        let PlannedHooks { service, hooks } = self.plan().hooks.as_ref()?;
        Some(HookCall {
            argv: hooks.of(event)?.to_vec(),
            event,
            timeout: hooks.timeout,
            question: self.question(service)?,
            snapshot: self.plan().snapshot.as_ref().and_then(|plan| plan.dump.clone()),
        })
    }
}

/// Replaces the tag in an image as written in a compose file.
fn with_tag(image: &str, tag: &str) -> String {
    let start = image.rfind('/').map_or(0, |at| at + 1);
    let end = image[start..].find(':').map_or(image.len(), |at| start + at);
    format!("{}:{tag}", &image[..end])
}
