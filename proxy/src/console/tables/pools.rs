//! Roles at databases and how many of everything there are: SHOW POOLS, USERS and LISTS.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pgrouting_contract::config::PoolMode;

use crate::console::rows::{Column, Type, Value};
use crate::console::sources::Sources;
use crate::metrics::pools::PoolTotals;
use crate::server::connection::Identity;

/// SHOW POOLS
pub const POOLS: [Column; 17] = [
    ("database", Type::Text),
    ("user", Type::Text),
    ("cl_active", Type::Int4),
    ("cl_waiting", Type::Int4),
    ("cl_active_cancel_req", Type::Int4),
    ("cl_waiting_cancel_req", Type::Int4),
    ("sv_active", Type::Int4),
    ("sv_active_cancel", Type::Int4),
    ("sv_being_canceled", Type::Int4),
    ("sv_idle", Type::Int4),
    ("sv_used", Type::Int4),
    ("sv_tested", Type::Int4),
    ("sv_login", Type::Int4),
    ("maxwait", Type::Int4),
    ("maxwait_us", Type::Int4),
    ("pool_mode", Type::Text),
    ("load_balance_hosts", Type::Text),
];

/// SHOW USERS
pub const USERS: [Column; 8] = [
    ("name", Type::Text),
    ("pool_size", Type::Text),
    ("reserve_pool_size", Type::Text),
    ("pool_mode", Type::Text),
    ("max_user_connections", Type::Int4),
    ("current_connections", Type::Int4),
    ("max_user_client_connections", Type::Int4),
    ("current_client_connections", Type::Int4),
];

/// SHOW LISTS
pub const LISTS: [Column; 2] = [("list", Type::Text), ("items", Type::Int4)];

/// The mode of a pool, as PgBouncer calls it.
#[must_use]
pub fn mode(sources: &Sources) -> &'static str {
    match sources.view().active.config.pooling.mode {
        PoolMode::Transaction => "transaction",
        PoolMode::Session => "session",
    }
}

/// Server connections by who is logged in there: those that clients have, and those that are idle.
fn servers<K: Ord>(sources: &Sources, key: impl Fn(&Identity) -> K) -> BTreeMap<K, (u64, u64)> {
    let mut counts = BTreeMap::<K, (u64, u64)>::new();
    for connection in sources.view().pools.iter().flat_map(|pool| pool.connections()) {
        let (active, idle) = counts.entry(key(&connection.open.about.identity)).or_default();
        match connection.idle_for {
            None => *active += 1,
            Some(_) => *idle += 1,
        }
    }
    counts
}

/// SHOW POOLS
#[must_use]
pub fn pools(sources: &Sources) -> Vec<Vec<Value>> {
    let console = sources.config().database;
    let mut pools = sources.pools.by(|counts| (counts.database.clone(), counts.user.clone()));
    let servers = servers(sources, |identity| (identity.database.clone(), identity.user.clone()));
    // Whoever has left may have left connections behind.
    for key in servers.keys() {
        pools.entry(key.clone()).or_default();
    }
    let mut waits = BTreeMap::<_, Duration>::new();
    for seat in sources.roster.all() {
        if let Some(since) = seat.slot.running().waiting_since {
            let key = (seat.identity.database.clone(), seat.identity.user.clone());
            let longest = waits.entry(key).or_default();
            *longest = since.elapsed().max(*longest);
        }
    }
    let mode = mode(sources);
    let row = |(key, totals): ((String, String), PoolTotals)| {
        let (active, idle) = servers.get(&key).copied().unwrap_or_default();
        let wait = waits.get(&key).copied().unwrap_or_default();
        let mode = if key.0 == console { "statement" } else { mode };
        vec![
            key.0.into(),
            key.1.into(),
            totals.clients.saturating_sub(totals.waiting).into(),
            totals.waiting.into(),
            0_u64.into(),
            0_u64.into(),
            active.into(),
            0_u64.into(),
            0_u64.into(),
            idle.into(),
            0_u64.into(),
            0_u64.into(),
            0_u64.into(),
            wait.as_secs().into(),
            wait.subsec_micros().into(),
            mode.into(),
            Value::Null,
        ]
    };
    pools.into_iter().map(row).collect()
}

/// SHOW USERS
#[must_use]
pub fn users(sources: &Sources) -> Vec<Vec<Value>> {
    let clients = sources.pools.by(|counts| counts.user.clone());
    let servers = servers(sources, |identity| identity.user.clone());
    let view = sources.view();
    let pooling = &view.active.config.pooling;
    let row = |user: String| {
        let (active, idle) = servers.get(&user).copied().unwrap_or_default();
        let clients = clients.get(&user).map_or(0, |totals| totals.clients);
        vec![
            user.into(),
            "".into(),
            "".into(),
            Value::Null,
            pooling.max_server_connections_per_user.unwrap_or_default().into(),
            (active + idle).into(),
            pooling.max_client_connections_per_user.unwrap_or_default().into(),
            clients.into(),
        ]
    };
    names_of_users(sources).into_iter().map(row).collect()
}

/// Those of the list, and all that have logged in.
fn names_of_users(sources: &Sources) -> BTreeSet<String> {
    let listed = sources.control.credentials.report().into_iter().map(|credential| credential.user);
    listed.chain(sources.pools.by(|counts| counts.user.clone()).into_keys()).collect()
}

/// SHOW LISTS
#[must_use]
pub fn lists(sources: &Sources) -> Vec<Vec<Value>> {
    let databases = sources.pools.by(|counts| counts.database.clone()).len();
    let pools = sources.pools.by(|counts| (counts.database.clone(), counts.user.clone())).len();
    let clients = sources.roster.all().len();
    let (active, idle) = servers(sources, |_| ()).get(&()).copied().unwrap_or_default();
    let admitted = usize::try_from(sources.roster.admitted()).unwrap_or(usize::MAX);
    let rows: [(&str, Value); 12] = [
        ("databases", databases.into()),
        ("users", names_of_users(sources).len().into()),
        ("pools", pools.into()),
        ("free_clients", 0_u64.into()),
        ("used_clients", clients.into()),
        ("login_clients", admitted.saturating_sub(clients).into()),
        ("free_servers", idle.into()),
        ("used_servers", active.into()),
        ("dns_names", 0_u64.into()),
        ("dns_zones", 0_u64.into()),
        ("dns_queries", 0_u64.into()),
        ("dns_pending", 0_u64.into()),
    ];
    rows.into_iter().map(|(name, items)| vec![name.into(), items]).collect()
}
