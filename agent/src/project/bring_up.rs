//! The step that runs compose: sets the tags, chooses the definition and the compose services, and observes the effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::model::{
    ComposeError, Container, EngineError, HealthState, HealthTiming, Members, Model, ModelService, Project,
    PullPolicy, Reference, State, UpMode,
};
use crate::ports::{Compose, Engine, Turn};
use crate::service::action::{BringUp, DisplacedTag, Expects};
use crate::service::input::StepResult;
use crate::service::scope::Scope;
use crate::service::wording;

use super::after_up::after_up;
use super::awaited::Awaited;
use super::definition::{CompareError, Comparison, missing_env_file, moved};
use super::fetch::{Fetch, point_at_running, point_tags, read_again, real_name, restore_displaced};
use super::present;
use super::spared::{Spared, leave_out, spared, would_end};
use super::undisturbed::undisturbed;
use super::volumes;

/// How long compose may wait for a job that a service depends on, or for a hook of a service, such as a migration: stopped
/// halfway, it may leave data that no image can use. Compose knows only one limit, so whatever else hangs may take as long.
const LONGEST_JOB: Duration = Duration::from_hours(6);

/// How long a run keeps its turn. One that takes longer waits for something, for example for a job, and holds up no others.
const TURN: Duration = Duration::from_mins(10);

/// What compose is called with.
struct Call {
    project: Project,
    up_mode: UpMode,
    /// The dependencies that are passed on to it.
    passed_on: Vec<String>,
    /// Compose services whose containers are recreated first, each by itself.
    renewed: Vec<String>,
    /// Compose services whose containers are recreated last, each by itself.
    followers: Vec<String>,
    /// Compose services with hooks.
    hooked: BTreeSet<String>,
    /// What the next run depends on.
    awaited: Awaited,
    /// What a person has to know about the result.
    note: Option<String>,
}

/// Brings the project up.
pub(super) async fn bring_up(fetch: &Fetch<'_>, start: BringUp) -> Result<StepResult, EngineError> {
    // Before the first look: it may wait long, and what was seen before would no longer be true.
    let Some(turn) = fetch.world.compose.turn(start.priority).await else {
        return Err(EngineError::Unavailable("the agent is stopping".to_owned()));
    };
    in_turn(turn, Box::pin(look_and_run(fetch, start))).await
}

/// Does this, and gives the turn back before it is done if that takes long.
async fn in_turn<F: Future + Unpin>(turn: Turn, mut work: F) -> F::Output {
    if let Ok(done) = timeout(TURN, &mut work).await {
        return done;
    }
    drop(turn);
    work.await
}

/// What a look at the project has led to.
enum Looked {
    /// Compose is to be called, with these containers there.
    Ready(Box<(Vec<Container>, Call)>),
    /// It is not called.
    Ended(Box<StepResult>),
}

async fn look(fetch: &Fetch<'_>, start: &BringUp) -> Result<Looked, EngineError> {
    let (engine, compose) = (&*fetch.world.engine, &*fetch.world.compose);
    let containers = engine.containers(&Members::Project(start.project.name.clone())).await?;
    let model = start.definition.as_deref();
    if start.must_look && start.scope.as_ref().is_some_and(|scope| !scope.is_as_before(&containers, model)) {
        return Ok(Looked::Ended(Box::new(StepResult::Looked { containers })));
    }
    let expected = if containers.is_empty() && start.expects == Expects::Volumes {
        volumes::are_there(compose, &*fetch.world.data.volumes, start).await
    } else {
        Ok(())
    };
    let prepared = match expected {
        Ok(()) => prepare((engine, compose), start, &containers).await,
        Err(error) => Err(error),
    };
    match prepared {
        Ok(call) => Ok(Looked::Ready(Box::new((containers, call)))),
        Err(CompareError::Engine(error)) => Err(error),
        Err(CompareError::Compose(error)) => {
            let seen = after_up(engine, Err(error), &start.up_mode, start.project.name.clone()).await;
            Ok(Looked::Ended(Box::new(seen)))
        }
    }
}

async fn look_and_run(fetch: &Fetch<'_>, start: BringUp) -> Result<StepResult, EngineError> {
    let (engine, compose) = (&*fetch.world.engine, &*fetch.world.compose);
    let seen = undisturbed(compose, &start, || look(fetch, &start)).await;
    let Some(seen) = seen.transpose()? else { return Ok(StepResult::Occupied) };
    let (containers, call) = match seen {
        Looked::Ready(ready) => *ready,
        Looked::Ended(result) => return Ok(*result),
    };
    let displaced = read_again(engine, start.displaced).await?;
    // Directly before compose runs: an image that no container uses yet may be pruned at any time.
    point_tags(fetch, &start.tags).await?;
    let called = called_tags(&call, &containers, &displaced);
    if let Err(error) = point_at_running(fetch, &displaced, &called, start.if_gone).await {
        restore_displaced(engine, &displaced).await?;
        return Err(error);
    }
    let up = run(compose, &call, start.pull).await;
    if let Some(note) = &call.note {
        tracing::warn!(project = call.project.name, "{note}");
    }
    let name = call.project.name;
    let seen = match restore_displaced(engine, &displaced).await {
        Ok(()) => {
            let up = match up {
                Ok(output) => call.awaited.wait(engine, &name).await.map(|()| output),
                Err(error) => Err(error),
            };
            after_up(engine, up, &call.up_mode, name).await
        }
        Err(error) => StepResult::EngineAway(error.to_string()),
    };
    // Compose has run, so its effect must be observed before the next decision.
    Ok(match (seen, call.note) {
        (StepResult::Started { up: Ok(output), named, containers }, Some(note)) => {
            StepResult::Started { up: Ok(format!("{output}{note}\n")), named, containers }
        }
        (seen, _) => seen,
    })
}

async fn run(compose: &dyn Compose, call: &Call, pull: PullPolicy) -> Result<String, ComposeError> {
    let mut output = String::new();
    // With --no-deps, compose waits for nothing else.
    let alone = |service: &String| {
        let wait_grace = if call.hooked.contains(service) { LONGEST_JOB } else { Duration::ZERO };
        Project { wait_grace, ..call.project.clone() }
    };
    for service in &call.renewed {
        let mode = UpMode::ForceService(service.clone());
        output.push_str(&compose.up(&alone(service), &mode, pull).await?);
    }
    // The files no longer contain any of the services. Without names, compose would start all services.
    if !call.up_mode.is_for_none() {
        output.push_str(&compose.up(&call.project, &call.up_mode, pull).await?);
    }
    for service in &call.followers {
        let mode = UpMode::ForceService(service.clone());
        output.push_str(&compose.up(&alone(service), &mode, pull).await?);
    }
    Ok(output)
}

/// Chooses the definition and the compose services.
async fn prepare(
    world: (&dyn Engine, &dyn Compose),
    start: &BringUp,
    containers: &[Container],
) -> Result<Call, CompareError> {
    let (engine, compose) = world;
    let project = start.project.clone().with_present(containers);
    let (rendered, unread) = match compose.model(&project).await {
        Ok(model) => (Some(model), None),
        Err(error) => (None, Some(error)),
    };
    if let Some(error) = &unread {
        tracing::debug!(project = project.name, "can't read the compose model: {error}");
    }
    let (mut project, model) = choose(start, project, rendered);
    let mut up_mode = match &start.scope {
        Some(scope) => scope.services(model.as_deref()),
        None => start.up_mode.clone(),
    };
    // What the files define is not known, although `up`, which reads less of them, may succeed.
    if let (None, Some(error)) = (&model, unread)
        && start.is_guarded
        && !start.up_mode.starts_only()
        && !containers.is_empty()
    {
        return Err(error.into());
    }
    let (mut renewed, mut followers, mut note) = (Vec::new(), Vec::new(), None);
    if start.is_guarded {
        let mut stuck = present::stuck(containers);
        stuck.retain(|name| up_mode.services().is_empty() || up_mode.services().contains(name));
        let mut cut_off = cut_off(model.as_deref(), containers, &up_mode);
        let to_renew = (stuck.as_slice(), cut_off.as_slice());
        if let Some(narrowed) = guard(world, start, &project, model.as_deref(), containers, to_renew).await? {
            up_mode = narrowed;
        }
        if start.down {
            cut_off.retain(|name| !stuck.contains(name));
            renewed = stuck;
        }
        renewed.append(&mut cut_off);
        // An update keeps the counts as of its planning.
        if let (Some(model), None) = (&model, &start.scope) {
            project.kept_counts = present::kept_counts(containers, model);
        }
    } else if let (UpMode::Changed, None, Some(model)) = (&up_mode, &start.definition, model.as_deref()) {
        renewed = moved(world, &project, model, containers).await?;
    }
    project.profiles = profiles(compose, &project, model.as_deref(), containers, &up_mode).await;
    let spared = spared(engine, start, containers, &up_mode).await?;
    renewed.retain(|name| !spared.iter().any(|(c, _)| c.compose_service == *name));
    let is_whole = up_mode.services().is_empty() && !up_mode.is_for_none();
    if let Some(model) = model.as_deref().filter(|_| is_whole) {
        let all = name_all(compose, &mut project, model, containers, &up_mode, &spared).await;
        note = leave_out(world, start, &project, model, containers, &all, &spared).await?;
    } else if let Some(one) = spared.first().filter(|_| is_whole) {
        return Err(would_end(*one));
    }
    if let (Some(scope), Some(model)) = (&start.scope, &model) {
        let kept = keep_hashes(world, &project, model, containers, scope, &mut up_mode).await;
        // Only a nicety is lost, which must not end an update, and a rollback even less.
        note = kept.unwrap_or_else(|error| Some(hashes_not_kept(up_mode.services(), &error)));
        followers = self::followers(model, up_mode.services(), containers);
        // Each of them is recreated by itself.
        if note.is_none()
            && !followers.is_empty()
            && !are_hashes_kept(compose, &project, model, &followers).await.unwrap_or(true)
        {
            note = Some(format!(
                "Compose was called with --no-deps for {}, in the network of another container. The next `compose up -d` of \
                 a person will make it anew.",
                followers.join(", ")
            ));
        }
        let kept = followers.iter().filter_map(|name| Some((name.clone(), scope.kept_count(name, model)?)));
        project.kept_counts.extend(kept);
    }
    project.stop_grace = stop_grace(containers, &up_mode);
    project.wait_grace =
        model.as_deref().map_or(Duration::ZERO, |model| wait_grace(model, containers, &up_mode));
    project.compatibility = present::compatibility(&project.name, containers);
    let passed_on = passed_on(&up_mode, model.as_deref(), containers);
    let awaited = model.as_deref().map(|model| awaited(start, model, containers, &up_mode));
    let awaited = awaited.unwrap_or_default();
    let hooked = model.as_deref().map(hooked).unwrap_or_default();
    Ok(Call { project, up_mode, passed_on, renewed, followers, hooked, awaited, note })
}

/// The profiles to call compose with: those without which it rejects the files.
async fn profiles(
    compose: &dyn Compose,
    project: &Project,
    model: Option<&Model>,
    containers: &[Container],
    up_mode: &UpMode,
) -> BTreeSet<String> {
    let required = model.map(|model| present::required_profiles(containers, model, up_mode.services()));
    let required = required.unwrap_or_default();
    if required.is_empty() {
        return required;
    }
    // Compose may know them from COMPOSE_PROFILES, which would no longer count.
    match compose.active_services(project).await {
        Ok(active) if up_mode.services().iter().all(|name| active.contains(name)) => BTreeSet::new(),
        _ => required,
    }
}

/// The compose services with hooks.
fn hooked(model: &Model) -> BTreeSet<String> {
    let services = model.services().filter(|service| service.has_hooks());
    services.map(|service| service.name.to_owned()).collect()
}

/// The compose services whose containers lack a network, see [`present::cut_off`]; each after those that it depends on.
fn cut_off(model: Option<&Model>, containers: &[Container], up_mode: &UpMode) -> Vec<String> {
    let Some(model) = model else { return Vec::new() };
    let mut names = present::cut_off(containers, model, up_mode);
    names.sort_by_cached_key(|name| {
        present::dependencies(model, std::slice::from_ref(name), containers).len()
    });
    names
}

/// What the run after this one depends on, and how long that may take.
fn awaited(start: &BringUp, model: &Model, containers: &[Container], up_mode: &UpMode) -> Awaited {
    let named = up_mode.services();
    let both = named.iter().chain(&start.next).cloned().collect();
    let limit = start.project.health_grace + wait_grace(model, containers, &UpMode::Services(both));
    Awaited::of(model, named, &start.next, limit)
}

/// Uses the files as long as they define the recorded services as recorded, and else the record.
fn choose(start: &BringUp, project: Project, rendered: Option<Model>) -> (Project, Option<Arc<Model>>) {
    let Some(recorded) = &start.definition else { return (project, rendered.map(Arc::new)) };
    if let Some(rendered) = rendered {
        let names = |scope: &Scope| scope.services(Some(recorded)).services().to_vec();
        let names = start.scope.as_ref().map(names).unwrap_or_default();
        if recorded.defines_alike(&names, &rendered) {
            return (project, Some(Arc::new(rendered)));
        }
    }
    tracing::info!(
        project = project.name,
        "the compose files were edited during the deployment; it goes on with the definition that it began with"
    );
    (project.defined_by(recorded.clone()), Some(recorded.clone()))
}

/// Compares what compose would bring up with what there is. Returns a mode that is limited to what can be brought up as it
/// is, if not all can; the error says what differs. Containers that are stuck, or cut off from a network, can't.
async fn guard(
    world: (&dyn Engine, &dyn Compose),
    start: &BringUp,
    project: &Project,
    model: Option<&Model>,
    containers: &[Container],
    (stuck, cut_off): (&[String], &[String]),
) -> Result<Option<UpMode>, CompareError> {
    // Then there is no container, or none is made anew.
    let Some(model) = model else { return Ok(None) };
    if start.up_mode.starts_only() {
        return Ok(None);
    }
    let named = match &start.scope {
        Some(scope) => scope.services(Some(model)).services().to_vec(),
        None => start.up_mode.services().to_vec(),
    };
    let mut services: Vec<String> = containers.iter().map(|c| c.compose_service.clone()).collect();
    services.sort();
    services.dedup();
    services.retain(|name| named.is_empty() || named.contains(name));
    // A service that was taken out of the files is an orphan, which compose leaves alone.
    services.retain(|name| model.service(name).is_some());
    if services.is_empty() {
        return missing_env_file(project).await.map_or(Ok(None), |error| Err(error.into()));
    }
    let comparison = Comparison::read(world, project, model, &services, containers).await?;
    let comparison = comparison.with_absent(&services).await;
    // The files follow a variable that the agent sets for this run.
    let is_own_change = |from: &Reference, to: &Reference| {
        !project.set.is_empty()
            && from.repository == to.repository
            && start.tags.iter().any(|(reference, _)| reference == to)
    };
    let mut differences = comparison.differences(&services, is_own_change);
    // What `docker update` or docker's proxies have set is lost, but what is down or failing comes up.
    differences.retain(|difference| !difference.is_beside_files());
    if differences.is_empty() {
        return Ok(None);
    }
    let is_renewed = |name: &String| stuck.contains(name) || cut_off.contains(name);
    if named.is_empty() && !differences.iter().any(|difference| is_renewed(&difference.service)) {
        return Ok(Some(if stuck.is_empty() { UpMode::StartOnly } else { UpMode::Services(stuck.to_vec()) }));
    }
    Err(CompareError::Compose(ComposeError::new(wording::left_as_it_is(&differences))))
}

/// Names the compose services of the whole project where compose, left to itself, would cover others: it leaves out those of
/// a profile that a person has named, or brings up all of one that it is called with, can't start those that have no container,
/// and knows nothing of those to be spared. Returns all that are to be brought up.
async fn name_all(
    compose: &dyn Compose,
    project: &mut Project,
    model: &Model,
    containers: &[Container],
    up_mode: &UpMode,
    spared: &[Spared<'_>],
) -> Vec<String> {
    let of_profiles = present::of_profiles(containers, model);
    let plain = || model.services().filter(|s| !s.has_profiles()).map(|s| s.name.to_owned()).collect();
    let is_called_with_profiles = !project.profiles.is_empty();
    let active: BTreeSet<String> = if of_profiles.is_empty() && !is_called_with_profiles && spared.is_empty()
    {
        plain()
    } else {
        let by_itself = Project { profiles: BTreeSet::new(), ..project.clone() };
        compose.active_services(&by_itself).await.unwrap_or_else(|error| {
            tracing::debug!(project = project.name, "can't read which compose services are active: {error}");
            plain()
        })
    };
    let mut all: BTreeSet<String> = active.union(&of_profiles).cloned().collect();
    if up_mode.starts_only() {
        let present = present::with_containers(containers, model);
        all.retain(|name| present.contains(name));
    }
    all.retain(|name| !spared.iter().any(|(c, _)| c.compose_service == *name));
    project.kept_counts.retain(|name, _| all.contains(name));
    let is_as_compose_finds = all == active && !is_called_with_profiles;
    let all: Vec<String> = all.into_iter().collect();
    if !is_as_compose_finds {
        project.all_services.clone_from(&all);
    }
    if is_called_with_profiles {
        // The profiles of COMPOSE_PROFILES, which no longer count.
        let services = all.iter().filter_map(|name| model.service(name));
        project.profiles.extend(services.flat_map(ModelService::profiles).map(str::to_owned));
    }
    all
}

/// What to tell where [`keep_hashes`] could not find out what compose would do.
fn hashes_not_kept(names: &[String], error: &CompareError) -> String {
    format!(
        "The dependencies of {} could not be compared with what runs ({error}), so compose was called with --no-deps. The \
         next `compose up -d` of a person may make the container anew.",
        names.join(", ")
    )
}

/// Makes compose label the new containers with the hash that a person's `compose up -d` computes, so that it recreates
/// nothing. Some versions leave the dependencies out of the hash with `--no-deps`; there, the dependencies are passed on if
/// compose would leave them as they are. Returns what to tell if it would not.
async fn keep_hashes(
    world: (&dyn Engine, &dyn Compose),
    project: &Project,
    model: &Arc<Model>,
    containers: &[Container],
    scope: &Scope,
    up_mode: &mut UpMode,
) -> Result<Option<String>, CompareError> {
    let UpMode::ScaledServices { names, replicas, with_dependencies, .. } = up_mode else { return Ok(None) };
    let needed = present::dependencies(model, names, containers);
    if needed.is_empty() {
        return Ok(None);
    }
    if are_hashes_kept(world.1, project, model, names).await? {
        return Ok(None);
    }
    let is_well = |c: &&Container| {
        c.state == State::Running && !matches!(c.health, Some(health) if health != HealthState::Healthy)
    };
    let run = |name: &String| {
        let of_service: Vec<&Container> = containers.iter().filter(|c| c.compose_service == *name).collect();
        !of_service.is_empty() && of_service.iter().all(is_well)
    };
    let is_left_alone = if needed.iter().all(run) {
        let comparison = Comparison::read(world, project, model, &needed, containers).await?;
        needed.iter().all(|name| comparison.is_exact(name))
    } else {
        false
    };
    if is_left_alone {
        *with_dependencies = true;
        let kept = needed.iter().filter_map(|name| Some((name.clone(), scope.kept_count(name, model)?)));
        replicas.extend(kept);
        return Ok(None);
    }
    Ok(Some(format!(
        "A dependency of {} is not running, not healthy, not in one of its networks, was edited or was made anew by another \
         tool, so compose was called with --no-deps. The next `compose up -d` of a person will make the container anew.",
        names.join(", ")
    )))
}

/// Whether this version of compose computes the same hash for these services with and without their dependencies.
async fn are_hashes_kept(
    compose: &dyn Compose,
    project: &Project,
    model: &Arc<Model>,
    names: &[String],
) -> Result<bool, ComposeError> {
    // Both from the model: the hash of the files lacks the variables of env files.
    let whole = project.clone().defined_by(model.clone());
    let alone = project.clone().defined_by(Arc::new(Model::clone(model).with_dependencies(|_, _| false)));
    let (whole, alone) = (compose.hashes(&whole).await?, compose.hashes(&alone).await?);
    Ok(names.iter().all(|name| whole.by_service.get(name) == alone.by_service.get(name)))
}

/// Returns those of these compose services that join a namespace of a container of another one by its name (`container:…`).
/// To compose they are unchanged, so it would leave them in the namespace of the container that it has removed.
fn followers(model: &Model, names: &[String], containers: &[Container]) -> Vec<String> {
    let has = |name: &String, container: &str| {
        let fixed = model.service(name).and_then(|service| service.element().get("container_name")?.as_str());
        let mut own = containers.iter().filter(|c| c.compose_service == *name);
        fixed == Some(container) || own.any(|c| real_name(&c.name).unwrap_or(&c.name) == container)
    };
    let follows = |name: &&String| {
        let mut joined = model.service(name).into_iter().flat_map(ModelService::joined_containers);
        joined.any(|container| names.iter().any(|other| other != *name && has(other, container)))
    };
    names.iter().filter(follows).cloned().collect()
}

/// The dependencies that this mode passes on to compose.
fn passed_on(up_mode: &UpMode, model: Option<&Model>, containers: &[Container]) -> Vec<String> {
    match (up_mode, model) {
        (UpMode::ScaledServices { names, with_dependencies: true, .. }, Some(model)) => {
            present::dependencies(model, names, containers)
        }
        _ => Vec::new(),
    }
}

/// Those of these tags whose image a service runs that compose is called for.
fn called_tags(call: &Call, containers: &[Container], displaced: &[DisplacedTag]) -> Vec<Reference> {
    let named = call.up_mode.services();
    let is_whole = named.is_empty() && !call.up_mode.is_for_none();
    let lists: [&[String]; 3] = [named, &call.passed_on, &call.renewed];
    let is_called = |name: &String| is_whole || lists.iter().any(|list| list.contains(name));
    let is_of_called = |one: &&DisplacedTag| {
        let mut users = containers.iter().filter(|c| c.image == one.runs && c.is_made_from(&one.tag));
        users.any(|c| is_called(&c.compose_service))
    };
    displaced.iter().filter(is_of_called).map(|one| one.tag.clone()).collect()
}

/// The time that the containers of these services need to stop, one service after another.
fn stop_grace(containers: &[Container], up_mode: &UpMode) -> Duration {
    let named = up_mode.services();
    let mut longest: BTreeMap<&str, Duration> = BTreeMap::new();
    for c in containers.iter().filter(|c| c.is_live()) {
        if named.is_empty() || named.contains(&c.compose_service) {
            let grace = longest.entry(&c.compose_service).or_default();
            *grace = c.stop_timeout.max(*grace);
        }
    }
    longest.values().sum()
}

/// The time that compose may wait for those of these services that others of them depend on, and for hooks, one after another.
fn wait_grace(model: &Model, containers: &[Container], up_mode: &UpMode) -> Duration {
    let named = up_mode.services();
    let is_covered = |name: &str| named.is_empty() || named.iter().any(|one| one == name);
    let budget = |name: &str| {
        let of_containers = containers.iter().filter(|c| c.compose_service == name);
        let timings = of_containers.filter_map(|c| c.health_timing);
        let timings = timings.chain(model.service(name).and_then(HealthTiming::of_files));
        timings.map(|timing| timing.budget()).max().unwrap_or_default()
    };
    let mut awaited: BTreeMap<&str, Duration> = BTreeMap::new();
    for service in model.services().filter(|service| is_covered(service.name)) {
        let checked = service.waits_for_health_of().map(|name| (name, budget(name)));
        let jobs = service.waits_for().map(|name| (name, LONGEST_JOB));
        let hooks = service.has_hooks().then_some((service.name, LONGEST_JOB));
        for (name, time) in checked.chain(jobs).chain(hooks).filter(|(name, _)| is_covered(name)) {
            let longest = awaited.entry(name).or_default();
            *longest = time.max(*longest);
        }
    }
    awaited.values().sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tokio::sync::Semaphore;
    use tokio::time::sleep;

    use super::*;
    use crate::model::ImageId;
    use crate::ports::Hashes;

    #[test]
    fn a_service_in_the_network_of_a_named_container_is_recreated_after_the_service_of_that_one() {
        let model: Model = serde_json::from_value(serde_json::json!({"services": {
            "vpn": {"image": "vpn:1", "container_name": "gluetun"},
            "proxy": {"image": "proxy:1"},
            "client": {"image": "client:1", "network_mode": "container:gluetun"},
            "second": {"image": "client:1", "network_mode": "container:shop-proxy-1"},
            "other": {"image": "client:1", "network_mode": "container:elsewhere"},
            "tied": {"image": "client:1", "network_mode": "service:vpn"},
        }}))
        .expect("a model");
        let proxy = |name: &str| Container { name: name.into(), ..Container::running("proxy", "proxy:1") };
        let of = |names: &[&str], proxy: &Container| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            followers(&model, &names, std::slice::from_ref(proxy))
        };
        let all = ["client", "other", "proxy", "second", "tied", "vpn"];
        // An earlier run may have been killed after it removed the old container, or before it renamed the new one.
        for name in ["shop-proxy-1", "0123456789ab_shop-proxy-1"] {
            assert_eq!(of(&all, &proxy(name)), ["client", "second"], "{name}");
        }
        assert_eq!(of(&["client", "tied"], &proxy("shop-proxy-1")), [""; 0], "the other one stays");
    }

    #[test]
    fn containers_that_lack_a_network_are_made_anew_after_those_that_they_depend_on() {
        let model: Model = serde_json::from_value(serde_json::json!({"services": {
            "a": {"image": "a:1", "depends_on": {"c": {"condition": "service_started"}}},
            "b": {"image": "a:1"},
            "c": {"image": "a:1", "depends_on": {"d": {"condition": "service_healthy"}}},
            "d": {"image": "a:1"},
        }}))
        .expect("a model");
        let down = |name| Container {
            state: State::Exited,
            lost_networks: if name == "b" { Vec::new() } else { vec!["old".into()] },
            ..Container::running(name, "a:1")
        };
        let containers = ["a", "b", "c", "d"].map(down);
        assert_eq!(cut_off(Some(&model), &containers, &UpMode::Changed), ["d", "c", "a"]);
        assert_eq!(cut_off(None, &containers, &UpMode::Changed), [""; 0]);
    }

    #[test]
    fn a_tag_is_of_a_called_service_if_compose_may_recreate_a_container_that_runs_on_it() {
        let model: Model = serde_json::from_value(serde_json::json!({"services": {
            "web": {"image": "web:1", "depends_on": {"db": {"condition": "service_started"}}},
            "db": {"image": "db:1"},
            "client": {"image": "client:1"},
            "other": {"image": "other:1"},
        }}))
        .expect("a model");
        let containers: Vec<Container> = ["web", "db", "client", "other"]
            .map(|name| Container::running(name, &format!("{name}:1")))
            .into_iter()
            .collect();
        let displaced: Vec<DisplacedTag> = containers[1..]
            .iter()
            .map(|c| DisplacedTag {
                tag: Reference::parse(&c.config_image).expect("a tag"),
                runs: c.image.clone(),
                named: Some(ImageId("sha256:moved".into())),
            })
            .collect();
        let of = |up_mode: UpMode| -> Vec<String> {
            let call = Call {
                project: Project::default(),
                passed_on: passed_on(&up_mode, Some(&model), &containers),
                up_mode,
                renewed: Vec::new(),
                followers: Vec::new(),
                hooked: BTreeSet::new(),
                awaited: Awaited::default(),
                note: None,
            };
            let tags = called_tags(&call, &containers, &displaced);
            tags.iter().map(|tag| tag.repository.path.clone()).collect()
        };
        let scaled = |with_dependencies| UpMode::ScaledServices {
            names: vec!["client".to_owned(), "web".to_owned()],
            replicas: BTreeMap::new(),
            with_dependencies,
            keeps_containers: false,
        };
        assert_eq!(of(scaled(false)), ["library/client"]);
        assert_eq!(of(scaled(true)), ["library/db", "library/client"]);
        assert_eq!(of(UpMode::Changed), ["library/db", "library/client", "library/other"]);
        assert_eq!(of(UpMode::Services(Vec::new())), [""; 0]);
    }

    #[test]
    fn compose_is_given_the_time_of_the_jobs_hooks_and_health_checks_that_it_waits_for() {
        let model: Model = serde_json::from_value(serde_json::json!({"services": {
            "db": {"image": "db:1", "healthcheck": {"test": ["CMD", "true"], "start_period": "20m0s"}},
            "cache": {"image": "cache:1"},
            "migrate": {"image": "web:1", "depends_on": {"db": {"condition": "service_healthy"}}},
            "web": {"image": "web:1", "depends_on": {
                "db": {"condition": "service_healthy"},
                "cache": {"condition": "service_healthy"},
                "migrate": {"condition": "service_completed_successfully"}}},
            "plain": {"image": "web:1", "depends_on": {"web": {"condition": "service_started"}}},
            "hooked": {"image": "web:1", "pre_start": [], "post_start": [{"command": ["migrate"]}]},
        }}))
        .expect("a model");
        let timing = HealthTiming { start_period: Duration::from_mins(5), ..HealthTiming::DEFAULT };
        let cache = Container { health_timing: Some(timing), ..Container::running("cache", "cache:1") };
        let of = |mode: &UpMode| wait_grace(&model, std::slice::from_ref(&cache), mode);
        let named = |names: &[&str]| of(&UpMode::Services(names.iter().map(|name| (*name).into()).collect()));
        // Four intervals and a timeout are added to each start period.
        let (of_db, of_cache) = (Duration::from_secs(1200 + 150), Duration::from_secs(300 + 150));
        assert_eq!(named(&["web", "plain", "cache"]), of_cache);
        assert_eq!(named(&["web", "db"]), of_db);
        assert_eq!(named(&["migrate", "web"]), LONGEST_JOB);
        assert_eq!(named(&["plain", "web"]), Duration::ZERO, "compose does not wait for what is not named");
        assert_eq!(named(&["hooked", "plain"]), LONGEST_JOB);
        assert_eq!(of(&UpMode::Changed), LONGEST_JOB * 2 + of_db + of_cache, "the whole project");
    }

    /// Notes how long each run may wait.
    #[derive(Default)]
    struct Waits(Mutex<Vec<Duration>>);

    #[async_trait]
    impl Compose for Waits {
        async fn up(&self, project: &Project, _: &UpMode, _: PullPolicy) -> Result<String, ComposeError> {
            self.0.lock().expect("no test panics with it").push(project.wait_grace);
            Ok(String::new())
        }

        async fn validate(&self, _: &Project) -> Result<(), ComposeError> {
            Ok(())
        }

        async fn model(&self, _: &Project) -> Result<Model, ComposeError> {
            Ok(Model::default())
        }

        async fn hashes(&self, _: &Project) -> Result<Hashes, ComposeError> {
            Err(ComposeError::new("it is not asked"))
        }
    }

    #[tokio::test]
    async fn a_job_gets_six_hours_and_a_service_that_is_recreated_by_itself_waits_for_its_hooks_only() {
        let call = Call {
            project: Project { wait_grace: LONGEST_JOB, ..Project::default() },
            up_mode: UpMode::Changed,
            passed_on: Vec::new(),
            renewed: vec!["web".to_owned()],
            followers: vec!["side".to_owned(), "hooked".to_owned()],
            hooked: ["hooked".to_owned()].into(),
            awaited: Awaited::default(),
            note: None,
        };
        let compose = Waits::default();
        run(&compose, &call, PullPolicy::Never).await.expect("it succeeds");
        let waits = compose.0.lock().expect("no test panics with it").clone();
        let job = Duration::from_hours(6);
        assert_eq!(waits, [Duration::ZERO, job, Duration::ZERO, job]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_waits_for_a_job_gives_its_turn_back_before_it_is_done() {
        let turns = Arc::new(Semaphore::new(1));
        let permit = turns.clone().acquire_owned().await.expect("it is open");
        let work = Box::pin(async {
            let at_first = turns.available_permits();
            sleep(LONGEST_JOB).await;
            (at_first, turns.available_permits())
        });
        assert_eq!(in_turn(Turn(Some(permit)), work).await, (0, 1));
    }

    #[test]
    fn that_the_dependencies_could_not_be_compared_is_told_and_why() {
        let error = ComposeError::new("can't write the definition");
        let note = hashes_not_kept(&["web".to_owned()], &CompareError::Compose(error));
        assert!(note.contains("of web could not be compared") && note.contains("can't write"), "{note}");
    }
}
