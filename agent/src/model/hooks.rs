//! Commands that run before and after a deployment (DECISIONS 15).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The hooks of a service. A command without words is not configured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// Runs before anything is stopped; if it fails, nothing is begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// Runs once an update is proven and recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Runs once a rollback is proven and recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rolled_back: Vec<String>,
    /// How long each of them may take.
    pub timeout: Duration,
}

impl Hooks {
    /// Returns the command of an event; `None` if it has none.
    pub fn of(&self, event: HookEvent) -> Option<&[String]> {
        let argv = match event {
            HookEvent::Before => &self.before,
            HookEvent::Updated => &self.after,
            HookEvent::RolledBack => &self.rolled_back,
        };
        (!argv.is_empty()).then_some(argv)
    }
}

/// What a hook is run for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookEvent {
    /// A deployment is about to begin.
    Before,
    /// An update is proven.
    Updated,
    /// A rollback is proven.
    RolledBack,
}

impl HookEvent {
    /// The value of `EK_EVENT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Updated => "updated",
            Self::RolledBack => "rolled_back",
        }
    }

    /// Its key in `update.hooks`.
    pub fn key(self) -> &'static str {
        match self {
            Self::Updated => "after",
            Self::Before | Self::RolledBack => self.name(),
        }
    }
}
