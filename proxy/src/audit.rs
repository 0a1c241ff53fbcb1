//! What clients do that ties them to one server connection, or relies on one: what a team would have to look for before
//! it takes an application from session to transaction mode.

use crate::classify::fold::folded;
use crate::classify::kinds::Kinds;
use crate::tally::Tally;

/// Counts of what was seen.
#[derive(Debug, Default)]
pub struct Audit {
    seen: Tally<Entry>,
}

/// One kind of use by one application.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// The kind of state.
    pub kind: &'static str,
    /// The client's `application_name`.
    pub application_name: String,
    /// The statement without its constants.
    pub statement: String,
}

/// The kinds that are of interest, with their names in reports.
const NAMES: [(Kinds, &str); 9] = [
    (Kinds::SETTING, "setting"),
    (Kinds::TEMP, "temp_table"),
    (Kinds::CURSOR, "cursor"),
    (Kinds::LISTEN, "listen"),
    (Kinds::PREPARE, "prepare"),
    (Kinds::LOCK, "advisory_lock"),
    (Kinds::LOAD, "load"),
    (Kinds::OPAQUE, "opaque"),
    (Kinds::READS_SESSION, "reads_session"),
];

/// The first of these kinds by its name in reports.
#[must_use]
pub fn kind_name(kinds: Kinds) -> Option<&'static str> {
    // What pins is named before what is only tracked.
    let (tracked, pinning) = NAMES.split_first()?;
    let found = pinning.iter().find(|(kind, _)| kinds.has(*kind));
    found.or_else(|| kinds.has(tracked.0).then_some(tracked)).map(|(_, name)| *name)
}

impl Audit {
    /// Counts a statement that does these things.
    pub fn count(&self, kinds: Kinds, application_name: &str, sql: &[u8]) {
        // DO may do everything; naming one kind of it would say something that is not known.
        let kind = if kinds.has(Kinds::ASKABLE) { Some("anything") } else { kind_name(kinds) };
        let Some(kind) = kind else { return };
        let application_name = application_name.to_owned();
        self.seen.count(Entry { kind, application_name, statement: folded(sql) });
    }

    /// Everything that was seen, the most frequent first.
    #[must_use]
    pub fn entries(&self) -> Vec<(Entry, u64)> {
        self.seen.entries()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::ENTRIES_MAX;

    #[test]
    fn equal_statements_are_counted_together() {
        let audit = Audit::default();
        audit.count(Kinds::LOCK, "jobs", b"SELECT pg_advisory_lock(1)");
        audit.count(Kinds::LOCK, "jobs", b"SELECT pg_advisory_lock(2)");
        audit.count(Kinds::LOCAL, "jobs", b"SET LOCAL x = 1");
        let entries = audit.entries();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].0.kind, entries[0].1), ("advisory_lock", 2));
        assert_eq!(entries[0].0.statement, "SELECT pg_advisory_lock(?)");
    }

    #[test]
    fn there_is_a_limit() {
        let audit = Audit::default();
        for number in 0..ENTRIES_MAX + 10 {
            audit.count(Kinds::LISTEN, &number.to_string(), b"LISTEN x");
        }
        assert_eq!(audit.entries().len(), ENTRIES_MAX);
    }
}
