//! Code shared by Evenkeel's daemons: the wire types and the common infrastructure.
//!
//! | module | content |
//! |---|---|
//! | [`backoff`] | pauses between attempts |
//! | [`cli`] | flags and exit codes |
//! | [`config`] | reading a configuration file and reporting all of its errors at once |
//! | [`secret`] | strings that are used but never printed |
//! | [`wire`] | every type that is visible from outside |
//! | [`clock`] | clocks, controllable in tests |
//! | [`database`] | one redb file: locking, repair, moving damaged files aside |
//! | [`journal`] | the last entries and their live subscribers |
//! | [`queue`] | the durable outbox with its destinations |
//! | [`store`] | durable key/value state |
//! | [`supervisor`] | named tasks, signals, shutdown |
//! | [`systemd`] | service manager notifications |
//! | [`http`] | the HTTP server: listeners, limits, access, routes |
//! | [`sse`] | event streams from a journal |
//! | [`metrics`] | metrics computed at scrape time |
//! | [`proxy`] | the proxies of the environment |
//! | [`permissions`] | checks for files that other users can change |
//! | [`hanging`] | paths on a file system that hangs |
//! | [`page`] | a dashboard as one document |
//! | [`telemetry`] | log lines |
//! | [`tls`] | TLS client configuration |
//! | [`mod@file`] | atomic file writes |
//! | `testing` | helpers for the tests of all packages (feature `testing`) |

pub mod backoff;
pub mod cli;
pub mod clock;
pub mod config;
pub mod database;
pub mod file;
pub mod hanging;
pub mod http;
pub mod journal;
pub mod metrics;
pub mod page;
pub mod permissions;
pub mod proxy;
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
