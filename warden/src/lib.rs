//! The warden: collects the audit entries of many agents, shows them live, and says who is there and who is not.
//!
//! | module | what it holds |
//! |---|---|
//! | [`app`] | the composition root: one line a task |
//! | [`cli`] | flags and exit codes |
//! | [`config`] | the configuration file, every fault at once |
//! | [`live`] | the configuration in force, read again on SIGHUP |
//! | [`access`] | tokens: who may ask |
//! | [`guesses`] | slows down whoever guesses tokens |
//! | [`entry`] | an agent's entry as it comes, and as it is kept |
//! | [`machines`], [`seen`] | pure: who is online, what came, what is missing |
//! | [`ring`] | the last entries and the machines under one lock |
//! | [`state_file`] | the same on disk, for the next life |
//! | [`heartbeat`] | asks every agent how it is |
//! | [`http`] | the endpoints |
//! | [`wizard`] | `warden-config` |
//!
//! Words: an *agent* is a line of the configuration with an id and a token; a *machine* is what the warden knows of
//! it; an *entry* is one audit entry of it; *missing* entries are numbers that were skipped and have not come since.

pub mod access;
pub mod app;
pub mod cli;
pub mod config;
pub mod entry;
pub mod guesses;
pub mod heartbeat;
pub mod http;
pub mod live;
pub mod machines;
pub mod ring;
pub mod seen;
pub mod state_file;
pub mod wizard;

/// Name under which the warden itself appears in entries (DECISIONS 3).
pub const PROGRAM: &str = "warden";
