//! A socket with whatever encrypts it.
//!
//! In clear text a call here is the system call, and one look at whether there is TLS. Over TLS what is written becomes
//! records that wait for the next flush, so that a batch costs one call; whoever writes flushes, and until that is done
//! nothing more is taken.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::tls::channel::{Channel, SEALED_MAX};

/// Bytes that one read of an encrypted socket may bring: two records of the longest kind.
const RECEIVED_MAX: usize = 36 * 1024;

thread_local! {
    /// Where a thread receives and decrypts what comes over TLS: no connection needs a buffer of its own for that.
    static RECEIVED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The socket.
#[derive(Debug)]
pub struct Stream {
    tcp: TcpStream,
    channel: Option<Box<Channel>>,
}

impl Stream {
    /// In clear text.
    #[must_use]
    pub const fn plain(tcp: TcpStream) -> Self {
        Self { tcp, channel: None }
    }

    /// The socket itself, to ask about it.
    #[must_use]
    pub const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// What encrypts it, once [`Self::secure`] has been called.
    #[must_use]
    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_deref()
    }

    /// Whether it is encrypted.
    #[must_use]
    pub const fn is_secure(&self) -> bool {
        self.channel.is_some()
    }

    /// How it is encrypted, for people; empty where it is not.
    #[must_use]
    pub fn encryption(&self) -> String {
        self.channel().map(Channel::description).unwrap_or_default()
    }

    /// Encrypts it from now on, `received` being the first bytes of the other side; gives what it said with the last of
    /// its handshake.
    ///
    /// # Errors
    /// When the handshake fails; the other side has been told why, as far as it takes that without a wait.
    pub async fn secure(&mut self, channel: Channel, mut received: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        let channel = self.channel.insert(Box::new(channel));
        if let Err(error) = channel.receive(&mut received, &mut plain) {
            let _ = self.try_flush();
            return Err(error);
        }
        poll_fn(|cx| self.poll_handshake(cx, &mut plain)).await?;
        Ok(plain)
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>, plain: &mut Vec<u8>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_flush(cx))?;
            let Some(channel) = &self.channel else { return Poll::Ready(Ok(())) };
            if !channel.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            match self.receive(plain)? {
                Some(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Some(_) => {}
                None => ready!(self.tcp.poll_read_ready(cx))?,
            }
        }
    }

    /// Receives once, where anything has come, and appends what it says to `plain`. Tells how many bytes have come;
    /// `Some(0)` is the end of the socket, and `None` that there is nothing yet. Only for what is encrypted.
    ///
    /// # Errors
    /// When the socket fails, or what has come cannot be decrypted.
    pub fn receive(&mut self, plain: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let Self { tcp, channel: Some(channel) } = self else { return Ok(None) };
        let mut received = RECEIVED.take();
        let mut got = Ok(None);
        // The error only tells the runtime that the socket is not ready any more.
        let _ = tcp.try_io(Interest::READABLE, || {
            got = fill(tcp, channel, &mut received);
            let is_ready = match got {
                Ok(Some(count)) => count == 0 || count == received.len() - channel.partial().len(),
                Ok(None) => false,
                Err(_) => true,
            };
            if is_ready { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        });
        let taken = take(channel, &mut received, &got, plain);
        RECEIVED.set(received);
        if taken.is_err() {
            // The other side is told why, as far as that needs no wait.
            let _ = self.try_flush();
        }
        taken?;
        got
    }

    /// Takes plain bytes, all or some of them. What is not sent at once waits for [`Self::poll_flush`].
    ///
    /// # Errors
    /// When the socket fails.
    #[inline]
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.channel.is_some() { self.poll_seal(cx, bytes) } else { poll_send(&self.tcp, cx, bytes) }
    }

    #[inline(never)]
    fn poll_seal(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.channel.as_ref().is_some_and(|channel| channel.unsent().len() >= SEALED_MAX) {
            ready!(self.poll_flush(cx))?;
        }
        let Some(channel) = &mut self.channel else { return Poll::Ready(Ok(0)) };
        let taken = bytes.get(..SEALED_MAX).unwrap_or(bytes);
        channel.seal(taken)?;
        Poll::Ready(Ok(taken.len()))
    }

    /// Whether everything that was taken has been sent.
    #[inline]
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.channel.as_ref().is_none_or(|channel| channel.unsent().is_empty())
    }

    /// Sends what was taken. `Ready(Ok)` means all of it.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { tcp, channel: Some(channel) } = self else { return Poll::Ready(Ok(())) };
        while !channel.unsent().is_empty() {
            let count = ready!(poll_send(tcp, cx, channel.unsent()))?;
            channel.sent(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what the socket takes without a wait.
    fn try_flush(&mut self) -> io::Result<()> {
        let Self { tcp, channel: Some(channel) } = self else { return Ok(()) };
        while !channel.unsent().is_empty() {
            let count = tcp.try_write(channel.unsent())?;
            channel.sent(count);
        }
        Ok(())
    }

    /// Sends these bytes, if the socket takes them without a wait, and over TLS says that they are the last. The socket is
    /// of no use afterwards.
    pub fn part_with(&mut self, bytes: &[u8]) {
        match &mut self.channel {
            None if bytes.is_empty() => {}
            None => drop(self.tcp.try_write(bytes)),
            Some(channel) => {
                if channel.seal(bytes).and_then(|()| channel.end()).is_ok() {
                    let _ = self.try_flush();
                }
            }
        }
    }

    /// Says that nothing more is sent, once everything has been. Not cancel-safe.
    ///
    /// # Errors
    /// When the socket fails.
    pub async fn end(&mut self) -> io::Result<()> {
        if let Some(channel) = &mut self.channel {
            channel.end()?;
        }
        poll_fn(|cx| self.poll_flush(cx)).await?;
        SockRef::from(&self.tcp).shutdown(Shutdown::Write)
    }

    /// Whether the other side has said nothing and is still there. Costs a system call only where something may have come;
    /// where `is_told_late`, the runtime may not know of it yet.
    #[must_use]
    pub fn is_silent(&mut self, is_told_late: bool) -> bool {
        let is_silent = |tcp: &TcpStream| {
            let looked = if is_told_late {
                SockRef::from(tcp).peek(&mut [MaybeUninit::uninit(); 1])
            } else if self.channel.is_some() {
                tcp.try_io(Interest::READABLE, || SockRef::from(tcp).peek(&mut [MaybeUninit::uninit(); 1]))
            } else {
                // Where no readiness was reported this is not even a system call.
                tcp.try_read(&mut [0; 1])
            };
            looked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        is_silent(&self.tcp) || (self.channel.is_some() && self.is_silent_inside())
    }

    /// Over TLS there may be messages that are nothing to whoever uses the connection: tickets, new keys.
    fn is_silent_inside(&mut self) -> bool {
        let Self { tcp, channel: Some(channel) } = self else { return true };
        let mut received = RECEIVED.take();
        let mut plain = Vec::new();
        let got = fill(tcp, channel, &mut received);
        let taken = take(channel, &mut received, &got, &mut plain);
        RECEIVED.set(received);
        let is_there = matches!(got, Ok(None | Some(1..))) && taken.is_ok();
        is_there && plain.is_empty() && !channel.has_peer_ended()
    }

    /// Registers the socket with the calling thread's runtime.
    ///
    /// # Errors
    /// When the system refuses; the socket is closed then.
    pub fn reregister(self) -> io::Result<Self> {
        Ok(Self { tcp: TcpStream::from_std(self.tcp.into_std()?)?, channel: self.channel })
    }

    /// Gives memory back that is not needed while nothing happens.
    #[inline]
    pub fn rest(&mut self) {
        if let Some(channel) = &mut self.channel {
            channel.rest();
        }
    }
}

/// Receives behind what is there of a record. The bytes that are there then are as long as the buffer, or it is the end.
fn fill(tcp: &TcpStream, channel: &Channel, received: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let partial = channel.partial();
    let whole = (partial.len() + RECEIVED_MAX / 2).max(RECEIVED_MAX);
    if received.len() != whole {
        received.resize(whole, 0);
    }
    let (front, room) = received.split_at_mut(partial.len());
    front.copy_from_slice(partial);
    loop {
        match recv(tcp, &mut *room, RecvFlags::DONTWAIT) {
            Ok((got, _)) => return Ok(Some(got)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes what [`fill`] has brought.
fn take(
    channel: &mut Channel,
    received: &mut [u8],
    got: &io::Result<Option<usize>>,
    plain: &mut Vec<u8>,
) -> io::Result<()> {
    let Ok(Some(count @ 1..)) = got else { return Ok(()) };
    let length = channel.partial().len() + count;
    channel.receive(received.get_mut(..length).unwrap_or_default(), plain)
}

fn poll_send(tcp: &TcpStream, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        let tried = tcp.try_io(Interest::WRITABLE, || Ok(send(tcp, bytes, SendFlags::NOSIGNAL)?));
        match tried {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            other => return Poll::Ready(other),
        }
        ready!(tcp.poll_write_ready(cx))?;
    }
}
