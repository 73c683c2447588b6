//! Implementations of the traits in `ports.rs`. Only `app` refers to them.

mod child;
pub mod compose;
pub mod docker;
pub mod env_file;
pub mod gate_command;
mod login;
pub mod probe;
pub mod registry;
pub mod snapshot;
mod stragglers;
pub mod warden;
