//! Gates of a service in a run.

use serde_json::{Value, json};

/// The keys of `services[].update` that are set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // independent gates
pub(crate) struct Gates {
    /// In seconds.
    pub(crate) min_age: Option<u64>,
    /// The run begins at midnight.
    pub(crate) window: Option<&'static str>,
    pub(crate) approve: bool,
    /// With hooks.
    pub(crate) command: bool,
    pub(crate) signed: bool,
    pub(crate) probe: bool,
    pub(crate) ask_on: bool,
}

/// A file that exists and that only root can change, for paths that are only checked.
const FILE: &str = "/bin/sh";

impl Gates {
    /// Returns it as in the configuration file.
    pub(super) fn update(self) -> Value {
        let mut update = json!({});
        if let Some(seconds) = self.min_age {
            update["min_age"] = seconds.into();
        }
        if let Some(window) = self.window {
            (update["window"], update["timezone"]) = (window.into(), "UTC".into());
        }
        if self.approve {
            update["approve"] = true.into();
        }
        if self.command {
            update["gate"] = json!([FILE]);
            update["hooks"] = json!({ "before": [FILE], "after": [FILE], "rolled_back": [FILE] });
        }
        if self.signed {
            update["signed_by"] = FILE.into();
        }
        if self.ask_on {
            update["ask_on"] = true.into();
        }
        if self.probe {
            update["probe"] = json!({ "http": ":8080/health", "interval": 1 });
        }
        update
    }

    pub(super) fn describe(self) -> String {
        if self == Self::default() { String::new() } else { format!(", gates {}", self.update()) }
    }
}
