//! The admin API over HTTP: health, readiness, metrics, report, and new documents.
//!
//! `GET /healthz`, `GET /readyz` and `GET /metrics` are served in plain HTTP on `process.probeListen`; `GET /report`,
//! `GET /mirror-report` and `PUT /config`, and the others too, on `process.adminListen` to whoever shows a client
//! certificate or the token.
//! `POST /cancel` is for peers, whose certificate opens nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use pgrouting_contract::config::DOCUMENT_BYTES_MAX;
use pgrouting_contract::measures::{Measures, RefusedStatement};
use pgrouting_contract::mirror::MirrorReport;
use pgrouting_contract::peers::CANCEL_PATH;
use pgrouting_contract::report::{
    ClientReport, ConfigOutcome, EPOCH_HEADER, HaltReport, Health, ProxyReport, ProxyState, ReadAfterWrite,
    SessionStateUse, SplitReport, Totals,
};
use subtle::ConstantTimeEq as _;

use crate::audit::Audit;
use crate::cancel::{CancelOutcome, CancelRegistry, CancelVerdict};
use crate::catalogs::Catalogs;
use crate::classify::decide::judge;
use crate::classify::verdict::Verdict;
use crate::config::Source;
use crate::control::Control;
use crate::error::ErrorKind;
use crate::fleet::halts::Halts;
use crate::metrics::arms::sum;
use crate::metrics::counter::Counter;
use crate::metrics::pools::{PoolTotals, Pools};
use crate::metrics::tls::{SideSnapshot, TlsSnapshot};
use crate::metrics::{Routes, ServerSnapshot, Snapshot, WorkerMetrics, indexed, render, total};
use crate::mirror::hub::Hub;
use crate::mirror::tables;
use crate::route::{Refusal, Why};
use crate::sites::Sites;
use crate::timekeeper::Stopped;
use crate::transaction::PinReason;
use crate::wire::startup::{FirstPacket, packet_len, read};

pub mod serve;

/// How long a question about a statement waits for the catalog of its database.
const CATALOG_WAIT: std::time::Duration = std::time::Duration::from_secs(5);

/// The longest body of a cancel request, in bytes: a packet with the longest secret has 268.
const CANCEL_BYTES_MAX: usize = 512;

/// Statements that replicas refused in a report, at most.
const REFUSED_MAX: usize = 10;

/// What the API shows and changes.
#[derive(Debug)]
pub struct Admin {
    /// The document, the credentials and the servers.
    pub control: Arc<Control>,
    /// The keys that clients cancel with.
    pub cancels: Arc<CancelRegistry>,
    /// What the threads count: those that serve, and the one that runs this.
    pub workers: Vec<Arc<WorkerMetrics>>,
    /// What this thread counts.
    pub own: Arc<WorkerMetrics>,
    /// What clients have used.
    pub pools: Arc<Pools>,
    /// Whether clients should be sent here.
    pub readiness: Readiness,
    /// The token that callers must show; `None` where certificates or the loopback address say enough.
    pub token: Option<String>,
    /// What clients do that ties them to a connection.
    pub audit: Arc<Audit>,
    /// The catalogs of the databases in use.
    pub catalogs: Arc<Catalogs>,
    /// Where clients read after they have written.
    pub sites: Arc<Sites>,
    /// What came of the copies.
    pub mirror: Arc<Hub>,
    /// Who was stopped because something took too long.
    pub stopped: Arc<Stopped>,
    /// Tells this process from any other, an earlier one of this place among them.
    pub process: String,
}

/// A text that no other process has: when this one started, and a random number.
#[must_use]
pub fn name_process() -> String {
    format!("{}-{:016x}", jiff::Timestamp::now(), rand::random::<u64>())
}

/// Whether clients should be sent here. A primary that is lost later does not count: an empty Service would turn a
/// wait into an error.
#[derive(Debug, Default)]
pub struct Readiness {
    has_had_primary: AtomicBool,
    is_draining: AtomicBool,
}

impl Readiness {
    /// A primary has been found.
    pub fn found_primary(&self) {
        self.has_had_primary.store(true, Ordering::Relaxed);
    }

    /// The process was told to stop.
    pub fn begin_draining(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// The state for the report.
    #[must_use]
    pub fn state(&self) -> ProxyState {
        if self.is_draining.load(Ordering::Relaxed) {
            ProxyState::Draining
        } else if self.has_had_primary.load(Ordering::Relaxed) {
            ProxyState::Serving
        } else {
            ProxyState::Starting
        }
    }
}

/// What anyone may ask.
pub fn public_routes(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(admin)
}

/// What the operator may ask and change.
pub fn admin_routes(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/report", get(report))
        .route("/mirror-report", get(mirror_report))
        .route("/config", put(put_config))
        .route("/route/explain", post(explain_route))
        .layer(DefaultBodyLimit::max(DOCUMENT_BYTES_MAX + 1))
        .with_state(Arc::clone(&admin))
        .merge(peer_routes(Arc::clone(&admin)))
        .merge(public_routes(admin))
}

/// What a peer may ask.
pub fn peer_routes(admin: Arc<Admin>) -> Router {
    Router::new()
        .route(CANCEL_PATH, post(cancel))
        .layer(DefaultBodyLimit::max(CANCEL_BYTES_MAX))
        .with_state(admin)
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    match admin.readiness.state() {
        ProxyState::Serving => "ok\n".into_response(),
        ProxyState::Starting => {
            (StatusCode::SERVICE_UNAVAILABLE, "no primary has been found yet\n").into_response()
        }
        ProxyState::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response(),
    }
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    match render(&admin.workers, &snapshot(&admin)) {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn report(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> Response {
    if !is_allowed(&admin, &headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    Json(report_of(&admin)).into_response()
}

/// What came of the copies, as a text for people.
async fn mirror_report(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> Response {
    if !is_allowed(&admin, &headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    mirror_of(&admin)
        .map_or_else(|| "No mirror is configured.\n".to_owned(), |report| tables::text(&report))
        .into_response()
}

async fn put_config(State(admin): State<Arc<Admin>>, headers: HeaderMap, document: Bytes) -> Response {
    if !is_allowed(&admin, &headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let epoch = headers.get(EPOCH_HEADER).map_or(Some(0), |value| value.to_str().ok()?.parse().ok());
    let Some(epoch) = epoch else {
        return (StatusCode::BAD_REQUEST, format!("{EPOCH_HEADER} must be a number\n")).into_response();
    };
    let answer = admin.control.offer(&document, Source::Push { epoch });
    if answer.outcome == ConfigOutcome::Applied {
        admin.control.refresh_secrets().await;
    }
    let status = match answer.outcome {
        ConfigOutcome::Applied | ConfigOutcome::Unchanged => StatusCode::OK,
        ConfigOutcome::Stale => StatusCode::CONFLICT,
        ConfigOutcome::Refused => StatusCode::UNPROCESSABLE_ENTITY,
    };
    (status, Json(answer)).into_response()
}

/// What a statement is, by the catalog of a database, for whoever checks an application's statements: `{database,
/// statement}` gives `{target, reason, position}`, where `position` is the byte, from 1 on, that decided.
async fn explain_route(
    State(admin): State<Arc<Admin>>,
    headers: HeaderMap,
    Json(asked): Json<serde_json::Value>,
) -> Response {
    if !is_allowed(&admin, &headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let text = |field: &str| asked.get(field).and_then(serde_json::Value::as_str);
    let (Some(database), Some(statement)) = (text("database"), text("statement")) else {
        return (StatusCode::BAD_REQUEST, "database and statement must be there\n").into_response();
    };
    let cell = admin.catalogs.of(database);
    cell.want();
    let deadline = tokio::time::Instant::now() + CATALOG_WAIT;
    while cell.epoch() == 0 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let Some(catalog) = cell.current() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the catalog of that database is not known\n")
            .into_response();
    };
    let judgement = judge(statement.as_bytes(), &catalog);
    let why = Why::Verdict(judgement.verdict).as_str();
    Json(match judgement.verdict {
        Verdict::Read | Verdict::ReadOnlyBlock => {
            serde_json::json!({"target": "replica", "reason": why})
        }
        Verdict::Primary(_) => {
            serde_json::json!({"target": "primary", "reason": why, "position": judgement.at + 1})
        }
    })
    .into_response()
}

/// Cancels what a session here runs. The request comes from a peer and goes to no other, so that none can go round.
async fn cancel(State(admin): State<Arc<Admin>>, headers: HeaderMap, packet: Bytes) -> StatusCode {
    if !is_allowed(&admin, &headers) {
        return StatusCode::UNAUTHORIZED;
    }
    let Ok(FirstPacket::Cancel(key)) = read(&packet) else { return StatusCode::BAD_REQUEST };
    if packet_len(&packet) != Ok(Some(packet.len())) {
        return StatusCode::BAD_REQUEST;
    }
    // A task of its own, which ends within the limit of a request: when the peer hangs up, the request may be on its way
    // to the server all the same, and the session must wait for it.
    let outcome = tokio::spawn(async move {
        let outcome = admin.cancels.request(&key).await;
        if outcome == CancelOutcome::Sent {
            admin.own.cancels.add_one();
        }
        outcome
    });
    match outcome.await {
        Ok(CancelOutcome::Sent | CancelOutcome::Idle | CancelOutcome::Failed) => StatusCode::NO_CONTENT,
        Ok(CancelOutcome::Unknown) => StatusCode::NOT_FOUND,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn is_allowed(admin: &Admin, headers: &HeaderMap) -> bool {
    let Some(token) = &admin.token else { return true };
    headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
        .is_some_and(|shown| bool::from(shown.as_bytes().ct_eq(token.as_bytes())))
}

fn report_of(admin: &Admin) -> ProxyReport {
    let workers = &admin.workers;
    let PoolTotals { clients, active, waiting, transactions, queries, .. } = admin.pools.total();
    ProxyReport {
        proxy_version: env!("CARGO_PKG_VERSION").to_owned(),
        state: admin.readiness.state(),
        config: admin.control.store.report(),
        servers: admin.control.fleet.report(),
        conflict: admin.control.fleet.view().topology.conflict.clone(),
        credentials: admin.control.credentials.report(),
        clients: ClientReport { connected: clients, active, waiting },
        totals: Totals {
            transactions,
            queries,
            server_errors: total(workers, |w| &w.server_errors),
            proxy_errors: (0..ErrorKind::ALL.len())
                .map(|index| indexed(workers, |w| w.errors.get(index)))
                .sum(),
        },
        pinned: PinReason::ALL
            .iter()
            .enumerate()
            .map(|(index, reason)| (reason.as_str().to_owned(), indexed(workers, |w| w.pinned.get(index))))
            .filter(|(_, clients)| *clients > 0)
            .collect(),
        halts: halts_of(admin),
        split: split_of(admin),
        mirror: mirror_of(admin),
        tls: admin.control.tls.report(),
        measures: measures_of(admin),
        session_state: admin
            .audit
            .entries()
            .into_iter()
            .map(|(entry, count)| SessionStateUse {
                kind: entry.kind.to_owned(),
                application_name: entry.application_name,
                statement: entry.statement,
                count,
            })
            .collect(),
    }
}

/// What the console has stopped, if anything.
fn halts_of(admin: &Admin) -> Option<HaltReport> {
    let view = admin.control.fleet.view();
    let Halts { is_all_paused, paused, disabled } = &*view.halts;
    let halts = HaltReport {
        is_all_paused: *is_all_paused,
        paused: paused.iter().cloned().collect(),
        disabled: disabled.iter().cloned().collect(),
    };
    (halts != HaltReport::default()).then_some(halts)
}

/// What came of the copies, where there is a mirror, in effect or not.
fn mirror_of(admin: &Admin) -> Option<MirrorReport> {
    let active = admin.control.store.active();
    let mirror = active.config.mirror.as_ref()?;
    let mut report = admin.mirror.report();
    if report.target.is_empty() {
        // It has not been in effect yet.
        report.target = format!("{}:{}", mirror.host, mirror.port);
    }
    Some(report)
}

/// What the gates of a rollout are judged by.
fn measures_of(admin: &Admin) -> Measures {
    let workers = &admin.workers;
    let routed = |worker: &WorkerMetrics| {
        let routes = worker.routes_primary.0.iter().chain(&worker.routes_replica.0);
        routes.map(Counter::value).sum::<u64>()
    };
    let transactions = workers.iter().map(|worker| routed(worker)).sum();
    let refused = admin.sites.refused().into_iter().take(REFUSED_MAX);
    Measures {
        process: admin.process.clone(),
        refused: refused
            .map(|(refused, count)| RefusedStatement {
                server: refused.server,
                statement: refused.statement,
                count,
            })
            .collect(),
        ..sum(workers.iter().map(|worker| &worker.arms), transactions)
    }
}

fn split_of(admin: &Admin) -> SplitReport {
    let workers = &admin.workers;
    let by_reason = |field: fn(&WorkerMetrics) -> &Routes| {
        let count = |why: Why| indexed(workers, |w| field(w).0.get(why.index()));
        let met = Why::all().map(|why| (why.as_str().to_owned(), count(why)));
        met.filter(|(_, count)| *count > 0).collect()
    };
    SplitReport {
        catalogs: admin.catalogs.states().into_iter().collect(),
        primary: by_reason(|w| &w.routes_primary),
        replica: by_reason(|w| &w.routes_replica),
        rescued: Refusal::ALL
            .iter()
            .enumerate()
            .map(|(index, cause)| (cause.as_str().to_owned(), indexed(workers, |w| w.rescued.get(index))))
            .filter(|(_, count)| *count > 0)
            .collect(),
        forecast: by_reason(|w| &w.forecast),
        forecast_stale: total(workers, |w| &w.forecast_stale),
        reads_after_writes: admin
            .sites
            .entries()
            .into_iter()
            .map(|(site, count)| ReadAfterWrite {
                call_site: site.call_site,
                statement: site.statement,
                count,
            })
            .collect(),
    }
}

fn snapshot(admin: &Admin) -> Snapshot {
    let view = admin.control.fleet.view();
    let lags = admin.control.fleet.lags();
    let servers = view
        .pools
        .iter()
        .zip(&view.topology.servers)
        .map(|(pool, server)| {
            let counts = pool.counts();
            ServerSnapshot {
                name: server.name.clone(),
                role: match server.role {
                    pgrouting_contract::report::Role::Primary => "Primary",
                    pgrouting_contract::report::Role::Replica => "Replica",
                    pgrouting_contract::report::Role::Unknown => "Unknown",
                },
                is_up: server.health == Health::Up,
                rotation: server.rotation.as_str(),
                lag: lags.get(&server.name).map(|lag| (lag.time.as_secs_f64(), lag.bytes)),
                active: counts.active,
                idle: counts.idle,
                max: counts.max,
                waiting: counts.waiting,
                leases: pool.leases(),
            }
        })
        .collect();
    Snapshot {
        pool: view.active.config.pool.clone(),
        stage: view.active.config.stage.as_str(),
        generation: view.active.config.generation.0,
        pools: admin.pools.total(),
        halts: halts_of(admin).unwrap_or_default(),
        servers,
        error_kinds: ErrorKind::ALL.iter().map(|kind| kind.as_str()).collect(),
        cancel_verdicts: CancelVerdict::ALL.iter().map(|verdict| verdict.as_str()).collect(),
        pin_reasons: PinReason::ALL.iter().map(|reason| reason.as_str()).collect(),
        route_reasons: Why::all().map(Why::as_str).collect(),
        mirror: mirror_of(admin),
        mirror_times: vec![
            admin.mirror.ledger.source_seconds.clone(),
            admin.mirror.ledger.mirror_seconds.clone(),
        ],
        refusals: Refusal::ALL.iter().map(|refusal| refusal.as_str()).collect(),
        measures: measures_of(admin),
        stopped: admin.stopped.counts(),
        tls: tls_of(admin),
    }
}

fn tls_of(admin: &Admin) -> TlsSnapshot {
    let secure = total(&admin.workers, |w| &w.clients_secure);
    let all = admin.pools.total().clients;
    let now = jiff::Timestamp::now().as_second();
    let sides =
        admin.control.tls.counts().map(|(name, [completed, failed, broken], not_after)| SideSnapshot {
            name,
            completed,
            failed,
            broken,
            expires_seconds: not_after.map(|at| at.saturating_sub(now)),
        });
    TlsSnapshot { clients: [secure, all.saturating_sub(secure)], sides: sides.into() }
}
