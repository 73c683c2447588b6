//! Harness of the contract tests: whole programs against a real engine and a real registry.
//!
//! Everything here is blocking on purpose: a test is one thread that reads from top to bottom. Waits are on a
//! state, with a deadline, and say what they saw last. Whatever a test makes carries the label
//! `LABEL` or a name that begins with `PREFIX`; it is removed on drop, and swept by `dist/test.sh`.

#![cfg(feature = "harness")]

mod agent;
mod asker;
mod browser;
mod command;
mod config;
mod engine;
mod fake_warden;
mod head;
mod http;
mod image;
mod modern;
mod project;
mod proxy;
mod registry;
mod relay;
mod stage;
mod swarm;
mod warden;
mod world;

pub use evenkeel_common::testing::{LONG, unused_port, wait_for};

pub use agent::{Agent, Kill, LogLine};
pub use asker::{Asked, Asker};
pub use browser::Browser;
pub use command::{Said, run_agent, run_agent_at};
pub use config::{Config, Service};
pub use engine::{ContainerView, Engine, PrivateEngine, beside_engine};
pub use fake_warden::{Behaviour, FakeWarden, Heard};
pub use http::{Reply, request};
pub use image::{Health, Image, OTHER_ARCHITECTURE, Shape};
pub use project::Project;
pub use proxy::{Fault, Proxy};
pub use registry::{Pushed, Registry};
pub use relay::{FullEngine, LoudEngine};
pub use stage::Stage;
pub use swarm::{Node, Swarm};
pub use warden::Warden;
pub use world::{World, kill_from_outside};

/// Label of everything that tests make.
pub const LABEL: &str = "evenkeel.test";

/// Beginning of the names of projects and folders that tests make.
pub const PREFIX: &str = "ektest-";

/// A name that no other test, now or earlier, has used.
pub fn unique_name(about: &str) -> String {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hasher keys are random per process.
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{PREFIX}{about}-{:08x}", random & 0xffff_ffff)
}
