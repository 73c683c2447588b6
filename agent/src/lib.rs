//! The agent: keeps container services up to date, proves every new image, goes back when it is bad.

pub mod app;
pub mod cli;
pub mod config;
pub mod image;
pub mod ports;
