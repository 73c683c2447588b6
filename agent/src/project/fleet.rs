//! Requests of a service to the wardens.

use std::sync::Arc;

use evenkeel_common::wire::FleetAsk;

use crate::service::input::Input;

use super::world::World;

/// Asks whether an update may begin.
pub(super) async fn ask(world: Arc<World>, image: String, ask: FleetAsk) -> Box<Input> {
    let answer = world.fleet.ask(&ask).await;
    Box::new(Input::FleetAnswered { image, ask, answer })
}

/// Releases a lease.
pub(super) async fn release(world: Arc<World>, ask: FleetAsk) -> Box<Input> {
    if let Err(error) = world.fleet.release(&ask).await {
        tracing::debug!(image = ask.image, "a lease could not be released and will expire: {error}");
    }
    Box::new(Input::FleetReleased(ask))
}
