//! Connections on either side: SHOW CLIENTS, SERVERS, SOCKETS and ACTIVE_SOCKETS.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::cancel::Running;
use crate::console::rows::{Column, Type, Value, joined};
use crate::console::sources::Sources;
use crate::pool::server_pool::{Connection, ServerPool};
use crate::roster::Seat;
use crate::server::cancel_target::CancelTarget;

/// SHOW CLIENTS and SHOW SERVERS
pub const CONNECTIONS: [Column; 21] = [
    ("type", Type::Text),
    ("user", Type::Text),
    ("database", Type::Text),
    ("replication", Type::Text),
    ("state", Type::Text),
    ("addr", Type::Text),
    ("port", Type::Int4),
    ("local_addr", Type::Text),
    ("local_port", Type::Int4),
    ("connect_time", Type::Text),
    ("request_time", Type::Text),
    ("wait", Type::Int4),
    ("wait_us", Type::Int4),
    ("close_needed", Type::Int4),
    ("ptr", Type::Text),
    ("link", Type::Text),
    ("remote_pid", Type::Int4),
    ("tls", Type::Text),
    ("application_name", Type::Text),
    ("prepared_statements", Type::Int4),
    ("id", Type::Int4),
];

/// SHOW SOCKETS and SHOW ACTIVE_SOCKETS
pub const SOCKETS: [Column; 28] = joined(
    &CONNECTIONS,
    &[
        ("recv_pos", Type::Int4),
        ("pkt_pos", Type::Int4),
        ("pkt_remain", Type::Int4),
        ("send_pos", Type::Int4),
        ("send_remain", Type::Int4),
        ("pkt_avail", Type::Int4),
        ("send_avail", Type::Int4),
    ],
);

/// Servers of a pool, at most; ids of connections are told apart by it.
const SERVERS_MAX: u64 = 64;

/// A connection of either side.
struct Socket {
    kind: &'static str,
    user: String,
    database: String,
    replication: &'static str,
    state: &'static str,
    /// The other end, and ours.
    addresses: Option<(SocketAddr, SocketAddr)>,
    connected_at: Timestamp,
    asked_at: Timestamp,
    wait: Duration,
    is_to_close: bool,
    ptr: String,
    link: String,
    remote_pid: i32,
    encryption: String,
    application_name: String,
    prepared: usize,
    id: u64,
}

/// SHOW CLIENTS
#[must_use]
pub fn clients(sources: &Sources) -> Vec<Vec<Value>> {
    rows(Sockets::look(sources).clients(), CONNECTIONS.len())
}

/// SHOW SERVERS
#[must_use]
pub fn servers(sources: &Sources) -> Vec<Vec<Value>> {
    rows(Sockets::look(sources).servers(), CONNECTIONS.len())
}

/// SHOW SOCKETS
#[must_use]
pub fn sockets(sources: &Sources) -> Vec<Vec<Value>> {
    rows(Sockets::look(sources).all(), SOCKETS.len())
}

/// SHOW ACTIVE_SOCKETS
#[must_use]
pub fn active_sockets(sources: &Sources) -> Vec<Vec<Value>> {
    let mut sockets = Sockets::look(sources).all();
    sockets.retain(|socket| socket.state == "active");
    rows(sockets, SOCKETS.len())
}

/// Both sides at one moment, and who has whom.
struct Sockets {
    console: String,
    now: Timestamp,
    seats: Vec<(Arc<Seat>, Running)>,
    /// With the place of the server in the document.
    connections: Vec<(u64, Connection)>,
}

impl Sockets {
    fn look(sources: &Sources) -> Self {
        let view = sources.view();
        let of = |(index, pool): (u64, &Arc<ServerPool>)| {
            pool.connections().into_iter().map(move |connection| (index, connection)).collect::<Vec<_>>()
        };
        let seats = sources.roster.all().into_iter();
        let mut connections: Vec<_> = (0..).zip(&view.pools).flat_map(of).collect();
        connections.sort_by_key(|(index, connection)| (*index, connection.open.number));
        Self {
            console: sources.config().database,
            now: Timestamp::now(),
            seats: seats.map(|seat| (Arc::clone(&seat), seat.slot.running())).collect(),
            connections,
        }
    }

    fn all(&self) -> Vec<Socket> {
        self.clients().into_iter().chain(self.servers()).collect()
    }

    fn clients(&self) -> Vec<Socket> {
        let servers: HashMap<_, _> = self
            .connections
            .iter()
            .map(|(index, connection)| {
                (key_of(&connection.open.about.cancel), server_ptr(*index, connection))
            })
            .collect();
        let client = |(seat, running): &(Arc<Seat>, Running)| {
            let is_console = seat.identity.database == self.console;
            Socket {
                kind: "C",
                user: seat.identity.user.clone(),
                database: seat.identity.database.clone(),
                replication: "none",
                state: if running.waiting_since.is_some() {
                    "waiting"
                } else if running.is_active || is_console {
                    "active"
                } else {
                    "idle"
                },
                addresses: seat.addresses,
                connected_at: seat.connected_at,
                asked_at: i64::try_from(running.asked_at)
                    .ok()
                    .filter(|seconds| *seconds > 0)
                    .and_then(|seconds| Timestamp::from_second(seconds).ok())
                    .map_or(seat.connected_at, |asked_at| asked_at.max(seat.connected_at)),
                wait: running.waiting_since.map(|since| since.elapsed()).unwrap_or_default(),
                is_to_close: seat.is_killed(),
                ptr: client_ptr(seat),
                link: running
                    .server
                    .as_ref()
                    .and_then(|key| servers.get(&key_of(key)).cloned())
                    .unwrap_or_default(),
                remote_pid: 0,
                encryption: seat.encryption.clone(),
                application_name: seat.application_name(),
                prepared: seat.prepared.load(Ordering::Relaxed),
                id: seat.id,
            }
        };
        self.seats.iter().map(client).collect()
    }

    fn servers(&self) -> Vec<Socket> {
        let clients: HashMap<_, _> = self
            .seats
            .iter()
            .filter_map(|(seat, running)| Some((key_of(running.server.as_ref()?), (seat, running))))
            .collect();
        let ago = |time: Duration| {
            let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::ZERO);
            self.now.checked_sub(time).unwrap_or(self.now)
        };
        let server = |(index, connection): &(u64, Connection)| {
            let Connection { open, idle_for, is_to_close } = connection;
            let client = clients.get(&key_of(&open.about.cancel)).filter(|_| idle_for.is_none());
            let asked_at = client
                .and_then(|(_, running)| Timestamp::from_second(i64::try_from(running.asked_at).ok()?).ok());
            let opened_at = ago(open.about.opened_at.elapsed());
            Socket {
                kind: "S",
                user: open.about.identity.user.clone(),
                database: open.about.identity.database.clone(),
                replication: "none",
                state: if idle_for.is_some() { "idle" } else { "active" },
                addresses: open.local.map(|local| (open.about.cancel.peer, local)),
                connected_at: opened_at,
                asked_at: asked_at.or_else(|| idle_for.map(ago)).unwrap_or(opened_at).max(opened_at),
                wait: Duration::ZERO,
                is_to_close: *is_to_close,
                ptr: server_ptr(*index, connection),
                link: client.map(|(seat, _)| client_ptr(seat)).unwrap_or_default(),
                remote_pid: open.about.cancel.key.process_id,
                encryption: open.about.encryption.clone(),
                application_name: client.map(|(seat, _)| seat.application_name()).unwrap_or_default(),
                prepared: open.about.prepared.load(Ordering::Relaxed),
                id: open.number * SERVERS_MAX + index,
            }
        };
        self.connections.iter().map(server).collect()
    }
}

fn rows(sockets: Vec<Socket>, columns: usize) -> Vec<Vec<Value>> {
    let address = |address: Option<SocketAddr>| -> [Value; 2] {
        let ip = address.map(|address| address.ip().to_canonical().to_string()).unwrap_or_default();
        [ip.into(), u32::from(address.map(|address| address.port()).unwrap_or_default()).into()]
    };
    let row = |socket: Socket| {
        let [addr, port] = address(socket.addresses.map(|(there, _)| there));
        let [local_addr, local_port] = address(socket.addresses.map(|(_, here)| here));
        let mut row: Vec<Value> = vec![
            socket.kind.into(),
            socket.user.into(),
            socket.database.into(),
            socket.replication.into(),
            socket.state.into(),
            addr,
            port,
            local_addr,
            local_port,
            shown(socket.connected_at).into(),
            shown(socket.asked_at).into(),
            socket.wait.as_secs().into(),
            socket.wait.subsec_micros().into(),
            socket.is_to_close.into(),
            socket.ptr.into(),
            socket.link.into(),
            Value::Number(socket.remote_pid.into()),
            socket.encryption.into(),
            socket.application_name.into(),
            socket.prepared.into(),
            socket.id.into(),
        ];
        // How buffers are used is not kept.
        row.resize(columns, Value::Number(0));
        row
    };
    sockets.into_iter().map(row).collect()
}

/// As PgBouncer writes a time.
fn shown(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// What tells a server connection from all others.
fn key_of(target: &Arc<CancelTarget>) -> *const CancelTarget {
    Arc::as_ptr(target)
}

fn client_ptr(seat: &Seat) -> String {
    format!("0xc{:x}", seat.id)
}

fn server_ptr(index: u64, connection: &Connection) -> String {
    format!("0xb{:x}", connection.open.number * SERVERS_MAX + index)
}
