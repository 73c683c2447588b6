//! What there is of a project once compose has run.

use crate::model::{ComposeError, EngineError, Members, UpMode};
use crate::ports::Engine;
use crate::service::input::StepResult;

use super::fetch::real_name;

/// Observes what a run has made.
pub(super) async fn after_up(
    engine: &dyn Engine,
    up: Result<String, ComposeError>,
    up_mode: &UpMode,
    project: String,
) -> StepResult {
    observed(engine, up, up_mode, project)
        .await
        .unwrap_or_else(|error| StepResult::EngineAway(error.to_string()))
}

async fn observed(
    engine: &dyn Engine,
    up: Result<String, ComposeError>,
    up_mode: &UpMode,
    project: String,
) -> Result<StepResult, EngineError> {
    if up.is_err() {
        // Compose does not distinguish an unavailable engine from a project that fails to start; a ping does.
        engine.ping().await?;
    }
    let mut containers = engine.containers(&Members::Project(project)).await?;
    // A compose run that was killed after it removed the old container leaves the new one with a temporary name, and the
    // next run does not rename it.
    for at in 0..containers.len() {
        let Some(name) = real_name(&containers[at].name).map(str::to_owned) else { continue };
        if containers.iter().all(|other| other.name != name) {
            match engine.rename(&containers[at].id, &name).await {
                Ok(()) => containers[at].name = name,
                Err(error) if error.is_unavailable() => return Err(error),
                // The container runs all the same, and the next compose run may succeed.
                Err(error) => {
                    tracing::warn!(container = containers[at].name, %error, "can't rename a container");
                }
            }
        }
    }
    Ok(StepResult::Started { up, named: up_mode.services().to_vec(), containers })
}
