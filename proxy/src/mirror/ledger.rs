//! What came of the copies: counted by cause, and by statement without its constants, within a bound.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use pgrouting_contract::mirror::{MirrorReport, MirrorStatement, differing};
use prometheus::{Histogram, HistogramOpts};

use crate::classify::repeatable::{Rows, rows};
use crate::classify::shape::shape;
use crate::mirror::answer::Answer;
use crate::mirror::compare::{Verdict, compare, name};
use crate::mirror::loss::Loss;

/// Statements that are kept apart; further ones are counted together.
const STATEMENTS_MAX: usize = 1000;

/// Codes of errors that are kept apart.
const ERRORS_MAX: usize = 100;

/// Statements in a report.
const REPORTED_MAX: usize = 50;

/// The longest text of a statement, in bytes.
const TEXT_MAX: usize = 400;

/// What the statements together are that are not kept apart.
const OTHERS: &str = "(others)";

#[derive(Debug, Default)]
struct Entry {
    count: u64,
    verdicts: [u64; Verdict::ALL.len()],
    uncompared: u64,
    source: Duration,
    mirror: Duration,
    difference: String,
}

#[derive(Debug, Default)]
struct Book {
    target: String,
    message: String,
    diverged_since: Option<Timestamp>,
    verdicts: [u64; Verdict::ALL.len()],
    errors: BTreeMap<String, u64>,
    statements: HashMap<Box<str>, Entry>,
    source: Duration,
    mirror: Duration,
}

/// What came of the copies.
#[derive(Debug)]
pub struct Ledger {
    offered: AtomicU64,
    mirrored: AtomicU64,
    losses: [AtomicU64; Loss::ALL.len()],
    book: Mutex<Book>,
    /// The time of compared requests here.
    pub source_seconds: Histogram,
    /// The time of compared requests there.
    pub mirror_seconds: Histogram,
}

impl Default for Ledger {
    fn default() -> Self {
        let buckets = || (0..20).map(|step| 0.000_1 * f64::from(1_u32 << step)).collect();
        let histogram = |name: &str, help: &str| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets()))
                .expect("the options are constant and good")
        };
        Self {
            offered: AtomicU64::new(0),
            mirrored: AtomicU64::new(0),
            losses: std::array::from_fn(|_| AtomicU64::new(0)),
            book: Mutex::default(),
            source_seconds: histogram(
                "pgrouting_proxy_mirror_source_seconds",
                "The time that requests took here that were compared with the mirror's.",
            ),
            mirror_seconds: histogram(
                "pgrouting_proxy_mirror_seconds",
                "The time that the same requests took at the mirror.",
            ),
        }
    }
}

impl Ledger {
    /// Begins anew, for another mirror.
    pub fn begin(&self, target: String) {
        self.offered.store(0, Ordering::Relaxed);
        self.mirrored.store(0, Ordering::Relaxed);
        self.losses.iter().for_each(|loss| loss.store(0, Ordering::Relaxed));
        *locked(&self.book) = Book { target, ..Book::default() };
    }

    /// A transaction of a session that is copied is over.
    pub fn offer(&self) {
        self.offered.fetch_add(1, Ordering::Relaxed);
    }

    /// It was run there.
    pub fn mirror(&self) {
        self.mirrored.fetch_add(1, Ordering::Relaxed);
    }

    /// It is not run there. Where it should have written there, the two databases are not the same any more.
    pub fn lose(&self, loss: Loss, diverges: bool) {
        let index = Loss::ALL.iter().position(|known| *known == loss);
        if let Some(counter) = index.and_then(|index| self.losses.get(index)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if diverges {
            self.diverge();
        }
    }

    /// The two databases are not the same any more.
    pub fn diverge(&self) {
        locked(&self.book).diverged_since.get_or_insert_with(Timestamp::now);
    }

    /// The last failure.
    pub fn note(&self, message: String) {
        locked(&self.book).message = message;
    }

    /// How many were lost for a cause.
    #[must_use]
    pub fn lost(&self, loss: Loss) -> u64 {
        let index = Loss::ALL.iter().position(|known| *known == loss);
        index.and_then(|index| self.losses.get(index)).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// Compares two answers to a statement with this text, and keeps what comes of it.
    pub fn compare(&self, sql: &[u8], here: (&Answer, Duration), there: (&Answer, Duration)) {
        let text = printable(sql);
        let mut rows = rows(sql);
        let mut book = locked(&self.book);
        if book.diverged_since.is_some() {
            rows = Rows::Counted;
        }
        let found = compare(here.0, there.0, rows);
        let index = Verdict::ALL.iter().position(|verdict| *verdict == found.verdict).unwrap_or_default();
        count(&mut book.verdicts, index);
        // A failure is soon over.
        let (here_took, there_took) =
            if found.verdict.is_failure() { Default::default() } else { (here.1, there.1) };
        if !found.verdict.is_failure() {
            self.source_seconds.observe(here.1.as_secs_f64());
            self.mirror_seconds.observe(there.1.as_secs_f64());
        }
        book.source += here_took;
        book.mirror += there_took;
        if let (Verdict::FailedThere | Verdict::OtherError, Some(code)) = (found.verdict, &there.0.error) {
            let code = name(code);
            if book.errors.len() < ERRORS_MAX || book.errors.contains_key(&code) {
                *book.errors.entry(code).or_default() += 1;
            }
        }
        let is_known = book.statements.contains_key(&*text) || book.statements.len() < STATEMENTS_MAX;
        let entry = book.statements.entry(if is_known { text } else { OTHERS.into() }).or_default();
        entry.count += 1;
        count(&mut entry.verdicts, index);
        entry.uncompared += u64::from(rows == Rows::Counted);
        entry.source += here_took;
        entry.mirror += there_took;
        if !found.difference.is_empty() {
            entry.difference = found.difference;
        }
    }

    /// All of it.
    #[must_use]
    pub fn report(&self) -> MirrorReport {
        let losses = |is_skip: bool| {
            let of_kind = Loss::ALL.iter().filter(|loss| loss.is_skip() == is_skip);
            let counted = of_kind.map(|loss| (loss.as_str().to_owned(), self.lost(*loss)));
            counted.filter(|(_, count)| *count > 0).collect()
        };
        let book = locked(&self.book);
        let mut statements: Vec<_> = book.statements.iter().map(|(text, entry)| entry.report(text)).collect();
        statements.sort_by_key(|statement| {
            (std::cmp::Reverse(differing(&statement.verdicts)), std::cmp::Reverse(statement.mirror_micros))
        });
        statements.truncate(REPORTED_MAX);
        MirrorReport {
            target: book.target.clone(),
            message: book.message.clone(),
            offered: self.offered.load(Ordering::Relaxed),
            mirrored: self.mirrored.load(Ordering::Relaxed),
            dropped: losses(false),
            skipped: losses(true),
            verdicts: named(&book.verdicts),
            errors: book.errors.clone(),
            source_micros: micros(book.source),
            mirror_micros: micros(book.mirror),
            diverged_since: book.diverged_since.map(|at| at.to_string()),
            statements,
            ..MirrorReport::default()
        }
    }
}

impl Entry {
    fn report(&self, text: &str) -> MirrorStatement {
        MirrorStatement {
            statement: text.to_owned(),
            count: self.count,
            verdicts: named(&self.verdicts),
            uncompared: self.uncompared,
            source_micros: micros(self.source),
            mirror_micros: micros(self.mirror),
            difference: self.difference.clone(),
        }
    }
}

/// How many of these requests count for the times: those that failed on both sides or on neither.
#[must_use]
pub fn timed(verdicts: &BTreeMap<String, u64>) -> u64 {
    let timed = Verdict::ALL.iter().filter(|verdict| !verdict.is_failure());
    timed.filter_map(|verdict| verdicts.get(verdict.as_str())).sum()
}

fn count(verdicts: &mut [u64], index: usize) {
    if let Some(count) = verdicts.get_mut(index) {
        *count += 1;
    }
}

fn named(verdicts: &[u64]) -> BTreeMap<String, u64> {
    let all = Verdict::ALL.iter().zip(verdicts);
    all.filter(|(_, count)| **count > 0)
        .map(|(verdict, count)| (verdict.as_str().to_owned(), *count))
        .collect()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A text without its constants, for people: none of what a client sent as a value is in it.
fn printable(sql: &[u8]) -> Box<str> {
    let shape = shape(sql.get(..sql.len().min(TEXT_MAX * 4)).unwrap_or_default()).bytes;
    let mut text = String::new();
    for byte in String::from_utf8_lossy(&shape).chars() {
        match byte {
            '\u{1}' => {
                if text.ends_with(|last: char| last.is_alphanumeric()) {
                    text.push(' ');
                }
                text.push('?');
            }
            '\u{2}' => text.push(' '),
            other => text.push(other),
        }
        if text.len() >= TEXT_MAX {
            break;
        }
    }
    text.trim().into()
}

/// A panic while the lock was held cannot leave these plain values half written.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::answer::Outcome;

    fn answer(rows: u64) -> Answer {
        let outcome = Outcome { tag: "SELECT 1".into(), ordered: rows, unordered: rows };
        Answer { results: vec![outcome], error: None, status: b'I' }
    }

    #[test]
    fn statements_are_counted_without_their_constants() {
        let ledger = Ledger::default();
        let time = Duration::from_micros(10);
        for number in 0..3 {
            let sql = format!("select a from t where b = {number} and c = 'secret'");
            ledger.compare(sql.as_bytes(), (&answer(1), time), (&answer(1 + number / 2), time * 3));
        }
        let report = ledger.report();
        let [statement] = &report.statements[..] else { panic!("{report:?}") };
        assert_eq!(statement.statement, "select a from t where b=? and c=?");
        assert_eq!((statement.count, differing(&statement.verdicts)), (3, 1));
        assert_eq!((report.source_micros, report.mirror_micros), (30, 90));
    }

    #[test]
    fn rows_are_not_compared_once_a_write_was_lost() {
        let ledger = Ledger::default();
        let time = Duration::ZERO;
        ledger.lose(Loss::QueueFull, false);
        ledger.compare(b"select a from t", (&answer(1), time), (&answer(2), time));
        ledger.lose(Loss::QueueFull, true);
        ledger.compare(b"select a from t", (&answer(1), time), (&answer(2), time));
        let report = ledger.report();
        assert_eq!(report.verdicts, BTreeMap::from([("match".to_owned(), 1), ("rows".to_owned(), 1)]));
        assert!(report.diverged_since.is_some());
        assert_eq!((report.dropped["queue_full"], report.statements[0].uncompared), (2, 1));
    }

    #[test]
    fn further_statements_are_counted_together() {
        let ledger = Ledger::default();
        for number in 0..STATEMENTS_MAX + 10 {
            let sql = format!("select a{number} from t");
            ledger.compare(sql.as_bytes(), (&answer(1), Duration::ZERO), (&answer(2), Duration::ZERO));
        }
        assert_eq!(locked(&ledger.book).statements[OTHERS].count, 10);
        assert_eq!(ledger.report().statements.len(), REPORTED_MAX);
    }
}
