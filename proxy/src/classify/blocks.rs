//! The begin and the end of explicit transactions, and what ties one to the server that it has begun on.

use crate::classify::pieces::{Item, pieces};

/// A statement that begins or ends a transaction and does nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// BEGIN or START TRANSACTION that leaves isolation at READ COMMITTED and may write.
    Begin(&'static str),
    /// COMMIT or END.
    Commit,
    /// ROLLBACK or ABORT.
    Rollback,
}

/// The boundary that a text is.
#[must_use]
pub fn boundary(sql: &[u8]) -> Option<Boundary> {
    let first = sql.trim_ascii_start().first()?.to_ascii_lowercase();
    if sql.len() > 200 || !matches!(first, b'b' | b's' | b'c' | b'e' | b'r' | b'a' | b'/' | b'-') {
        return None;
    }
    let found = pieces(str::from_utf8(sql).ok()?, false).pieces;
    let mut words: Vec<&str> = Vec::with_capacity(found.len());
    for piece in &found {
        match &piece.item {
            Item::Word(word) => words.push(word),
            Item::Symbol(b',') => {}
            Item::Symbol(b';') if piece.to == found.last()?.to => {}
            _ => return None,
        }
    }
    match &words[..] {
        ["begin", "work" | "transaction", modes @ ..] | ["begin", modes @ ..] => {
            are_usual(modes).then_some(Boundary::Begin("BEGIN"))
        }
        ["start", "transaction", modes @ ..] => {
            are_usual(modes).then_some(Boundary::Begin("START TRANSACTION"))
        }
        ["commit" | "end"] | ["commit" | "end", "work" | "transaction"] => Some(Boundary::Commit),
        ["rollback" | "abort"] | ["rollback" | "abort", "work" | "transaction"] => Some(Boundary::Rollback),
        _ => None,
    }
}

fn are_usual(modes: &[&str]) -> bool {
    let mut rest = modes;
    loop {
        rest = match rest {
            [] => return true,
            ["read", "write", rest @ ..] | ["isolation", "level", "read", "committed", rest @ ..] => rest,
            _ => return false,
        };
    }
}

/// Whether a statement may tell when its transaction began, or which it is: then what follows must be in the same one.
#[must_use]
pub fn tells_transaction(sql: &[u8]) -> bool {
    const SIGNS: [&[u8]; 8] =
        [b"now", b"current_", b"localtime", b"transaction_timestamp", b"age", b"txid", b"snapshot", b"xact"];
    SIGNS.iter().any(|sign| sql.windows(sign.len()).any(|window| window.eq_ignore_ascii_case(sign)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_told_from_what_is_more_than_that() {
        for (sql, expected) in [
            ("BEGIN", Some(Boundary::Begin("BEGIN"))),
            ("/* x */ begin transaction read write;", Some(Boundary::Begin("BEGIN"))),
            ("START TRANSACTION ISOLATION LEVEL READ COMMITTED", Some(Boundary::Begin("START TRANSACTION"))),
            ("COMMIT", Some(Boundary::Commit)),
            ("end work", Some(Boundary::Commit)),
            ("ROLLBACK;", Some(Boundary::Rollback)),
            ("abort transaction", Some(Boundary::Rollback)),
            ("BEGIN READ ONLY", None),
            ("BEGIN ISOLATION LEVEL REPEATABLE READ", None),
            ("BEGIN; SELECT 1", None),
            ("COMMIT AND CHAIN", None),
            ("COMMIT PREPARED 'x'", None),
            ("ROLLBACK TO a", None),
            ("SELECT 1", None),
        ] {
            assert_eq!(boundary(sql.as_bytes()), expected, "{sql}");
        }
        assert!(tells_transaction(b"SELECT Now()") && !tells_transaction(b"SELECT a FROM t"));
    }
}
