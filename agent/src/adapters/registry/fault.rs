//! Why a registry request failed. The same failure always has the same text.

use std::error::Error;
use std::io;
use std::time::Duration;

use evenkeel_common::tls;
use http::StatusCode;

use super::client::ExchangeError;
use super::reach::ScopeError;
use crate::model::RegistryError;
use crate::model::output::stable;

/// Why a request failed, by its consequence.
#[derive(Debug)]
pub(super) enum Fault {
    /// The failure is about this image or on our side: nothing backs off.
    Image(String),
    /// The registry has no such tag: nothing backs off.
    Gone(String),
    /// The registry refused or failed a request about this image or repository. Only requests for the same image back off.
    Repository(String),
    /// The registry could not be reached: all its images back off.
    Host(String),
    /// The registry was reached and did not answer in time. All its images back off, unless it answers other requests meanwhile:
    /// then only requests for the same image do.
    Timeout(String),
    /// Several requests together took too long, which says nothing about the registry: nothing backs off.
    Unfinished(String),
    /// The registry requested a wait.
    Limited {
        /// The error text during the wait.
        text: String,
        /// The requested wait, if it named one.
        wait: Option<Duration>,
    },
}

impl From<Fault> for RegistryError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Image(text)
            | Fault::Gone(text)
            | Fault::Repository(text)
            | Fault::Host(text)
            | Fault::Timeout(text)
            | Fault::Unfinished(text)
            | Fault::Limited { text, .. } => RegistryError(text),
        }
    }
}

impl Fault {
    /// Classifies a failed exchange. A server that cuts connections, or answers with garbage, may do so for a single
    /// repository only.
    pub(super) fn of(subject: &str, error: &ExchangeError) -> Self {
        let text = format!("{subject}: {}", describe(error));
        match () {
            () if error.is_connect() => Self::Host(text),
            () if is_timeout(error) => Self::Timeout(text),
            () => Self::Repository(text),
        }
    }

    /// The error text.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Image(text)
            | Self::Gone(text)
            | Self::Repository(text)
            | Self::Host(text)
            | Self::Timeout(text)
            | Self::Unfinished(text)
            | Self::Limited { text, .. } => text,
        }
    }

    /// The same failure at a server to which the registry has redirected: it says nothing about the registry.
    pub(super) fn elsewhere(self) -> Self {
        match self {
            Self::Host(text) | Self::Timeout(text) | Self::Limited { text, .. } => Self::Repository(text),
            other => other,
        }
    }
}

/// Formats a status, for example `503 service unavailable`.
pub(super) fn status_text(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {}", status.as_u16(), reason.to_ascii_lowercase()),
        None => format!("status {}", status.as_u16()),
    }
}

/// Describes a failed exchange with a registry, without local addresses, ports or numbers.
pub(super) fn describe(error: &ExchangeError) -> String {
    let causes: Vec<&(dyn Error + 'static)> =
        std::iter::successors(error.source(), |cause| next_cause(*cause)).collect();
    if let Some(inside) = causes.iter().find_map(|cause| cause.downcast_ref::<ScopeError>()) {
        return inside.to_string();
    }
    if let Some(words) = causes.iter().find_map(|cause| Some(tls_description(cause.downcast_ref()?))) {
        return words;
    }
    if is_timeout(error) {
        return if error.is_connect() { "no connection in time" } else { "no answer in time" }.to_owned();
    }
    if let Some(words) = causes.iter().find_map(|cause| io_description(cause.downcast_ref()?)) {
        return words.to_owned();
    }
    if causes.iter().any(|cause| cause.to_string() == "dns error") {
        return "its name could not be looked up".to_owned();
    }
    causes.last().map_or_else(|| error.to_string(), |cause| plain(&cause.to_string()))
}

/// Returns the next cause. `source` of an I/O error skips the error that it wraps.
fn next_cause<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => cause.source(),
    }
}

fn is_timeout(error: &ExchangeError) -> bool {
    let mut causes = std::iter::successors(error.source(), |cause| next_cause(*cause));
    let is_timed_out = |cause: &(dyn Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
    };
    matches!(error, ExchangeError::Timeout) || causes.any(is_timed_out)
}

fn io_description(error: &io::Error) -> Option<&'static str> {
    Some(match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => "it closed the connection",
        io::ErrorKind::HostUnreachable => "host unreachable",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        _ => return None,
    })
}

fn tls_description(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(why) => match why {
            rustls::CertificateError::UnknownIssuer => {
                "its TLS certificate is not signed by a known authority".to_owned()
            }
            rustls::CertificateError::Expired | rustls::CertificateError::ExpiredContext { .. } => {
                "its TLS certificate has expired".to_owned()
            }
            rustls::CertificateError::NotValidForName
            | rustls::CertificateError::NotValidForNameContext { .. } => {
                "its TLS certificate is for another name".to_owned()
            }
            why => format!("its TLS certificate is refused: {}", plain(&tls::describe(why))),
        },
        rustls::Error::InvalidMessage(_) => "it does not speak TLS".to_owned(),
        other => format!("TLS: {}", plain(&other.to_string())),
    }
}

/// Sanitizes an external text for one log line: no escape sequences, control or invisible characters, single spaces, no
/// IDs or times that differ each time, at most 200 characters.
pub(super) fn plain(text: &str) -> String {
    const MOST: usize = 200;
    let mut out = String::new();
    let mut count = 0;
    for c in stable(text).chars() {
        let c = match c {
            c if c.is_whitespace() || c.is_control() => ' ',
            // Zero-width and direction-changing characters can disguise a text.
            '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
                continue;
            }
            c => c,
        };
        if c == ' ' && (out.is_empty() || out.ends_with(' ')) {
            continue;
        }
        if count == MOST {
            out.push('…');
            break;
        }
        out.push(c);
        count += 1;
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_certificate_is_explained() {
        let why = rustls::CertificateError::UnsupportedSignatureAlgorithmContext {
            signature_algorithm_id: vec![6, 8],
            supported_algorithms: Vec::new(),
        };
        let text = tls_description(&rustls::Error::InvalidCertificate(why));
        let start = "its TLS certificate is refused: its signature algorithm is not supported";
        assert!(text.starts_with(start) && text.ends_with("and RSA with SHA-2 are"), "{text}");
    }

    #[test]
    fn external_texts_are_sanitized_for_terminals() {
        assert_eq!(plain("\u{1b}[31mred\u{1b}[0m\r\n\tand  \u{7}more\0"), "red and more");
        assert_eq!(plain("\u{1b}]0;title\u{7}x\u{1b}]8;;u\u{1b}\\y\u{1b}"), "xy");
        assert_eq!(plain("a\u{202e}b\u{200b}c"), "abc");
        assert_eq!(plain(&"ä".repeat(1000)), format!("{}…", "ä".repeat(200)));
        assert_eq!(plain(" \n "), "");
    }
}
