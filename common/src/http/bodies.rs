//! Memory limits for request bodies: per body, for all bodies together, and per sender.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;

use super::{Arrival, Response, retry_later, too_many};

/// Seconds after which a sender may retry when its body exceeded the budget.
const RETRY_AFTER_SECONDS: u16 = 5;

/// A budget in bytes for the bodies of an endpoint. Clones share it.
#[derive(Debug, Clone)]
pub struct Bodies {
    held: Arc<Mutex<Held>>,
    per_body: usize,
    total: usize,
    per_sender: usize,
}

#[derive(Debug, Default)]
struct Held {
    total: usize,
    by_sender: HashMap<String, usize>,
}

/// Permission to send a body: the sender, and a permit that is held until the request is answered.
pub struct Admitted {
    pub(super) sender: String,
    _permit: Box<dyn Send>,
}

impl Admitted {
    /// For an authenticated sender; `permit` is dropped when the request has been answered.
    pub fn as_sender(name: impl Into<String>, permit: impl Send + 'static) -> Self {
        Self { sender: name.into(), _permit: Box::new(permit) }
    }

    /// For an unauthenticated sender, identified by its address.
    pub fn as_peer(arrival: &Arrival) -> Self {
        Self::as_sender(arrival.peer.ip().to_canonical().to_string(), ())
    }
}

impl Bodies {
    /// Allows `per_body` bytes per body, `total` bytes for all bodies, and `per_sender` bytes for those of one sender.
    pub fn new(per_body: usize, total: usize, per_sender: usize) -> Self {
        Self { held: Arc::default(), per_body, total, per_sender: per_sender.max(per_body) }
    }

    /// Bytes currently held.
    pub fn held(&self) -> usize {
        self.held.lock().total
    }

    pub(super) fn per_body(&self) -> usize {
        self.per_body
    }

    /// Starts an empty body for this sender.
    pub(super) fn begin(&self, sender: String) -> BodyBuffer {
        BodyBuffer { bodies: self.clone(), sender, bytes: Vec::new(), charged: 0 }
    }

    fn charge(&self, sender: &str, bytes: usize) -> Result<(), Response> {
        let mut held = self.held.lock();
        let of_sender = held.by_sender.get(sender).copied().unwrap_or_default();
        if of_sender + bytes > self.per_sender {
            return Err(too_many("this sender has too many request bytes in flight", RETRY_AFTER_SECONDS));
        }
        if held.total + bytes > self.total {
            let text = "the memory for request bodies is exhausted";
            return Err(retry_later(StatusCode::SERVICE_UNAVAILABLE, text, RETRY_AFTER_SECONDS));
        }
        held.total += bytes;
        *held.by_sender.entry(sender.to_owned()).or_default() += bytes;
        Ok(())
    }
}

/// A body that is being received. Its memory is charged to the budget before it is allocated, and released on drop.
pub(super) struct BodyBuffer {
    bodies: Bodies,
    sender: String,
    bytes: Vec<u8>,
    charged: usize,
}

impl BodyBuffer {
    /// Appends a part, or returns the error response.
    pub(super) fn push(&mut self, part: &[u8]) -> Result<(), Response> {
        let length = self.bytes.len() + part.len();
        if length > self.bytes.capacity() {
            // Double the capacity, but never beyond the limit of a body.
            let wanted = length.max((2 * self.bytes.capacity()).min(self.bodies.per_body)).max(512);
            self.bodies.charge(&self.sender, wanted - self.charged)?;
            self.charged = wanted;
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(part);
        Ok(())
    }

    /// Takes the complete body; the charge lasts as long as `self`.
    pub(super) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}

impl Drop for BodyBuffer {
    fn drop(&mut self) {
        if self.charged == 0 {
            return;
        }
        let mut held = self.bodies.held.lock();
        held.total -= self.charged;
        if let Some(of_sender) = held.by_sender.get_mut(&self.sender) {
            *of_sender -= self.charged;
            if *of_sender == 0 {
                held.by_sender.remove(&self.sender);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_share_a_budget_that_no_sender_can_exhaust_alone() {
        let bodies = Bodies::new(1000, 3000, 1550);
        let mut one = bodies.begin("a".to_owned());
        for _ in 0..10 {
            one.push(&[b'x'; 100]).unwrap();
        }
        assert_eq!(
            bodies.held(),
            1000,
            "a body is charged for its capacity, which never exceeds the limit of a body"
        );
        let mut two = bodies.begin("a".to_owned());
        assert_eq!(two.push(&[b'x'; 600]).unwrap_err().status(), 429);
        two.push(b"x").unwrap();
        let (mut three, mut four) = (bodies.begin("b".to_owned()), bodies.begin("c".to_owned()));
        three.push(&[b'x'; 1000]).unwrap();
        let refusal = four.push(&[b'x'; 600]).unwrap_err();
        assert_eq!((refusal.status().as_u16(), refusal.headers().contains_key("retry-after")), (503, true));
        assert_eq!(one.take().len(), 1000);
        assert_eq!(bodies.held(), 2512, "a body counts until its request is answered");
        drop((one, two));
        four.push(&[b'x'; 600]).unwrap();
        drop((three, four));
        assert_eq!((bodies.held(), bodies.held.lock().by_sender.len()), (0, 0));
    }
}
