//! The rollout of new images: pull, start, probation, and a rollback on failure (DECISIONS 4).
//!
//! ```text
//! pin_images ─► pull ─► start ─► probation ───────────────────────────────────► unpin   updated
//!      │          │       │          └─► diagnose ─► rollback ─► verify_rollback ─► unpin   rolled_back / rollback_failed
//!      │          │       └─ every old container still runs ─► restore_tags ──► unpin   errored
//!      └──────────┴───────────────────────────────────────────────────────────► unpin   errored, nothing changed
//! ```
//!
//! If a newer tag is deployed, `write_tag` runs before `start`, and `rollback` and `restore_tags` restore the line first.
//!
//! Where hooks are configured, `before_hook` comes first, and `last_hook` after `unpin`, once the outcome is recorded.
//!
//! Every step can be repeated: after a restart, the agent repeats the step recorded in the journal.
//!
//! These are values: `decide/rollout/` applies results to them.
//!
//! | file | what it holds |
//! |---|---|
//! | `plan.rs` | the plan of a rollout, which never changes |
//! | `deployment.rs` | a plan in progress: its phase, and the state collected so far |
//! | `step.rs` | the phases |
//! | `baseline.rs` | the containers before a deployment, and those that must run in the end |
//! | `probation.rs` | whether new containers pass their probation |
//! | `probe.rs` | what they answer to a probe |
//! | `handover.rs` | new containers beside the old ones, which serve until the new ones are proven |
//! | `snapshot.rs` | the data that is copied before the update, and put back with the images |
//! | `outage.rs` | how long the services are interrupted |
//! | `tag.rs` | the line of the env file that holds the tag |
//! | `target/` | the steps of a rollout on compose and in a swarm, and the watch over the tasks there |

pub mod baseline;
pub mod deployment;
pub mod handover;
pub mod outage;
pub mod plan;
pub mod probation;
pub mod probe;
pub mod snapshot;
pub mod step;
pub mod tag;
pub mod target;
