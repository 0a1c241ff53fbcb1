//! Every counter of the process, and the text that Prometheus reads.

use pgrouting_contract::measures::Measures;
use pgrouting_contract::mirror::MirrorReport;
use pgrouting_contract::report::HaltReport;
use prometheus::{Encoder as _, Histogram, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

use crate::metrics::arms::Arms;
use crate::metrics::counter::Counter;
use crate::metrics::families::{counters_by, gauges};
use crate::metrics::pools::PoolTotals;
use crate::metrics::times::SessionTimes;
use crate::metrics::tls::TlsSnapshot;

pub mod arms;
pub mod counter;
mod families;
mod histograms;
mod mirror;
pub mod pools;
pub mod rollout;
mod sessions;
pub mod times;
pub mod tls;

/// Kinds of errors, by the index of `ErrorKind`.
const ERROR_KINDS: usize = 4;
/// What may become of a cancel request, by the index of `CancelVerdict`.
const CANCEL_VERDICTS: usize = 4;
/// Why a transaction went where it went, by `Why::index`.
pub const ROUTES: usize = 40;
/// Why a replica's error was not the client's, by the index of `Refusal`.
const REFUSALS: usize = 4;
/// Reasons to pin, by the index of `PinReason`.
const PIN_REASONS: usize = 8;

/// What one serving thread counts. Each thread has its own, so that no cache line is fought over.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerMetrics {
    /// Clients that came over TLS.
    pub clients_secure: Counter,
    /// Logins that failed.
    pub logins_failed: Counter,
    /// Logins that had to wait, or were turned away, because of wrong passwords before them.
    pub logins_delayed: Counter,
    /// Errors of servers that were passed on.
    pub server_errors: Counter,
    /// Errors of ours, by kind.
    pub errors: [Counter; ERROR_KINDS],
    /// Sessions that began to keep their connection, by reason.
    pub pins: [Counter; PIN_REASONS],
    /// Sessions that keep their connection now, by reason.
    pub pinned: [Counter; PIN_REASONS],
    /// Cancel requests passed on to a server.
    pub cancels: Counter,
    /// Cancel requests of clients, by what became of them.
    pub cancel_requests: [Counter; CANCEL_VERDICTS],
    /// Peers that were asked about cancel requests.
    pub cancel_peers_asked: Counter,
    /// Server connections that were moved from another thread.
    pub moves: Counter,
    /// Transactions that went to the primary, by reason.
    pub routes_primary: Routes,
    /// Transactions that went to a replica, by reason.
    pub routes_replica: Routes,
    /// Requests that a replica refused and that ran on the primary, by why.
    pub rescued: [Counter; REFUSALS],
    /// Transactions that were judged without being routed, by what they are.
    pub forecast: Routes,
    /// Of those, reads that would not have seen what their session wrote.
    pub forecast_stale: Counter,
    /// What the gates of a rollout are judged by.
    pub arms: Arms,
    /// How long logins and requests take.
    pub times: SessionTimes,
}

/// One counter for each reason.
#[derive(Debug)]
pub struct Routes(pub [Counter; ROUTES]);

impl Routes {
    /// Counts one with this index.
    pub fn count(&self, index: usize) {
        if let Some(counter) = self.0.get(index) {
            counter.add_one();
        }
    }
}

impl Default for Routes {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

/// Picks one counter of a thread.
type Field = fn(&WorkerMetrics) -> &Counter;

/// Picks one counter of a thread out of an array.
type IndexedField = fn(&WorkerMetrics, usize) -> Option<&Counter>;

/// What a scrape shows beside the counters.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The pool's name.
    pub pool: String,
    /// The stage in effect.
    pub stage: &'static str,
    /// The generation in effect.
    pub generation: u64,
    /// What is counted of clients and what they run, over all pools.
    pub pools: PoolTotals,
    /// What the console has stopped.
    pub halts: HaltReport,
    /// One entry a server.
    pub servers: Vec<ServerSnapshot>,
    /// Names of error kinds in index order.
    pub error_kinds: Vec<&'static str>,
    /// Names of what may become of a cancel request in index order.
    pub cancel_verdicts: Vec<&'static str>,
    /// Names of pin reasons in index order.
    pub pin_reasons: Vec<&'static str>,
    /// Names of reasons to route in index order.
    pub route_reasons: Vec<&'static str>,
    /// Names of what replicas refuse in index order.
    pub refusals: Vec<&'static str>,
    /// What came of the copies of transactions, where there is a mirror.
    pub mirror: Option<MirrorReport>,
    /// Times of requests here and there.
    pub mirror_times: Vec<Histogram>,
    /// What the gates of a rollout are judged by.
    pub measures: Measures,
    /// Sessions that were stopped because something took too long, by what.
    pub stopped: Vec<(&'static str, u64)>,
    /// Encryption.
    pub tls: TlsSnapshot,
}

/// What a scrape shows of one server.
#[derive(Debug)]
pub struct ServerSnapshot {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: &'static str,
    /// Whether it is up.
    pub is_up: bool,
    /// What part it takes.
    pub rotation: &'static str,
    /// How far a replica is behind, in seconds and in bytes, where known.
    pub lag: Option<(f64, u64)>,
    /// Connections leased.
    pub active: u32,
    /// Connections idle.
    pub idle: u32,
    /// The limit.
    pub max: u32,
    /// Clients in line.
    pub waiting: u32,
    /// Leases so far.
    pub leases: u64,
}

/// Writes everything in the text format.
///
/// # Errors
/// When two metrics have one name, which a test rules out.
pub fn render(
    workers: &[std::sync::Arc<WorkerMetrics>],
    snapshot: &Snapshot,
) -> Result<String, prometheus::Error> {
    let registry = Registry::new();
    info(&registry, snapshot)?;
    clients(&registry, workers, snapshot)?;
    counters(&registry, workers, snapshot)?;
    routes(&registry, workers, snapshot)?;
    servers(&registry, snapshot)?;
    halts(&registry, &snapshot.halts)?;
    if let Some(report) = &snapshot.mirror {
        mirror::register(&registry, report, &snapshot.mirror_times)?;
    }
    rollout::register(&registry, &snapshot.measures)?;
    let times: Vec<_> = workers.iter().map(|worker| &worker.times).collect();
    sessions::register(&registry, &times, &snapshot.measures.waits, &snapshot.stopped)?;
    tls::register(&registry, &snapshot.tls)?;
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn info(registry: &Registry, snapshot: &Snapshot) -> Result<(), prometheus::Error> {
    let info = gauges(
        registry,
        "pgrouting_proxy_info",
        "What runs; the value is 1.",
        &["pool", "stage", "version"],
    )?;
    info.with_label_values(&[&snapshot.pool, snapshot.stage, env!("CARGO_PKG_VERSION")]).set(1);
    let generation =
        IntGauge::new("pgrouting_proxy_config_generation", "The generation of the document in effect.")?;
    generation.set(i64::try_from(snapshot.generation).unwrap_or(i64::MAX));
    registry.register(Box::new(generation))
}

fn clients(
    registry: &Registry,
    workers: &[std::sync::Arc<WorkerMetrics>],
    snapshot: &Snapshot,
) -> Result<(), prometheus::Error> {
    let pinned = gauges(
        registry,
        "pgrouting_proxy_pinned_clients",
        "Clients that keep their connection between transactions now.",
        &["reason"],
    )?;
    for (index, reason) in snapshot.pin_reasons.iter().enumerate() {
        let number = indexed(workers, |w| w.pinned.get(index));
        pinned.with_label_values(&[*reason]).set(i64::try_from(number).unwrap_or(i64::MAX));
    }
    let clients = gauges(registry, "pgrouting_proxy_clients", "Clients now, by state.", &["state"])?;
    let PoolTotals { clients: connected, active, waiting, .. } = snapshot.pools;
    let idle = connected.saturating_sub(active + waiting);
    for (state, number) in [("active", active), ("waiting", waiting), ("idle", idle)] {
        clients.with_label_values(&[state]).set(i64::try_from(number).unwrap_or(i64::MAX));
    }
    Ok(())
}

fn counters(
    registry: &Registry,
    workers: &[std::sync::Arc<WorkerMetrics>],
    snapshot: &Snapshot,
) -> Result<(), prometheus::Error> {
    let pools = &snapshot.pools;
    let sum = |field: Field| total(workers, field);
    let plain = [
        ("pgrouting_proxy_transactions_total", "Transactions that ended.", pools.transactions),
        ("pgrouting_proxy_queries_total", "Requests that were answered.", pools.queries),
        (
            "pgrouting_proxy_server_errors_total",
            "Errors of servers that were passed on.",
            sum(|w| &w.server_errors),
        ),
        ("pgrouting_proxy_logins_total", "Client logins that succeeded.", pools.logins),
        ("pgrouting_proxy_logins_failed_total", "Client logins that failed.", sum(|w| &w.logins_failed)),
        (
            "pgrouting_proxy_logins_delayed_total",
            "Client logins that had to wait, or were turned away, because of wrong passwords before them.",
            sum(|w| &w.logins_delayed),
        ),
        ("pgrouting_proxy_waits_total", "Waits for a server connection.", pools.waits),
        (
            "pgrouting_proxy_wait_microseconds_total",
            "Time spent waiting for a server connection.",
            pools.wait_micros,
        ),
        ("pgrouting_proxy_received_bytes_total", "Bytes that clients sent.", pools.received),
        ("pgrouting_proxy_sent_bytes_total", "Bytes that servers sent.", pools.sent),
        ("pgrouting_proxy_cancels_total", "Cancel requests passed on to a server.", sum(|w| &w.cancels)),
        (
            "pgrouting_proxy_cancel_peers_asked_total",
            "Peers asked about cancel requests.",
            sum(|w| &w.cancel_peers_asked),
        ),
        (
            "pgrouting_proxy_connection_moves_total",
            "Server connections moved between threads.",
            sum(|w| &w.moves),
        ),
    ];
    for (name, help, number) in plain {
        let counter = prometheus::IntCounter::new(name, help)?;
        counter.inc_by(number);
        registry.register(Box::new(counter))?;
    }
    let arrays: [(&str, &str, &str, &[&str], IndexedField); 4] = [
        (
            "pgrouting_proxy_rescued_total",
            "Requests that a replica refused and that were run on the primary.",
            "cause",
            &snapshot.refusals,
            |w, i| w.rescued.get(i),
        ),
        (
            "pgrouting_proxy_errors_total",
            "Errors that the proxy made.",
            "kind",
            &snapshot.error_kinds,
            |w, i| w.errors.get(i),
        ),
        (
            "pgrouting_proxy_cancel_requests_total",
            "Cancel requests of clients.",
            "outcome",
            &snapshot.cancel_verdicts,
            |w, i| w.cancel_requests.get(i),
        ),
        (
            "pgrouting_proxy_pins_total",
            "Sessions that began to keep a connection.",
            "reason",
            &snapshot.pin_reasons,
            |w, i| w.pins.get(i),
        ),
    ];
    for (name, help, label, values, field) in arrays {
        let counters = counters_by(registry, name, help, label)?;
        for (index, value) in values.iter().enumerate() {
            counters.with_label_values(&[*value]).inc_by(indexed(workers, |w| field(w, index)));
        }
    }
    Ok(())
}

/// Where transactions went and why, and where they would have gone; reasons that were not met are left out.
fn routes(
    registry: &Registry,
    workers: &[std::sync::Arc<WorkerMetrics>],
    snapshot: &Snapshot,
) -> Result<(), prometheus::Error> {
    let routed = IntCounterVec::new(
        Opts::new("pgrouting_proxy_routed_total", "Transactions, by where they went and why."),
        &["target", "reason"],
    )?;
    registry.register(Box::new(routed.clone()))?;
    let forecast = counters_by(
        registry,
        "pgrouting_proxy_forecast_total",
        "Transactions that were judged and not routed, by what they are; a sample.",
        "reason",
    )?;
    for (index, reason) in snapshot.route_reasons.iter().enumerate() {
        let numbers: [(&str, IndexedField); 2] =
            [("primary", |w, i| w.routes_primary.0.get(i)), ("replica", |w, i| w.routes_replica.0.get(i))];
        for (target, field) in numbers {
            let number = indexed(workers, |w| field(w, index));
            if number > 0 {
                routed.with_label_values(&[target, *reason]).inc_by(number);
            }
        }
        let number = indexed(workers, |w| w.forecast.0.get(index));
        if number > 0 {
            forecast.with_label_values(&[*reason]).inc_by(number);
        }
    }
    let stale = prometheus::IntCounter::new(
        "pgrouting_proxy_forecast_stale_total",
        "Reads among them that would not have seen what their session wrote.",
    )?;
    stale.inc_by(total(workers, |w| &w.forecast_stale));
    registry.register(Box::new(stale))
}

/// What the console has stopped. Databases are counted: their names could be any.
fn halts(registry: &Registry, halts: &HaltReport) -> Result<(), prometheus::Error> {
    let paused = IntGauge::new(
        "pgrouting_proxy_console_paused",
        "Whether the console has paused all databases: 1 if so.",
    )?;
    paused.set(i64::from(halts.is_all_paused));
    registry.register(Box::new(paused))?;
    let databases = gauges(
        registry,
        "pgrouting_proxy_console_databases",
        "Databases that the console has stopped one by one, by how.",
        &["state"],
    )?;
    for (state, names) in [("paused", &halts.paused), ("disabled", &halts.disabled)] {
        databases.with_label_values(&[state]).set(i64::try_from(names.len()).unwrap_or(i64::MAX));
    }
    Ok(())
}

fn servers(registry: &Registry, snapshot: &Snapshot) -> Result<(), prometheus::Error> {
    let up = gauges(registry, "pgrouting_proxy_server_up", "Whether a server answers.", &["server", "role"])?;
    let connections = gauges(
        registry,
        "pgrouting_proxy_server_connections",
        "Server connections now, by state.",
        &["server", "state"],
    )?;
    let max =
        gauges(registry, "pgrouting_proxy_server_connections_max", "The limit of connections.", &["server"])?;
    let waiting =
        gauges(registry, "pgrouting_proxy_server_waiting", "Clients in line for a connection.", &["server"])?;
    let rotation = gauges(
        registry,
        "pgrouting_proxy_server_rotation",
        "What part a server takes: 1 for the one that it is, as in the report.",
        &["server", "rotation"],
    )?;
    let lag_bytes = gauges(
        registry,
        "pgrouting_proxy_server_lag_bytes",
        "What a replica has yet to replay of what the primary has on disk.",
        &["server"],
    )?;
    let lag_seconds = prometheus::GaugeVec::new(
        Opts::new(
            "pgrouting_proxy_server_lag_seconds",
            "How long ago the primary's log was no longer than what a replica has replayed.",
        ),
        &["server"],
    )?;
    registry.register(Box::new(lag_seconds.clone()))?;
    let leases = counters_by(
        registry,
        "pgrouting_proxy_server_leases_total",
        "Server connections that were given to clients, each for a transaction in transaction mode.",
        "server",
    )?;
    for server in &snapshot.servers {
        leases.with_label_values(&[&*server.name]).inc_by(server.leases);
        up.with_label_values(&[&server.name, server.role]).set(i64::from(server.is_up));
        rotation.with_label_values(&[&*server.name, server.rotation]).set(1);
        if let Some((seconds, bytes)) = server.lag {
            lag_seconds.with_label_values(&[&*server.name]).set(seconds);
            lag_bytes.with_label_values(&[&*server.name]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        connections.with_label_values(&[&*server.name, "active"]).set(i64::from(server.active));
        connections.with_label_values(&[&*server.name, "idle"]).set(i64::from(server.idle));
        max.with_label_values(&[&server.name]).set(i64::from(server.max));
        waiting.with_label_values(&[&server.name]).set(i64::from(server.waiting));
    }
    Ok(())
}

/// The sum of one counter over all threads.
pub fn total(workers: &[std::sync::Arc<WorkerMetrics>], field: Field) -> u64 {
    workers.iter().map(|worker| field(worker).value()).sum()
}

/// The sum of one counter out of an array over all threads.
pub fn indexed<'a>(
    workers: &'a [std::sync::Arc<WorkerMetrics>],
    field: impl Fn(&'a WorkerMetrics) -> Option<&'a Counter>,
) -> u64 {
    workers.iter().filter_map(|worker| field(worker)).map(Counter::value).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn threads_are_summed() {
        let workers = [Arc::new(WorkerMetrics::default()), Arc::new(WorkerMetrics::default())];
        workers[0].server_errors.add(2);
        workers[1].server_errors.add(3);
        let server = ServerSnapshot {
            name: "pg-0".to_owned(),
            role: "Primary",
            is_up: true,
            rotation: "In",
            lag: Some((1.5, 4096)),
            active: 1,
            idle: 2,
            max: 20,
            waiting: 0,
            leases: 9,
        };
        let snapshot = Snapshot {
            servers: vec![server],
            error_kinds: vec!["client"],
            pools: PoolTotals { clients: 1, queries: 5, ..PoolTotals::default() },
            ..Snapshot::default()
        };
        let text = render(&workers, &snapshot).unwrap();
        for line in [
            "pgrouting_proxy_queries_total 5",
            "pgrouting_proxy_server_errors_total 5",
            "pgrouting_proxy_console_databases{state=\"paused\"} 0",
            "pgrouting_proxy_clients{state=\"idle\"} 1",
            "pgrouting_proxy_server_connections{server=\"pg-0\",state=\"idle\"} 2",
            "pgrouting_proxy_server_up{role=\"Primary\",server=\"pg-0\"} 1",
            "pgrouting_proxy_server_rotation{rotation=\"In\",server=\"pg-0\"} 1",
            "pgrouting_proxy_server_lag_seconds{server=\"pg-0\"} 1.5",
            "pgrouting_proxy_server_lag_bytes{server=\"pg-0\"} 4096",
            "pgrouting_proxy_errors_total{kind=\"client\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
