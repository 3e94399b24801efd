//! Stdin that says when it was closed: the protocol's library waits for answers in flight, and nobody would read them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Notify;

pub(super) struct Input<R> {
    inner: R,
    closed: Arc<Notify>,
}

impl<R> Input<R> {
    pub(super) fn new(inner: R, closed: Arc<Notify>) -> Self {
        Self { inner, closed }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Input<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.inner).poll_read(context, buffer));
        if read.is_err() || buffer.filled().len() == before {
            self.closed.notify_one();
        }
        Poll::Ready(read)
    }
}
