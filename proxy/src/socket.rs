//! Bytes in and out of a socket that is registered with a runtime.
//!
//! A system call is tried first where the socket was last known to be ready, and only a socket that is not ready is
//! waited for: asking the runtime costs a lock each time. A read that does not fill its buffer has emptied the socket,
//! so the next one waits at once instead of finding that out by a system call (epoll tells of each new arrival).
//!
//! The calls are the kernel's own (`rustix`), without the C library's points of cancellation.

use std::cell::Cell;
use std::io;
use std::ops::Deref;
use std::task::{Context, Poll, ready};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::task::coop::has_budget_remaining;

use crate::socket::stream::Stream;
use crate::tls::channel::Channel;

pub mod stream;

/// A buffer that is empty and larger is given back, in bytes.
const KEPT_BYTES: usize = 32 * 1024;

/// A buffer that is no larger is kept for whoever reads next on the same thread, in bytes.
const SPARE_BYTES_MAX: usize = 4 * 1024;

thread_local! {
    /// The buffer that was given back last: on a busy thread another client takes it at once.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Bytes received: read at the end, taken from the front.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// How many of them have been taken.
    taken: usize,
    /// The task that reads will be woken by the socket: it asked once and nothing has come since.
    is_awaited: bool,
    /// Bytes that were read since they were counted last.
    received: u64,
}

impl Inbox {
    /// An inbox with something in it already.
    #[must_use]
    pub const fn with(bytes: Vec<u8>) -> Self {
        Self { bytes, taken: 0, is_awaited: false, received: 0 }
    }

    /// Takes bytes off the front.
    pub fn advance(&mut self, count: usize) {
        self.taken += count;
        if self.taken >= self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
            if self.bytes.capacity() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        }
    }

    /// Puts bytes before the first that is there.
    pub fn put_back(&mut self, bytes: &[u8]) {
        if self.taken >= bytes.len() {
            self.taken -= bytes.len();
            if let Some(room) = self.bytes.get_mut(self.taken..self.taken + bytes.len()) {
                room.copy_from_slice(bytes);
            }
        } else {
            self.bytes = [bytes, self].concat();
            self.taken = 0;
        }
    }

    /// Makes room for so many bytes more.
    pub fn reserve(&mut self, count: usize) {
        if self.bytes.capacity() - self.bytes.len() < count && self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        if self.is_at_rest() {
            self.bytes = SPARE.take();
        }
        if self.is_at_rest() {
            self.bytes = Vec::with_capacity(count);
        } else {
            self.bytes.reserve(count);
        }
    }

    /// How many bytes were read since this was asked last.
    pub const fn take_received(&mut self) -> u64 {
        std::mem::replace(&mut self.received, 0)
    }

    /// Another task reads from now on.
    pub const fn change_reader(&mut self) {
        self.is_awaited = false;
    }

    /// Gives the memory back while there is nothing in it.
    pub fn rest(&mut self) {
        if self.bytes.is_empty() && !self.is_at_rest() {
            let spare = std::mem::take(&mut self.bytes);
            if spare.capacity() <= SPARE_BYTES_MAX {
                SPARE.set(spare);
            }
        }
    }

    /// Whether it has no memory.
    #[must_use]
    pub const fn is_at_rest(&self) -> bool {
        self.bytes.capacity() == 0
    }

    /// Reads up to `count` bytes, always for the same task until [`Self::change_reader`]. `Ready(Ok(0))` is the end of the stream. Memory is taken only when there is something
    /// to be read, as far as the runtime knows.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn poll_read(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        if stream.is_secure() {
            return self.poll_decrypted(stream, cx);
        }
        let stream = stream.tcp();
        loop {
            let mut read = Ok(None);
            let mut was_ready = false;
            // The error only tells the runtime that the socket is not ready any more.
            let _ = stream.try_io(Interest::READABLE, || {
                was_ready = true;
                self.reserve(count);
                let room = self.bytes.capacity() - self.bytes.len();
                read = match recv(stream, spare_capacity(&mut self.bytes), RecvFlags::empty()) {
                    Ok((got, _)) => Ok(Some(got)),
                    Err(Errno::AGAIN) => Ok(None),
                    Err(error) => Err(error),
                };
                let is_ready = read.map_or(true, |got| got.is_some_and(|got| got == 0 || got == room));
                if is_ready { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
            });
            match read {
                Ok(Some(got)) => {
                    self.is_awaited = false;
                    self.received += got as u64;
                    return Poll::Ready(Ok(got));
                }
                Ok(None) if self.is_awaited && !was_ready => return Poll::Pending,
                Ok(None) => {
                    // A task that has had its share of turns is not registered, but woken at once.
                    self.is_awaited = has_budget_remaining();
                    ready!(stream.poll_read_ready(cx))?;
                    self.is_awaited = false;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// The same over TLS. All that has been received is decrypted at once, so that nothing waits behind an empty socket. A
    /// socket that ends before the other side has said so was cut off.
    #[inline(never)]
    fn poll_decrypted(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // What TLS itself has to say goes out here, and what a full socket has left of an answer.
        if !stream.is_flushed()
            && let Poll::Ready(Err(error)) = stream.poll_flush(cx)
        {
            return Poll::Ready(Err(error));
        }
        loop {
            if stream.channel().is_some_and(Channel::has_peer_ended) {
                return Poll::Ready(Ok(0));
            }
            if self.taken > self.bytes.len() / 2 {
                self.bytes.drain(..self.taken);
                self.taken = 0;
            }
            let before = self.bytes.len();
            match stream.receive(&mut self.bytes)? {
                Some(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Some(_) if self.bytes.len() > before => {
                    let got = self.bytes.len() - before;
                    self.received += got as u64;
                    return Poll::Ready(Ok(got));
                }
                Some(_) => {}
                None => ready!(stream.tcp().poll_read_ready(cx))?,
            }
        }
    }
}

impl Deref for Inbox {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(self.taken..).unwrap_or_default()
    }
}

/// Bytes on their way into a socket. What was sent last stays until something else is to be sent.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Whether everything has been sent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// What is still to be sent.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    /// How much is still to be sent.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Where to append.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        if self.is_empty() {
            self.bytes.clear();
            self.sent = 0;
        }
        &mut self.bytes
    }

    /// What was sent last, while nothing else is to be sent.
    #[must_use]
    pub fn last_sent(&self) -> &[u8] {
        if self.is_empty() { &self.bytes } else { &[] }
    }

    /// Forgets what has not been sent.
    pub fn clear(&mut self) {
        self.sent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
    }

    /// Gives the memory back while there is nothing to be sent.
    pub fn rest(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Sends as much as the socket takes. `Ready(Ok)` means all of it, and all that was written beside it.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn poll_send(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest @ [_, ..]) = self.bytes.get(self.sent..) {
            self.sent += ready!(stream.poll_write(cx, rest))?;
        }
        if stream.is_secure() {
            ready!(stream.poll_flush(cx))?;
        }
        if self.bytes.len() > KEPT_BYTES {
            self.clear();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
