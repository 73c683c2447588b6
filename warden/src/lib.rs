//! The warden: collects the audit entries of many agents, shows them live, and detects agents that are offline or lose
//! entries.
//!
//! Each module may import only those below it:
//!
//! | module | contents |
//! |---|---|
//! | [`cli`] | flags, subcommands, exit codes |
//! | [`app`] | the composition root: builds everything, spawns the tasks, drains them |
//! | [`http`] | the endpoints, one line each; authorization of requests; the pages |
//! | [`heartbeat`], [`reload`] | the other tasks, and the active configuration |
//! | [`collector`] | commits entries to the store in batches, and follows the store for the live view |
//! | [`keep`] | the store behind one trait: [`keep::embedded`] (redb) for one warden, [`keep::postgres`] for several; [`keep::fold()`] applies a batch of changes for both |
//! | [`fleet`] | pure: duplicates, missing entries, online state; freezes, verdicts, leases, rings, the fuse; answers to agents |
//! | [`auth`] | tokens, sessions, throttling of wrong tokens |
//! | [`wizard`] | `warden-config`: creates and edits the configuration file |
//! | [`config`] | the configuration file; reports all faults at once |
//!
//! Tasks and their connections:
//!
//! ```text
//! agents ──POST /ingest──► api ──store──► collector ──commit──► Keep ──news──► collector ──► api ──GET /events──► browsers
//! agents ◄──GET /health── heartbeat ──record_heartbeat──┘
//! agents ──GET /fleet, POST /fleet/ask──► api ──► collector ──value, swap──► Keep
//!                                                    ├──news──► decisions in memory; wakes long polls
//!                                                    └──facts──► `fleet::answer`
//! other wardens ──Keep──hints (NOTIFY)──► collector
//! SIGHUP ──► reload ──set_agents──► collector
//!               └──ActiveConfig (watch)──► api, heartbeat
//! service manager ◄── watchdog
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | agent | one of `agents` in the configuration: an id, a URL, a token |
//! | machine | the state of an agent as recorded by the warden |
//! | entry | one audit entry of an agent |
//! | duplicate | an entry that has arrived before; it is counted but not stored |
//! | missing | sequence numbers of an agent that were skipped and have not arrived since |
//! | revision | number of the last change to a machine or to a decision; agents wait for a greater one |
//! | verdict | the outcome of a digest on a machine: trying, proven, failed |
//! | lease | the right of one machine to try a digest that is not proven anywhere |
//! | duty | work that one warden does on behalf of all: the heartbeat, removing old entries |
//! | user | someone who reads the dashboard, with `api.token` or a session |

pub mod app;
pub mod auth;
pub mod cli;
pub mod collector;
pub mod config;
pub mod fleet;
pub mod heartbeat;
pub mod http;
pub mod keep;
pub mod reload;
pub mod wizard;

/// The warden's name in its own entries (DECISIONS 3).
pub const PROGRAM: &str = "warden";
