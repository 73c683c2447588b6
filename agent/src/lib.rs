//! The agent keeps container services up to date. It puts every new image on probation and rolls back a bad one.
//!
//! # Layers
//!
//! Each imports only those below it; `tests/layers.rs` checks that.
//!
//! ```text
//! cli · app           the command line; app builds everything and spawns the tasks
//! http                the API, one line per endpoint
//! tasks               one file per task
//! project · audit     one worker per compose project; audit entries and their destinations
//! adapters            docker, registry, compose: implementations of the ports, named in app only
//! service             the decision core: pure values, no I/O, no clock
//! ports               traits for external systems
//! config · model      configuration and its validation; containers, images, projects, errors
//! ```
//!
//! # Tasks and channels
//!
//! | task | reads | sends |
//! |---|---|---|
//! | worker (one per compose project) | its services' inboxes (`mpsc`), results of its own actions | the published state of each service (`published`), commits of state and entries |
//! | poller | its interval, requests for a cycle (`mpsc`) | `Command::Check` to every service |
//! | registry events | pushed images (`mpsc`) | `Command::Check` to the services that use them |
//! | events | the engine's event stream | `Command::Input` to the affected services |
//! | engine health | its interval, hints (`Notify`) | `EngineHealth` (`watch`) |
//! | state health | failed writes (`watch`) | one entry when writes begin to fail, one when they succeed again |
//! | monitor | published service state, its interval | `Input::Measured` |
//! | reload | SIGHUP | `Command::Reconfigure`, the active configuration (`watch`) |
//! | fleet | the wardens' decisions | the fleet view (`watch`) |
//! | fleet report | published service state | inventories and leases, to the wardens |
//! | status publisher | published service state | status frames (`watch`) for all streams |
//! | outbox, audit file, one per destination | durable entries | files, mail, webhooks, the warden |
//!
//! # Glossary
//!
//! - **check**: one read of registry and engine for one service, side by side.
//! - **rollout**: an update, from pinning the old images to releasing or restoring them.
//! - **probation**: the period in which new containers must prove healthy.
//! - **rollback**: restoring the previous images by ID, with its own probation.
//! - **blocked**: a digest that failed on this machine and is not deployed again.
//! - **gate**: a condition that an update must pass before it is deployed.
//! - **baseline**: the containers as they were before a rollout.
//! - **journal**: the durable state of a service, written before each step.
//! - **outbox**: durable entries that wait for delivery.

pub mod adapters;
pub mod app;
pub mod audit;
pub mod cli;
pub mod config;
pub mod http;
pub mod model;
pub mod ports;
pub mod project;
pub mod service;
pub mod tasks;

/// Name under which the program itself appears in audit entries (DECISIONS 1).
pub const PROGRAM: &str = "evenkeel";
