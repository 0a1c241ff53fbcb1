//! The certificate that a proxy serves its admin API with, and shows to its peers.
//!
//! The files are looked at for each connection and read into TLS when they have changed, as a mounted Secret does.

use std::io;
use std::sync::Arc;

use pgrouting_contract::config::AdminTls;
use pgrouting_contract::peers::PROXY_SERVER_NAME;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The proxy's certificate and the CA of its callers.
pub struct Identity {
    files: AdminTls,
    pem: Vec<Vec<u8>>,
    tls: Option<Tls>,
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
    pub fn new(files: AdminTls) -> Self {
        Self { files, pem: Vec::new(), tls: None }
    }

    /// Whether it is of these files.
    #[must_use]
    pub fn is_of(&self, files: &AdminTls) -> bool {
        self.files == *files
    }

    /// TLS as the files have it now.
    ///
    /// # Errors
    /// When a file cannot be read, or the three do not fit.
    pub async fn tls(&mut self) -> io::Result<Tls> {
        let mut pem = Vec::new();
        for path in [&self.files.certificate_file, &self.files.key_file, &self.files.client_ca_file] {
            pem.push(
                tokio::fs::read(path).await.map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))?,
            );
        }
        match &self.tls {
            Some(tls) if pem == self.pem => Ok(tls.clone()),
            _ => {
                let tls = tls_of(&pem).map_err(io::Error::other)?;
                self.pem = pem;
                Ok(self.tls.insert(tls).clone())
            }
        }
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is left out, so that no log line can hold it.
        f.debug_struct("Identity").field("files", &self.files).finish_non_exhaustive()
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

type TlsFault = Box<dyn std::error::Error + Send + Sync>;

fn tls_of(pem: &[Vec<u8>]) -> Result<Tls, TlsFault> {
    let [certificate, key, ca] = pem else { return Err("three files are needed".into()) };
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(ca) {
        roots.add(root?)?;
    }
    let roots = Arc::new(roots);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build()?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(server)), connector: TlsConnector::from(Arc::new(client)) })
}
