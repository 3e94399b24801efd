//! The output of a command: always drained, so that the command never blocks, and bounded.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys;

/// The head and the tail of a stream.
#[derive(Debug)]
pub(crate) struct ClippedOutput {
    head: Vec<u8>,
    head_limit: usize,
    tail: VecDeque<u8>,
    tail_limit: usize,
    dropped: u64,
}

impl ClippedOutput {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            head: Vec::new(),
            head_limit: limit / 2,
            tail: VecDeque::new(),
            tail_limit: limit - limit / 2,
            dropped: 0,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let room = self.head_limit - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend(head);
        let kept = &rest[rest.len().saturating_sub(self.tail_limit)..];
        let surplus = (self.tail.len() + kept.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..surplus);
        self.tail.extend(kept);
        self.dropped += (rest.len() - kept.len() + surplus) as u64;
    }

    pub(crate) fn is_clipped(&self) -> bool {
        self.dropped > 0
    }

    /// A line in the middle says how many bytes were dropped.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.head;
        if self.dropped > 0 {
            bytes.extend(format!("\n[... {} bytes left out ...]\n", self.dropped).as_bytes());
        }
        bytes.extend(self.tail);
        bytes
    }
}

/// Takes what a stream yields.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[u8]);

/// The read end of a stream; closed once the stream has ended.
#[derive(Debug)]
pub(crate) struct Stream {
    pipe: Option<OwnedFd>,
}

impl Stream {
    pub(crate) fn new(pipe: Option<OwnedFd>) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            sys::set_nonblocking(pipe.as_fd())?;
        }
        Ok(Self { pipe })
    }

    /// For `poll`, which skips a negative number.
    pub(crate) fn number(&self) -> i32 {
        use std::os::fd::AsRawFd;
        self.pipe.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Reads at most one buffer; true if there was something to read.
    pub(crate) fn take(&mut self, buffer: &mut [u8], mut sink: impl FnMut(&[u8])) -> bool {
        let Some(pipe) = &self.pipe else {
            return false;
        };
        match sys::read_into(pipe.as_fd(), buffer) {
            Ok(0) => self.pipe = None,
            Ok(count) => {
                sink(&buffer[..count]);
                return true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.pipe = None,
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip(limit: usize, parts: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut clip = ClippedOutput::new(limit);
        for part in parts {
            clip.push(part);
        }
        let clipped = clip.is_clipped();
        (clip.into_bytes(), clipped)
    }

    #[test]
    fn what_fits_is_kept_whole() {
        assert_eq!(
            clip(10, &[b"01234", b"56789"]),
            (b"0123456789".to_vec(), false)
        );
    }

    #[test]
    fn the_middle_is_left_out_and_counted() {
        let wanted = b"abcd\n[... 18 bytes left out ...]\nwxyz".to_vec();
        let whole = clip(8, &[b"abcdefghijklmnopqrstuvwxyz"]);
        let letters: Vec<[u8; 1]> = (b'a'..=b'z').map(|letter| [letter]).collect();
        let pieces: Vec<&[u8]> = letters.iter().map(<[u8; 1]>::as_slice).collect();
        assert_eq!(whole, (wanted.clone(), true));
        assert_eq!(clip(8, &pieces), (wanted, true));
    }

    #[test]
    fn nothing_may_be_kept() {
        let (bytes, clipped) = clip(0, &[b"abc"]);
        assert_eq!(bytes, b"\n[... 3 bytes left out ...]\n".to_vec());
        assert!(clipped);
    }
}
