//! The config document of a pool, and the ConfigMap that holds it for a cold start.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pgrouting_contract::config::{
    AdminTls, AuthConfig, ConfigHash, DOCUMENT_BYTES_MAX, Generation, InvalidConfig, PinPolicy, PoolMode,
    PoolingConfig, ProbeConfig, ProcessConfig, ProxyConfig, Traffic,
};
use pgrouting_contract::console::ConsoleConfig;
use pgrouting_contract::duration::DurationText;
use pgrouting_contract::peers::PeersConfig;
use pgrouting_contract::split::{Cohort, Consistency, SplitConfig, Transactions, WhenNoReplica};
use pgrouting_contract::stage::Stage;
use pgrouting_crds::duration::PoolDuration;
use pgrouting_crds::spec::console::Console;
use pgrouting_crds::spec::{pooling, split};
use pgrouting_crds::stage as api_stage;

use crate::desired::labels::metadata;
use crate::desired::secret::PEERS_SECRET;
use crate::names::{ADMIN_PORT, CONFIG_KEY, PoolNames};
use crate::position::Position;
use crate::validate::{ValidatedAuth, ValidatedPool};

/// Where the admin Secret is mounted in a pod.
pub const ADMIN_MOUNT: &str = "/etc/pgrouting/admin";

/// A document with its bytes and their hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// What it says.
    pub config: ProxyConfig,
    /// The bytes that are mounted and pushed.
    pub bytes: Vec<u8>,
    /// Their hash.
    pub hash: ConfigHash,
}

impl Document {
    /// A document as it is mounted and pushed.
    #[must_use]
    pub fn new(config: ProxyConfig) -> Self {
        let bytes = config.canonical_bytes();
        let hash = config.hash();
        Self { config, bytes, hash }
    }
}

/// The generations that are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KnownGenerations {
    /// The one in the pool's status, 0 when there is none.
    pub in_status: u64,
    /// The highest that a proxy runs of a document that is not the pool's.
    pub foreign: u64,
}

/// The document of a pool. It has the generation of the one before if it says the same, else a higher one than all
/// that are known, so that a proxy takes it whatever else arrives.
///
/// # Errors
/// When a proxy would refuse it.
pub fn document(
    pool: &ValidatedPool,
    previous: Option<&ProxyConfig>,
    known: KnownGenerations,
) -> Result<Document, InvalidConfig> {
    let mut config = ProxyConfig {
        version: 1,
        generation: Generation(0),
        pool: format!("{}/{}", pool.namespace, pool.name),
        stage: match pool.position.stage {
            api_stage::Stage::PoolingOnly => Stage::PoolingOnly,
            api_stage::Stage::Split => Stage::Split,
            api_stage::Stage::Mirror => Stage::Mirror,
        },
        split: split_config(&pool.split, &pool.position),
        process: process(),
        servers: pool.servers.clone(),
        probe: ProbeConfig {
            database: pool.probe_database.clone(),
            user: pool.probe_user.clone(),
            timeout: duration_text(pool.probe_timeout),
            ..ProbeConfig::default()
        },
        auth: match &pool.auth {
            ValidatedAuth::Passthrough => AuthConfig::Passthrough {},
            ValidatedAuth::UserList(users) => AuthConfig::UserList { users: users.clone() },
            ValidatedAuth::Query { user, sql } => AuthConfig::Query { user: user.clone(), sql: sql.clone() },
        },
        tls: pool.tls.pool.clone(),
        console: console_config(&pool.console),
        pooling: PoolingConfig {
            mode: match pool.pooling.mode {
                pooling::PoolMode::Transaction => PoolMode::Transaction,
                pooling::PoolMode::Session => PoolMode::Session,
            },
            pin_policy: match pool.pooling.pin_policy {
                pooling::PinPolicy::Pin => PinPolicy::Pin,
                pooling::PinPolicy::Reject => PinPolicy::Reject,
            },
            max_server_connections: pool.server_connections_per_proxy,
            max_client_connections: pool.pooling.max_client_connections_per_proxy,
            max_client_connections_per_user: pool.pooling.max_client_connections_per_user,
            max_client_connections_per_database: pool.pooling.max_client_connections_per_database,
            max_server_connections_per_user: pool.server_connections_per_user,
            query_timeout: time_limit(pool.pooling.query_timeout),
            transaction_timeout: time_limit(pool.pooling.transaction_timeout),
            idle_transaction_timeout: time_limit(pool.pooling.idle_transaction_timeout),
            client_idle_timeout: time_limit(pool.pooling.client_idle_timeout),
            slow_query_threshold: time_limit(pool.pooling.slow_query_threshold),
            checkout_timeout: duration_text(pool.pooling.checkout_timeout.get()),
            server_idle_timeout: duration_text(pool.pooling.server_idle_timeout.get()),
            server_lifetime: duration_text(pool.pooling.server_lifetime.get()),
            parameters: pool.pooling.parameters.clone(),
            traffic: match pool.pooling.traffic {
                pooling::Traffic::Open => Traffic::Open,
                pooling::Traffic::Paused => Traffic::Paused,
            },
            ..PoolingConfig::default()
        },
        mirror: pool.mirror.clone(),
        peers: Some(peers(pool)),
        drain_timeout: duration_text(pool.proxy.drain_timeout),
    };
    config.generation = generation(&config, previous, known);
    let document = Document::new(config);
    ProxyConfig::parse(&document.bytes)?;
    Ok(document)
}

/// A limit, where there is one.
fn time_limit(limit: Option<PoolDuration>) -> DurationText {
    limit.map_or(DurationText::ZERO, |limit| duration_text(limit.get()))
}

fn generation(config: &ProxyConfig, previous: Option<&ProxyConfig>, known: KnownGenerations) -> Generation {
    let before = previous.map_or(Generation(0), |previous| previous.generation);
    let is_same = previous.is_some_and(|previous| {
        let renumbered = ProxyConfig { generation: previous.generation, ..config.clone() };
        renumbered == *previous
    });
    if is_same && known.foreign < before.0 {
        return before;
    }
    Generation(before.0.max(known.in_status).max(known.foreign).saturating_add(1))
}

/// The same for every pool and for ever: a change would need a restart, and proxies refuse it.
fn process() -> ProcessConfig {
    ProcessConfig {
        listen: "0.0.0.0:5432".to_owned(),
        primary_listen: Some("0.0.0.0:5433".to_owned()),
        read_only_listen: Some("0.0.0.0:5434".to_owned()),
        admin_listen: format!("0.0.0.0:{ADMIN_PORT}"),
        admin_tls: Some(AdminTls {
            certificate_file: format!("{ADMIN_MOUNT}/tls.crt"),
            key_file: format!("{ADMIN_MOUNT}/tls.key"),
            client_ca_file: format!("{ADMIN_MOUNT}/ca.crt"),
        }),
        admin_token_file: None,
        probe_listen: "0.0.0.0:9127".to_owned(),
        workers: 0,
    }
}

/// Where nobody may use it there is none.
fn console_config(console: &Console) -> Option<ConsoleConfig> {
    let Console { admin_users, stats_users } = console.clone();
    (!admin_users.is_empty() || !stats_users.is_empty()).then(|| ConsoleConfig {
        admin_users,
        stats_users,
        ..ConsoleConfig::default()
    })
}

fn split_config(split: &split::Split, position: &Position) -> SplitConfig {
    let split::Split {
        max_percent: _,
        cohort,
        consistency,
        max_staleness,
        eject_lag,
        slow_start,
        prefer_zone,
        when_no_replica,
        primary_reads,
        rescue,
        primary_users,
        primary_tables,
        primary_functions,
        read_functions,
        catalog_interval,
        transactions,
    } = split.clone();
    SplitConfig {
        percent: position.split_percent,
        salt: position.salt_of(position.split_percent),
        cohort: match cohort {
            split::Cohort::Session => Cohort::Session,
            split::Cohort::Transaction => Cohort::Transaction,
        },
        consistency: match consistency {
            split::Consistency::Eventual => Consistency::Eventual,
            split::Consistency::Session => Consistency::Session,
            split::Consistency::Bounded => Consistency::Bounded,
        },
        max_staleness: max_staleness.map(|staleness| duration_text(staleness.get())),
        eject_lag: duration_text(eject_lag.get()),
        slow_start: duration_text(slow_start.get()),
        prefer_zone,
        transactions: match transactions {
            split::Transactions::Primary => Transactions::Primary,
            split::Transactions::ReadOnlyPrefix => Transactions::ReadOnlyPrefix,
        },
        when_no_replica: match when_no_replica {
            split::WhenNoReplica::UsePrimary => WhenNoReplica::UsePrimary,
            split::WhenNoReplica::Fail => WhenNoReplica::Fail,
        },
        primary_reads,
        rescue,
        primary_users,
        primary_tables,
        primary_functions,
        read_functions,
        catalog_interval: duration_text(catalog_interval.get()),
        ..SplitConfig::default()
    }
}

/// All proxies of the pool, by the name of their headless Service.
fn peers(pool: &ValidatedPool) -> PeersConfig {
    PeersConfig {
        host: Some(format!("{}.{}.svc", PoolNames(&pool.name).peers_service(), pool.namespace)),
        port: ADMIN_PORT,
        addresses: Vec::new(),
        secret_file: format!("{ADMIN_MOUNT}/{PEERS_SECRET}"),
    }
}

fn duration_text(duration: Duration) -> DurationText {
    DurationText::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// The ConfigMap of a document.
#[must_use]
pub fn config_map(pool: &ValidatedPool, document: &Document) -> ConfigMap {
    debug_assert!(document.bytes.len() <= DOCUMENT_BYTES_MAX, "the document has been parsed");
    let text = String::from_utf8_lossy(&document.bytes).into_owned();
    ConfigMap {
        metadata: metadata(pool, PoolNames(&pool.name).config_map()),
        data: Some(BTreeMap::from([(CONFIG_KEY.to_owned(), text)])),
        ..ConfigMap::default()
    }
}
