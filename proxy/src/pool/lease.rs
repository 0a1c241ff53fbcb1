//! What a client has of a pool: a connection, or the right to open one.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::pool::server_pool::ServerPool;
use crate::server::connection::{Identity, ServerConnection, WorkerId};
use crate::server::leash::About;

/// A leased connection. Dropped, it is closed; a connection that is fit for others is given back.
#[derive(Debug)]
pub struct Lease {
    pool: Arc<ServerPool>,
    /// Always there until the lease ends.
    connection: Option<Box<ServerConnection>>,
}

/// The right to open one connection. Dropped unused, it goes to whoever waits.
#[derive(Debug)]
pub struct Slot {
    pool: Option<Arc<ServerPool>>,
    identity: Arc<Identity>,
}

/// What whoever waits in line is handed.
#[derive(Debug)]
pub enum Grant {
    /// A connection of its identity.
    Connection(Lease),
    /// The right to open one.
    Slot(Slot),
}

impl Lease {
    pub(super) fn new(pool: Arc<ServerPool>, mut connection: Box<ServerConnection>) -> Self {
        connection.change_owner();
        pool.leases.fetch_add(1, Ordering::Relaxed);
        Self { pool, connection: Some(connection) }
    }

    /// The pool that it belongs to.
    #[must_use]
    pub const fn pool(&self) -> &Arc<ServerPool> {
        &self.pool
    }

    /// Gives the connection to the next client. It must be at rest: see [`ServerConnection::is_fit`].
    pub fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.give_back(connection);
        }
    }

    /// Moves the connection to the calling thread.
    ///
    /// # Errors
    /// When the system refuses; the connection is closed then.
    pub fn rehome(mut self, worker: WorkerId) -> std::io::Result<Self> {
        if let Some(connection) = self.connection.take() {
            let identity = Arc::clone(&connection.identity);
            match connection.rehome(worker) {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => {
                    self.pool.slot_freed(&identity);
                    return Err(error);
                }
            }
        }
        Ok(self)
    }
}

impl Deref for Lease {
    type Target = ServerConnection;

    fn deref(&self) -> &ServerConnection {
        self.connection.as_ref().expect("a lease holds its connection until it ends")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut ServerConnection {
        self.connection.as_mut().expect("a lease holds its connection until it ends")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            let identity = Arc::clone(&connection.identity);
            connection.close();
            self.pool.slot_freed(&identity);
        }
    }
}

impl Slot {
    pub(super) const fn new(pool: Arc<ServerPool>, identity: Arc<Identity>) -> Self {
        Self { pool: Some(pool), identity }
    }

    /// The connection is open: the right becomes a lease.
    ///
    /// # Errors
    /// When the system has no further handle for its socket; the connection is closed then.
    pub fn fill(mut self, mut connection: Box<ServerConnection>) -> std::io::Result<Lease> {
        let pool = self.pool.as_ref().expect("a slot holds its pool until it is filled");
        let about = About {
            identity: Arc::clone(&connection.identity),
            cancel: Arc::clone(&connection.cancel),
            opened_at: connection.opened_at,
            encryption: connection.stream.encryption(),
            prepared: Arc::default(),
        };
        connection.held = pool.leash.hold(connection.stream.tcp(), about)?;
        connection.opened_in = pool.sweeps();
        connection.lot = rand::random();
        let pool = self.pool.take().expect("a slot holds its pool until it is filled");
        Ok(Lease::new(pool, connection))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.slot_freed(&self.identity);
        }
    }
}
