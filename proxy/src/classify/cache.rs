//! Verdicts on texts that were judged before, bounded in bytes.
//!
//! Two keys lead to a verdict: the text as it stands, and the text without its constants. Only verdicts are kept, no
//! text: an entry has one size, so a limit in bytes is one in entries. A text gets an entry when it comes a second time,
//! so that texts with all their constants in them, which never come again, do not push out the others. Entries age in two
//! generations: the older one is dropped when the younger is full, and whoever is asked for moves to the younger.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::catalog::Catalog;
use crate::classify::decide::{TEXT_MAX, judge};
use crate::classify::shape::shape;
use crate::classify::verdict::{Reason, Verdict};

/// What an entry costs, in bytes: key, verdict, and a table that may be half empty.
const ENTRY_BYTES: usize = 64;

/// Parts with a lock of their own.
const SHARDS: usize = 16;

/// Texts that came once and are remembered as such, in bits.
const SEEN_BITS: usize = 1 << 18;

/// Shapes that replicas have refused, that are remembered.
const REFUSED_MAX: usize = 1024;

/// How long they are.
const REFUSED_FOR: Duration = Duration::from_secs(300);

/// How a verdict was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// By the text as it stands.
    Text,
    /// By the text without its constants.
    Shape,
    /// It was judged.
    Judged,
}

/// The verdicts.
#[derive(Debug)]
pub struct Verdicts {
    shards: Vec<Mutex<Shard>>,
    /// Bits of the hashes of texts that have come before.
    seen: Vec<AtomicU64>,
    seen_count: AtomicUsize,
    refused: Mutex<HashMap<u64, Instant, foldhash::fast::RandomState>>,
    refused_count: AtomicUsize,
    one: foldhash::quality::RandomState,
    other: foldhash::quality::RandomState,
}

#[derive(Debug, Default)]
struct Shard {
    young: HashMap<u128, u8, foldhash::fast::RandomState>,
    old: HashMap<u128, u8, foldhash::fast::RandomState>,
}

impl Default for Verdicts {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            seen: (0..SEEN_BITS / 64).map(|_| AtomicU64::new(0)).collect(),
            seen_count: AtomicUsize::new(0),
            refused: Mutex::default(),
            refused_count: AtomicUsize::new(0),
            one: foldhash::quality::RandomState::default(),
            other: foldhash::quality::RandomState::default(),
        }
    }
}

impl Verdicts {
    /// The verdict on a text by a catalog.
    pub fn verdict(&self, sql: &[u8], catalog: &Catalog, bytes_max: u64) -> (Verdict, Found) {
        if sql.len() > TEXT_MAX {
            return (Verdict::Primary(Reason::TooLong), Found::Judged);
        }
        let entries_max = usize::try_from(bytes_max).unwrap_or(usize::MAX) / ENTRY_BYTES / SHARDS / 2;
        let half = half_key(&self.one, catalog.epoch, sql);
        // A text that comes for the first time is not looked for.
        let text_key =
            self.was_seen(half).then(|| whole_key(half, half_key(&self.other, catalog.epoch, sql)));
        if let Some(key) = text_key
            && let Some(verdict) = self.shard(key).find(key, entries_max)
        {
            return (verdict, Found::Text);
        }
        let (verdict, found) = self.by_shape(sql, catalog, entries_max);
        if let Some(key) = text_key {
            self.shard(key).put(key, verdict.code(), entries_max);
        }
        (verdict, found)
    }

    fn by_shape(&self, sql: &[u8], catalog: &Catalog, entries_max: usize) -> (Verdict, Found) {
        if !sql.is_ascii() && str::from_utf8(sql).is_err() {
            return (Verdict::Primary(Reason::NotUtf8), Found::Judged);
        }
        let shape = shape(sql);
        if shape.is_open {
            return (judge(sql, catalog).verdict, Found::Judged);
        }
        let half = half_key(&self.other, catalog.epoch, &shape.bytes);
        let key = whole_key(half, half_key(&self.one, !catalog.epoch, &shape.bytes));
        if let Some(verdict) = self.shard(key).find(key, entries_max) {
            return (verdict, Found::Shape);
        }
        let verdict = judge(sql, catalog).verdict;
        self.shard(key).put(key, verdict.code(), entries_max);
        (verdict, Found::Judged)
    }

    /// Whether a text with this hash has come before, as far as that is remembered; from now on it has.
    fn was_seen(&self, half: u64) -> bool {
        let bit = usize::try_from(half % SEEN_BITS as u64).unwrap_or_default();
        let Some(word) = self.seen.get(bit / 64) else { return true };
        let mask = 1 << (bit % 64);
        if word.load(Ordering::Relaxed) & mask != 0 {
            return true;
        }
        word.fetch_or(mask, Ordering::Relaxed);
        if self.seen_count.fetch_add(1, Ordering::Relaxed) > SEEN_BITS / 4 {
            self.seen_count.store(0, Ordering::Relaxed);
            self.seen.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        false
    }

    /// Remembers for a while that a replica has refused a text of this shape.
    pub fn learn(&self, sql: &[u8]) {
        let Some(shape) = self.shape_hash(sql) else { return };
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if refused.len() >= REFUSED_MAX {
            refused.retain(|_, until| *until > now);
        }
        if refused.len() < REFUSED_MAX {
            refused.insert(shape, now + REFUSED_FOR);
        }
        self.refused_count.store(refused.len(), Ordering::Relaxed);
    }

    /// Whether a replica has refused a text of this shape lately.
    #[must_use]
    pub fn has_refused(&self, sql: &[u8]) -> bool {
        // Nearly always there is none.
        if self.refused_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let Some(shape) = self.shape_hash(sql) else { return false };
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let is_refused = match refused.get(&shape) {
            Some(until) if *until > Instant::now() => true,
            Some(_) => {
                refused.remove(&shape);
                false
            }
            None => false,
        };
        self.refused_count.store(refused.len(), Ordering::Relaxed);
        is_refused
    }

    fn shape_hash(&self, sql: &[u8]) -> Option<u64> {
        (sql.len() <= TEXT_MAX).then(|| half_key(&self.one, 0, &shape(sql).bytes))
    }

    /// How many entries there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard)).map(|shard| shard.young.len() + shard.old.len()).sum()
    }

    fn shard(&self, key: u128) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(key % SHARDS as u128).unwrap_or_default();
        lock(self.shards.get(index).unwrap_or(&self.shards[0]))
    }
}

fn half_key(hasher: &foldhash::quality::RandomState, epoch: u64, bytes: &[u8]) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u64(epoch);
    state.write(bytes);
    state.finish()
}

fn whole_key(one: u64, other: u64) -> u128 {
    u128::from(one) << 64 | u128::from(other)
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    fn find(&mut self, key: u128, entries_max: usize) -> Option<Verdict> {
        if let Some(code) = self.young.get(&key) {
            return Some(Verdict::from_code(*code));
        }
        let code = self.old.remove(&key)?;
        self.put(key, code, entries_max);
        Some(Verdict::from_code(code))
    }

    fn put(&mut self, key: u128, code: u8, entries_max: usize) {
        if entries_max == 0 {
            return;
        }
        if self.young.len() >= entries_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{FunctionClass, Named};

    fn catalog(epoch: u64) -> Catalog {
        let mut catalog = Catalog { epoch, ..Catalog::default() };
        for (name, class) in [("lower", FunctionClass::Safe), ("nextval", FunctionClass::Volatile)] {
            catalog.names.insert(name.into(), Named { function: Some(class), ..Named::default() });
        }
        catalog
    }

    #[test]
    fn a_text_is_found_by_its_shape_and_then_by_itself() {
        let verdicts = Verdicts::default();
        let catalog = catalog(1);
        let found = |sql: &str| verdicts.verdict(sql.as_bytes(), &catalog, 1 << 20);
        assert_eq!(found("SELECT lower('a')"), (Verdict::Read, Found::Judged));
        assert_eq!(found("SELECT lower('b')"), (Verdict::Read, Found::Shape), "the first time");
        assert_eq!(found("SELECT lower('b')"), (Verdict::Read, Found::Shape), "the second time");
        assert_eq!(found("SELECT lower('b')"), (Verdict::Read, Found::Text));
        let (verdict, _) = found("SELECT nextval('b')");
        assert_eq!(verdict, Verdict::Primary(Reason::VolatileFunction));
    }

    #[test]
    fn what_a_replica_refused_is_remembered_by_its_shape() {
        let verdicts = Verdicts::default();
        assert!(!verdicts.has_refused(b"SELECT f(1)"));
        verdicts.learn(b"SELECT f(1)");
        assert!(verdicts.has_refused(b"SELECT f( 22 )"));
        assert!(!verdicts.has_refused(b"SELECT g(1)"));
    }

    #[test]
    fn another_snapshot_is_another_question() {
        let verdicts = Verdicts::default();
        let sql = b"SELECT f(1)";
        let (before, _) = verdicts.verdict(sql, &catalog(1), 1 << 20);
        assert_eq!(before, Verdict::Primary(Reason::UnknownFunction));
        let mut new = catalog(2);
        new.names.insert("f".into(), Named { function: Some(FunctionClass::Safe), ..Named::default() });
        assert_eq!(verdicts.verdict(sql, &new, 1 << 20).0, Verdict::Read);
    }

    #[test]
    fn a_million_distinct_texts_stay_within_the_limit() {
        let verdicts = Verdicts::default();
        let catalog = catalog(1);
        let bytes_max = 100_000;
        for number in 0..20_000 {
            let sql = format!("SELECT a{number} FROM t");
            for _ in 0..3 {
                verdicts.verdict(sql.as_bytes(), &catalog, bytes_max);
            }
        }
        let count = verdicts.count();
        assert!(count > 0 && count * ENTRY_BYTES <= 100_000, "{count}");
    }

    #[test]
    fn settings_and_options_are_never_taken_for_one_another() {
        let verdicts = Verdicts::default();
        let mut catalog = catalog(1);
        let setting = Named { function: Some(FunctionClass::Setting), ..Named::default() };
        catalog.names.insert("current_setting".into(), setting);
        for (sql, is_read) in [
            ("SELECT current_setting('a.b')", true),
            ("SELECT current_setting('in_hot_standby')", false),
            ("SELECT current_setting('a.b')", true),
        ] {
            assert_eq!(
                verdicts.verdict(sql.as_bytes(), &catalog, 1 << 20).0 == Verdict::Read,
                is_read,
                "{sql}"
            );
        }
    }
}
