//! Databases and the servers that they are at: SHOW DATABASES and HOSTS.

use std::collections::BTreeSet;

use pgrouting_contract::report::ServerReport;

use crate::console::rows::{Column, Type, Value};
use crate::console::sources::Sources;
use crate::console::tables::pools::mode;

/// SHOW DATABASES
pub const DATABASES: [Column; 17] = [
    ("name", Type::Text),
    ("host", Type::Text),
    ("port", Type::Int4),
    ("database", Type::Text),
    ("force_user", Type::Text),
    ("pool_size", Type::Int4),
    ("min_pool_size", Type::Int4),
    ("reserve_pool_size", Type::Int4),
    ("server_lifetime", Type::Int4),
    ("pool_mode", Type::Text),
    ("load_balance_hosts", Type::Text),
    ("max_connections", Type::Int4),
    ("current_connections", Type::Int4),
    ("max_client_connections", Type::Int4),
    ("current_client_connections", Type::Int4),
    ("paused", Type::Int4),
    ("disabled", Type::Int4),
];

/// SHOW HOSTS, which PgBouncer does not have.
pub const HOSTS: [Column; 12] = [
    ("name", Type::Text),
    ("host", Type::Text),
    ("port", Type::Int4),
    ("role", Type::Text),
    ("health", Type::Text),
    ("rotation", Type::Text),
    ("lag_ms", Type::Int8),
    ("lag_bytes", Type::Int8),
    ("sv_active", Type::Int4),
    ("sv_idle", Type::Int4),
    ("max_connections", Type::Int4),
    ("message", Type::Text),
];

/// The databases that clients have used or that were stopped here, without the console's.
#[must_use]
pub fn names(sources: &Sources) -> BTreeSet<String> {
    let halts = &sources.view().halts;
    let mut names: BTreeSet<_> = sources.pools.by(|counts| counts.database.clone()).into_keys().collect();
    names.extend(halts.paused.iter().chain(&halts.disabled).cloned());
    names.remove(&sources.config().database);
    names
}

/// SHOW DATABASES: a row for each database at each server of the document.
#[must_use]
pub fn databases(sources: &Sources) -> Vec<Vec<Value>> {
    let view = sources.view();
    let console = sources.config().database;
    let clients = sources.pools.by(|counts| counts.database.clone());
    let clients_of = |database: &str| clients.get(database).map_or(0, |totals| totals.clients);
    let connections: Vec<_> = view.pools.iter().map(|pool| (pool, pool.connections())).collect();
    let pooling = &view.active.config.pooling;
    let max_clients = pooling.max_client_connections_per_database.unwrap_or(pooling.max_client_connections);
    let lifetime = view.active.config.pooling.server_lifetime.get().as_secs();
    let mut rows = Vec::new();
    for name in names(sources) {
        for (pool, connections) in &connections {
            let max = pool.limits().connections_max;
            let open = connections.iter().filter(|c| c.open.about.identity.database == name).count();
            rows.push(vec![
                name.clone().into(),
                pool.endpoint.host.clone().into(),
                u32::from(pool.endpoint.port).into(),
                name.clone().into(),
                Value::Null,
                max.into(),
                0_u64.into(),
                0_u64.into(),
                lifetime.into(),
                mode(sources).into(),
                Value::Null,
                max.into(),
                open.into(),
                max_clients.into(),
                clients_of(&name).into(),
                view.halts.is_paused(&name).into(),
                view.halts.is_disabled(&name).into(),
            ]);
        }
    }
    let port = view.active.config.process.listen.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    rows.push(vec![
        console.clone().into(),
        Value::Null,
        Value::Number(port.unwrap_or_default()),
        console.clone().into(),
        console.clone().into(),
        0_u64.into(),
        0_u64.into(),
        0_u64.into(),
        0_u64.into(),
        "statement".into(),
        Value::Null,
        0_u64.into(),
        0_u64.into(),
        0_u64.into(),
        clients_of(&console).into(),
        false.into(),
        false.into(),
    ]);
    rows
}

/// SHOW HOSTS
#[must_use]
pub fn hosts(sources: &Sources) -> Vec<Vec<Value>> {
    let view = sources.view();
    let reports = sources.control.fleet.report();
    let row = |server: ServerReport| {
        let pool = view.pools.iter().find(|pool| *pool.name == *server.name);
        let (host, port) =
            pool.map_or_else(Default::default, |pool| (pool.endpoint.host.clone(), pool.endpoint.port));
        vec![
            server.name.into(),
            host.into(),
            u32::from(port).into(),
            format!("{:?}", server.role).into(),
            format!("{:?}", server.health).into(),
            server.rotation.as_str().into(),
            server.lag_ms.map_or(Value::Null, Value::from),
            server.lag_bytes.map_or(Value::Null, Value::from),
            server.connections_active.into(),
            server.connections_idle.into(),
            server.connections_max.into(),
            server.message.into(),
        ]
    };
    reports.into_iter().map(row).collect()
}
