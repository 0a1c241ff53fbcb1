//! What a pool has, and what it lets whoever asks have of that.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use crate::pool::lease::Grant;
use crate::pool::limits::{PoolLimits, SWEEP_INTERVAL};
use crate::pool::shares::Shares;
use crate::pool::shelf::{IdleStack, Shelf};
use crate::pool::waiters::{Waiter, Waiters};
use crate::server::connection::{Identity, ServerConnection, WorkerId};

#[derive(Debug)]
pub(super) struct Stock {
    pub(super) limits: Arc<PoolLimits>,
    pub(super) shelf: Shelf,
    /// Idle, leased and being opened.
    pub(super) open: u32,
    /// The same of each user.
    pub(super) shares: Shares,
    pub(super) waiters: Waiters<Grant>,
    /// The server is not in the document any more: nothing that is given back is kept.
    pub(super) is_retired: bool,
    /// Everything opened earlier is closed instead of being given out again.
    pub(super) fit_from: Instant,
    /// The same for what is open to these databases.
    pub(super) fit_from_of: BTreeMap<String, Instant>,
    /// How many sweeps there have been.
    pub(super) sweeps: u32,
    /// Databases that somebody needs to be without connections, and until when.
    pub(super) emptied: Vec<(String, Instant)>,
}

/// Whether a connection has been open for long enough. By lot it is up to a fifth less, so that those that were opened
/// together are not opened anew together.
pub(super) fn is_old(connection: &ServerConnection, sweeps: u32, limits: &PoolLimits) -> bool {
    limits.lifetime.is_some_and(|lifetime| {
        let less = lifetime / 5 * u32::from(connection.lot) / u32::from(u8::MAX);
        SWEEP_INTERVAL * sweeps.wrapping_sub(connection.opened_in) >= lifetime - less
    })
}

impl Stock {
    /// Nothing yet.
    pub(super) fn new(limits: PoolLimits) -> Self {
        Self {
            shares: Shares::new(limits.per_user_max),
            limits: Arc::new(limits),
            shelf: Shelf::default(),
            open: 0,
            waiters: Waiters::default(),
            is_retired: false,
            fit_from: Instant::now(),
            fit_from_of: BTreeMap::new(),
            sweeps: 0,
            emptied: Vec::new(),
        }
    }

    /// Whether a connection has been open for long enough.
    pub(super) fn is_old(&self, connection: &ServerConnection) -> bool {
        is_old(connection, self.sweeps, &self.limits)
    }

    /// Whether a connection that was opened at that moment may be given out again.
    pub(super) fn is_fit(&self, database: &str, opened_at: Instant) -> bool {
        opened_at >= self.fit_from
            && (self.fit_from_of.is_empty()
                || self.fit_from_of.get(database).is_none_or(|from| opened_at >= *from))
    }

    /// Whether somebody needs that database to be without connections now.
    pub(super) fn is_emptied(&mut self, database: &str) -> bool {
        if self.emptied.is_empty() {
            return false;
        }
        let now = Instant::now();
        self.emptied.retain(|(_, until)| *until > now);
        self.emptied.iter().any(|(emptied, _)| emptied == database)
    }

    /// Makes room for one more connection of a user, where it may have one: counts it, and gives what has to be closed for
    /// it.
    pub(super) fn make_room(&mut self, user: &str) -> Option<Option<Box<ServerConnection>>> {
        let is_full = self.open >= self.limits.connections_max;
        if self.is_retired {
            return None;
        }
        let may_open = self.shares.may_open(user);
        let replaced = if may_open && !is_full {
            None
        } else {
            // Over its own limit a user has only its own to replace.
            let of = if may_open { None } else { Some(user) };
            let replaced = self.shelf.take_longest_idle(self.sweeps, of)?;
            self.shares.take(&replaced.identity.user);
            self.open -= 1;
            Some(replaced)
        };
        self.shares.add(user);
        self.open += 1;
        Some(replaced)
    }

    /// The next in line for whom there is room; what has to be closed for it.
    pub(super) fn next(&mut self) -> Option<(Waiter<Grant>, Option<Box<ServerConnection>>)> {
        if self.open >= self.limits.connections_max && self.shelf.count() == 0 {
            return None;
        }
        let Self { waiters, shares, .. } = self;
        let waiter = waiters.pop_first(|identity| shares.may_open(&identity.user))?;
        let replaced = self.make_room(&waiter.identity.user)?;
        Some((waiter, replaced))
    }

    /// The next in line for a connection of that identity, or for its place.
    pub(super) fn next_for(&mut self, home: WorkerId, identity: &Identity) -> Option<Waiter<Grant>> {
        let Self { waiters, shares, .. } = self;
        waiters.pop(home, |other| other.user == identity.user || shares.may_open(&other.user))
    }

    /// The idle connections that are over the limits, which do not count as open any more.
    pub(super) fn take_surplus(&mut self) -> IdleStack {
        let mut surplus = IdleStack::new();
        while self.open > self.limits.connections_max
            && let Some(connection) = self.shelf.take_longest_idle(self.sweeps, None)
        {
            self.forget(&connection);
            surplus.push(connection);
        }
        for user in self.shares.over() {
            while !self.shares.is_within(&user)
                && let Some(connection) = self.shelf.take_longest_idle(self.sweeps, Some(&user))
            {
                self.forget(&connection);
                surplus.push(connection);
            }
        }
        surplus
    }

    /// The idle connections that are so, which do not count as open any more.
    pub(super) fn take_idle_if(&mut self, is_taken: impl FnMut(&mut ServerConnection) -> bool) -> IdleStack {
        let taken = self.shelf.take_if(is_taken);
        taken.iter().for_each(|connection| self.forget(connection));
        taken
    }

    /// A connection does not count as open any more.
    pub(super) fn forget(&mut self, connection: &ServerConnection) {
        self.shares.take(&connection.identity.user);
        self.open -= 1;
    }
}
