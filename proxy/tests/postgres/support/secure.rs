//! How a client of the tests comes over TLS.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use pgrouting_proxy::auth::scram::{BOUND_MECHANISM, Channel, MECHANISM};
use pgrouting_proxy::tls::binding::server_end_point;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::certificates::{Ca, Pair};

/// An SSLRequest.
pub const SSL_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";

/// What a client says of the channel in its login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// That it cannot bind to it.
    Plain,
    /// That the server does not offer to bind to it.
    Unoffered,
    /// It binds to the server's certificate.
    Bound,
    /// It says so with no certificate to bind to.
    Pretended,
}

impl Proof {
    /// The mechanism and what is said of a channel whose certificate has that hash.
    pub const fn of(self, hash: &[u8]) -> (&'static str, Channel<'_>) {
        match self {
            Self::Plain => (MECHANISM, Channel::Unable),
            Self::Unoffered => (MECHANISM, Channel::Unoffered),
            Self::Bound => (BOUND_MECHANISM, Channel::Bound(hash)),
            Self::Pretended => (BOUND_MECHANISM, Channel::Bound(b"no certificate")),
        }
    }
}

/// What the handshake is made with.
#[derive(Debug, Clone)]
pub struct Secure {
    config: Arc<ClientConfig>,
    /// The handshake comes first, without an SSLRequest.
    is_direct: bool,
    /// What is sent in clear text behind the SSLRequest.
    injected: &'static [u8],
}

impl Secure {
    /// A client that believes this CA and has a certificate or none.
    pub fn new(ca: &Ca, shown: Option<&Pair>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Self { config: Arc::new(config), is_direct: false, injected: b"" }
    }

    /// The same with these protocols named in the handshake.
    pub fn naming(mut self, protocols: &[&str]) -> Self {
        let named = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::make_mut(&mut self.config).alpn_protocols = named;
        self
    }

    /// The same without an SSLRequest.
    pub fn direct(mut self) -> Self {
        self.is_direct = true;
        self
    }

    /// The same with bytes in clear text behind the SSLRequest.
    pub fn injecting(mut self, injected: &'static [u8]) -> Self {
        self.injected = injected;
        self
    }

    /// Goes through the handshake, over its own SSLRequest where there is to be one.
    pub fn shake(&self, stream: &mut TcpStream) -> std::io::Result<ClientConnection> {
        if !self.is_direct {
            stream.write_all(&[SSL_REQUEST, self.injected].concat())?;
            let mut answer = [0; 1];
            stream.read_exact(&mut answer)?;
            assert_eq!(&answer, b"S");
        }
        let name = ServerName::try_from("localhost").unwrap();
        let mut connection =
            ClientConnection::new(Arc::clone(&self.config), name).map_err(std::io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(stream)?;
        }
        Ok(connection)
    }
}

/// What a login over a connection is bound to.
pub fn end_point(connection: &ClientConnection) -> Vec<u8> {
    server_end_point(&connection.peer_certificates().unwrap()[0]).unwrap()
}
