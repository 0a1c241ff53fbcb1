//! The certificate that a proxy serves its admin API with, and shows to its peers.
//!
//! The files are looked at for each connection and read into TLS when they have changed, as a mounted Secret does.

use std::io;
use std::sync::Arc;

use pgrouting_contract::config::AdminTls;
use pgrouting_contract::peers::PROXY_SERVER_NAME;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::tls::files::{self, FileFault, Files};

/// The proxy's certificate and the CA of its callers.
pub struct Identity {
    config: AdminTls,
    files: Files<Tls>,
}

/// Both ends of TLS under one certificate.
#[derive(Clone)]
pub struct Tls {
    /// For callers, who must have a certificate of the CA.
    pub acceptor: TlsAcceptor,
    /// For peers, whose certificate must be of the CA.
    pub connector: TlsConnector,
}

impl Identity {
    /// Of these files, of which none is read yet.
    #[must_use]
    pub fn new(config: AdminTls) -> Self {
        let paths = [&config.certificate_file, &config.key_file, &config.client_ca_file];
        let files = Files::new(paths.map(Clone::clone).into());
        Self { config, files }
    }

    /// Whether it is of these files.
    #[must_use]
    pub fn is_of(&self, config: &AdminTls) -> bool {
        self.config == *config
    }

    /// TLS as the files have it now.
    ///
    /// # Errors
    /// When a file cannot be read, or the three do not fit.
    pub fn tls(&mut self) -> io::Result<Tls> {
        self.files.refresh(tls_of)
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is left out, so that no log line can hold it.
        f.debug_struct("Identity").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The name that a peer's certificate must have.
#[must_use]
pub fn peer_name() -> ServerName<'static> {
    ServerName::try_from(PROXY_SERVER_NAME).expect("our name is a DNS name")
}

/// Whether a caller's certificate is a proxy's.
#[must_use]
pub fn is_of_proxy(certificate: &CertificateDer<'_>) -> bool {
    ParsedCertificate::try_from(certificate)
        .is_ok_and(|certificate| verify_server_name(&certificate, &peer_name()).is_ok())
}

fn tls_of(texts: &[Vec<u8>]) -> Result<Tls, FileFault> {
    let [certificate, key, ca] = texts else { return Err("three files are needed".into()) };
    let shown = files::Identity::parse(certificate, key)?;
    let roots = Arc::new(files::roots(ca)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build()?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(shown.chain.clone(), shown.key.clone_key())?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(shown.chain, shown.key)?;
    Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(server)), connector: TlsConnector::from(Arc::new(client)) })
}
