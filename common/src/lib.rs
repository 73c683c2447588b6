//! What Evenkeel's daemons agree on: the wire types, and the plumbing both stand on.
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`] | flags and exit codes |
//! | [`config`] | reading a configuration file, every fault at once |
//! | [`secret`] | texts that are used but never printed |
//! | [`wire`] | every type that is seen from outside |
//! | [`clock`] | what time it is, settable in tests |
//! | [`database`] | one redb file: locked, repaired, set aside |
//! | [`journal`] | the last entries and their live subscribers |
//! | [`queue`] | entries that wait for their destinations, durably |
//! | [`store`] | durable key/value state |
//! | [`supervisor`] | named tasks, signals, stopping |
//! | [`systemd`] | telling the service manager how the program is |
//! | [`http`] | serving: listeners, limits, access, routes |
//! | [`sse`] | event streams: a journal as a reply |
//! | [`metrics`] | what a scrape reads off the state |
//! | [`permissions`] | who else can change a file |
//! | [`page`] | a dashboard as one document |
//! | [`telemetry`] | log lines |
//! | [`tls`] | TLS as a client |
//! | [`mod@file`] | writing a file whole or not at all |
//! | `testing` | what the tests of all packages share (feature `testing`) |

pub mod cli;
pub mod clock;
pub mod config;
pub mod database;
pub mod file;
pub mod http;
pub mod journal;
pub mod metrics;
pub mod page;
pub mod permissions;
pub mod queue;
pub mod secret;
pub mod sse;
pub mod store;
pub mod supervisor;
pub mod systemd;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tls;
pub mod wire;
