//! Prepared statements under names of ours, shared by all clients of a server connection.
//!
//! Clients choose names freely and meet each other on a server connection, so each distinct definition gets one name
//! of ours. Equal definitions from any number of clients are one statement.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
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
    /// Unique in the process, never used again, and not 0.
    pub id: u64,
    /// The name that servers know it by.
    pub name: String,
    /// The text, its NUL, and the parameter types, as in `Parse`.
    pub definition: Box<[u8]>,
    /// What it may do to its session; `None` for nothing.
    pub touches: Option<Box<Touches>>,
    /// The bytes of all statements, in which this one's are counted.
    total: Arc<AtomicUsize>,
    /// Raised when a server finds that what it prepared earlier does not fit its tables any more.
    version: AtomicU32,
    /// What was judged of it, and by which snapshot of the catalog.
    judged: AtomicU64,
}

impl Statement {
    fn new(id: u64, name: String, definition: Box<[u8]>, total: &Arc<AtomicUsize>) -> Self {
        total.fetch_add(definition.len(), Ordering::Relaxed);
        let found = touches(split_cstr(&definition).map_or(&definition, |(text, _)| text));
        let touches = (!found.is_nothing()).then(|| Box::new(found));
        Self {
            id,
            name,
            definition,
            touches,
            total: Arc::clone(total),
            version: AtomicU32::new(0),
            judged: AtomicU64::new(0),
        }
    }

    fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    /// What is judged of its text by the snapshot of that epoch, in 16 bits that mean something to the caller; `judge` is
    /// asked once for each snapshot.
    pub fn judged(&self, epoch: u64, judge: impl FnOnce(&[u8]) -> u16) -> u16 {
        let known = self.judged.load(Ordering::Relaxed);
        if known >> 16 == epoch + 1 {
            return u16::try_from(known & 0xffff).unwrap_or_default();
        }
        let code = judge(self.text());
        self.judged.store((epoch + 1) << 16 | u64::from(code), Ordering::Relaxed);
        code
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        split_cstr(&self.definition).map_or(&self.definition, |(text, _)| text)
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        self.total.fetch_sub(self.definition.len(), Ordering::Relaxed);
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
    /// The bytes of all definitions.
    total: Arc<AtomicUsize>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    statements: HashMap<Key, Weak<Statement>>,
    prune_at: usize,
}

impl Statements {
    /// The statement of this definition, the same for everyone while anyone holds it; `None` where it would be a new
    /// one and all together would have more bytes than `bytes_max`.
    pub fn intern(&self, definition: &[u8], settings_id: u64, bytes_max: usize) -> Option<Arc<Statement>> {
        let key = Key { settings_id, definition: definition.into() };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(statement) = known.statements.get(&key).and_then(Weak::upgrade) {
            return Some(statement);
        }
        if self.total.load(Ordering::Relaxed).saturating_add(definition.len()) > bytes_max {
            return None;
        }
        if known.statements.len() >= known.prune_at {
            known.statements.retain(|_, statement| statement.strong_count() > 0);
            known.prune_at = known.statements.len() * 2 + 64;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let statement = Arc::new(Statement::new(id, server_name(id), key.definition.clone(), &self.total));
        known.statements.insert(key, Arc::downgrade(&statement));
        Some(statement)
    }
}

impl Statements {
    /// A definition for the unnamed statement, which is shared with nobody.
    pub fn anonymous(&self, definition: &[u8]) -> Arc<Statement> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        Arc::new(Statement::new(id, String::new(), definition.into(), &self.total))
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
    used: HashMap<u64, Use, BuildHasherDefault<IdHasher>>,
    clock: u64,
}

/// The last use of a statement, and the version in which it was prepared.
#[derive(Debug, Clone, Copy)]
struct Use {
    at: u64,
    version: u32,
}

/// How a server connection stands to a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It has it.
    Ready,
    /// It has it as it was before its tables changed: it has to be closed and prepared again.
    Outdated,
    /// It does not have it.
    Absent,
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
    /// How many statements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// How the connection stands to a statement, which counts as used.
    pub fn touch(&mut self, statement: &Statement) -> Standing {
        self.clock += 1;
        match self.used.get_mut(&statement.id) {
            Some(last) if last.version == statement.version() => {
                last.at = self.clock;
                Standing::Ready
            }
            Some(_) => Standing::Outdated,
            None => Standing::Absent,
        }
    }

    /// Adds a statement; gives the id of the one to close for it, when there are too many.
    pub fn insert(&mut self, statement: &Statement) -> Option<u64> {
        self.clock += 1;
        let evicted = if self.used.len() >= PREPARED_MAX {
            self.used.iter().min_by_key(|(_, last)| last.at).map(|(id, _)| *id)
        } else {
            None
        };
        if let Some(evicted) = evicted {
            self.used.remove(&evicted);
        }
        self.used.insert(statement.id, Use { at: self.clock, version: statement.version() });
        evicted
    }

    /// Puts a statement back that the server did not come to close. In which version it is there is not known.
    pub fn restore(&mut self, id: u64) {
        self.used.insert(id, Use { at: 0, version: u32::MAX });
    }

    /// Notes that the server finds the statement outdated, as it is for all connections that prepared it before.
    pub fn outdate(&mut self, statement: &Statement) {
        if self.used.get(&statement.id).is_some_and(|last| last.version == statement.version()) {
            statement.version.fetch_add(1, Ordering::Relaxed);
        }
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
        let a = statements.intern(b"SELECT 1\0\0\0", 0, usize::MAX).unwrap();
        let b = statements.intern(b"SELECT 1\0\0\0", 0, usize::MAX).unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        assert_ne!(
            statements.intern(b"SELECT 1\0\0\x01\0\0\0\x17", 0, usize::MAX).unwrap().id,
            a.id,
            "types differ"
        );
        assert_ne!(statements.intern(b"SELECT 1\0\0\0", 1, usize::MAX).unwrap().id, a.id, "settings differ");
        let id = a.id;
        drop((a, b));
        assert_ne!(
            statements.intern(b"SELECT 1\0\0\0", 0, usize::MAX).unwrap().id,
            id,
            "a name is never used again"
        );
    }

    #[test]
    fn statements_that_nobody_holds_are_forgotten() {
        let statements = Statements::default();
        for number in 0..10_000_u32 {
            statements.intern(&number.to_be_bytes(), 0, usize::MAX).unwrap();
        }
        assert!(statements.known.lock().unwrap().statements.len() <= 64);
    }

    fn statement(id: u64) -> Statement {
        Statement::new(id, server_name(id), (*b"SELECT 1\0\0\0").into(), &Arc::default())
    }

    #[test]
    fn texts_have_a_limit_in_bytes_and_give_their_part_back() {
        let statements = Statements::default();
        let held = statements.intern(&[1; 600], 0, 1000).unwrap();
        assert!(statements.intern(&[2; 600], 0, 1000).is_none());
        assert!(statements.intern(&[1; 600], 0, 1000).is_some(), "it is there already");
        drop(held);
        assert!(statements.intern(&[2; 600], 0, 1000).is_some());
    }

    #[test]
    fn the_least_recently_used_statement_makes_room() {
        let mut set = PreparedSet::default();
        for id in 0..PREPARED_MAX as u64 {
            assert_eq!(set.insert(&statement(id)), None);
        }
        assert_eq!(set.touch(&statement(0)), Standing::Ready);
        assert_eq!(set.insert(&statement(10_000)), Some(1));
        assert_eq!(set.touch(&statement(1)), Standing::Absent);
        assert_eq!(set.touch(&statement(0)), Standing::Ready);
    }

    #[test]
    fn a_statement_that_one_connection_finds_outdated_is_so_for_all() {
        let statement = statement(1);
        let [mut one, mut other] = [PreparedSet::default(), PreparedSet::default()];
        one.insert(&statement);
        other.insert(&statement);
        one.outdate(&statement);
        assert_eq!(other.touch(&statement), Standing::Outdated);
        other.outdate(&statement);
        one.insert(&statement);
        assert_eq!(one.touch(&statement), Standing::Ready, "it was outdated once");
    }
}
