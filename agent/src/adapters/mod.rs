//! The real world behind the traits of `ports.rs`. Named in `app.rs` only.

mod child;
pub mod compose;
pub mod docker;
pub mod gate_command;
mod login;
pub mod registry;
pub mod warden;
