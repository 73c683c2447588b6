//! The agent: keeps container services up to date, proves every new image, rolls back when it is bad.
//!
//! # Layers
//!
//! Each imports only those below it; `tests/layers.rs` checks that.
//!
//! ```text
//! cli · app           the command line; app builds everything and names the tasks
//! http                the API, one line an endpoint
//! tasks               one file a task
//! project · audit     one worker per compose project; entries and their destinations
//! adapters            docker, registry, compose: the real world, named in app only
//! service             the decision core: pure values, no I/O, no clock
//! ports               the world as traits
//! config · model      the file's rules; containers, images, projects, errors
//! ```
//!
//! # Tasks and channels
//!
//! | task | what it reads | what it sends |
//! |---|---|---|
//! | worker (one per compose project) | its services' inboxes (`mpsc`), ends of its own actions | what each service shows (`published`), commits of state and entries |
//! | poller | its interval, requests for a cycle (`mpsc`) | `Command::Check` to every service |
//! | registry events | pushed images (`mpsc`) | `Command::Check` to those that use one |
//! | events | the engine's event stream | `Command::Input` to the services concerned |
//! | engine health | its interval, hints (`Notify`) | `EngineHealth` (`watch`) |
//! | state health | failed writes (`watch`) | one entry when they begin and one when they end |
//! | monitor | what services show, its interval | `Input::Measured` |
//! | reload | SIGHUP | `Command::Reconfigure`, the active configuration (`watch`) |
//! | fleet | the wardens' decisions | what is known of the fleet (`watch`) |
//! | fleet report | what services show | inventories and leases, to the wardens |
//! | status publisher | what services show | status frames (`watch`) for all streams |
//! | outbox, audit file, one per destination | entries that are durable | files, mail, webhooks, the warden |
//!
//! # Glossary
//!
//! - **check**: registry and engine read side by side for one service.
//! - **rollout**: an update, from pinning the old images to their release or restoration.
//! - **probation**: the time in which new containers have to prove themselves.
//! - **rollback**: bringing back the images that ran before, by their IDs, with a probation of its own.
//! - **blocked**: a digest that failed here and is not deployed again.
//! - **gate**: a condition that an update has to pass before it goes live.
//! - **baseline**: the containers as they were before a rollout.
//! - **journal**: the durable state of a service, written before each step.
//! - **outbox**: entries that are durable and wait for their destinations.

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
