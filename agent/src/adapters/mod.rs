//! The real world behind the traits of `ports.rs`. Named in `app.rs` only.

pub mod compose;
pub mod docker;
mod login;
pub mod registry;
