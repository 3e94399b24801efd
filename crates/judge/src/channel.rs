//! Length-prefixed JSON over a socketpair, with descriptors (see `harness/PROTOCOL.md`).

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde_json::{Value, json};
use warpsmith_schema::Target;

/// No honest frame comes near this; a larger one is an attack on the supervisor's memory.
const FRAME_LIMIT: usize = 16 << 20;

/// Why a request got no usable reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error("the process closed its channel")]
    Closed,
    #[error("no reply within {0:?}")]
    TimedOut(Duration),
    #[error("the reply broke the protocol: {0}")]
    Protocol(String),
    #[error("the channel failed")]
    Io(#[source] io::Error),
    /// The process answered with an error of its own.
    #[error("{}", .0.message)]
    Refused(Refusal),
}

/// An error reply.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub(crate) struct Refusal {
    pub(crate) kind: String,
    pub(crate) code: String,
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) operator: String,
}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// A request that was sent, whose reply is still to come.
#[derive(Debug)]
pub(crate) struct Asked(u32);

/// One end of a channel.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    /// How long to poll before sleeping: a core that went idle is slow just after it wakes.
    spin: Duration,
}

impl Channel {
    /// A channel and the descriptor to hand to the other process.
    pub(crate) fn pair(target: Target) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        // Cores are what a CPU target measures: there nobody polls.
        let spin = match target {
            Target::Cuda => Duration::from_millis(50),
            Target::Cpu => Duration::ZERO,
        };
        Ok((Self { stream: ours, spin }, theirs.into()))
    }

    pub(crate) fn send(
        &mut self,
        message: &Value,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let body = serde_json::to_vec(message)
            .map_err(|error| ChannelError::Protocol(error.to_string()))?;
        let mut frame = Vec::with_capacity(body.len() + 4);
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(&body);
        // A process that stopped reading must not block the supervisor for ever.
        self.stream
            .set_write_timeout(Some(Duration::from_secs(10)))?;
        if fds.is_empty() {
            return Ok(self.stream.write_all(&frame)?);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ChannelError::Protocol("too many descriptors".to_owned()));
        }
        let sent = sendmsg(
            &self.stream,
            &[IoSlice::new(&frame)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )
        .map_err(io::Error::from)?;
        Ok(self.stream.write_all(&frame[sent..])?)
    }

    pub(crate) fn receive(
        &mut self,
        limit: Duration,
    ) -> Result<(Value, Vec<OwnedFd>), ChannelError> {
        let deadline = Instant::now() + limit;
        self.poll_briefly();
        let mut fds = Vec::new();
        let mut header = [0_u8; 4];
        self.fill(&mut header, deadline, limit, &mut fds)?;
        let size = u32::from_le_bytes(header) as usize;
        if size > FRAME_LIMIT {
            return Err(ChannelError::Protocol(format!("a frame of {size} bytes")));
        }
        let mut body = vec![0_u8; size];
        self.fill(&mut body, deadline, limit, &mut fds)?;
        let message = serde_json::from_slice(&body)
            .map_err(|error| ChannelError::Protocol(error.to_string()))?;
        Ok((message, fds))
    }

    fn poll_briefly(&self) {
        let patience = Instant::now() + self.spin;
        let mut byte = [0_u8; 1];
        while Instant::now() < patience {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            match rustix::net::recv(&self.stream, &mut byte, flags) {
                Err(rustix::io::Errno::AGAIN) => std::hint::spin_loop(),
                _ => return,
            }
        }
    }

    /// Reads exactly `buffer`, whatever trickle the other side makes of it, and never past the deadline.
    fn fill(
        &mut self,
        buffer: &mut [u8],
        deadline: Instant,
        limit: Duration,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), ChannelError> {
        let mut filled = 0;
        while filled < buffer.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ChannelError::TimedOut(limit));
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let read = recvmsg(
                &self.stream,
                &mut [IoSliceMut::new(&mut buffer[filled..])],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            );
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    fds.extend(received.take(16));
                }
            }
            match read {
                Ok(received) if received.bytes == 0 => return Err(ChannelError::Closed),
                Ok(received) => filled += received.bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(ChannelError::TimedOut(limit)),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    /// Sends a request and takes its one reply apart.
    pub(crate) fn request(
        &mut self,
        verb: &str,
        body: Value,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<(Value, Vec<OwnedFd>), ChannelError> {
        let asked = self.ask(verb, body, fds)?;
        self.reply_to(&asked, limit)
    }

    /// The first half of [`Channel::request`].
    pub(crate) fn ask(
        &mut self,
        verb: &str,
        mut body: Value,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Asked, ChannelError> {
        // Ties the reply to this request: one that was sent ahead of time cannot know it.
        let asked = Asked(rand::random());
        body["verb"] = json!(verb);
        body["id"] = json!(asked.0);
        self.send(&body, fds)?;
        Ok(asked)
    }

    /// The second half.
    pub(crate) fn reply_to(
        &mut self,
        asked: &Asked,
        limit: Duration,
    ) -> Result<(Value, Vec<OwnedFd>), ChannelError> {
        let (reply, fds) = self.receive(limit)?;
        if reply.get("id").and_then(Value::as_u64) != Some(asked.0.into()) {
            return Err(ChannelError::Protocol(
                "the reply belongs to no request".to_owned(),
            ));
        }
        Ok((unwrap_reply(reply)?, fds))
    }

    /// True while the other end is open and silent: between requests nothing may arrive.
    pub(crate) fn is_idle(&mut self) -> bool {
        if self.stream.set_nonblocking(true).is_err() {
            return false;
        }
        let mut byte = [0_u8; 1];
        let state = self.stream.read(&mut byte);
        let restored = self.stream.set_nonblocking(false).is_ok();
        restored && matches!(state, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// `{"ok": …}` or `{"error": …}`; anything else is not a reply.
pub(crate) fn unwrap_reply(mut reply: Value) -> Result<Value, ChannelError> {
    if let Some(ok) = reply.get_mut("ok") {
        return Ok(ok.take());
    }
    let error = reply.get_mut("error").map(Value::take).unwrap_or_default();
    match serde_json::from_value::<Refusal>(error) {
        Ok(refusal) => Err(ChannelError::Refused(refusal)),
        Err(error) => Err(ChannelError::Protocol(error.to_string())),
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
