//! One encrypted connection: records in, plain bytes out, and the other way round; no I/O.
//!
//! What is received is decrypted at once as far as records are whole, so that nothing that could be read ever waits in
//! here; the beginning of a record is all that is kept. What is to be sent becomes records of up to 16 KiB
//! (RFC 8446, section 5.1) in one buffer, for one system call. Neither buffer has memory while it is empty and at rest.

use std::io;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{ClientConfig, CommonState, ProtocolVersion, ServerConfig};

/// Plain bytes that become records at one go: what is sealed waits for the socket in memory.
pub const SEALED_MAX: usize = 64 * 1024;

/// What a record adds to its plain bytes, at most: 5 of header, 16 of authentication, and a type or a nonce.
const RECORD_OVERHEAD: usize = 32;

/// Plain bytes of the longest record.
const RECORD_MAX: usize = 16 * 1024;

/// The connection.
pub struct Channel {
    end: End,
    /// The beginning of a record, or of a message of a handshake, whose rest has not come yet.
    partial: Vec<u8>,
    outgoing: Vec<u8>,
    /// How much of it has been sent.
    sent: usize,
    has_peer_ended: bool,
    /// Something came that may not come: nothing more is made of what may be left of it.
    is_broken: bool,
}

/// Which end of it we are.
enum End {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What to do after a step of the state machine.
enum Step {
    /// Take the next one.
    Again,
    /// Nothing more can be done with what is there.
    Wait,
    /// The other side has said that it sends no more.
    PeerEnded,
}

/// What the state machine is to do when it comes to the point where it could write.
enum Task<'a> {
    Read,
    Write(&'a [u8]),
    End,
}

impl Channel {
    /// We are the server.
    ///
    /// # Errors
    /// When the settings do not work.
    pub fn accept(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        Ok(Self::new(End::Server(UnbufferedServerConnection::new(config)?)))
    }

    /// We are the client, and that is the server's name.
    ///
    /// # Errors
    /// When the settings do not work.
    pub fn connect(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, rustls::Error> {
        Ok(Self::new(End::Client(UnbufferedClientConnection::new(config, name)?)))
    }

    const fn new(end: End) -> Self {
        Self {
            end,
            partial: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
            has_peer_ended: false,
            is_broken: false,
        }
    }

    /// Bytes that have to lie before those that are received next.
    #[must_use]
    pub fn partial(&self) -> &[u8] {
        &self.partial
    }

    /// Takes received bytes, with [`Self::partial`] before them, and appends what they say to `plain`. What is to be
    /// answered is in [`Self::unsent`] then, after an error too.
    ///
    /// # Errors
    /// When the bytes are not what may come; the connection is of no use then.
    pub fn receive(&mut self, received: &mut [u8], plain: &mut Vec<u8>) -> io::Result<()> {
        let taken = self.advance(received, plain, &Task::Read);
        let rest = taken.as_ref().ok().and_then(|taken| received.get(*taken..)).unwrap_or_default();
        if rest.is_empty() {
            self.partial = Vec::new();
        } else {
            self.partial.clear();
            self.partial.extend_from_slice(rest);
        }
        taken.map(drop)
    }

    /// Makes records of plain bytes; [`SEALED_MAX`] at most at a time.
    ///
    /// # Errors
    /// When the keys are worn out, or the handshake is not over.
    pub fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        self.write(&Task::Write(plain))
    }

    /// Says that we send no more.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub fn end(&mut self) -> io::Result<()> {
        self.write(&Task::End)
    }

    fn write(&mut self, task: &Task<'_>) -> io::Result<()> {
        let mut partial = std::mem::take(&mut self.partial);
        let mut plain = Vec::new();
        let written = self.advance(&mut partial, &mut plain, task);
        debug_assert!(plain.is_empty(), "what can be read has been read");
        self.partial = partial;
        written.map(drop)
    }

    /// Goes on as far as `received` leads. Tells how much of it is done with.
    fn advance(&mut self, received: &mut [u8], plain: &mut Vec<u8>, task: &Task<'_>) -> io::Result<usize> {
        if self.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut taken = 0;
        loop {
            let rest = received.get_mut(taken..).unwrap_or_default();
            let (discard, stepped) = self.step(rest, plain, task);
            taken += discard;
            match stepped {
                Ok(Step::Again) => {}
                Ok(Step::Wait) => return Ok(taken),
                Ok(Step::PeerEnded) => {
                    self.has_peer_ended = true;
                    // What comes behind it is nobody's (RFC 8446, section 6.1).
                    taken = received.len();
                }
                Err(error) => {
                    self.is_broken = true;
                    // What the other side is to be told of it is there already. What may be left of the received bytes
                    // must not be looked at any more.
                    while self.state().wants_write() {
                        let rest = received.get_mut(taken..).unwrap_or_default();
                        taken += self.step(rest, plain, &Task::Read).0;
                    }
                    return Err(error);
                }
            }
        }
    }

    fn step(
        &mut self,
        received: &mut [u8],
        plain: &mut Vec<u8>,
        task: &Task<'_>,
    ) -> (usize, io::Result<Step>) {
        let outgoing = &mut self.outgoing;
        match &mut self.end {
            End::Client(end) => step(end.process_tls_records(received), plain, outgoing, task),
            End::Server(end) => step(end.process_tls_records(received), plain, outgoing, task),
        }
    }

    /// Records to be sent.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        self.outgoing.get(self.sent..).unwrap_or_default()
    }

    /// So many of them have been sent.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.outgoing.len() {
            self.sent = 0;
            self.outgoing.clear();
        }
    }

    /// Gives memory back that is not needed while nothing happens.
    pub fn rest(&mut self) {
        if self.outgoing.is_empty() {
            self.outgoing = Vec::new();
        }
    }

    /// Whether the other side has said that it sends no more. An end of the stream without that is an error.
    #[must_use]
    pub const fn has_peer_ended(&self) -> bool {
        self.has_peer_ended
    }

    /// Whether the handshake is under way.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.state().is_handshaking()
    }

    /// The protocol of the application that both sides named.
    #[must_use]
    pub fn protocol(&self) -> Option<&[u8]> {
        self.state().alpn_protocol()
    }

    /// Version and cipher suite, for people; empty while the handshake is under way.
    #[must_use]
    pub fn description(&self) -> String {
        let version = match self.state().protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(_) | None => return String::new(),
        };
        let suite = self.state().negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        format!("{version}/{}", suite.unwrap_or_default())
    }

    /// The certificate that the other side has shown.
    #[must_use]
    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.state().peer_certificates()?.first()
    }

    fn state(&self) -> &CommonState {
        match &self.end {
            End::Client(end) => end,
            End::Server(end) => end,
        }
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys are left out, so that no log line can hold them.
        f.debug_struct("Channel").field("unsent", &self.unsent().len()).finish_non_exhaustive()
    }
}

/// Does what the state machine asks for. Tells how many received bytes are done with.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plain: &mut Vec<u8>,
    outgoing: &mut Vec<u8>,
    task: &Task<'_>,
) -> (usize, io::Result<Step>) {
    let mut discard = status.discard;
    let step = status.state.map_err(as_io).and_then(|state| act(state, &mut discard, plain, outgoing, task));
    (discard, step)
}

fn act<Data>(
    state: ConnectionState<'_, '_, Data>,
    discard: &mut usize,
    plain: &mut Vec<u8>,
    outgoing: &mut Vec<u8>,
    task: &Task<'_>,
) -> io::Result<Step> {
    Ok(match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record.map_err(as_io)?;
                *discard += record.discard;
                plain.extend_from_slice(record.payload);
            }
            Step::Again
        }
        ConnectionState::EncodeTlsData(mut data) => {
            append(outgoing, 0, |room| match data.encode(room) {
                Ok(count) => Ok(Written::All(count)),
                Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                    Ok(Written::Needs(required_size))
                }
                Err(error @ EncodeError::AlreadyEncoded) => Err(io::Error::other(error)),
            })?;
            Step::Again
        }
        // It goes out before anything that is sealed later.
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Step::Again
        }
        ConnectionState::PeerClosed => Step::PeerEnded,
        ConnectionState::WriteTraffic(mut traffic) => {
            let (expected, bytes) = match task {
                Task::Read => return Ok(Step::Wait),
                Task::Write(bytes) => {
                    (bytes.len() + (bytes.len() / RECORD_MAX + 1) * RECORD_OVERHEAD, Some(*bytes))
                }
                Task::End => (RECORD_OVERHEAD, None),
            };
            append(outgoing, expected, |room| {
                let written = match bytes {
                    Some(bytes) => traffic.encrypt(bytes, room),
                    None => traffic.queue_close_notify(room),
                };
                match written {
                    Ok(count) => Ok(Written::All(count)),
                    Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => {
                        Ok(Written::Needs(required_size))
                    }
                    Err(error @ EncryptError::EncryptExhausted) => Err(io::Error::other(error)),
                }
            })?;
            Step::Wait
        }
        ConnectionState::Closed | ConnectionState::BlockedHandshake => match task {
            Task::Read | Task::End => Step::Wait,
            Task::Write(_) => return Err(io::ErrorKind::BrokenPipe.into()),
        },
        other => return Err(io::Error::other(format!("TLS has come to {other:?}"))),
    })
}

/// What came of an attempt to write.
enum Written {
    All(usize),
    Needs(usize),
}

/// Appends what `write` writes, for which there is room for `expected` bytes first, and then as much as it says.
fn append(
    outgoing: &mut Vec<u8>,
    expected: usize,
    mut write: impl FnMut(&mut [u8]) -> io::Result<Written>,
) -> io::Result<()> {
    let before = outgoing.len();
    let mut room = expected;
    loop {
        outgoing.resize(before + room, 0);
        let written = write(outgoing.get_mut(before..).unwrap_or_default());
        match written {
            Ok(Written::All(count)) => {
                outgoing.truncate(before + count);
                return Ok(());
            }
            Ok(Written::Needs(needed)) if needed > room => room = needed,
            Ok(Written::Needs(_)) => {
                outgoing.truncate(before);
                return Err(io::Error::other("TLS does not know what it needs"));
            }
            Err(error) => {
                outgoing.truncate(before);
                return Err(error);
            }
        }
    }
}

fn as_io(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;
