//! Everything that runs for long: one file a task, and what the worker does outside.
//!
//! | file | task |
//! |---|---|
//! | `worker.rs` | one per service: feeds the decision core and does what it says |
//! | `observe.rs`, `perform.rs` | the worker's hands: one check, one step |
//! | `files.rs` | the hash over a project's compose files |
//! | `cycle.rs` | one request per image, shared by all services that ask in the same cycle |
//! | `poller.rs` | starts a cycle every `registry.poll_interval`, and when asked |
//! | `events.rs` | reads the engine's events and passes them on |
//! | `daemon_health.rs` | asks whether the engine answers |
//! | `state_health.rs` | says when the state can't be written, and when it can again |
//! | `monitor.rs` | measures what the containers use |
//! | `services.rs` | starts the workers, and others when the configuration is read again |
//! | `publisher.rs` | makes the status frames that all streams share |
//! | `push.rs` | polls the services whose image was just pushed |

pub mod cycle;
pub mod daemon_health;
pub mod events;
mod files;
pub mod monitor;
mod observe;
mod perform;
pub mod poller;
pub mod publisher;
pub mod push;
pub mod services;
pub mod state_health;
pub mod worker;
