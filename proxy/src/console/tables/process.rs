//! The process and what is beside it: SHOW MEM, STATE, VERSION, PEERS, DNS and MIRROR.

use pgrouting_contract::config::Traffic;

use crate::console::rows::{Column, Type, Value};
use crate::console::sources::Sources;
use crate::mirror::tables as mirror_tables;

/// The version of PgBouncer whose console this one is like.
pub const LIKE: &str = "1.25.2";

/// SHOW MEM
pub const MEM: [Column; 5] = [
    ("name", Type::Text),
    ("size", Type::Int4),
    ("used", Type::Int4),
    ("free", Type::Int4),
    ("memtotal", Type::Int4),
];

/// SHOW STATE
pub const STATE: [Column; 2] = [("key", Type::Text), ("value", Type::Text)];

/// SHOW VERSION
pub const VERSION: [Column; 1] = [("version", Type::Text)];

/// SHOW PEERS
pub const PEERS: [Column; 4] =
    [("peer_id", Type::Int4), ("host", Type::Text), ("port", Type::Int4), ("pool_size", Type::Int4)];

/// SHOW PEER_POOLS: nothing is kept open to peers, so that it has no rows.
pub const PEER_POOLS: [Column; 5] = [
    ("peer_id", Type::Int4),
    ("cl_active_cancel_req", Type::Int4),
    ("cl_waiting_cancel_req", Type::Int4),
    ("sv_active_cancel", Type::Int4),
    ("sv_login", Type::Int4),
];

/// SHOW DNS_HOSTS: no answer is kept, so that it has no rows.
pub const DNS_HOSTS: [Column; 3] = [("hostname", Type::Text), ("ttl", Type::Int8), ("addrs", Type::Text)];

/// SHOW DNS_ZONES, which has none either.
pub const DNS_ZONES: [Column; 3] = [("zonename", Type::Text), ("serial", Type::Int8), ("count", Type::Int4)];

/// SHOW MIRROR
pub const MIRROR: [Column; 2] = [("item", Type::Text), ("value", Type::Text)];

/// SHOW MIRROR DIFFS
pub const MIRROR_DIFFS: [Column; 7] = texts(&mirror_tables::DIFFS);

/// SHOW MIRROR REPORT
pub const MIRROR_REPORT: [Column; 1] = [("report", Type::Text)];

/// SHOW MEM: the pages of the process, as the system counts them.
#[must_use]
pub fn mem() -> Vec<Vec<Value>> {
    const PAGE_BYTES: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = statm.split_ascii_whitespace().map(|field| field.parse::<u64>().unwrap_or_default());
    let row = |name: &str, used: u64| {
        vec![name.into(), PAGE_BYTES.into(), used.into(), 0_u64.into(), (used * PAGE_BYTES).into()]
    };
    ["virtual_pages", "resident_pages", "shared_pages"]
        .into_iter()
        .map(|name| row(name, pages.next().unwrap_or_default()))
        .collect()
}

/// SHOW STATE
#[must_use]
pub fn state(sources: &Sources) -> Vec<Vec<Value>> {
    let view = sources.view();
    let is_paused = view.halts.is_all_paused || view.active.config.pooling.traffic == Traffic::Paused;
    [("active", !is_paused), ("paused", is_paused), ("suspended", false)]
        .map(|(key, is_so)| vec![key.into(), if is_so { "yes" } else { "no" }.into()])
        .into()
}

/// SHOW VERSION
#[must_use]
pub fn version() -> Vec<Vec<Value>> {
    let text = format!("PgBouncer {LIKE} (the console of pgrouting-proxy {})", env!("CARGO_PKG_VERSION"));
    vec![vec![text.into()]]
}

/// SHOW PEERS
#[must_use]
pub fn peers(sources: &Sources) -> Vec<Vec<Value>> {
    let view = sources.view();
    let Some(peers) = &view.active.config.peers else { return Vec::new() };
    let named = peers.host.iter().map(|host| (host.clone(), peers.port));
    let addressed = peers.addresses.iter().map(|address| (address.ip().to_string(), address.port()));
    let row = |(id, (host, port)): (u32, (String, u16))| {
        vec![id.into(), host.into(), u32::from(port).into(), 0_u64.into()]
    };
    (1..).zip(named.chain(addressed)).map(row).collect()
}

/// SHOW MIRROR
#[must_use]
pub fn mirror(sources: &Sources) -> Vec<Vec<Value>> {
    values(mirror_tables::summary(&sources.mirror.report()))
}

/// SHOW MIRROR DIFFS
#[must_use]
pub fn mirror_diffs(sources: &Sources) -> Vec<Vec<Value>> {
    values(mirror_tables::statements(&sources.mirror.report()))
}

/// SHOW MIRROR REPORT
#[must_use]
pub fn mirror_report(sources: &Sources) -> Vec<Vec<Value>> {
    let text = mirror_tables::text(&sources.mirror.report());
    text.lines().map(|line| vec![line.into()]).collect()
}

fn values(rows: Vec<Vec<String>>) -> Vec<Vec<Value>> {
    rows.into_iter().map(|row| row.into_iter().map(Value::from).collect()).collect()
}

const fn texts<const N: usize>(names: &[&'static str; N]) -> [Column; N] {
    let mut columns = [("", Type::Text); N];
    let mut index = 0;
    while index < N {
        columns[index] = (names[index], Type::Text);
        index += 1;
    }
    columns
}
