//! What each thread counts of each pool, which is a role at a database.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::metrics::counter::Counter;

/// Pools that are told apart, over all threads.
const POOLS_MAX: usize = 2_000;

/// The name of what stands for all pools that are not.
const OTHERS: &str = "(others)";

/// What one thread counts of one pool.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PoolMetrics {
    /// The role.
    pub user: String,
    /// The database.
    pub database: String,
    /// Clients that are logged in.
    pub clients: Counter,
    /// Clients that wait for a server connection.
    pub waiting: Counter,
    /// Logins that succeeded.
    pub logins: Counter,
    /// Exchanges with a server that began.
    pub begun: Counter,
    /// Those that ended.
    pub ended: Counter,
    /// Those that began on a connection which the session had kept.
    pub kept: Counter,
    /// Transactions that ended.
    pub transactions: Counter,
    /// Requests that were answered.
    pub queries: Counter,
    /// Bytes that clients sent.
    pub received: Counter,
    /// Bytes that servers sent.
    pub sent: Counter,
    /// `Parse` messages of clients.
    pub client_parses: Counter,
    /// `Parse` messages to servers.
    pub server_parses: Counter,
    /// `Bind` messages.
    pub binds: Counter,
    /// Waits for a server connection.
    pub waits: Counter,
    /// Time spent in them, in microseconds.
    pub wait_micros: Counter,
    /// Time that exchanges took, in microseconds. Only whoever looks how many are under way counts this.
    pub busy_micros: Counter,
}

impl PoolMetrics {
    /// Exchanges that are under way. Another thread may see one end that it has not seen begin.
    #[must_use]
    pub fn active(&self) -> u64 {
        let ended = self.ended.value();
        self.begun.value().saturating_sub(ended)
    }
}

/// What is counted of one or several pools by all threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolTotals {
    /// Clients that are logged in.
    pub clients: u64,
    /// Clients that have an exchange under way.
    pub active: u64,
    /// Clients that wait for a server connection.
    pub waiting: u64,
    /// Logins that succeeded.
    pub logins: u64,
    /// Server connections that were given to clients.
    pub assignments: u64,
    /// Transactions that ended.
    pub transactions: u64,
    /// Requests that were answered.
    pub queries: u64,
    /// Bytes that clients sent.
    pub received: u64,
    /// Bytes that servers sent.
    pub sent: u64,
    /// `Parse` messages of clients.
    pub client_parses: u64,
    /// `Parse` messages to servers.
    pub server_parses: u64,
    /// `Bind` messages.
    pub binds: u64,
    /// Waits for a server connection.
    pub waits: u64,
    /// Time spent in them, in microseconds.
    pub wait_micros: u64,
    /// Time that exchanges took, in microseconds, as far as it was looked.
    pub busy_micros: u64,
}

impl PoolTotals {
    /// Adds what one thread counted.
    pub fn add(&mut self, counts: &PoolMetrics) {
        self.clients += counts.clients.value();
        self.active += counts.active();
        self.waiting += counts.waiting.value();
        self.logins += counts.logins.value();
        self.assignments += counts.begun.value().saturating_sub(counts.kept.value());
        self.transactions += counts.transactions.value();
        self.queries += counts.queries.value();
        self.received += counts.received.value();
        self.sent += counts.sent.value();
        self.client_parses += counts.client_parses.value();
        self.server_parses += counts.server_parses.value();
        self.binds += counts.binds.value();
        self.waits += counts.waits.value();
        self.wait_micros += counts.wait_micros.value();
        self.busy_micros += counts.busy_micros.value();
    }

    /// Whether anybody has ever been there.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.logins > 0 || self.clients > 0
    }
}

/// All pools that clients of the process have used.
#[derive(Debug, Default)]
pub struct Pools {
    all: Mutex<BTreeMap<Key, Arc<PoolMetrics>>>,
}

/// Database, role and thread.
type Key = (String, String, u16);

impl Pools {
    /// What a thread counts of a pool. Where there are too many, those are forgotten whose clients never got in; else
    /// the new one is counted among the others.
    pub fn of(&self, user: &str, database: &str, thread: u16) -> Arc<PoolMetrics> {
        let mut all = self.lock();
        let mut key = (database.to_owned(), user.to_owned(), thread);
        if all.len() >= POOLS_MAX && !all.contains_key(&key) {
            all.retain(|_, counts| Arc::strong_count(counts) > 1 || counts.logins.value() > 0);
            if all.len() >= POOLS_MAX {
                key = (OTHERS.to_owned(), OTHERS.to_owned(), thread);
            }
        }
        let made = || {
            let (database, user, _) = key.clone();
            Arc::new(PoolMetrics { user, database, ..PoolMetrics::default() })
        };
        Arc::clone(all.entry(key.clone()).or_insert_with(made))
    }

    /// Looks at each pool, as each thread counts it.
    pub fn for_each(&self, mut look: impl FnMut(&PoolMetrics)) {
        self.lock().values().for_each(|counts| look(counts));
    }

    /// All of them together.
    #[must_use]
    pub fn total(&self) -> PoolTotals {
        let mut total = PoolTotals::default();
        self.for_each(|counts| total.add(counts));
        total
    }

    /// The threads together, by what the pools are grouped by; those that nobody has used are left out.
    pub fn by<K: Ord>(&self, key: impl Fn(&PoolMetrics) -> K) -> BTreeMap<K, PoolTotals> {
        let mut totals = BTreeMap::<K, PoolTotals>::new();
        self.for_each(|counts| totals.entry(key(counts)).or_default().add(counts));
        totals.retain(|_, totals| totals.is_used());
        totals
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<PoolMetrics>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_and_pools_are_told_apart() {
        let pools = Pools::default();
        for (user, thread, queries) in [("a", 0, 1), ("a", 1, 2), ("b", 0, 4)] {
            let counts = pools.of(user, "shop", thread);
            counts.logins.add_one();
            counts.queries.add(queries);
        }
        pools.of("a", "never", 0);
        let by_user = pools.by(|counts| counts.user.clone());
        let queries: Vec<_> = by_user.iter().map(|(user, totals)| (&**user, totals.queries)).collect();
        assert_eq!(queries, [("a", 3), ("b", 4)]);
        assert_eq!(pools.by(|counts| counts.database.clone()).len(), 1);
        assert_eq!(pools.total().queries, 7);
    }

    #[test]
    fn an_exchange_on_a_kept_connection_is_no_assignment() {
        let counts = PoolMetrics::default();
        counts.begun.add(5);
        counts.ended.add(4);
        counts.kept.add(2);
        let mut totals = PoolTotals::default();
        totals.add(&counts);
        assert_eq!((totals.assignments, totals.active), (3, 1));
    }

    #[test]
    fn too_many_pools_are_counted_together() {
        let pools = Pools::default();
        let kept: Vec<_> = (0..POOLS_MAX + 5).map(|n| pools.of("a", &n.to_string(), 0)).collect();
        assert_eq!(kept[POOLS_MAX + 4].database, OTHERS);
        assert_eq!(pools.lock().len(), POOLS_MAX + 1);
        drop(kept);
        assert_eq!(pools.of("a", "new", 0).database, "new", "nobody has ever got into the old ones");
    }
}
