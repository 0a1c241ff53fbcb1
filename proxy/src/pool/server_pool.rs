//! The connections to one server, shared by all clients and threads, within one limit.
//!
//! Connections are kept by identity (role and database), the one used last on top. A client takes an idle one, opens
//! a further one, or waits in line; a connection that is given back goes straight to whoever waits. When the limit is
//! reached by connections of other identities, the one that was idle longest is closed for a new one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::pool::lease::{Lease, Slot};
use crate::pool::waiters::{Waiter, Waiters};
use crate::server::connection::{Identity, ServerConnection, WorkerId};
use crate::server::endpoint::Endpoint;
use crate::server::leash::{About, Leash, Open};
use crate::server::settings::Settings;

/// The time from one sweep to the next.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// PostgreSQL waits that long for others to leave a database that is to be dropped (`CountOtherDBBackends`).
const EMPTIED_FOR: Duration = Duration::from_secs(5);

/// Idle connections of one identity that are looked through for the best fit.
const FIT_SEARCH_MAX: usize = 8;

/// The limits of one pool; a new document may change them at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolLimits {
    /// The most connections.
    pub connections_max: u32,
    /// An idle connection is closed after that long.
    pub idle_timeout: Duration,
    /// One that is not in use is closed that long after it was opened, or up to a fifth earlier.
    pub lifetime: Option<Duration>,
    /// The longest that opening one may take.
    pub connect_timeout: Duration,
    /// Settings that connections start with.
    pub parameters: Vec<(String, String)>,
}

/// The connections to one server.
#[derive(Debug)]
pub struct ServerPool {
    /// The server's name in the document.
    pub name: Arc<str>,
    /// Where it is.
    pub endpoint: Endpoint,
    /// How many leases there have been.
    pub(super) leases: AtomicU64,
    /// All connections, whoever has them.
    pub(super) leash: Arc<Leash>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: Arc<PoolLimits>,
    idle: BTreeMap<u32, IdleStack>,
    idle_count: u32,
    /// Idle, leased and being opened.
    open: u32,
    waiters: Waiters<Grant>,
    /// The server is not in the document any more: nothing that is given back is kept.
    is_retired: bool,
    /// Everything opened earlier is closed instead of being given out again.
    fit_from: Instant,
    /// The same for what is open to these databases.
    fit_from_of: BTreeMap<String, Instant>,
    /// How many sweeps there have been.
    sweeps: u32,
    /// Databases that somebody needs to be without connections, and until when.
    emptied: Vec<(String, Instant)>,
}

/// Idle connections of one identity, the one used last on top. Boxed, since a connection moves often and is large.
type IdleStack = Vec<Box<ServerConnection>>;

/// How many connections there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolCounts {
    /// Leased or being opened.
    pub active: u32,
    /// Waiting for a client.
    pub idle: u32,
    /// The limit.
    pub max: u32,
    /// Clients in line.
    pub waiting: u32,
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    /// What is known of it.
    pub open: Open,
    /// For how long it has been idle, if it is, in steps of [`SWEEP_INTERVAL`].
    pub idle_for: Option<Duration>,
    /// It is closed when it is given back.
    pub is_to_close: bool,
}

/// What a client asks a pool for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Role and database.
    pub identity: &'a Arc<Identity>,
    /// The settings that it needs; a connection that has them already is preferred.
    pub settings: &'a Arc<Settings>,
    /// The thread that it runs on.
    pub worker: WorkerId,
}

/// What a client gets at once.
#[derive(Debug)]
pub enum Taken {
    /// A connection; whether it is still fit has to be looked at.
    Connection(Lease),
    /// The right to open one.
    Slot(Slot),
    /// A place in line.
    Queued(oneshot::Receiver<Grant>),
}

/// What whoever waits in line is handed.
#[derive(Debug)]
pub enum Grant {
    /// A connection of its identity.
    Connection(Lease),
    /// The right to open one.
    Slot(Slot),
}

impl ServerPool {
    /// A pool without connections.
    #[must_use]
    pub fn new(name: String, endpoint: Endpoint, limits: PoolLimits) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            endpoint,
            leases: AtomicU64::new(0),
            leash: Arc::default(),
            state: Mutex::new(State {
                limits: Arc::new(limits),
                idle: BTreeMap::new(),
                idle_count: 0,
                open: 0,
                waiters: Waiters::default(),
                is_retired: false,
                fit_from: Instant::now(),
                fit_from_of: BTreeMap::new(),
                sweeps: 0,
                emptied: Vec::new(),
            }),
        })
    }

    /// How many leases there have been.
    #[must_use]
    pub fn leases(&self) -> u64 {
        self.leases.load(Ordering::Relaxed)
    }

    /// The limits now.
    #[must_use]
    pub fn limits(&self) -> Arc<PoolLimits> {
        Arc::clone(&self.lock().limits)
    }

    /// How many connections there are.
    #[must_use]
    pub fn counts(&self) -> PoolCounts {
        let state = self.lock();
        PoolCounts {
            active: state.open - state.idle_count,
            idle: state.idle_count,
            max: state.limits.connections_max,
            waiting: u32::try_from(state.waiters.len()).unwrap_or(u32::MAX),
        }
    }

    /// Takes an idle connection, or the right to open one, or a place in line.
    pub fn take(self: &Arc<Self>, request: Request<'_>) -> Taken {
        let mut state = self.lock();
        if let Some(connection) = state.take_idle(request) {
            return Taken::Connection(Lease::new(Arc::clone(self), connection));
        }
        if state.open < state.limits.connections_max && !state.is_retired {
            state.open += 1;
            return Taken::Slot(Slot::new(Arc::clone(self)));
        }
        if let Some(stranger) = state.take_longest_idle() {
            drop(state);
            stranger.close();
            return Taken::Slot(Slot::new(Arc::clone(self)));
        }
        let (grant, granted) = oneshot::channel();
        if state.is_retired {
            // The sender is dropped: the client looks for another server.
            return Taken::Queued(granted);
        }
        state.waiters.push(Waiter { identity: request.identity.id, worker: request.worker, grant });
        Taken::Queued(granted)
    }

    /// Takes a connection back: hands it to whoever waits, keeps it, or closes it.
    pub(super) fn give_back(self: &Arc<Self>, mut connection: Box<ServerConnection>) {
        let mut state = self.lock();
        let is_kept = !state.is_retired
            && state.open <= state.limits.connections_max
            && state.is_fit(&connection.identity.database, connection.opened_at)
            && !state.is_old(&connection)
            && !state.is_emptied(&connection.identity.database);
        if !is_kept {
            drop(state);
            connection.close();
            self.slot_freed();
            return;
        }
        connection.idle_since = state.sweeps;
        connection.was_idle_long = false;
        let waiter = if state.waiters.is_empty() { None } else { state.waiters.pop(connection.home) };
        match waiter {
            None => {
                state.idle_count += 1;
                state.idle.entry(connection.identity.id).or_default().push(connection);
            }
            Some(waiter) => {
                drop(state);
                if waiter.identity == connection.identity.id {
                    let grant = Grant::Connection(Lease::new(Arc::clone(self), connection));
                    // Whoever gave up in this moment hands it back, for the next in line.
                    if let Err(Grant::Connection(lease)) = waiter.grant.send(grant) {
                        lease.give_back();
                    }
                } else {
                    connection.close();
                    let _ = waiter.grant.send(Grant::Slot(Slot::new(Arc::clone(self))));
                }
            }
        }
    }

    /// A connection is gone, or was never opened: its place goes to whoever waits.
    pub(super) fn slot_freed(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.open <= state.limits.connections_max
            && let Some(waiter) = state.waiters.pop_first()
        {
            drop(state);
            let _ = waiter.grant.send(Grant::Slot(Slot::new(Arc::clone(self))));
            return;
        }
        state.open -= 1;
    }

    /// Takes new limits. Connections over a lower limit are closed when they are given back or idle; a higher limit
    /// lets those in line go on at once.
    pub fn set_limits(self: &Arc<Self>, limits: PoolLimits) {
        let mut slots = Vec::new();
        let mut closed = Vec::new();
        {
            let mut state = self.lock();
            if limits.parameters != state.limits.parameters {
                state.fit_from = Instant::now();
                closed = state.take_all_idle();
            }
            state.limits = Arc::new(limits);
            while state.open > state.limits.connections_max
                && let Some(connection) = state.take_longest_idle()
            {
                state.open -= 1;
                closed.push(connection);
            }
            while state.open < state.limits.connections_max
                && let Some(waiter) = state.waiters.pop_first()
            {
                state.open += 1;
                slots.push((waiter, Slot::new(Arc::clone(self))));
            }
        }
        closed.into_iter().for_each(ServerConnection::close);
        for (waiter, slot) in slots {
            let _ = waiter.grant.send(Grant::Slot(slot));
        }
    }

    /// The server is not in the document any more: idle connections are closed, the others when they are given back,
    /// and those in line look elsewhere.
    pub fn retire(&self) {
        let (idle, waiters) = {
            let mut state = self.lock();
            state.is_retired = true;
            (state.take_all_idle(), std::mem::take(&mut state.waiters))
        };
        drop(waiters);
        idle.into_iter().for_each(ServerConnection::close);
    }

    /// The server says that it is the primary and is not, or not any more: nothing more is sent there, and what is under way
    /// ends.
    pub fn set_fenced(&self, is_fenced: bool) {
        let was_fenced = self.leash.set_fenced(is_fenced);
        if is_fenced && !was_fenced {
            self.abandon();
        }
    }

    /// The server does not answer any more: whatever is under way there ends.
    pub fn abandon(&self) {
        self.recycle();
        self.leash.cut(|_| true);
    }

    /// The server changed its role: what is idle is closed, what is leased when it is given back.
    pub fn recycle(&self) {
        let idle = {
            let mut state = self.lock();
            state.fit_from = Instant::now();
            state.take_all_idle()
        };
        idle.into_iter().for_each(ServerConnection::close);
    }

    /// The same for one database alone, where one is named.
    pub fn recycle_of(&self, database: Option<&str>) {
        let Some(database) = database else { return self.recycle() };
        let idle = {
            let mut state = self.lock();
            // What is not open any more need not be known.
            let is_open = |name: &str, from: Instant| {
                self.leash.any(|about| about.identity.database == name && about.opened_at < from)
            };
            state.fit_from_of.retain(|name, from| is_open(name, *from));
            state.fit_from_of.insert(database.to_owned(), Instant::now());
            state.take_idle_if(|c| c.identity.database == database)
        };
        idle.into_iter().for_each(ServerConnection::close);
    }

    /// Breaks off the connections to one database, or all.
    pub fn cut_of(&self, database: Option<&str>) {
        self.recycle_of(database);
        self.leash.cut(|about| is_of(about, database));
    }

    /// Whether a connection to the database is open, or one to any is open or being opened.
    #[must_use]
    pub fn has_any(&self, database: Option<&str>) -> bool {
        match database {
            None => self.lock().open > 0,
            Some(_) => self.leash.any(|about| is_of(about, database)),
        }
    }

    /// All connections that are open.
    #[must_use]
    pub fn connections(&self) -> Vec<Connection> {
        let state = self.lock();
        let idle: BTreeMap<_, _> =
            state.idle.values().flatten().map(|c| (c.held.number(), c.idle_since)).collect();
        let connection = |open: Open| Connection {
            idle_for: idle.get(&open.number).map(|since| SWEEP_INTERVAL * state.sweeps.wrapping_sub(*since)),
            is_to_close: !state.is_fit(&open.about.identity.database, open.about.opened_at),
            open,
        };
        self.leash.open().into_iter().map(connection).collect()
    }

    /// Closes the idle connections to databases of these names, and for a while those that are given back.
    pub fn empty(&self, databases: &[String]) {
        let closed = {
            let mut state = self.lock();
            let until = Instant::now() + EMPTIED_FOR;
            state.emptied = databases.iter().map(|database| (database.clone(), until)).collect();
            state.take_idle_if(|c| databases.contains(&c.identity.database))
        };
        closed.into_iter().for_each(ServerConnection::close);
    }

    /// Closes connections that have been idle for too long or that the server has closed.
    ///
    /// Is to be called once in [`SWEEP_INTERVAL`], which is also the grain of the idle time-out.
    pub fn sweep(&self) {
        let closed = {
            let mut state = self.lock();
            state.sweeps = state.sweeps.wrapping_add(1);
            let sweeps = state.sweeps;
            let limits = Arc::clone(&state.limits);
            state.take_idle_if(|c| {
                c.was_idle_long = true;
                SWEEP_INTERVAL * sweeps.wrapping_sub(c.idle_since) >= limits.idle_timeout
                    || is_old(c, sweeps, &limits)
                    || !c.is_fit()
            })
        };
        closed.into_iter().for_each(ServerConnection::close);
    }

    /// The number of the sweep that was the last.
    pub(super) fn sweeps(&self) -> u32 {
        self.lock().sweeps
    }

    /// A panic while the lock was held cannot leave the counts half changed: nothing in between can panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_of(about: &About, database: Option<&str>) -> bool {
    database.is_none_or(|database| about.identity.database == database)
}

/// Whether a connection has been open for long enough. By lot it is up to a fifth less, so that those that were opened
/// together are not opened anew together.
fn is_old(connection: &ServerConnection, sweeps: u32, limits: &PoolLimits) -> bool {
    limits.lifetime.is_some_and(|lifetime| {
        let less = lifetime / 5 * u32::from(connection.lot) / u32::from(u8::MAX);
        SWEEP_INTERVAL * sweeps.wrapping_sub(connection.opened_in) >= lifetime - less
    })
}

impl State {
    fn is_old(&self, connection: &ServerConnection) -> bool {
        is_old(connection, self.sweeps, &self.limits)
    }

    /// Whether a connection that was opened at that moment may be given out again.
    fn is_fit(&self, database: &str, opened_at: Instant) -> bool {
        opened_at >= self.fit_from
            && (self.fit_from_of.is_empty()
                || self.fit_from_of.get(database).is_none_or(|from| opened_at >= *from))
    }

    /// Whether somebody needs that database to be without connections now.
    fn is_emptied(&mut self, database: &str) -> bool {
        if self.emptied.is_empty() {
            return false;
        }
        let now = Instant::now();
        self.emptied.retain(|(_, until)| *until > now);
        self.emptied.iter().any(|(emptied, _)| emptied == database)
    }

    /// The best idle connection of this identity: the latest used with the same settings on the same thread, else the
    /// latest used.
    fn take_idle(&mut self, request: Request<'_>) -> Option<Box<ServerConnection>> {
        let connections = self.idle.get_mut(&request.identity.id)?;
        let latest = connections.len().checked_sub(1)?;
        let is_fit =
            |c: &ServerConnection| c.home == request.worker && Arc::ptr_eq(&c.settings, request.settings);
        let best = connections
            .iter()
            .enumerate()
            .rev()
            .take(FIT_SEARCH_MAX)
            .find(|(_, connection)| is_fit(connection))
            .map_or(latest, |(index, _)| index);
        let connection = connections.remove(best);
        self.idle_count -= 1;
        Some(connection)
    }

    /// The connection that has been idle longest. It still counts as open.
    fn take_longest_idle(&mut self) -> Option<Box<ServerConnection>> {
        let identity = self
            .idle
            .iter()
            .filter_map(|(identity, connections)| {
                Some((self.sweeps.wrapping_sub(connections.first()?.idle_since), *identity))
            })
            .max()
            .map(|(_, identity)| identity)?;
        let connections = self.idle.get_mut(&identity)?;
        let connection = connections.remove(0);
        if connections.is_empty() {
            self.idle.remove(&identity);
        }
        self.idle_count -= 1;
        Some(connection)
    }

    /// The idle connections that are so, which do not count as open any more.
    fn take_idle_if(&mut self, mut is_taken: impl FnMut(&mut ServerConnection) -> bool) -> IdleStack {
        let mut taken = IdleStack::new();
        for connections in self.idle.values_mut() {
            taken.extend(connections.extract_if(.., |connection| is_taken(connection)));
        }
        self.idle.retain(|_, connections| !connections.is_empty());
        let count = u32::try_from(taken.len()).unwrap_or(u32::MAX);
        self.idle_count -= count;
        self.open -= count;
        taken
    }

    /// All idle connections, which do not count as open any more.
    fn take_all_idle(&mut self) -> IdleStack {
        let idle: Vec<_> = std::mem::take(&mut self.idle).into_values().flatten().collect();
        self.open -= self.idle_count;
        self.idle_count = 0;
        idle
    }
}
