//! Runs the actions of a service as futures that resolve to inputs.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{OnceCell, watch};

use crate::ports::{PullProgress, Urgency};
use crate::service::action::Action;
use crate::service::input::Input;

use super::super::cycle::{Cycle, Pending};
use super::super::fetch::Fetch;
use super::super::observe::Check;
use super::super::{maintain, perform};
use super::{Done, Member};

impl Member {
    /// Starts an action. Its result is delivered to the service as an input.
    pub(super) fn work(&mut self, action: Action) -> BoxFuture<'static, Done> {
        let world = self.world.clone();
        match action {
            Action::Check { generation, is_manual, asked } => {
                let cycle = self.cycle.take();
                let cycle = cycle.unwrap_or_else(|| Cycle::new(world.registry.clone(), Urgency::Manual));
                let config = self.service.shared_config();
                let check = Check { world, cycle, config, asked, pending: Pending::default() };
                async move {
                    match check.in_parts(generation, is_manual).await {
                        (all, None) => Done::Input(all),
                        (first, Some(rest)) => Done::Part(first, rest.map(Done::Input).boxed()),
                    }
                }
                .boxed()
            }
            Action::Inspect { generation, members } => async move {
                let result = world.engine.containers(&members).await;
                Done::Input(Box::new(Input::Inspected { generation, result }))
            }
            .boxed(),
            Action::InspectSwarm { generation, service } => async move {
                let result = world.swarm.service(&service).await;
                Done::Input(Box::new(Input::SwarmInspected { generation, result }))
            }
            .boxed(),
            Action::Maintain(task) => {
                let service = self.name().to_owned();
                async move {
                    let result = maintain::maintain(&world, &service, task).await;
                    Done::Input(Box::new(Input::Maintained(result)))
                }
                .boxed()
            }
            Action::RunGateCommand { argv, image, question } => async move {
                let answer = world.gate_command.ask(&argv, &question).await;
                Done::Input(Box::new(Input::CommandAnswered { image, digest: question.digest, answer }))
            }
            .boxed(),
            Action::AskFleet { image, ask } => async move {
                let answer = world.fleet.ask(&ask).await;
                Done::Input(Box::new(Input::FleetAnswered { image, ask, answer }))
            }
            .boxed(),
            Action::ReleaseFleet(ask) => async move {
                if let Err(error) = world.fleet.release(&ask).await {
                    tracing::debug!(
                        image = ask.image,
                        "a lease could not be released and will expire: {error}"
                    );
                }
                Done::Input(Box::new(Input::FleetReleased(ask)))
            }
            .boxed(),
            Action::Probe { since, probe, targets } => async move {
                let answers = world.probes.ask(&probe, &targets).await;
                Done::Input(Box::new(Input::Probed { since, answers }))
            }
            .boxed(),
            Action::Restart { name, id } => async move {
                let result = world.engine.restart(&id).await;
                Done::Input(Box::new(Input::Restarted { name, result }))
            }
            .boxed(),
            Action::Step(step) => {
                let (progress, pulled) = watch::channel(PullProgress::default());
                self.pulled = Some(pulled);
                let project = self.service.shared_config().project();
                async move {
                    let fetch = Fetch { world: &world, project, progress: &progress, model: OnceCell::new() };
                    let result = perform::perform(&fetch, step).await;
                    Done::Input(Box::new(Input::Stepped(result)))
                }
                .boxed()
            }
        }
    }
}
