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
//! | [`keep`] | the store behind one trait; embedded (redb) |
//! | [`fleet`] | what is a duplicate, what is missing, who is online (pure) |
//! | [`auth`] | tokens, sessions, throttling of wrong tokens |
//! | [`wizard`] | `warden-config`: creates and edits the configuration file |
//! | [`config`] | the configuration file, every fault at once |
//!
//! Tasks and what connects them:
//!
//! ```text
//! agents ──POST /ingest──► api ──store──► collector ──commit──► Keep ──news──► collector ──► api ──GET /events──► browsers
//! agents ◄──GET /health── heartbeat ──record_heartbeat──┘
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
