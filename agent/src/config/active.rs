//! The active configuration. Tasks watch it, so changes take effect immediately (DECISIONS 2).

use std::sync::Arc;

use tokio::sync::watch;

use crate::config::Config;

/// The active configuration and its non-fatal warnings.
#[derive(Debug, Clone)]
pub struct ActiveConfig {
    /// The configuration as last loaded. Settings that can't change at runtime keep their value from start-up.
    pub config: Arc<Config>,
    /// Warnings for `GET /health` (spec 2.8): problems in the file and problems found at start-up.
    pub warnings: Arc<Vec<String>>,
}

/// Receiver of the active configuration.
pub type Watch = watch::Receiver<ActiveConfig>;
