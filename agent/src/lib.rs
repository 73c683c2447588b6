//! The agent: keeps container services up to date, proves every new image, goes back when it is bad.

pub mod adapters;
pub mod app;
pub mod audit;
pub mod cli;
pub mod config;
pub mod http;
pub mod model;
pub mod ports;
pub mod project;
pub mod service;
pub mod tasks;

/// Name under which the program itself appears in audit entries (DECISIONS 1).
pub const PROGRAM: &str = "evenkeel";
