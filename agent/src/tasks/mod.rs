//! Long-running background tasks, one file per task.
//!
//! | file | task |
//! |---|---|
//! | `poller.rs` | starts a poll cycle every `registry.poll_interval` and on request |
//! | `registry_events.rs` | polls the services whose image was just pushed |
//! | `events.rs` | reads the engine's events and forwards them |
//! | `engine_health.rs` | checks whether the engine responds |
//! | `state_health.rs` | reports when the state can't be written, and when it can again |
//! | `fleet.rs` | receives and stores the fleet's decisions |
//! | `fleet_report.rs` | reports the running images to the wardens and renews leases |
//! | `monitor.rs` | measures the containers' resource usage |
//! | `reload.rs` | starts the workers and applies a reloaded configuration |
//! | `status_publisher.rs` | builds the status frames shared by all streams |

pub mod engine_health;
pub mod events;
pub mod fleet;
pub mod fleet_report;
pub mod monitor;
pub mod poller;
pub mod registry_events;
pub mod reload;
pub mod state_health;
pub mod status_publisher;
