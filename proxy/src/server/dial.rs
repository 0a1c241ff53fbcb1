//! Opens a socket to a server, and encrypts it where it is to be.
//!
//! SSLRequest and its answer: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL>.

use std::io;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, ToSocketAddrs};
use tracing::debug;

use crate::server::endpoint::Endpoint;
use crate::socket::stream::Stream;
use crate::tls::channel::Channel;
use crate::tls::servers::ServerTls;
use crate::wire::startup::SSL_REQUEST_PACKET;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum DialFault {
    /// The server cannot be reached.
    #[error("{0}")]
    Unreachable(#[from] io::Error),
    /// It cannot be spoken to over TLS as it must be.
    #[error("{0}")]
    Tls(TlsFault),
}

/// Why a server cannot be spoken to over TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsFault {
    /// It says that it does not.
    #[error("the server does not take TLS, and the mode asks for it")]
    Unsupported,
    /// It answers with an error, which may come from anybody and is not passed on.
    #[error("the server answers the request for TLS with an error")]
    Refused,
    /// It answers with something else.
    #[error("the server answers the request for TLS with what is no answer to it")]
    Strange,
    /// More than the answer came in clear text: somebody in between may want it to be taken for the server's.
    #[error("clear text came behind the server's answer to the request for TLS")]
    Injected,
    /// Its name cannot be that of a certificate.
    #[error("TLS cannot be spoken to a server of that name")]
    Name,
    /// The handshake failed, or the certificate is not what it must be.
    #[error("the TLS handshake with the server failed: {0}")]
    Handshake(io::Error),
}

impl From<TlsFault> for DialFault {
    fn from(fault: TlsFault) -> Self {
        Self::Tls(fault)
    }
}

/// Opens a socket at an address of the endpoint, over TLS as its settings say.
///
/// # Errors
/// When there is none.
pub async fn dial(address: impl ToSocketAddrs + Copy, endpoint: &Endpoint) -> Result<Stream, DialFault> {
    let Some(tls) = endpoint.tls.current() else { return dial_clear(address).await };
    match dial_secure(address, endpoint, &tls).await {
        // libpq's `prefer` tries once more in clear text, too.
        Err(DialFault::Tls(TlsFault::Handshake(error))) if tls.is_optional => {
            debug!(%endpoint, %error, "TLS is not to be had; it goes on in clear text");
            dial_clear(address).await
        }
        dialed => dialed,
    }
}

/// Opens a socket in clear text.
///
/// # Errors
/// When there is none.
pub async fn dial_clear(address: impl ToSocketAddrs) -> Result<Stream, DialFault> {
    Ok(Stream::plain(open(address).await?))
}

async fn dial_secure(
    address: impl ToSocketAddrs,
    endpoint: &Endpoint,
    tls: &ServerTls,
) -> Result<Stream, DialFault> {
    let mut tcp = open(address).await?;
    tcp.write_all(&SSL_REQUEST_PACKET).await?;
    let mut answer = [0; 2];
    let count = tcp.read(&mut answer).await?;
    match (count, answer) {
        (0, _) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        (1, [b'S', _]) => {}
        (1, [b'N', _]) if tls.is_optional => return Ok(Stream::plain(tcp)),
        (1, [b'N', _]) => return Err(TlsFault::Unsupported.into()),
        (_, [b'E', _]) => return Err(TlsFault::Refused.into()),
        (_, [b'S' | b'N', _]) => return Err(TlsFault::Injected.into()),
        _ => return Err(TlsFault::Strange.into()),
    }
    let attempt = endpoint.tls.tally.begin();
    let name = ServerName::try_from(endpoint.host.clone()).map_err(|_| TlsFault::Name)?;
    let channel = Channel::connect(std::sync::Arc::clone(&tls.config), name)
        .map_err(|error| TlsFault::Handshake(io::Error::other(error)))?;
    let mut stream = Stream::plain(tcp);
    // A server waits for the startup packet and says nothing before it.
    let said = stream.secure(channel, Vec::new()).await.map_err(TlsFault::Handshake)?;
    if !said.is_empty() {
        return Err(TlsFault::Strange.into());
    }
    attempt.complete();
    Ok(stream)
}

async fn open(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10));
    socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}
