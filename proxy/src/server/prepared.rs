//! Prepared statements under names of ours, shared by all clients of a server connection.
//!
//! Clients choose names freely and meet each other on a server connection, so each distinct definition gets one name
//! of ours. Equal definitions from any number of clients are one statement.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::classify::touches::{Touches, touches};
use crate::wire::codec::split_cstr;

/// What every name of ours begins with.
pub const NAME_PREFIX: &str = "__pgrouting_";

/// Statements that one server connection keeps prepared; the least recently used one is closed for a further one.
pub const PREPARED_MAX: usize = 500;

/// One definition with its name.
#[derive(Debug)]
pub struct Statement {
    /// Unique in the process, never used again.
    pub id: u64,
    /// The name that servers know it by.
    pub name: String,
    /// The text, its NUL, and the parameter types, as in `Parse`.
    pub definition: Box<[u8]>,
    /// What it may do to its session; `None` for nothing.
    pub touches: Option<Box<Touches>>,
}

impl Statement {
    fn new(id: u64, name: String, definition: Box<[u8]>) -> Self {
        let found = touches(split_cstr(&definition).map_or(&definition, |(text, _)| text));
        let touches = (!found.is_nothing()).then(|| Box::new(found));
        Self { id, name, definition, touches }
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        split_cstr(&self.definition).map_or(&self.definition, |(text, _)| text)
    }
}

/// What makes two definitions the same statement: the bytes, and the settings under which they are analysed (a
/// constant date in the text is read with the DateStyle of that moment).
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    settings_id: u64,
    definition: Box<[u8]>,
}

/// All statements that some client has prepared.
#[derive(Debug, Default)]
pub struct Statements {
    next_id: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    statements: HashMap<Key, Weak<Statement>>,
    prune_at: usize,
}

impl Statements {
    /// The statement of this definition, the same for everyone while anyone holds it.
    pub fn intern(&self, definition: &[u8], settings_id: u64) -> Arc<Statement> {
        let key = Key { settings_id, definition: definition.into() };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(statement) = known.statements.get(&key).and_then(Weak::upgrade) {
            return statement;
        }
        if known.statements.len() >= known.prune_at {
            known.statements.retain(|_, statement| statement.strong_count() > 0);
            known.prune_at = known.statements.len() * 2 + 64;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let statement = Arc::new(Statement::new(id, server_name(id), key.definition.clone()));
        known.statements.insert(key, Arc::downgrade(&statement));
        statement
    }
}

impl Statements {
    /// A definition for the unnamed statement, which is shared with nobody.
    pub fn anonymous(&self, definition: &[u8]) -> Arc<Statement> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Arc::new(Statement::new(id, String::new(), definition.into()))
    }
}

/// The name that servers know a statement by.
#[must_use]
pub fn server_name(id: u64) -> String {
    format!("{NAME_PREFIX}{id}")
}

/// The statements that one server connection has prepared, by id, the use of each numbered.
#[derive(Debug, Default)]
pub struct PreparedSet {
    used: HashMap<u64, u64, BuildHasherDefault<IdHasher>>,
    clock: u64,
}

/// Spreads ids, which are our own consecutive numbers and need no protection against chosen keys.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // The golden ratio in 64 bits: consecutive numbers land far from one another.
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl PreparedSet {
    /// Whether the statement is prepared; if so it counts as used.
    pub fn touch(&mut self, id: u64) -> bool {
        self.clock += 1;
        let clock = self.clock;
        self.used.get_mut(&id).map(|used| *used = clock).is_some()
    }

    /// Adds a statement; gives the id of the one to close for it, when there are too many.
    pub fn insert(&mut self, id: u64) -> Option<u64> {
        self.clock += 1;
        let evicted = if self.used.len() >= PREPARED_MAX {
            self.used.iter().min_by_key(|(_, used)| **used).map(|(id, _)| *id)
        } else {
            None
        };
        if let Some(evicted) = evicted {
            self.used.remove(&evicted);
        }
        self.used.insert(id, self.clock);
        evicted
    }

    /// Puts a statement back that the server did not come to close.
    pub fn restore(&mut self, id: u64) {
        self.used.insert(id, 0);
    }

    /// Removes a statement that the server did not come to prepare.
    pub fn remove(&mut self, id: u64) {
        self.used.remove(&id);
    }

    /// Removes all, after `DEALLOCATE ALL` or `DISCARD ALL`.
    pub fn clear(&mut self) {
        self.used.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_definitions_are_one_statement_while_anyone_holds_it() {
        let statements = Statements::default();
        let a = statements.intern(b"SELECT 1\0\0\0", 0);
        let b = statements.intern(b"SELECT 1\0\0\0", 0);
        assert!(Arc::ptr_eq(&a, &b));
        assert_ne!(statements.intern(b"SELECT 1\0\0\x01\0\0\0\x17", 0).id, a.id, "types differ");
        assert_ne!(statements.intern(b"SELECT 1\0\0\0", 1).id, a.id, "settings differ");
        let id = a.id;
        drop((a, b));
        assert_ne!(statements.intern(b"SELECT 1\0\0\0", 0).id, id, "a name is never used again");
    }

    #[test]
    fn statements_that_nobody_holds_are_forgotten() {
        let statements = Statements::default();
        for number in 0..10_000_u32 {
            statements.intern(&number.to_be_bytes(), 0);
        }
        assert!(statements.known.lock().unwrap().statements.len() <= 64);
    }

    #[test]
    fn the_least_recently_used_statement_makes_room() {
        let mut set = PreparedSet::default();
        for id in 0..PREPARED_MAX as u64 {
            assert_eq!(set.insert(id), None);
        }
        assert!(set.touch(0));
        assert_eq!(set.insert(10_000), Some(1));
        assert!(!set.touch(1));
        assert!(set.touch(0));
    }
}
