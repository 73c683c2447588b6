//! The agent: keeps container services up to date, proves every new image, goes back when it is bad.

pub mod audit;
pub mod config;
pub mod image;
pub mod ports;
