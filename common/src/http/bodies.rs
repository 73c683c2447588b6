//! Bodies of requests in memory: what one may have, what all may have together, and what one sender may have of that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::StatusCode;
use http::header::RETRY_AFTER;

use super::{Arrival, Response, error, too_many};

/// Seconds after which a sender whose body had no room may come back.
const COME_BACK: u16 = 5;

/// A budget for the bodies of an endpoint, in bytes. Clones share it.
#[derive(Debug, Clone)]
pub struct Bodies {
    held: Arc<Mutex<Held>>,
    each: usize,
    in_all: usize,
    per_sender: usize,
}

#[derive(Debug, Default)]
struct Held {
    in_all: usize,
    by_sender: HashMap<String, usize>,
}

/// Leave to send a body: who sends it, and what is kept until the request is answered.
pub struct Admitted {
    pub(super) sender: String,
    _permit: Box<dyn Send>,
}

impl Admitted {
    /// For a sender that is known by its login; `permit` is dropped when the request has been answered.
    pub fn as_sender(name: impl Into<String>, permit: impl Send + 'static) -> Self {
        Self { sender: name.into(), _permit: Box::new(permit) }
    }

    /// For whoever is at that address.
    pub fn as_peer(arrival: &Arrival) -> Self {
        Self::as_sender(arrival.peer.ip().to_canonical().to_string(), ())
    }
}

impl Bodies {
    /// A body may have `each` bytes, all together `in_all`, and those of one sender `per_sender`.
    pub fn new(each: usize, in_all: usize, per_sender: usize) -> Self {
        Self { held: Arc::default(), each, in_all, per_sender: per_sender.max(each) }
    }

    /// How many bytes are kept now.
    pub fn held(&self) -> usize {
        self.lock().in_all
    }

    pub(super) fn each(&self) -> usize {
        self.each
    }

    /// A body of that sender, empty yet.
    pub(super) fn begin(&self, sender: String) -> Growing {
        Growing { bodies: self.clone(), sender, bytes: Vec::new(), charged: 0 }
    }

    fn charge(&self, sender: &str, bytes: usize) -> Result<(), Response> {
        let mut held = self.lock();
        let of_sender = held.by_sender.get(sender).copied().unwrap_or_default();
        if of_sender + bytes > self.per_sender {
            return Err(too_many("this sender has too much under way at once", COME_BACK));
        }
        if held.in_all + bytes > self.in_all {
            let text = "the requests under way hold all memory that is set aside for them";
            let mut refusal = error(StatusCode::SERVICE_UNAVAILABLE, text);
            refusal.headers_mut().insert(RETRY_AFTER, COME_BACK.into());
            return Err(refusal);
        }
        held.in_all += bytes;
        *held.by_sender.entry(sender.to_owned()).or_default() += bytes;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body that arrives. What its memory takes is charged before it is taken, and given back on drop.
pub(super) struct Growing {
    bodies: Bodies,
    sender: String,
    bytes: Vec<u8>,
    charged: usize,
}

impl Growing {
    /// Adds a part, or gives the answer that refuses it.
    pub(super) fn push(&mut self, part: &[u8]) -> Result<(), Response> {
        let length = self.bytes.len() + part.len();
        if length > self.bytes.capacity() {
            // As a vector grows, but never beyond what a body may have.
            let wanted = length.max((2 * self.bytes.capacity()).min(self.bodies.each)).max(512);
            self.bodies.charge(&self.sender, wanted - self.charged)?;
            self.charged = wanted;
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(part);
        Ok(())
    }

    /// The whole body; the charge lasts as long as `self`.
    pub(super) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        if self.charged == 0 {
            return;
        }
        let mut held = self.bodies.lock();
        held.in_all -= self.charged;
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
    fn bodies_share_a_budget_and_no_sender_has_all_of_it() {
        let bodies = Bodies::new(1000, 3000, 1550);
        let mut one = bodies.begin("a".to_owned());
        for _ in 0..10 {
            one.push(&[b'x'; 100]).unwrap();
        }
        assert_eq!(
            bodies.held(),
            1000,
            "a body is charged what its memory takes, and no more than it may have"
        );
        let mut two = bodies.begin("a".to_owned());
        assert_eq!(two.push(&[b'x'; 600]).unwrap_err().status(), 429);
        two.push(b"x").unwrap();
        let (mut three, mut four) = (bodies.begin("b".to_owned()), bodies.begin("c".to_owned()));
        three.push(&[b'x'; 1000]).unwrap();
        let refusal = four.push(&[b'x'; 600]).unwrap_err();
        assert_eq!((refusal.status().as_u16(), refusal.headers().contains_key("retry-after")), (503, true));
        assert_eq!(one.take().len(), 1000);
        assert_eq!(bodies.held(), 2512, "it counts until its request is answered");
        drop((one, two));
        four.push(&[b'x'; 600]).unwrap();
        drop((three, four));
        assert_eq!((bodies.held(), bodies.lock().by_sender.len()), (0, 0));
    }
}
