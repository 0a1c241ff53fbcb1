//! Asks the proxies of a pool, through the API server's port-forward, with the certificate of the pool's admin Secret.
//!
//! Each pod is asked on its own connection and has a time of its own, so that a dead one keeps nobody.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, join_all};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::ListParams;
use pgrouting_contract::peers::PROXY_SERVER_NAME;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::cluster::{Cluster, ClusterError, Fault, answer};
use crate::names::{
    ADMIN_PORT, CA_CERTIFICATE, CLIENT_CERTIFICATE, CLIENT_KEY, admin_secret, proxy_selector,
};
use crate::pods::{Pod, PodAnswer, PodState};

/// The longest wait for one pod, from the port-forward to its answer. A proxy itself may wait five seconds for a catalog.
const POD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the reason of a port-forward that failed is waited for.
const REASON_TIMEOUT: Duration = Duration::from_millis(300);
/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Why the proxies could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The API server.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// No Secret.
    #[error("there is no Secret {0}, which the operator makes: does it run?")]
    NoSecret(String),
    /// It lacks a key.
    #[error("Secret {secret} has no {key}")]
    NoKey {
        /// The Secret.
        secret: String,
        /// The key.
        key: &'static str,
    },
    /// What is in it does not read.
    #[error("the certificates of the admin API do not read: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// It does not fit.
    #[error("the certificates of the admin API do not fit: {0}")]
    Certificates(#[from] rustls::Error),
    /// No port-forward.
    #[error("the port-forward fails: {0}")]
    Forward(String),
    /// No TLS.
    #[error("TLS to the admin port fails: {0}")]
    Tls(std::io::Error),
    /// No HTTP.
    #[error("the admin API fails: {0}")]
    Http(String),
    /// An answer that is none.
    #[error("the admin API answers {status}: {body}")]
    Status {
        /// The HTTP status.
        status: StatusCode,
        /// The first bytes of the body.
        body: String,
    },
    /// No answer.
    #[error("no answer in time")]
    Timeout,
}

/// What to ask.
#[derive(Debug, Clone)]
pub enum Question {
    /// What is at this path.
    Get(&'static str),
    /// What comes of this document.
    Post(&'static str, Bytes),
}

/// The right to speak to the proxies of one pool.
pub struct ProxyAccess {
    pods: Api<v1::Pod>,
    pool: String,
    connector: TlsConnector,
}

impl ProxyAccess {
    /// With what the pool's admin Secret has.
    ///
    /// # Errors
    /// When it cannot be read or used.
    pub async fn of(cluster: &Cluster, pool: &str) -> Result<Self, ProxyError> {
        let name = admin_secret(pool);
        let secrets: Api<v1::Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let secret = match answer(&format!("read Secret {name}"), secrets.get(&name)).await {
            Ok(secret) => secret,
            Err(Fault::Status { code: 404, .. }) => return Err(ProxyError::NoSecret(name)),
            Err(fault) => return Err(ClusterError::from(fault).into()),
        };
        Ok(Self {
            pods: Api::namespaced(cluster.client.clone(), &cluster.namespace),
            pool: pool.to_owned(),
            connector: connector(&secret, &name)?,
        })
    }

    /// The pool's pods, by name.
    ///
    /// # Errors
    /// When the API server does not give them.
    pub async fn pods(&self) -> Result<Vec<Pod>, ProxyError> {
        let params = ListParams::default().labels(&proxy_selector(&self.pool));
        let pods =
            answer("list the proxies' pods", self.pods.list(&params)).await.map_err(ClusterError::from)?;
        let mut pods: Vec<Pod> = pods.iter().map(Pod::of).collect();
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(pods)
    }

    /// Asks all of some pods at once; those that do not run are not asked.
    pub async fn ask_all(&self, pods: Vec<Pod>, question: &Question) -> Vec<PodAnswer<Bytes>> {
        let ask = |pod: Pod| async move {
            let answer = match pod.state {
                PodState::Ready | PodState::NotReady | PodState::Ending => {
                    self.ask(&pod.name, question).await.map_err(|error| error.to_string())
                }
                PodState::Away => Err("it does not run".to_owned()),
            };
            PodAnswer { pod, answer }
        };
        join_all(pods.into_iter().map(ask)).await
    }

    /// Asks one pod.
    ///
    /// # Errors
    /// When it does not answer, or not with 200.
    pub async fn ask(&self, pod: &str, question: &Question) -> Result<Bytes, ProxyError> {
        let asked = Box::pin(self.ask_without_limit(pod, question));
        tokio::time::timeout(POD_TIMEOUT, asked).await.unwrap_or(Err(ProxyError::Timeout))
    }

    async fn ask_without_limit(&self, pod: &str, question: &Question) -> Result<Bytes, ProxyError> {
        let what = format!("port-forward to pod {pod}");
        let mut forward =
            answer(&what, self.pods.portforward(pod, &[ADMIN_PORT])).await.map_err(ClusterError::from)?;
        let reason = forward.take_error(ADMIN_PORT);
        let stream = forward
            .take_stream(ADMIN_PORT)
            .ok_or_else(|| ProxyError::Forward("it has no stream".to_owned()))?;
        let mut outcome = talk(&self.connector, stream, question).await;
        if let (Err(ProxyError::Tls(_) | ProxyError::Http(_)), Some(reason)) = (&outcome, reason)
            && let Ok(Some(reason)) = tokio::time::timeout(REASON_TIMEOUT, reason).await
        {
            // What the node says of it is the cause.
            outcome = Err(ProxyError::Forward(reason));
        }
        forward.abort();
        outcome
    }
}

/// TLS with the pool's own CA and the certificate that opens its admin API.
fn connector(secret: &v1::Secret, name: &str) -> Result<TlsConnector, ProxyError> {
    let value = |key: &'static str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        value
            .map(|value| value.0.as_slice())
            .ok_or_else(|| ProxyError::NoKey { secret: name.to_owned(), key })
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(value(CA_CERTIFICATE)?) {
        roots.add(certificate?)?;
    }
    let chain = CertificateDer::pem_slice_iter(value(CLIENT_CERTIFICATE)?).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(value(CLIENT_KEY)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    Ok(TlsConnector::from(Arc::new(config)))
}

/// One question and its answer over a stream to a proxy's admin port.
async fn talk(
    connector: &TlsConnector,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    question: &Question,
) -> Result<Bytes, ProxyError> {
    let server_name =
        ServerName::try_from(PROXY_SERVER_NAME).map_err(|error| rustls::Error::General(error.to_string()))?;
    let tls = connector.connect(server_name, stream).await.map_err(ProxyError::Tls)?;
    let http_error = |error: hyper::Error| ProxyError::Http(error.to_string());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.map_err(http_error)?;
    let request = request(question)?;
    let exchange = std::pin::pin!(async move {
        let response = sender.send_request(request).await.map_err(http_error)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| ProxyError::Http(error.to_string()))?.to_bytes();
        if status == StatusCode::OK {
            return Ok(body);
        }
        let body = String::from_utf8_lossy(&body).trim().chars().take(300).collect();
        Err(ProxyError::Status { status, body })
    });
    match futures::future::select(exchange, connection).await {
        Either::Left((answer, _)) => answer,
        // The proxy may close after its answer, which is then still to be taken.
        Either::Right((_, exchange)) => exchange.await,
    }
}

fn request(question: &Question) -> Result<Request<Full<Bytes>>, ProxyError> {
    let (method, path, body) = match question {
        Question::Get(path) => (Method::GET, *path, Bytes::new()),
        Question::Post(path, body) => (Method::POST, *path, body.clone()),
    };
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, PROXY_SERVER_NAME)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .map_err(|error| ProxyError::Http(error.to_string()))
}

#[cfg(test)]
mod tests;
