//! Verdicts on texts that were judged before, bounded in bytes.
//!
//! Two keys lead to a verdict: the text as it stands, and the text without its constants. Only verdicts are kept, no
//! text: an entry has one size, so a limit in bytes is one in entries. A text gets an entry when it comes a second time,
//! so that texts with all their constants in them, which never come again, do not push out the others. Entries age in two
//! generations: the older one is dropped when the younger is full, and whoever is asked for moves to the younger.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::catalog::Catalog;
use crate::classify::decide::{TEXT_MAX, judge, judge_pieces};
use crate::classify::pieces::{fingerprint, pieces};
use crate::classify::verdict::{Reason, Verdict};

/// What an entry costs, in bytes: key, verdict, and a table that may be half empty.
const ENTRY_BYTES: usize = 64;

/// Parts with a lock of their own.
const SHARDS: usize = 16;

/// Texts seen once that are remembered for each shard, in bits.
const SEEN_BITS: usize = 1 << 14;

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
    refused: Mutex<HashMap<u64, Instant, foldhash::fast::RandomState>>,
    refused_count: AtomicUsize,
    one: foldhash::quality::RandomState,
    other: foldhash::quality::RandomState,
}

#[derive(Debug, Default)]
struct Shard {
    young: HashMap<u128, u8, foldhash::fast::RandomState>,
    old: HashMap<u128, u8, foldhash::fast::RandomState>,
    seen: Vec<u64>,
    seen_count: usize,
}

impl Default for Verdicts {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
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
        let text_key = self.key(catalog.epoch, |state| state.write(sql));
        if let Some(verdict) = self.shard(text_key).find(text_key, entries_max) {
            return (verdict, Found::Text);
        }
        let (verdict, found) = self.by_shape(sql, catalog, entries_max);
        self.shard(text_key).admit(text_key, verdict, entries_max);
        (verdict, found)
    }

    fn by_shape(&self, sql: &[u8], catalog: &Catalog, entries_max: usize) -> (Verdict, Found) {
        let Ok(text) = str::from_utf8(sql) else { return (Verdict::Primary(Reason::NotUtf8), Found::Judged) };
        let taken = pieces(text, false);
        if taken.met_backslash || has_constant_that_counts(text) {
            return (judge(sql, catalog).verdict, Found::Judged);
        }
        let print = fingerprint(&taken.pieces, &self.other);
        let key = self.key(catalog.epoch, |state| {
            state.write_u64(print);
            state.write_u64(fingerprint(&taken.pieces, &self.one));
        });
        if let Some(verdict) = self.shard(key).find(key, entries_max) {
            return (verdict, Found::Shape);
        }
        let verdict = judge_pieces(text, &taken.pieces, catalog).verdict;
        self.shard(key).keep(key, verdict, entries_max);
        (verdict, Found::Judged)
    }

    /// Remembers for a while that a replica has refused a text of this shape.
    pub fn learn(&self, sql: &[u8]) {
        let Some(shape) = self.shape(sql) else { return };
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
        let Some(shape) = self.shape(sql) else { return false };
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

    fn shape(&self, sql: &[u8]) -> Option<u64> {
        if sql.len() > TEXT_MAX {
            return None;
        }
        Some(fingerprint(&pieces(str::from_utf8(sql).ok()?, false).pieces, &self.one))
    }

    /// How many entries there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard)).map(|shard| shard.young.len() + shard.old.len()).sum()
    }

    fn key(&self, epoch: u64, write: impl Fn(&mut dyn Hasher)) -> u128 {
        let half = |hasher: &foldhash::quality::RandomState| {
            let mut state = hasher.build_hasher();
            state.write_u64(epoch);
            write(&mut state);
            u128::from(state.finish())
        };
        half(&self.one) << 64 | half(&self.other)
    }

    fn shard(&self, key: u128) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(key % SHARDS as u128).unwrap_or_default();
        lock(self.shards.get(index).unwrap_or(&self.shards[0]))
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a constant may decide: the name of a setting, or an option of EXPLAIN.
fn has_constant_that_counts(text: &str) -> bool {
    let has =
        |word: &[u8]| text.as_bytes().windows(word.len()).any(|window| window.eq_ignore_ascii_case(word));
    has(b"current_setting") || has(b"explain")
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

    fn keep(&mut self, key: u128, verdict: Verdict, entries_max: usize) {
        self.put(key, verdict.code(), entries_max);
    }

    /// Keeps an entry for what comes a second time.
    fn admit(&mut self, key: u128, verdict: Verdict, entries_max: usize) {
        if self.seen.is_empty() {
            self.seen = vec![0; SEEN_BITS / 64];
        }
        let bit = usize::try_from((key >> 64) % SEEN_BITS as u128).unwrap_or_default();
        let Some(word) = self.seen.get_mut(bit / 64) else { return };
        let mask = 1 << (bit % 64);
        if *word & mask != 0 {
            self.put(key, verdict.code(), entries_max);
            return;
        }
        *word |= mask;
        self.seen_count += 1;
        if self.seen_count > SEEN_BITS / 4 {
            self.seen.clear();
            self.seen_count = 0;
        }
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
        assert_eq!(found("SELECT lower('b')"), (Verdict::Read, Found::Shape));
        assert_eq!(found("SELECT lower('b')"), (Verdict::Read, Found::Shape));
        assert_eq!(found("SELECT lower('b')"), (Verdict::Read, Found::Text));
        let (verdict, _) = found("SELECT nextval('b')");
        assert_eq!(verdict, Verdict::Primary(Reason::VolatileFunction));
    }

    #[test]
    fn what_a_replica_refused_is_remembered_by_its_shape() {
        let verdicts = Verdicts::default();
        assert!(!verdicts.has_refused(b"SELECT f(1)"));
        verdicts.learn(b"SELECT f(1)");
        assert!(verdicts.has_refused(b"select F( 22 )"));
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
