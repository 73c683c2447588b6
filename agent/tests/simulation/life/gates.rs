//! Gates of a service in a life.

use serde_json::{Value, json};

/// What of `services[].update` is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Gates {
    /// In seconds.
    pub(crate) min_age: Option<u64>,
    /// The world begins at midnight.
    pub(crate) window: Option<&'static str>,
    pub(crate) approve: bool,
    pub(crate) command: bool,
    pub(crate) signed: bool,
}

/// Something that is there and that nobody else can change, for paths that are only looked at.
const FILE: &str = "/bin/sh";

impl Gates {
    /// As the configuration file has it.
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
        }
        if self.signed {
            update["signed_by"] = FILE.into();
        }
        update
    }

    pub(super) fn words(self) -> String {
        if self == Self::default() { String::new() } else { format!(", gates {}", self.update()) }
    }
}
