//! The registry client against scripted registries: all kinds of responses and failures.

mod digest;
mod failures;
mod flood;
mod logins;
mod tags;
mod world;
