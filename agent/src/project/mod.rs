//! Workers per compose project: their inputs, their actions, and the handles to reach them.
//!
//! | file | content |
//! |---|---|
//! | `worker.rs` | one task per project; only one of its services may change the project at a time |
//! | `member.rs` | one service: feeds the decision core, commits its decisions, then performs them |
//! | `journal.rs` | durable state of a service: state and entries in one transaction |
//! | `inbox.rs` | the queues to services and workers |
//! | `handle.rs` | how others reach a service: commands in, published state out |
//! | `world.rs` | what the workers reach outside |
//! | `published.rs` | published state of services, and a signal for changes |
//! | `observe.rs` | one check: registry and engine, read side by side |
//! | `newer.rs` | the newer tag that a check looks up |
//! | `image_configs.rs` | the configuration of a new image compared with that of the running one |
//! | `definition.rs` | what compose makes of its files compared with what runs |
//! | `absent.rs` | folders that running containers have, and that are not there any more |
//! | `perform.rs` | one step of a rollout |
//! | `fetch.rs` | images and their tags: pulls what is missing, and points tags where a step needs them |
//! | `bring_up.rs` | the step that runs compose |
//! | `undisturbed.rs` | a look at a project while no other compose run changes it |
//! | `after_up.rs` | what there is of a project once compose has run |
//! | `awaited.rs` | what is waited for between the two compose runs of a handover |
//! | `volumes.rs` | the data that a new image would leave behind in a volume |
//! | `present.rs` | what compose does not know of a project that is there: its scale, its profiles, its stuck services |
//! | `spared.rs` | containers that compose must not stop |
//! | `handover.rs` | one step of a handover |
//! | `snapshot.rs` | the data that is copied before an update, and the steps that copy it |
//! | `swarm.rs` | one check or one step of a swarm service |
//! | `maintain.rs` | maintenance tasks |
//! | `needed_images.rs` | the images that the cleanup of one service leaves to the others |
//! | `files.rs` | the hash over a project's compose files |
//! | `references.rs` | which other files a compose file makes compose read |
//! | `tag_file.rs` | the line of the env file that sets a tag |
//! | `cycle.rs` | one registry request per image, shared by all services of a poll cycle |
//! | `services.rs` | all services by name, as used by API and tasks |

mod absent;
mod after_up;
mod awaited;
mod bring_up;
pub mod cycle;
pub(crate) mod definition;
mod fetch;
pub mod files;
pub mod handle;
mod handover;
mod image_configs;
pub mod inbox;
mod journal;
mod maintain;
mod member;
pub mod needed_images;
mod newer;
mod observe;
mod perform;
mod present;
pub mod published;
mod references;
pub mod services;
pub mod snapshot;
mod spared;
mod swarm;
mod tag_file;
mod undisturbed;
mod volumes;
pub mod worker;
pub mod world;
