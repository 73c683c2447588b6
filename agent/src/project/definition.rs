//! Compares what compose makes of its files with what runs, before anything is brought up (DECISIONS 4a).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::model::{
    ComposeError, Container, Difference, EngineError, Model, Project, Reference, Rendered, Running,
};
use crate::ports::{Compose, Engine};
use crate::service::observation::{Definition, ImageView};
use crate::service::rollout::baseline::Baseline;
use crate::service::scope::{Part, Scope};

/// How long a comparison may take.
const LIMIT: Duration = Duration::from_mins(1);

/// Why a definition could not be compared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompareError {
    /// The engine did not answer, or refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Compose can't render the files.
    #[error("{0}")]
    Compose(#[from] ComposeError),
}

/// A project's files, rendered, and what runs.
pub(crate) struct Comparison {
    rendered: Rendered,
    running: Running,
}

impl Comparison {
    /// Renders the definitions of these compose services, with `model` as the resolved model of the project, and inspects
    /// `containers`.
    pub(crate) async fn read(
        (engine, compose): (&dyn Engine, &dyn Compose),
        project: &Project,
        model: &Model,
        services: &[String],
        containers: &[Container],
    ) -> Result<Self, CompareError> {
        let of_services = containers.iter().filter(|c| services.contains(&c.compose_service));
        let ids: Vec<String> = of_services.map(|container| container.id.clone()).collect();
        let running = engine.running(&project.name, &ids).await?;
        let hashes = compose.hashes(project).await?;
        let mut rendered = Rendered {
            model: model.clone(),
            hashes: hashes.by_service,
            accepted: BTreeMap::new(),
            version: hashes.version,
            unset: hashes.unset,
        };
        let unexplained = rendered.unexplained(services, &running);
        if !unexplained.is_empty() {
            let project = project.clone().defined_by(Arc::new(running.applied_to(model.clone())));
            rendered.accepted = compose.hashes(&project).await?.by_service;
        }
        Ok(Self { rendered, running })
    }

    /// Returns how the definitions of these compose services differ from what runs. `is_own_change`: whether the agent itself
    /// moves containers from the first reference to the second, so that this image is no edit.
    pub(crate) fn differences(
        &self,
        services: &[String],
        is_own_change: impl Fn(&Reference, &Reference) -> bool,
    ) -> Vec<Difference> {
        let Self { rendered, running } = self;
        let mut all = rendered.differences(services, running);
        for service in running.other_images(&rendered.model, services, is_own_change) {
            let what = "image".to_owned();
            // The hash covers the text of the image, however the engine has resolved it.
            if rendered.is_exact(&service, running) {
                continue;
            }
            if let Some(difference) = all.iter_mut().find(|difference| difference.service == service) {
                difference.what.insert(0, what);
            } else {
                let unset = rendered.unset.clone();
                all.push(Difference { service, what: vec![what], unset });
            }
        }
        all
    }

    /// Reports whether compose would leave the containers of this compose service alone.
    pub(crate) fn is_exact(&self, service: &str) -> bool {
        self.rendered.is_exact(service, &self.running)
    }
}

/// Compares the definitions of the compose services that updates of these images would bring up.
pub(super) async fn of_images(
    world: (&dyn Engine, &dyn Compose),
    project: &Project,
    images: &[&ImageView],
    containers: &[Container],
) -> Result<Definition, CompareError> {
    let compared = async {
        let model = world.1.model(project).await?;
        let before = Baseline::all(containers);
        let references = |view: &ImageView| -> Vec<Reference> {
            [&view.from, &view.reference].into_iter().chain(&view.newer).cloned().collect()
        };
        let services_of = |view: &ImageView| {
            let scope = Scope { images: references(view), before: before.clone(), part: Part::All };
            scope.services(Some(&model)).services().to_vec()
        };
        // The tag variable is set for all its images at once.
        let is_own_change = |from: &Reference, to: &Reference| {
            let mut all = images.iter().map(|view| references(view));
            all.any(|references| references.contains(from) && references.contains(to))
        };
        let by_image: Vec<(String, Vec<String>)> =
            images.iter().map(|view| (view.configured.clone(), services_of(view))).collect();
        let mut all: Vec<String> = by_image.iter().flat_map(|(_, services)| services.clone()).collect();
        all.sort();
        all.dedup();
        let live: Vec<Container> = containers.iter().filter(|c| c.is_live()).cloned().collect();
        let comparison = Comparison::read(world, project, &model, &all, &live).await?;
        let differences = by_image
            .into_iter()
            .map(|(image, services)| (image, comparison.differences(&services, is_own_change)))
            .filter(|(_, differences)| !differences.is_empty())
            .collect();
        let bound_files = bound_files(&live).await;
        Ok(Definition { model: Arc::new(model), differences, bound_files })
    };
    timeout(LIMIT, compared).await.unwrap_or_else(|_| {
        let cause =
            format!("the compose files could not be compared with what runs within {} s", LIMIT.as_secs());
        Err(CompareError::Compose(ComposeError { cause, output: String::new() }))
    })
}

/// The host paths of bind mounts that are no directories, such as sockets. One that this process can't see counts as a
/// directory.
pub(crate) async fn bound_files(containers: &[Container]) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for mount in containers.iter().flat_map(|c| &c.mounts).filter(|mount| mount.kind == "bind") {
        if tokio::fs::metadata(&mount.source).await.is_ok_and(|found| !found.is_dir()) {
            files.insert(mount.source.clone());
        }
    }
    files
}
