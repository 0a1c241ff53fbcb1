//! A session that is tied to a connection: which of its reads may run elsewhere all the same.
//!
//! What ties most sessions means nothing to a read that does not name it: statements prepared by SQL, cursors WITH HOLD and
//! LISTEN have statements of their own, which are no reads. Temporary objects stand in front of others of their names, so
//! their names are known, and whatever mentions one of them, or could come by it, runs where they are.

use std::collections::HashSet;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::classify::pieces::{Item, pieces};
use crate::server::question::TEMPORARY_MAX;
use crate::session::judge::text_of;
use crate::session::prepared::ClientStatements;
use crate::session::request::messages;
use crate::wire::frontend::{DESCRIBE, Target, target};

/// PostgreSQL cuts names at this length, in bytes; it may have cut one that is as long.
const NAME_MAX: usize = 63;

/// What ties a session to its connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tie {
    /// All that it does runs there.
    #[default]
    Fast,
    /// What a read cannot meet.
    Loose,
    /// Temporary relations and types of these names, in lower case, which nothing else is made of.
    Temporary(Arc<HashSet<Box<str>>>),
}

impl Tie {
    /// The tie of temporary objects; `None` where their names are not all there.
    #[must_use]
    pub fn of_temporary(names: Option<&[Box<str>]>) -> Self {
        let Some(names) = names else { return Self::Fast };
        if names.len() > TEMPORARY_MAX || names.iter().any(|name| name.len() >= NAME_MAX) {
            return Self::Fast;
        }
        Self::Temporary(Arc::new(names.iter().map(|name| name.to_ascii_lowercase().into()).collect()))
    }

    /// Whether a read may run elsewhere.
    #[must_use]
    pub fn lets_go(&self, sql: &[u8], catalog: Option<&Catalog>) -> bool {
        match (self, catalog) {
            (Self::Loose, _) => true,
            (Self::Fast, _) | (Self::Temporary(_), None) => false,
            (Self::Temporary(names), Some(catalog)) => {
                str::from_utf8(sql).is_ok_and(|sql| misses(names, sql, catalog))
            }
        }
    }

    /// Whether a request of reads may run elsewhere.
    #[must_use]
    pub fn lets_request_go(
        &self,
        request: &[u8],
        statements: &ClientStatements,
        catalog: Option<&Catalog>,
    ) -> bool {
        if *self == Self::Fast {
            return false;
        }
        messages(request).all(|(header, message)| {
            let text = match target(message) {
                Some(Target::Statement(name)) if header.kind == DESCRIBE => {
                    statements.find(name).map(|statement| statement.text())
                }
                _ => text_of(header.kind, message, statements),
            };
            text.is_none_or(|sql| self.lets_go(sql, catalog))
        })
    }
}

/// Whether a text can come by none of these names: none of its words is one, and nothing that it calls or reads looks names
/// up when it runs, which is how a constant or a parameter could be one.
fn misses(names: &HashSet<Box<str>>, sql: &str, catalog: &Catalog) -> bool {
    let is_escaped = |window: &[u8]| matches!(window, [b'u' | b'U', b'&', b'"' | b'\'']);
    if sql.contains('\\') || sql.as_bytes().windows(3).any(is_escaped) {
        return false;
    }
    pieces(sql, false).pieces.iter().all(|piece| match &piece.item {
        Item::Word(name) | Item::Name(name) => {
            !names.contains(&*name.to_ascii_lowercase())
                && !name.starts_with("pg_temp")
                && !catalog.find(name).resolves
        }
        Item::Operator(operator) => !catalog.resolving_operators.iter().any(|known| **known == **operator),
        Item::Unreadable => false,
        Item::Text(_) | Item::Number(_) | Item::Value | Item::Symbol(_) => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{FunctionClass, Named};

    fn catalog() -> Catalog {
        let mut catalog = Catalog { epoch: 1, ..Catalog::default() };
        for (name, resolves) in
            [("lower", false), ("to_regclass", true), ("regclass", true), ("pg_views", true)]
        {
            let named = Named { function: Some(FunctionClass::Safe), resolves, ..Named::default() };
            catalog.names.insert(name.into(), named);
        }
        catalog.resolving_operators.push("@=@".into());
        catalog
    }

    #[test]
    fn what_could_meet_a_temporary_object_stays() {
        let names = ["orders".into(), "Odd Name".into()];
        let tie = Tie::of_temporary(Some(&names));
        for (sql, goes) in [
            ("SELECT lower(a) FROM customers WHERE b = 'orders'", true),
            ("SELECT 1 -- orders", true),
            ("SELECT * FROM orders", false),
            ("SELECT * FROM ORDERS", false),
            ("SELECT * FROM public.\"orders\"", false),
            ("SELECT * FROM \"odd name\"", false),
            ("SELECT NULL::orders", false),
            ("SELECT * FROM pg_temp.x", false),
            ("SELECT * FROM pg_temp_3.x", false),
            ("SELECT to_regclass($1)", false),
            ("SELECT 'customers'::regclass", false),
            ("SELECT * FROM pg_views", false),
            ("SELECT a @=@ b FROM customers", false),
            ("SELECT * FROM U&\"order!0073\" UESCAPE '!'", false),
            ("SELECT * FROM customers WHERE a = E'\\x'", false),
        ] {
            assert_eq!(tie.lets_go(sql.as_bytes(), Some(&catalog())), goes, "{sql}");
            assert!(Tie::Loose.lets_go(sql.as_bytes(), Some(&catalog())));
            assert!(!Tie::Fast.lets_go(sql.as_bytes(), Some(&catalog())));
        }
        assert!(!tie.lets_go(b"SELECT 1", None), "nothing is known");
    }

    #[test]
    fn names_that_cannot_be_compared_tie_fast() {
        assert_eq!(Tie::of_temporary(None), Tie::Fast);
        assert_eq!(Tie::of_temporary(Some(&["a".repeat(63).into()])), Tie::Fast);
        let many: Vec<Box<str>> = (0..=TEMPORARY_MAX).map(|number| format!("t{number}").into()).collect();
        assert_eq!(Tie::of_temporary(Some(&many)), Tie::Fast);
    }
}
