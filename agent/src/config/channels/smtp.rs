//! `notifications.smtp`

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Findings, KeyPath};
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{Kind, Level};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{EntryFilter, expanded, filter};
use crate::config::items::Items;
use crate::config::mail;

/// `notifications.smtp`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["host", "port", "from", "to"]))]
pub(super) struct SmtpFile {
    /// Host name of the mail server.
    #[schemars(length(min = 1))]
    pub(super) host: String,
    /// Port of the mail server.
    #[schemars(range(min = 1, max = 65535))]
    pub(super) port: u16,
    /// Sender address.
    #[schemars(length(min = 1))]
    pub(super) from: String,
    /// Recipient addresses, separated by commas.
    #[schemars(length(min = 1))]
    pub(super) to: String,
    /// User name; `$NAME` and `${NAME}` are replaced by environment variables. Without it, the agent does not authenticate.
    pub(super) username: String,
    /// Password; `$NAME` and `${NAME}` are replaced by environment variables.
    pub(super) password: Secret,
    /// Encryption of the connection.
    pub(super) tls: SmtpTls,
    /// Minimum level of the entries to send; the default is all levels.
    pub(super) min_level: Option<Level>,
    /// Event kinds to send; the default is all kinds.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) events: Option<Items<Kind>>,
}

/// `notifications.smtp`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmtpConfig {
    /// Host name of the mail server.
    pub host: String,
    /// Port of the mail server.
    pub port: u16,
    /// Sender address.
    pub from: String,
    /// Recipient addresses.
    pub to: String,
    /// User name, expanded; `None` sends without authentication.
    pub username: Option<String>,
    /// Password, expanded.
    pub password: Option<Secret>,
    /// Encryption.
    pub tls: SmtpTls,
    /// The entries to send.
    pub filter: EntryFilter,
}

/// How the connection to the mail server is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SmtpTls {
    /// Implicit TLS on port 465, otherwise STARTTLS. STARTTLS is required with a `username` and a server on another
    /// machine; otherwise it is used if the server offers it.
    #[default]
    Auto,
    /// Implicit TLS.
    Implicit,
    /// STARTTLS is required; without it nothing is sent.
    Starttls,
    /// No encryption.
    None,
}

/// Reads the section. What is wrong with it is a finding.
pub(super) fn read(file: SmtpFile, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> SmtpConfig {
    let username = expanded(&Secret::new(file.username), &at.key("username"), env, findings);
    let password = expanded(&file.password, &at.key("password"), env, findings);
    if username.is_empty() && !password.is_empty() {
        findings.warn(&at.key("password"), "is not used: there is no username");
    }
    // A missing value was already reported as a fault.
    if let Err(fault) = mail::sender(&file.from)
        && !file.from.is_empty()
    {
        findings.fault(&at.key("from"), fault);
    }
    if let Err(fault) = mail::receivers(&file.to)
        && !file.to.is_empty()
    {
        findings.fault(&at.key("to"), fault);
    }
    SmtpConfig {
        host: file.host,
        port: file.port,
        from: file.from,
        to: file.to,
        username: (!username.is_empty()).then(|| username.expose().to_owned()),
        password: (!password.is_empty()).then_some(password),
        tls: file.tls,
        filter: filter(file.min_level, file.events, at, findings),
    }
}
