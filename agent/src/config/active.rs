//! The configuration in force: tasks watch it, so that what changes in it holds at once (DECISIONS 2).

use std::sync::Arc;

use tokio::sync::watch;

use crate::config::Config;

/// The configuration in force, and what is wrong without being fatal.
#[derive(Debug, Clone)]
pub struct ActiveConfig {
    /// As it was loaded last. What can't change while the program runs is still as it was at the start.
    pub config: Arc<Config>,
    /// For `GET /health` (spec 2.8): faults of the file, and of what was found at the start.
    pub warnings: Arc<Vec<String>>,
}

/// A view of the configuration in force.
pub type Watch = watch::Receiver<ActiveConfig>;
