//! What runs per compose project: the worker, what it reads and what it does, and the way to reach it.
//!
//! | file | what it holds |
//! |---|---|
//! | `worker.rs` | one task per project: lets one of its services at a time change it |
//! | `member.rs` | one of them: feeds the decision core, commits what it decides, then performs it |
//! | `journal.rs` | what of a service is durable: state and entries in one transaction |
//! | `inbox.rs` | the queues to a service and to a worker |
//! | `placement.rs` | which project has a worker, and how a service gets to it |
//! | `published.rs` | what services show, and the signal that it has changed |
//! | `observe.rs` | one check: registry and engine, read side by side |
//! | `perform.rs` | one step of a rollout |
//! | `swarm.rs` | one check, or one step, of a swarm service |
//! | `maintain.rs` | the tasks beside checks and deployments |
//! | `fleet.rs` | what the wardens are asked |
//! | `files.rs` | the hash over a project's compose files |
//! | `tag_file.rs` | the line of the env file that holds a tag |
//! | `cycle.rs` | one registry request per image, shared by all services of a poll cycle |
//! | `services.rs` | all services by name: the only way by which API and tasks reach them |

pub mod cycle;
mod files;
mod fleet;
pub mod inbox;
mod journal;
mod maintain;
mod member;
mod newer;
mod observe;
mod perform;
pub mod placement;
pub mod published;
pub mod services;
mod swarm;
mod tag_file;
pub mod worker;
