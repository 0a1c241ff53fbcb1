//! Serves the admin API on its sockets, in plain HTTP or over mutual TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use pgrouting_contract::config::AdminTls;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

/// Connections that are served at a time.
const CONNECTIONS_MAX: usize = 64;

/// The longest that a handshake or the headers of a request may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves plain HTTP for ever.
pub async fn plain(listener: TcpListener, routes: Router) {
    each(listener, move |stream| {
        let routes = routes.clone();
        async move { http(stream, routes).await }
    })
    .await;
}

/// Serves HTTP over TLS for ever, to callers with a certificate of the CA. The files are read again when they change.
pub async fn mutual_tls(listener: TcpListener, routes: Router, files: AdminTls) {
    let identity = Arc::new(tokio::sync::Mutex::new(Identity { files, pem: Vec::new(), acceptor: None }));
    each(listener, move |stream| {
        let (routes, identity) = (routes.clone(), Arc::clone(&identity));
        async move {
            let acceptor = match identity.lock().await.acceptor().await {
                Ok(acceptor) => acceptor,
                Err(error) => {
                    warn!(%error, "the admin certificate cannot be used");
                    return;
                }
            };
            match timeout(PATIENCE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => http(stream, routes).await,
                Ok(Err(error)) => debug!(%error, "an admin caller was turned away"),
                Err(_) => debug!("an admin caller was too slow"),
            }
        }
    })
    .await;
}

async fn each<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> F,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let served = serve(stream);
                tokio::spawn(async move {
                    served.await;
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "an admin caller could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn http(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, routes: Router) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
        .await;
    if let Err(error) = served {
        debug!(%error, "an admin connection broke");
    }
}

/// The proxy's certificate and the CA of its callers.
struct Identity {
    files: AdminTls,
    pem: Vec<Vec<u8>>,
    acceptor: Option<TlsAcceptor>,
}

impl Identity {
    async fn acceptor(&mut self) -> io::Result<TlsAcceptor> {
        let mut pem = Vec::new();
        for path in [&self.files.certificate_file, &self.files.key_file, &self.files.client_ca_file] {
            pem.push(
                tokio::fs::read(path).await.map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))?,
            );
        }
        match &self.acceptor {
            Some(acceptor) if pem == self.pem => Ok(acceptor.clone()),
            _ => {
                let acceptor = acceptor_of(&pem).map_err(io::Error::other)?;
                self.pem = pem;
                Ok(self.acceptor.insert(acceptor).clone())
            }
        }
    }
}

type TlsFault = Box<dyn std::error::Error + Send + Sync>;

fn acceptor_of(pem: &[Vec<u8>]) -> Result<TlsAcceptor, TlsFault> {
    let [certificate, key, ca] = pem else { return Err("three files are needed".into()) };
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(ca) {
        roots.add(root?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
