//! Whether a statement gives the same rows on two databases with the same content, from its text alone.
//!
//! The answer errs on one side: rows of what is not called repeatable are not compared, which costs a comparison; rows
//! that are compared and need not be the same would be told as a difference that is none.

use crate::classify::lexer::{Lexer, Token};

/// How the rows of a statement can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// In any order, and then in their order.
    Comparable,
    /// By their number only.
    Counted,
}

/// Words after which the rows depend on the moment, on chance, or on the server.
const FICKLE: [&str; 40] = [
    "now",
    "current_timestamp",
    "current_time",
    "current_date",
    "localtime",
    "localtimestamp",
    "clock_timestamp",
    "statement_timestamp",
    "transaction_timestamp",
    "timeofday",
    "age",
    "random",
    "random_normal",
    "gen_random_uuid",
    "gen_random_bytes",
    "uuid_generate_v1",
    "uuid_generate_v1mc",
    "uuid_generate_v4",
    "uuidv4",
    "uuidv7",
    "txid_current",
    "txid_current_if_assigned",
    "txid_current_snapshot",
    "nextval",
    "currval",
    "lastval",
    "setval",
    "version",
    "current_setting",
    "current_database",
    "current_catalog",
    "tablesample",
    "ctid",
    "xmin",
    "xmax",
    "cmin",
    "cmax",
    "tableoid",
    "oid",
    "explain",
];

/// Words that pick or line up rows in an order that only ORDER BY fixes.
const ORDERED: [&str; 5] = ["limit", "fetch", "offset", "over", "distinct"];

/// How the rows of a text can be compared.
#[must_use]
pub fn rows(sql: &[u8]) -> Rows {
    let mut needs_order = false;
    let mut has_order = false;
    for token in Lexer::new(sql, false) {
        let Token::Word(word) = token else { continue };
        let is = |name: &&str| word.eq_ignore_ascii_case(name.as_bytes());
        let begins = |prefix: &str| {
            word.get(..prefix.len()).is_some_and(|front| front.eq_ignore_ascii_case(prefix.as_bytes()))
        };
        if FICKLE.iter().any(is) || begins("pg_") || begins("inet_") || is(&"show") {
            return Rows::Counted;
        }
        needs_order |= ORDERED.iter().any(is) || word.to_ascii_lowercase().ends_with(b"_agg");
        has_order |= is(&"order");
    }
    if needs_order && !has_order { Rows::Counted } else { Rows::Comparable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_where_nothing_but_the_content_decides() {
        for (sql, expected) in [
            ("SELECT a FROM t WHERE b = 'now()'", Rows::Comparable),
            ("SELECT a FROM t ORDER BY a LIMIT 3", Rows::Comparable),
            ("UPDATE t SET a = 1 RETURNING b", Rows::Comparable),
            ("SELECT a FROM t LIMIT 3", Rows::Counted),
            ("SELECT Now()", Rows::Counted),
            ("SELECT array_agg(a) FROM t", Rows::Counted),
            ("SELECT array_agg(a ORDER BY a) FROM t", Rows::Comparable),
            ("SELECT ctid FROM t", Rows::Counted),
            ("SELECT pg_size_pretty(1)", Rows::Counted),
            ("SELECT row_number() OVER () FROM t", Rows::Counted),
            ("SHOW work_mem", Rows::Counted),
        ] {
            assert_eq!(rows(sql.as_bytes()), expected, "{sql}");
        }
    }
}
