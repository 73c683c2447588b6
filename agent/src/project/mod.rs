//! What runs per compose project: the worker, what it reads and what it does, and the way to reach it.
//!
//! | file | what it holds |
//! |---|---|
//! | `worker.rs` | one task per project: lets one of its services at a time change it |
//! | `member.rs` | one of them: feeds the decision core, commits what it decides, then performs it |
//! | `journal.rs` | what of a service is durable: state and entries in one transaction |
//! | `placement.rs` | which project has a worker, and how a service gets to it |
//! | `observe.rs` | one check: registry and engine, read side by side |
//! | `perform.rs` | one step of a rollout |
//! | `maintain.rs` | the tasks beside checks and deployments |
//! | `files.rs` | the hash over a project's compose files |
//! | `cycle.rs` | one registry request per image, shared by all services of a poll cycle |
//! | `services.rs` | all services by name: the only way by which API and tasks reach them |

pub mod cycle;
mod files;
mod journal;
mod maintain;
mod member;
mod observe;
mod perform;
pub mod placement;
pub mod services;
pub mod worker;
