//! Proxies as real TLS servers: reports, pushes, strangers, and pods that are dead or mute.

use std::net::Ipv4Addr;
use std::sync::Mutex;

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::{get, put};
use hyper_util::service::TowerToHyperService;
use pgrouting_contract::config::{ConfigHash, Generation, ProxyConfig};
use pgrouting_contract::measures::Measures;
use pgrouting_contract::report::{ClientReport, ConfigReport, ProxyState, Totals};
use pgrouting_contract::stage::Stage;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::fixtures::{SMALL, built};

/// What a fake proxy has been told.
#[derive(Default)]
struct Told {
    config: Option<ProxyConfig>,
    epochs: Vec<String>,
    pushes: usize,
}

type Shared = Arc<Mutex<Told>>;

fn report(told: &Told) -> ProxyReport {
    ProxyReport {
        proxy_version: "0".into(),
        state: ProxyState::Serving,
        config: ConfigReport {
            generation: told.config.as_ref().map_or(Generation(0), |config| config.generation),
            hash: told.config.as_ref().map_or_else(ConfigHash::default, ProxyConfig::hash),
            stage: Stage::PoolingOnly,
            refused: None,
        },
        servers: Vec::new(),
        conflict: None,
        credentials: Vec::new(),
        clients: ClientReport::default(),
        totals: Totals::default(),
        pinned: std::collections::BTreeMap::new(),
        halts: None,
        split: pgrouting_contract::report::SplitReport::default(),
        mirror: None,
        tls: Vec::new(),
        measures: Measures::default(),
        session_state: Vec::new(),
    }
}

fn api(told: Shared, refuse: bool) -> Router {
    let reader = told.clone();
    Router::new()
        .route("/report", get(move || async move { axum::Json(report(&reader.lock().unwrap())) }))
        .route(
            "/config",
            put(move |headers: HeaderMap, body: Bytes| async move {
                let mut told = told.lock().unwrap();
                told.pushes += 1;
                told.epochs.push(headers[EPOCH_HEADER].to_str().unwrap().to_owned());
                let (status, outcome) = if refuse {
                    (StatusCode::UNPROCESSABLE_ENTITY, ConfigOutcome::Refused)
                } else {
                    told.config = Some(ProxyConfig::parse(&body).unwrap());
                    (StatusCode::OK, ConfigOutcome::Applied)
                };
                let running = report(&told).config;
                let reasons = if refuse { vec!["servers: too many".to_owned()] } else { Vec::new() };
                let answer =
                    ConfigAnswer { outcome, generation: running.generation, hash: running.hash, reasons };
                (status, axum::Json(answer))
            }),
        )
}

/// Serves `router` under the server certificate, to clients of the same CA only.
async fn serve(certificates: &AdminCertificates, router: Router) -> ProxyAddress {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificates.ca.certificate.as_bytes()).unwrap()).unwrap();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let chain = vec![CertificateDer::from_pem_slice(certificates.server.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(certificates.server.key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, router) = (acceptor.clone(), router.clone());
            tokio::spawn(async move {
                if let Ok(tls) = acceptor.accept(tcp).await {
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(tls), TowerToHyperService::new(router))
                        .await;
                }
            });
        }
    });
    address(&format!("pod-{port}"), port)
}

fn address(pod: &str, port: u16) -> ProxyAddress {
    ProxyAddress { pod: pod.into(), ip: Ipv4Addr::LOCALHOST.into(), port, patience: Patience::Full }
}

/// A port that takes connections and never says a word.
async fn mute() -> (TcpListener, ProxyAddress) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, address("mute", port))
}

fn certificates() -> AdminCertificates {
    AdminCertificates::keep_or_make(None, jiff::Timestamp::now()).unwrap()
}

fn document() -> Document {
    built(SMALL).document
}

#[tokio::test]
async fn pod_that_runs_another_document_gets_ours_with_the_epoch_and_acknowledges() {
    let (certificates, told, metrics) = (certificates(), Shared::default(), Metrics::new().unwrap());
    let pod = serve(&certificates, api(told.clone(), false)).await;
    let access = ProxyAccess::new(&certificates, 42).unwrap();
    let document = document();
    let answers = access.converge(std::slice::from_ref(&pod), &document, &metrics).await;
    assert_eq!(answers[0].report.as_ref().unwrap().config.hash, document.hash);
    assert_eq!(answers[0].push.as_ref().unwrap().outcome, ConfigOutcome::Applied);
    assert_eq!(told.lock().unwrap().epochs, ["42"]);
    // A second time there is nothing to push.
    let answers = access.converge(&[pod], &document, &metrics).await;
    assert!(answers[0].push.is_none());
    assert_eq!(told.lock().unwrap().pushes, 1);
}

#[tokio::test]
async fn refusal_comes_back_with_its_reasons() {
    let (certificates, metrics) = (certificates(), Metrics::new().unwrap());
    let pod = serve(&certificates, api(Shared::default(), true)).await;
    let access = ProxyAccess::new(&certificates, 1).unwrap();
    let answers = access.converge(&[pod], &document(), &metrics).await;
    let push = answers[0].push.as_ref().unwrap();
    assert_eq!(
        (push.outcome, &push.reasons[..]),
        (ConfigOutcome::Refused, &["servers: too many".to_owned()][..])
    );
    assert!(answers[0].report.is_ok());
}

#[tokio::test]
async fn dead_and_mute_pods_delay_nobody_else() {
    let (certificates, told, metrics) = (certificates(), Shared::default(), Metrics::new().unwrap());
    let live = serve(&certificates, api(told.clone(), false)).await;
    let closed = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        address("dead", listener.local_addr().unwrap().port())
    };
    let (_listener, mute) = mute().await;
    let access = ProxyAccess::new(&certificates, 1).unwrap();
    let document = document();
    let pods = [mute, closed, live];
    let pushed = async {
        while told.lock().unwrap().pushes == 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::Instant::now()
    };
    let began = tokio::time::Instant::now();
    let (answers, pushed_at) = tokio::join!(access.converge(&pods, &document, &metrics), pushed);
    assert!(pushed_at - began < Duration::from_secs(1), "the live pod waited for the mute one");
    let names: Vec<_> = answers.iter().map(|answer| answer.pod.as_str()).collect();
    assert_eq!(names[..2], ["mute", "dead"]);
    assert!(matches!(answers[0].report, Err(ProxyError::Timeout)));
    assert!(matches!(answers[1].report, Err(ProxyError::Connect(_))));
    assert!(answers[2].report.is_ok());
}

#[tokio::test]
async fn pod_that_was_silent_is_waited_for_less() {
    let (certificates, metrics) = (certificates(), Metrics::new().unwrap());
    let (_listener, mute) = mute().await;
    let pod = ProxyAddress { patience: Patience::Little, ..mute };
    let began = tokio::time::Instant::now();
    let access = ProxyAccess::new(&certificates, 1).unwrap();
    let answers = access.converge(&[pod], &document(), &metrics).await;
    assert!(matches!(answers[0].report, Err(ProxyError::Timeout)));
    assert!(began.elapsed() < POD_TIMEOUT);
}

#[tokio::test]
async fn neither_side_speaks_to_a_stranger() {
    let (ours, theirs, metrics) = (certificates(), certificates(), Metrics::new().unwrap());
    let told = Shared::default();
    let pod = serve(&theirs, api(told.clone(), false)).await;
    let access = ProxyAccess::new(&ours, 1).unwrap();
    let answers = access.converge(std::slice::from_ref(&pod), &document(), &metrics).await;
    assert!(matches!(answers[0].report, Err(ProxyError::Tls(_))), "{:?}", answers[0].report);
    // The right server, asked with a foreign certificate.
    let mixed = AdminCertificates { client: ours.client, ..theirs };
    let answers = ProxyAccess::new(&mixed, 1).unwrap().converge(&[pod], &document(), &metrics).await;
    assert!(answers[0].report.is_err());
    assert_eq!(told.lock().unwrap().pushes, 0);
}

#[tokio::test]
async fn answer_that_nobody_expects_is_told() {
    let (certificates, metrics) = (certificates(), Metrics::new().unwrap());
    let router = Router::new().route("/report", get(|| async { (StatusCode::FORBIDDEN, "go away") }));
    let pod = serve(&certificates, router).await;
    let access = ProxyAccess::new(&certificates, 1).unwrap();
    let answers = access.converge(&[pod], &document(), &metrics).await;
    assert_eq!(
        answers[0].report.as_ref().unwrap_err().to_string(),
        "its admin API answers 403 Forbidden: go away"
    );
}
