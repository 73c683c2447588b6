//! Containers that compose must not stop: the agent would end with them, or the engine does not remove them.

use crate::model::{ComposeError, Container, Model, Need, Project, Reference, UpMode};
use crate::ports::{Compose, Engine};
use crate::service::action::BringUp;
use crate::service::images::OldImage;

use super::definition::{CompareError, Comparison};
use super::present;

/// A container that compose must not stop to make it anew, and what it is needed for.
pub(super) type Spared<'c> = (&'c Container, Need);

/// The containers of the project that compose must not stop, if it may recreate any. Fails if it is to recreate one of them.
pub(super) async fn spared<'c>(
    engine: &dyn Engine,
    start: &BringUp,
    containers: &'c [Container],
    up_mode: &UpMode,
) -> Result<Vec<Spared<'c>>, CompareError> {
    if up_mode.starts_only() || up_mode.is_for_none() {
        return Ok(Vec::new());
    }
    let needs = engine.needed_containers(containers).await?;
    // An earlier run was ended by this, and a person has started the new container: compose leaves it alone.
    let is_new = |c: &Container| {
        start.scope.is_some() && start.tags.iter().any(|(tag, to)| c.is_made_from(tag) && c.image == to.id)
    };
    let spared = containers.iter().filter_map(|c| Some((c, *needs.get(&c.id)?)));
    let spared: Vec<Spared<'c>> = spared.filter(|(c, _)| c.is_live() && !is_new(c)).collect();
    if let Some(one) = spared.iter().find(|(c, _)| up_mode.services().contains(&c.compose_service)) {
        return Err(would_end(*one));
    }
    Ok(spared)
}

/// Returns what to tell of the containers that compose leaves as they are, which is to bring up `all` other services. Fails if
/// there is none, or if compose would recreate one of them because another service depends on it.
pub(super) async fn leave_out(
    world: (&dyn Engine, &dyn Compose),
    start: &BringUp,
    project: &Project,
    model: &Model,
    containers: &[Container],
    all: &[String],
    spared: &[Spared<'_>],
) -> Result<Option<String>, CompareError> {
    let needed = present::dependencies(model, all, containers);
    let mut notes = Vec::new();
    for (container, need) in spared {
        if all.is_empty() {
            return Err(would_end((*container, *need)));
        }
        let service = &container.compose_service;
        let (is_needed, is_for_others) = (needed.contains(service), *need == Need::ForOthers);
        if is_needed || is_for_others {
            let is_moved =
                |(tag, to): &(Reference, OldImage)| container.is_made_from(tag) && container.image != to.id;
            let own = std::slice::from_ref(service);
            let comparison =
                Comparison::read(world, project, model, own, std::slice::from_ref(*container)).await?;
            let is_left_alone = comparison.is_exact(service) && !start.tags.iter().any(is_moved);
            if is_needed && !is_left_alone {
                return Err(would_end((*container, *need)));
            }
            if is_for_others && is_left_alone && start.up_mode != UpMode::All {
                continue;
            }
        }
        notes.push(format!(
            "{}, {need}, was left as it is, because compose would stop it and {}. {}",
            container.name,
            need.consequence(),
            by_hand((*container, *need))
        ));
    }
    Ok(Some(notes.join(" ")).filter(|note| !note.is_empty()))
}

pub(super) fn would_end((container, need): Spared<'_>) -> CompareError {
    let cause = format!(
        "compose would stop {}, {need}, and {}, so nothing was brought up. {}",
        container.name,
        need.consequence(),
        by_hand((container, need))
    );
    CompareError::Compose(ComposeError::new(cause))
}

fn by_hand((container, need): Spared<'_>) -> String {
    let command = match need {
        Need::ForOthers => "podman compose down && podman compose up -d".to_owned(),
        _ => format!("docker compose up -d {}", container.compose_service),
    };
    format!("To bring it up, run `{command}` in the folder of the compose file.")
}
