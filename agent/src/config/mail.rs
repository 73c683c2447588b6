//! Mail addresses in the configuration.

use lettre::message::{Mailbox, Mailboxes};

/// Parses one address, with or without a display name.
pub(crate) fn sender(from: &str) -> Result<Mailbox, String> {
    from.parse().map_err(|error| {
        format!("is not a mail address ({error}); allowed: a@b.example or Name <a@b.example>")
    })
}

/// Parses a comma-separated list of addresses.
pub(crate) fn receivers(to: &str) -> Result<Mailboxes, String> {
    let allowed = "allowed: mail addresses, separated by commas";
    let found: Mailboxes =
        to.parse().map_err(|error| format!("is not a mail address ({error}); {allowed}"))?;
    if found.iter().next().is_none() { Err(format!("has no mail address; {allowed}")) } else { Ok(found) }
}
