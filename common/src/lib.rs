//! What Evenkeel's daemons agree on: the wire types, and the plumbing both stand on.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | reading a configuration file, every fault at once |
//! | [`secret`] | texts that are used but never printed |
//! | [`wire`] | every type that is seen from outside |

pub mod config;
pub mod secret;
pub mod wire;
