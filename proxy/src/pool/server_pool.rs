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

use crate::pool::lease::{Grant, Lease, Slot};
use crate::pool::limits::{PoolLimits, SWEEP_INTERVAL};
use crate::pool::stock::{Stock, is_old};
use crate::pool::waiters::Waiter;
use crate::server::connection::{Identity, ServerConnection, WorkerId};
use crate::server::endpoint::Endpoint;
use crate::server::leash::{About, Leash, Open};
use crate::server::settings::Settings;

/// PostgreSQL waits that long for others to leave a database that is to be dropped (`CountOtherDBBackends`).
const EMPTIED_FOR: Duration = Duration::from_secs(5);

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
    state: Mutex<Stock>,
}

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

impl ServerPool {
    /// A pool without connections.
    #[must_use]
    pub fn new(name: String, endpoint: Endpoint, limits: PoolLimits) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            endpoint,
            leases: AtomicU64::new(0),
            leash: Arc::default(),
            state: Mutex::new(Stock::new(limits)),
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
            active: state.open - state.shelf.count(),
            idle: state.shelf.count(),
            max: state.limits.connections_max,
            waiting: u32::try_from(state.waiters.len()).unwrap_or(u32::MAX),
        }
    }

    /// Takes an idle connection, or the right to open one, or a place in line.
    pub fn take(self: &Arc<Self>, request: Request<'_>) -> Taken {
        let Request { identity, settings, worker } = request;
        let mut state = self.lock();
        if let Some(connection) = state.shelf.take(identity.id, settings, worker) {
            return Taken::Connection(Lease::new(Arc::clone(self), connection));
        }
        if let Some(replaced) = state.make_room(&identity.user) {
            drop(state);
            replaced.into_iter().for_each(ServerConnection::close);
            return Taken::Slot(Slot::new(Arc::clone(self), Arc::clone(identity)));
        }
        let (grant, granted) = oneshot::channel();
        if state.is_retired {
            // The sender is dropped: the client looks for another server.
            return Taken::Queued(granted);
        }
        state.waiters.push(Waiter { identity: Arc::clone(identity), worker, grant });
        Taken::Queued(granted)
    }

    /// Takes a connection back: hands it to whoever waits, keeps it, or closes it.
    pub(super) fn give_back(self: &Arc<Self>, mut connection: Box<ServerConnection>) {
        let mut state = self.lock();
        let is_kept = !state.is_retired
            && state.open <= state.limits.connections_max
            && state.shares.is_within(&connection.identity.user)
            && state.is_fit(&connection.identity.database, connection.opened_at)
            && !state.is_old(&connection)
            && !state.is_emptied(&connection.identity.database);
        if !is_kept {
            drop(state);
            let identity = Arc::clone(&connection.identity);
            connection.close();
            self.slot_freed(&identity);
            return;
        }
        connection.idle_since = state.sweeps;
        connection.was_idle_long = false;
        let waiter = if state.waiters.is_empty() {
            None
        } else {
            state.next_for(connection.home, &connection.identity)
        };
        match waiter {
            None => state.shelf.put(connection),
            Some(waiter) if waiter.identity.id == connection.identity.id => {
                drop(state);
                let grant = Grant::Connection(Lease::new(Arc::clone(self), connection));
                // Whoever gave up in this moment hands it back, for the next in line.
                if let Err(Grant::Connection(lease)) = waiter.grant.send(grant) {
                    lease.give_back();
                }
            }
            Some(waiter) => {
                state.shares.take(&connection.identity.user);
                state.shares.add(&waiter.identity.user);
                drop(state);
                connection.close();
                self.grant(waiter);
            }
        }
    }

    /// A connection of that identity is gone, or was never opened: its place goes to whoever waits.
    pub(super) fn slot_freed(self: &Arc<Self>, identity: &Identity) {
        let mut state = self.lock();
        state.shares.take(&identity.user);
        state.open -= 1;
        if let Some((waiter, replaced)) = state.next() {
            drop(state);
            replaced.into_iter().for_each(ServerConnection::close);
            self.grant(waiter);
        }
    }

    /// Hands the right to open a connection to whoever has waited for it.
    fn grant(self: &Arc<Self>, waiter: Waiter<Grant>) {
        let Waiter { identity, grant, worker: _ } = waiter;
        let _ = grant.send(Grant::Slot(Slot::new(Arc::clone(self), identity)));
    }

    /// Takes new limits. Connections over a lower limit are closed when they are given back or idle; a higher limit
    /// lets those in line go on at once.
    pub fn set_limits(self: &Arc<Self>, limits: PoolLimits) {
        let mut granted = Vec::new();
        let mut closed = Vec::new();
        {
            let mut state = self.lock();
            if limits.parameters != state.limits.parameters {
                state.fit_from = Instant::now();
                closed = state.take_idle_if(|_| true);
            }
            state.shares.max = limits.per_user_max;
            state.limits = Arc::new(limits);
            closed.extend(state.take_surplus());
            while let Some((waiter, replaced)) = state.next() {
                closed.extend(replaced);
                granted.push(waiter);
            }
        }
        closed.into_iter().for_each(ServerConnection::close);
        granted.into_iter().for_each(|waiter| self.grant(waiter));
    }

    /// The server is not in the document any more: idle connections are closed, the others when they are given back,
    /// and those in line look elsewhere.
    pub fn retire(&self) {
        let (idle, waiters) = {
            let mut state = self.lock();
            state.is_retired = true;
            (state.take_idle_if(|_| true), std::mem::take(&mut state.waiters))
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
            state.take_idle_if(|_| true)
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
        let idle: BTreeMap<_, _> = state.shelf.iter().map(|c| (c.held.number(), c.idle_since)).collect();
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
    fn lock(&self) -> MutexGuard<'_, Stock> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_of(about: &About, database: Option<&str>) -> bool {
    database.is_none_or(|database| about.identity.database == database)
}
