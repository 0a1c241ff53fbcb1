//! Speaks to the proxies: pulls their reports and pushes the document to those that run another one.
//!
//! The only file that does. Mutual TLS under the pool's own CA; each pod is asked on its own, so that a dead one delays
//! nobody. Safe to cancel: a push is taken whole or not at all.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures::StreamExt as _;
use futures::future::Either;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use pgrouting_contract::peers::PROXY_SERVER_NAME;
use pgrouting_contract::report::{ConfigAnswer, ConfigOutcome, EPOCH_HEADER, ProxyReport};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::certificates::AdminCertificates;
use crate::desired::config_map::Document;
use crate::metrics::Metrics;

/// Pods that are asked at once.
const PODS_AT_ONCE: usize = 32;
/// The longest wait for one pod, from connecting to its last answer.
const POD_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a pod is waited for that did not answer the last time, so that a dead one delays no pass by much.
const SILENT_POD_TIMEOUT: Duration = Duration::from_millis(500);
/// How long, when the document has just changed and the status should soon tell of the others.
const SILENT_POD_TIMEOUT_AFTER_CHANGE: Duration = Duration::from_millis(100);
/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A pod that can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyAddress {
    /// The pod's name.
    pub pod: String,
    /// Its address.
    pub ip: IpAddr,
    /// The port of its admin API.
    pub port: u16,
    /// How patient to be with it.
    pub patience: Patience,
}

/// How patient to be with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// It has answered before, or was never asked.
    Full,
    /// It did not answer the last time.
    Little,
    /// And others wait for a changed document to be told of.
    Least,
}

impl Patience {
    /// The longest wait, from connecting to the last answer.
    const fn longest(self) -> Duration {
        match self {
            Self::Full => POD_TIMEOUT,
            Self::Little => SILENT_POD_TIMEOUT,
            Self::Least => SILENT_POD_TIMEOUT_AFTER_CHANGE,
        }
    }
}

/// What a pod said.
#[derive(Debug)]
pub struct ProxyAnswer {
    /// The pod's name.
    pub pod: String,
    /// Its report, after the push if there was one.
    pub report: Result<ProxyReport, ProxyError>,
    /// What became of the document that it was offered, when it was.
    pub push: Option<ConfigAnswer>,
}

/// Why a pod could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// No connection.
    #[error("cannot connect to its admin port: {0}")]
    Connect(std::io::Error),
    /// No TLS.
    #[error("TLS to its admin port fails: {0}")]
    Tls(std::io::Error),
    /// No HTTP.
    #[error("its admin API fails: {0}")]
    Http(String),
    /// An answer that nobody expects.
    #[error("its admin API answers {status}: {body}")]
    Status {
        /// The HTTP status.
        status: StatusCode,
        /// The first bytes of the body.
        body: String,
    },
    /// An answer that does not read.
    #[error("its answer does not read: {0}")]
    Decode(serde_json::Error),
    /// No answer.
    #[error("no answer in time")]
    Timeout,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// They do not read.
    #[error("the admin certificates do not read: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// They do not fit.
    #[error("the admin certificates do not fit: {0}")]
    Tls(#[from] rustls::Error),
}

/// The right to speak to the proxies of one pool.
#[derive(Clone)]
pub struct ProxyAccess {
    connector: TlsConnector,
    server_name: ServerName<'static>,
    epoch: u64,
}

impl ProxyAccess {
    /// With the pool's certificates, in the name of the leader with this Lease epoch.
    ///
    /// # Errors
    /// When the certificates do not read.
    pub fn new(certificates: &AdminCertificates, epoch: u64) -> Result<Self, AccessError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(certificates.ca.certificate.as_bytes()) {
            roots.add(certificate?)?;
        }
        let chain = CertificateDer::pem_slice_iter(certificates.client.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(certificates.client.key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            server_name: ServerName::try_from(PROXY_SERVER_NAME)
                .map_err(|error| rustls::Error::General(error.to_string()))?,
            epoch,
        })
    }

    /// Asks every pod, and gives the document to those that run another one. In the order of `pods`.
    pub async fn converge(
        &self,
        pods: &[ProxyAddress],
        document: &Document,
        metrics: &Metrics,
    ) -> Vec<ProxyAnswer> {
        self.each(pods, Some(document), metrics).await
    }

    /// Asks every pod and gives none a document. In the order of `pods`.
    pub async fn ask(&self, pods: &[ProxyAddress], metrics: &Metrics) -> Vec<ProxyAnswer> {
        self.each(pods, None, metrics).await
    }

    async fn each(
        &self,
        pods: &[ProxyAddress],
        document: Option<&Document>,
        metrics: &Metrics,
    ) -> Vec<ProxyAnswer> {
        let mut answers: Vec<(usize, ProxyAnswer)> = futures::stream::iter(pods.iter().cloned().enumerate())
            .map(|(index, pod)| async move { (index, self.converge_one(&pod, document, metrics).await) })
            .buffer_unordered(PODS_AT_ONCE)
            .collect()
            .await;
        answers.sort_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn converge_one(
        &self,
        pod: &ProxyAddress,
        document: Option<&Document>,
        metrics: &Metrics,
    ) -> ProxyAnswer {
        let mut push = None;
        let talk = self.talk(pod, document, metrics, &mut push);
        let report = match tokio::time::timeout(pod.patience.longest(), talk).await {
            Ok(report) => report,
            Err(_) => Err(ProxyError::Timeout),
        };
        ProxyAnswer { pod: pod.pod.clone(), report, push }
    }

    async fn talk(
        &self,
        pod: &ProxyAddress,
        document: Option<&Document>,
        metrics: &Metrics,
        push: &mut Option<ConfigAnswer>,
    ) -> Result<ProxyReport, ProxyError> {
        let tcp = TcpStream::connect(SocketAddr::new(pod.ip, pod.port)).await.map_err(ProxyError::Connect)?;
        tcp.set_nodelay(true).map_err(ProxyError::Connect)?;
        let tls = self.connector.connect(self.server_name.clone(), tcp).await.map_err(ProxyError::Tls)?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.map_err(http_error)?;
        let requests = std::pin::pin!(self.report_and_push(sender, document, metrics, push));
        match futures::future::select(requests, connection).await {
            Either::Left((report, _)) => report,
            // The proxy may close after its last answer, which is then still to be taken.
            Either::Right((_, requests)) => requests.await,
        }
    }

    async fn report_and_push(
        &self,
        mut connection: SendRequest<Full<Bytes>>,
        document: Option<&Document>,
        metrics: &Metrics,
        push: &mut Option<ConfigAnswer>,
    ) -> Result<ProxyReport, ProxyError> {
        let report = pull_report(&mut connection).await?;
        let Some(document) = document.filter(|document| document.hash != report.config.hash) else {
            return Ok(report);
        };
        let timer = metrics.config_push_duration_seconds.start_timer();
        let answer = self.push(&mut connection, document).await;
        timer.observe_duration();
        let result = match &answer {
            Ok(answer) => outcome_word(answer.outcome),
            Err(_) => "error",
        };
        metrics.config_push_total.with_label_values(&[result]).inc();
        *push = Some(answer?);
        pull_report(&mut connection).await
    }

    async fn push(
        &self,
        connection: &mut SendRequest<Full<Bytes>>,
        document: &Document,
    ) -> Result<ConfigAnswer, ProxyError> {
        let body = Full::new(Bytes::from(document.bytes.clone()));
        let request = Request::builder()
            .method(Method::PUT)
            .uri("/config")
            .header(header::HOST, PROXY_SERVER_NAME)
            .header(header::CONTENT_TYPE, "application/json")
            .header(EPOCH_HEADER, self.epoch.to_string())
            .body(body)
            .map_err(|error| ProxyError::Http(error.to_string()))?;
        let (status, body) = send(connection, request).await?;
        // Each of the three tells what became of the document.
        if matches!(status, StatusCode::OK | StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY) {
            serde_json::from_slice(&body).map_err(ProxyError::Decode)
        } else {
            Err(status_error(status, &body))
        }
    }
}

async fn pull_report(connection: &mut SendRequest<Full<Bytes>>) -> Result<ProxyReport, ProxyError> {
    let request = Request::builder()
        .uri("/report")
        .header(header::HOST, PROXY_SERVER_NAME)
        .body(Full::default())
        .map_err(|error| ProxyError::Http(error.to_string()))?;
    let (status, body) = send(connection, request).await?;
    if status == StatusCode::OK {
        serde_json::from_slice(&body).map_err(ProxyError::Decode)
    } else {
        Err(status_error(status, &body))
    }
}

async fn send(
    connection: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), ProxyError> {
    connection.ready().await.map_err(http_error)?;
    let response = connection.send_request(request).await.map_err(http_error)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| ProxyError::Http(error.to_string()))?;
    Ok((status, body.to_bytes()))
}

fn http_error(error: hyper::Error) -> ProxyError {
    ProxyError::Http(error.to_string())
}

fn status_error(status: StatusCode, body: &[u8]) -> ProxyError {
    let body = String::from_utf8_lossy(body).chars().take(200).collect();
    ProxyError::Status { status, body }
}

/// The outcome as a metric's label.
fn outcome_word(outcome: ConfigOutcome) -> &'static str {
    match outcome {
        ConfigOutcome::Applied => "applied",
        ConfigOutcome::Unchanged => "unchanged",
        ConfigOutcome::Stale => "stale",
        ConfigOutcome::Refused => "refused",
    }
}

#[cfg(test)]
mod tests;
