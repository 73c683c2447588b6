//! What every kind of channel provides: its settings as a [`Receiver`], and a [`Carrier`] that sends entries.

use async_trait::async_trait;
use evenkeel_common::wire::AuditEntry;

use super::delivery::{Delivery, DeliveryError};
use super::redact::Redactor;
use crate::config::EntryFilter;

/// The settings of one channel.
pub(super) trait Receiver {
    /// The channel's unique name: used in logs and metrics, and as its destination name in the outbox.
    fn name(&self) -> String;

    /// Its section of the configuration, as warnings name it.
    fn key(&self) -> String;

    /// The entries that it sends.
    fn filter(&self) -> EntryFilter;

    /// Hides the secrets that the channel sends to its receiver.
    fn hide_secrets(&self, redactor: &mut Redactor);

    /// Builds the channel, or returns the reason why it is disabled.
    fn open(&self) -> Result<Box<dyn Carrier>, String>;
}

/// Sends entries to one receiver.
#[async_trait]
pub(super) trait Carrier: Send + Sync {
    /// The maximum number of entries to pass to [`Carrier::send`].
    fn batch(&self) -> usize {
        1
    }

    /// Sends the first of these entries, and as many of the following ones as the receiver accepts in the same request.
    async fn send(&self, entries: &[AuditEntry], redactor: &Redactor) -> Result<Sent, DeliveryError>;
}

/// The outcome for the first entries of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// Number of settled entries.
    pub(super) settled: usize,
    /// Settled entries that were rejected permanently: index in the list and reason.
    pub(super) refused: Vec<(usize, String)>,
    /// The answer in human-readable form.
    pub(super) answer: String,
}

/// Renders entries for a receiver that gets one at a time.
pub(super) trait Render: Send + Sync + 'static {
    /// Renders the entry as this channel sends it.
    fn render(&self, entry: &AuditEntry) -> Result<Delivery, String>;
}
#[async_trait]
impl<T: Render> Carrier for T {
    async fn send(&self, entries: &[AuditEntry], redactor: &Redactor) -> Result<Sent, DeliveryError> {
        let Some(first) = entries.first() else {
            return Ok(Sent { settled: 0, refused: Vec::new(), answer: String::new() });
        };
        match self.render(first) {
            Ok(delivery) => {
                let answer = delivery.send(redactor).await?;
                Ok(Sent { settled: 1, refused: Vec::new(), answer })
            }
            Err(why) => Err(DeliveryError::Permanent { why: redactor.clean(&why, false) }),
        }
    }
}
