//! `notifications.webhooks`

use std::collections::BTreeMap;

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Findings, KeyPath, quote};
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{Kind, Level};
use http::{HeaderName, HeaderValue, Method};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{EntryFilter, expanded, filter, url, web_url};
use crate::config::items::Items;
use crate::config::template::{Template, without_id};

/// One of `notifications.webhooks`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["name", "url", "method"]))]
pub(super) struct WebhookFile {
    /// Unique name.
    #[schemars(length(min = 1))]
    pub(super) name: String,
    /// URL; `$NAME` and `${NAME}` are replaced by environment variables, and `{{ id }}` by an identifier of the entry.
    #[schemars(length(min = 1))]
    pub(super) url: Secret,
    /// HTTP method, for example POST.
    #[schemars(length(min = 1))]
    pub(super) method: String,
    /// HTTP headers; `$NAME` and `${NAME}` in values are replaced by environment variables.
    pub(super) headers: BTreeMap<String, Secret>,
    /// Template of the request body, with the fields `service`, `event`, `message`, `reason`, `old_digest`, `new_digest`,
    /// `image`, `container`, `output`, `timestamp`, `level`, `machine`, `id`. Without it, the whole entry is sent as JSON.
    pub(super) body: Option<String>,
    /// Minimum level of the entries to send; the default is all levels.
    pub(super) min_level: Option<Level>,
    /// Event kinds to send; the default is all kinds.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) events: Option<Items<Kind>>,
}

/// One of `notifications.webhooks`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Unique name.
    pub name: String,
    /// URL, http or https, expanded; `{{ id }}` is still in it.
    pub url: Secret,
    /// HTTP method in upper case.
    pub method: String,
    /// Valid HTTP headers, with expanded values.
    pub headers: Vec<(String, Secret)>,
    /// Template of the body as configured.
    pub body: Option<String>,
    /// The entries to send.
    pub filter: EntryFilter,
}

/// Reads the section. What is wrong with it is a finding.
pub(super) fn read(file: WebhookFile, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> WebhookConfig {
    let method = file.method.to_ascii_uppercase();
    if Method::from_bytes(method.as_bytes()).is_err() {
        findings.fault(
            &at.key("method"),
            format!("{}; allowed: an HTTP method, for example POST", quote(&file.method)),
        );
    }
    let mut headers = Vec::new();
    for (name, value) in file.headers {
        let at = at.key("headers").key(&name);
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            findings.fault(&at, "is not a valid HTTP header name");
        }
        let value = expanded(&value, &at, env, findings);
        if HeaderValue::from_str(value.expose()).is_err() {
            findings.fault(
                &at,
                "has a value with control characters (a line break?), which HTTP headers can't contain",
            );
        }
        headers.push((name, value));
    }
    if let Some(body) = &file.body
        && let Err(fault) = Template::check(body)
    {
        findings.fault(&at.key("body"), fault);
    }
    let place = at.key("url");
    let url = url(&file.url, &place, env, findings);
    let host_has_template = |url: reqwest::Url| url.host_str().is_some_and(|host| host.contains("{{"));
    let has_other = without_id(file.url.expose()).contains("{{");
    if has_other || web_url(url.expose()).is_some_and(host_has_template) {
        findings.fault(&place, "has a template; allowed: {{ id }}, in the path or the query");
    }
    WebhookConfig {
        name: file.name,
        url,
        method,
        headers,
        body: file.body,
        filter: filter(file.min_level, file.events, at, findings),
    }
}
