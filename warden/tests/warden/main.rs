//! Integration tests of the warden: its endpoints over real connections, and its tasks.

#![allow(clippy::unwrap_used)]

mod api;
mod auth;
mod fleet;
mod fleet_simulation;
mod heartbeat;
mod hostile;
mod keep;
mod layers;
mod postgres;
mod restored;
mod support;
mod takeover;
