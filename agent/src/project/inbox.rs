//! A queue without a limit that takes next to nothing while it is empty.
//!
//! There are two for each service. Those of tokio have a block of 32 messages from the start, which is 1 KiB for each.

use std::task::{Context, Poll};

use futures_channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures_util::StreamExt;
use futures_util::stream::FusedStream;

/// A queue: where messages are sent to, and where they arrive in that order.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::unbounded();
    (Sender(sender), Receiver(receiver))
}

/// Where messages are sent to. Clones are the same.
pub struct Sender<T>(UnboundedSender<T>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Sender<T> {
    /// Never waits. Gives the message back when nobody will read it.
    pub fn send(&self, message: T) -> Result<(), T> {
        self.0.unbounded_send(message).map_err(mpsc::TrySendError::into_inner)
    }

    /// Whether messages are read no more.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Whether every message was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where messages arrive.
pub struct Receiver<T>(UnboundedReceiver<T>);

impl<T> Receiver<T> {
    /// The next message; `None` when there is none and nobody can send one any more.
    pub async fn recv(&mut self) -> Option<T> {
        self.0.next().await
    }

    /// The same as a poll.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_next_unpin(context)
    }

    /// Whether [`recv`](Self::recv) has returned `None`.
    pub fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }

    /// Takes no messages any more, and drops those that are waiting.
    pub fn close(&mut self) {
        self.0.close();
        while self.0.try_recv().is_ok() {}
    }
}
