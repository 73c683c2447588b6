//! An unbounded queue that takes almost no memory while it is empty.
//!
//! There are two per service. A tokio channel allocates a block of 32 messages up front, which is 1 KiB each.

use std::task::{Context, Poll};

use futures_channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures_util::StreamExt;
use futures_util::stream::FusedStream;

/// Creates a FIFO queue.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::unbounded();
    (Sender(sender), Receiver(receiver))
}

/// The sending half. Clones share the queue.
pub struct Sender<T>(UnboundedSender<T>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Sender<T> {
    /// Sends without waiting. Returns the message if the receiver is closed.
    pub fn send(&self, message: T) -> Result<(), T> {
        self.0.unbounded_send(message).map_err(mpsc::TrySendError::into_inner)
    }

    /// Reports whether the receiver is closed.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Reports whether all messages have been received.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The receiving half.
pub struct Receiver<T>(UnboundedReceiver<T>);

impl<T> Receiver<T> {
    /// Receives the next message; `None` if the queue is empty and all senders have been dropped.
    pub async fn recv(&mut self) -> Option<T> {
        self.0.next().await
    }

    /// Polls for the next message.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_next_unpin(context)
    }

    /// Reports whether [`recv`](Self::recv) has returned `None`.
    pub fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }

    /// Closes the queue and drops all pending messages.
    pub fn close(&mut self) {
        self.0.close();
        while self.0.try_recv().is_ok() {}
    }
}
