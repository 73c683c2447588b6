//! Everything that runs for long: one file a task, and what the worker does outside.
//!
//! | file | task |
//! |---|---|
//! | `poller.rs` | starts a poll cycle every `registry.poll_interval`, and when asked |
//! | `registry_events.rs` | polls the services whose image was just pushed |
//! | `events.rs` | reads the engine's events and passes them on |
//! | `engine_health.rs` | asks whether the engine answers |
//! | `state_health.rs` | says when the state can't be written, and when it can again |
//! | `fleet.rs` | hears what the fleet decides, and keeps it |
//! | `fleet_report.rs` | reports to the wardens what runs, and keeps leases while they are in use |
//! | `monitor.rs` | measures what the containers use |
//! | `reload.rs` | starts the workers, and brings them in line with a configuration that is read again |
//! | `status_publisher.rs` | makes the status frames that all streams share |

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
