//! The warden: collects the audit entries of many agents, shows them live, and notices which agents are offline or lose
//! entries.
//!
//! Each module may import only those below it:
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`] | flags, subcommands, exit codes |
//! | [`app`] | the composition root: builds everything, spawns the tasks, drains them |
//! | [`http`] | the endpoints, one line each; authorization of requests; the pages |
//! | [`heartbeat`], [`reload`] | the other tasks, and the active configuration |
//! | [`collector`] | stores what comes in batches, and shows the store's end live |
//! | [`keep`] | the store behind one trait: [`keep::embedded`] (redb) for one warden, [`keep::postgres`] for several; [`keep::fold()`] says for both what a batch of changes does |
//! | [`fleet`] | pure: what is a duplicate, what is missing, who is online; freezes, verdicts, leases, rings, the fuse; what an agent is told |
//! | [`auth`] | tokens, sessions, throttling of wrong tokens |
//! | [`wizard`] | `warden-config`: creates and edits the configuration file |
//! | [`config`] | the configuration file, every fault at once |
//!
//! Tasks and what connects them:
//!
//! ```text
//! agents ──POST /ingest──► api ──store──► collector ──commit──► Keep ──news──► collector ──► api ──GET /events──► browsers
//! agents ◄──GET /health── heartbeat ──record_heartbeat──┘
//! agents ──GET /fleet, POST /fleet/ask──► api ──► collector ──value, swap──► Keep
//!                                                    ├──news──► decisions in memory; those who wait for them are woken
//!                                                    └──what `fleet::answer` says of them, by value
//! other wardens ──Keep──hints (NOTIFY)──► collector
//! SIGHUP ──► reload ──set_agents──► collector
//!               └──ActiveConfig (watch)──► api, heartbeat
//! service manager ◄── watchdog
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | agent | one of `agents` in the configuration: an id, a URL, a token |
//! | machine | what the warden knows of an agent |
//! | entry | one audit entry of an agent |
//! | duplicate | an entry that arrived before; it is counted and not stored |
//! | missing | sequence numbers of an agent that were skipped and have not arrived since |
//! | revision | number of the last change to a machine or to a decision; agents wait for a greater one |
//! | verdict | what a digest did on a machine: trying, proven, failed |
//! | lease | the right of one machine to try a digest that is proven nowhere |
//! | duty | work that one warden does for all: the heartbeat, removing old entries |
//! | user | whoever reads the dashboard, with `api.token` or a session |

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
