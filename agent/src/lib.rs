//! The agent: keeps container services up to date, proves every new image, goes back when it is bad.

pub mod app;
pub mod audit;
pub mod cli;
pub mod config;
pub mod fleet;
pub mod http;
pub mod image;
pub mod live;
pub mod ports;
pub mod service;
pub mod tasks;
pub mod text;

/// Name under which the program itself appears in audit entries (DECISIONS 1).
pub const PROGRAM: &str = "evenkeel";
