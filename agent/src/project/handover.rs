//! Performs the steps of a handover (DECISIONS 12). Each can be repeated: a container that is in the wanted state already, or
//! gone, needs nothing.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::model::{Container, Drain, EngineError, HealthState, IfFound, Members, State};
use crate::ports::{DrainCall, Engine, ExecEnd, GateCommand};
use crate::service::action::HandoverStep;
use crate::service::input::StepResult;

/// Time between two looks at containers that are to become unhealthy.
const LOOK: Duration = Duration::from_millis(500);

/// Performs a step and returns how the containers are afterwards.
pub(super) async fn perform(
    engine: &dyn Engine,
    commands: &dyn GateCommand,
    project: String,
    step: HandoverStep,
) -> Result<StepResult, EngineError> {
    let mut problems = Vec::new();
    match step {
        HandoverStep::Drain(call) => {
            drain_those_that(engine, commands, (call, &project), runs, &mut problems).await?;
        }
        HandoverStep::Retire { stop, start } => {
            for container in &start {
                engine.start(container).await.found()?;
            }
            stop_all(engine, &stop).await?;
        }
        HandoverStep::Settle { remove } => {
            let stopped = stop_each(engine, &remove).await;
            // One that can't be stopped does not keep the others.
            for (container, _) in remove.iter().zip(&stopped).filter(|(_, stopped)| stopped.is_ok()) {
                // Data in anonymous volumes is a person's to remove.
                engine.remove(container, false).await.found()?;
            }
            stopped.into_iter().collect::<Result<(), EngineError>>()?;
        }
        HandoverStep::Revive { start, undo } => {
            for container in &start {
                if engine.start(container).await.found()?.is_some() {
                    exec(engine, container, &undo.undo, undo.timeout, &mut problems).await?;
                }
            }
        }
        HandoverStep::Withdraw { call, remove } => {
            drain_those_that(engine, commands, (call, &project), serves, &mut problems).await?;
            stop_all(engine, &remove).await?;
            for container in &remove {
                engine.remove(container, true).await.found()?;
            }
        }
    }
    let containers = engine.containers(&Members::Project(project)).await?;
    Ok(StepResult::HandoverStepped { problems, containers })
}

fn runs(container: &Container) -> bool {
    container.state == State::Running
}

/// Reports whether a proxy may send requests to a container.
fn serves(container: &Container) -> bool {
    container.state == State::Running && matches!(container.health, None | Some(HealthState::Healthy))
}

/// Stops containers, all at the same time.
async fn stop_all(engine: &dyn Engine, containers: &[String]) -> Result<(), EngineError> {
    stop_each(engine, containers).await.into_iter().collect()
}

async fn stop_each(engine: &dyn Engine, containers: &[String]) -> Vec<Result<(), EngineError>> {
    join_all(containers.iter().cloned().map(|container| stop(engine, container))).await
}

async fn stop(engine: &dyn Engine, container: String) -> Result<(), EngineError> {
    engine.stop(&container).await.found().map(drop)
}

/// Drains those of the containers that `must_be`, if there are any.
async fn drain_those_that(
    engine: &dyn Engine,
    commands: &dyn GateCommand,
    (call, project): (DrainCall, &str),
    must_be: fn(&Container) -> bool,
    problems: &mut Vec<String>,
) -> Result<(), EngineError> {
    let containers = engine.containers(&Members::Project(project.to_owned())).await?;
    let is_drained = |id: &&String| containers.iter().any(|c| c.id == **id && must_be(c));
    let leaving: Vec<String> = call.leaving.iter().filter(is_drained).cloned().collect();
    if leaving.is_empty() {
        return Ok(());
    }
    drain(engine, commands, &DrainCall { leaving, ..call }, project, problems).await
}

/// Relieves containers of their requests. What fails is told, and does not stop the handover.
async fn drain(
    engine: &dyn Engine,
    commands: &dyn GateCommand,
    call: &DrainCall,
    project: &str,
    problems: &mut Vec<String>,
) -> Result<(), EngineError> {
    let drain = &call.drain;
    if !drain.exec.is_empty() {
        let deadline = Instant::now() + drain.timeout;
        let told = call.leaving.iter().cloned().map(|container| tell(engine, drain, container));
        let mut awaited = Vec::new();
        for told in join_all(told).await {
            let (container, failed) = told?;
            if failed.is_empty() {
                awaited.push(container);
            }
            problems.extend(failed);
        }
        await_unhealthy(engine, project, &awaited, deadline, problems).await?;
    }
    if !drain.command.is_empty()
        && let Err(error) = commands.run_drain(call).await
    {
        problems.push(format!("drain.command: {error}"));
    }
    sleep(drain.wait).await;
    Ok(())
}

/// Tells a container that no more requests will follow; returns it with what went wrong.
async fn tell(
    engine: &dyn Engine,
    drain: &Drain,
    container: String,
) -> Result<(String, Vec<String>), EngineError> {
    let mut problems = Vec::new();
    exec(engine, &container, &drain.exec, drain.timeout, &mut problems).await?;
    Ok((container, problems))
}

/// Waits until none of these containers is healthy: that is when a proxy that follows health checks lets go of them.
async fn await_unhealthy(
    engine: &dyn Engine,
    project: &str,
    awaited: &[String],
    deadline: Instant,
    problems: &mut Vec<String>,
) -> Result<(), EngineError> {
    loop {
        let containers = engine.containers(&Members::Project(project.to_owned())).await?;
        let healthy = still_healthy(&containers, awaited);
        if healthy.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            problems.push(format!("drain.exec: {} did not become unhealthy in time", healthy.join(", ")));
            return Ok(());
        }
        sleep(LOOK).await;
    }
}

fn still_healthy(containers: &[Container], awaited: &[String]) -> Vec<String> {
    let is_healthy = |c: &&Container| {
        awaited.contains(&c.id) && c.state == State::Running && c.health == Some(HealthState::Healthy)
    };
    containers.iter().filter(is_healthy).map(|c| c.name.clone()).collect()
}

/// Runs a command in a container, if there is one.
async fn exec(
    engine: &dyn Engine,
    container: &str,
    argv: &[String],
    limit: Duration,
    problems: &mut Vec<String>,
) -> Result<(), EngineError> {
    let Some(program) = argv.first() else { return Ok(()) };
    let why = match engine.exec(container, argv, limit).await {
        // One that has ended needs no draining.
        Ok(ExecEnd::Exited { status: 0 }) | Err(EngineError::NotFound(_)) => return Ok(()),
        Ok(ExecEnd::Exited { status }) => format!("exited with status {status}"),
        Ok(ExecEnd::TimedOut) => format!("did not exit within {} s", limit.as_secs()),
        Err(error) if error.is_unavailable() => return Err(error),
        Err(error) => {
            problems.push(error.to_string());
            return Ok(());
        }
    };
    problems.push(format!("{program} in the container {why}"));
    Ok(())
}
