//! The registry port against scripted registries: every way in which one may answer, and what must not follow.

mod digest;
mod failures;
mod flood;
mod logins;
mod tags;
mod world;
