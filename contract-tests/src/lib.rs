//! Test harness of the contract tests, which run the complete programs against a real engine and a real registry.
//!
//! The API is blocking on purpose: a test is a single thread that reads from top to bottom. Tests wait for a state
//! with a deadline and report the last observed value on timeout. Every resource that a test creates carries the label
//! `LABEL` or a name with the prefix `PREFIX`. It is removed on drop; `dist/test.sh` removes leftovers.

#![cfg(feature = "harness")]

mod agent;
mod background_client;
mod browser;
mod command;
mod config;
mod docker29;
mod engine;
mod engine_proxy;
mod fake_warden;
mod head;
mod http;
mod image;
mod load;
mod nginx;
mod project;
mod proxy;
mod registry;
mod server;
mod stub_server;
mod swarm;
mod warden;
mod world;

pub use evenkeel_common::testing::{WAIT_LIMIT, unused_port, wait_for};

pub use agent::{Agent, Kill, LogLine};
pub use background_client::{BackgroundClient, RequestResult};
pub use browser::{Browser, Rules, Tab};
pub use command::{CommandOutput, run_agent, run_agent_at};
pub use config::{Config, Service};
pub use engine::{ContainerView, Engine, PrivateEngine, on_engine_host};
pub use engine_proxy::{CuttableEngine, DiskFullEngine, DuplicatingEngine, FilteredEngine};
pub use fake_warden::{Behaviour, FakeWarden, ReceivedRequest};
pub use http::{Reply, request};
pub use image::{Health, Image, OTHER_ARCHITECTURE, Shape};
pub use load::{FailedRequest, Load, LoadReport};
pub use nginx::Nginx;
pub use project::Project;
pub use proxy::{Fault, Proxy};
pub use registry::{Pushed, Registry};
pub use stub_server::StubServer;
pub use swarm::{Node, Swarm};
pub use warden::Warden;
pub use world::{World, kill_from_outside};

/// Label of every container, image and network that tests create.
pub const LABEL: &str = "evenkeel.test";

/// Name prefix of the projects and folders that tests create.
pub const PREFIX: &str = "ektest-";

/// Returns a name that is unique across tests and test runs.
pub fn unique_name(about: &str) -> String {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hasher keys are random per process.
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{PREFIX}{about}-{:08x}", random & 0xffff_ffff)
}
