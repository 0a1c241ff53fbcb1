//! The prepared statements of one client, under its own names.

use std::collections::HashMap;
use std::sync::Arc;

use crate::metrics::pools::PoolMetrics;
use crate::server::prepared::Statement;
use crate::server::replies::Definition;

/// What a client has prepared.
#[derive(Debug, Default, Clone)]
pub struct ClientStatements {
    named: Named,
    unnamed: Option<Arc<Statement>>,
    /// What was forgotten last: errors that are still to come may name it.
    forgotten: Named,
    /// Messages of the extended protocol that are not counted yet.
    sent: Sent,
}

/// How many messages of the extended protocol there have been.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Sent {
    parses: u32,
    binds: u32,
}

/// Statements by the client's names.
type Named = HashMap<Vec<u8>, Arc<Statement>, foldhash::fast::RandomState>;

impl ClientStatements {
    /// The statement of that name; the unnamed one for an empty name.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<&Arc<Statement>> {
        if name.is_empty() { self.unnamed.as_ref() } else { self.named.get(name) }
    }

    /// Gives a name a new meaning, or none; the result can take it back.
    pub fn define(&mut self, name: &[u8], statement: Option<Arc<Statement>>) -> Box<Definition> {
        let replaced = self.put(name, statement.clone());
        Box::new(Definition { name: name.to_vec(), replaced, statement })
    }

    /// Gives the unnamed statement a new meaning; gives the one before.
    pub const fn define_unnamed(&mut self, statement: Option<Arc<Statement>>) -> Option<Arc<Statement>> {
        std::mem::replace(&mut self.unnamed, statement)
    }

    /// Takes a definition back that the server never came to.
    pub fn undo(&mut self, definition: Definition) {
        self.put(&definition.name, definition.replaced);
    }

    /// How many statements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.named.len() + usize::from(self.has_unnamed())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is an unnamed statement.
    #[must_use]
    pub const fn has_unnamed(&self) -> bool {
        self.unnamed.is_some()
    }

    /// Forgets all, after `DISCARD ALL` or `DEALLOCATE ALL`. The unnamed statement survives the latter in PostgreSQL,
    /// but the simple query that carried it ended it.
    pub fn clear(&mut self) {
        self.forgotten = std::mem::take(&mut self.named);
    }

    /// The client has sent a `Parse`.
    pub const fn note_parse(&mut self) {
        self.sent.parses = self.sent.parses.saturating_add(1);
    }

    /// The client has sent a `Bind`.
    pub const fn note_bind(&mut self) {
        self.sent.binds = self.sent.binds.saturating_add(1);
    }

    /// Counts what has been sent, and what the server was sent for it. Tells whether it was anything; costs next to
    /// nothing where not.
    #[inline]
    pub fn count(&mut self, counts: &PoolMetrics, server_parses: &mut u32) -> bool {
        let is_any = self.sent != Sent::default();
        if is_any {
            let Sent { parses, binds } = std::mem::take(&mut self.sent);
            counts.client_parses.add(parses.into());
            counts.binds.add(binds.into());
            counts.server_parses.add(std::mem::take(server_parses).into());
        }
        is_any
    }

    /// Nothing is under way: no error can name what was forgotten.
    pub fn rest(&mut self) {
        if !self.forgotten.is_empty() {
            self.forgotten = Named::default();
        }
    }

    /// The statement of ours with that id.
    #[must_use]
    pub fn with_id(&self, id: u64) -> Option<&Arc<Statement>> {
        self.named.values().find(|statement| statement.id == id)
    }

    /// The client's name for a statement of ours, for error texts.
    #[must_use]
    pub fn client_name(&self, server_name: &str) -> Option<&[u8]> {
        self.named
            .iter()
            .chain(&self.forgotten)
            .find(|(_, statement)| statement.name == server_name)
            .map(|(name, _)| name.as_slice())
    }

    fn put(&mut self, name: &[u8], statement: Option<Arc<Statement>>) -> Option<Arc<Statement>> {
        if name.is_empty() {
            return std::mem::replace(&mut self.unnamed, statement);
        }
        match statement {
            Some(statement) => self.named.insert(name.to_vec(), statement),
            None => self.named.remove(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::prepared::Statements;

    #[test]
    fn a_definition_can_be_taken_back() {
        let statements = Statements::default();
        let [a, b] = [b"a", b"b"].map(|text| statements.intern(text, 0, usize::MAX).unwrap());
        let mut mine = ClientStatements::default();
        mine.define(b"s", Some(Arc::clone(&a)));
        let second = mine.define(b"s", Some(Arc::clone(&b)));
        assert_eq!(mine.find(b"s").map(|s| s.id), Some(b.id));
        assert_eq!(mine.client_name(&b.name), Some(&b"s"[..]));
        mine.undo(*second);
        assert_eq!(mine.find(b"s").map(|s| s.id), Some(a.id));
        let closed = mine.define(b"s", None);
        assert!(mine.find(b"s").is_none());
        mine.undo(*closed);
        assert_eq!(mine.find(b"s").map(|s| s.id), Some(a.id));
    }
}
