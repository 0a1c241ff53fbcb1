//! What the bodies of functions in PL/pgSQL do.

use crate::classify::pieces::{Item, Piece};

/// Whether a body in PL/pgSQL has no statement but those that compute, read and control
/// (<https://www.postgresql.org/docs/current/plpgsql-statements.html>).
#[must_use]
pub fn only_reads(pieces: &[Piece<'_>]) -> bool {
    let mut start = Start::Statement;
    let mut declares = false;
    for (index, piece) in pieces.iter().enumerate() {
        let next = pieces.get(index + 1).map(|piece| &piece.item);
        let was = std::mem::replace(
            &mut start,
            if piece.item == Item::Symbol(b';') { Start::Statement } else { Start::None },
        );
        let Item::Word(word) = &piece.item else {
            if was == Start::Statement
                && !declares
                && matches!(piece.item, Item::Name(_))
                && !is_assigned(next)
            {
                return false;
            }
            continue;
        };
        let follows_dot =
            index.checked_sub(1).and_then(|i| pieces.get(i)).is_some_and(|p| p.item == Item::Symbol(b'.'));
        let word = &**word;
        let locks = word == "for"
            && matches!(next, Some(Item::Word(next)) if matches!(&**next, "share" | "no" | "key" | "update"));
        if locks || (ACTING.contains(&word) && !follows_dot) {
            return false;
        }
        let is_fine = match was {
            Start::None => true,
            _ if declares || is_assigned(next) => true,
            Start::Statement => READING.binary_search(&word).is_ok(),
            Start::StatementOrExpression => !COMMANDS.contains(&word),
        };
        if !is_fine {
            return false;
        }
        match word {
            "declare" => declares = true,
            "begin" => declares = false,
            _ => {}
        }
        let ends = index
            .checked_sub(1)
            .and_then(|i| pieces.get(i))
            .is_some_and(|p| p.item == Item::Word("end".into()));
        match word {
            "loop" if ends => {}
            "begin" | "loop" | "declare" => start = Start::Statement,
            "then" | "else" => start = Start::StatementOrExpression,
            _ => {}
        }
    }
    true
}

/// What a word in a body may begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Nothing.
    None,
    /// A statement.
    Statement,
    /// A statement, or what a CASE in an expression gives.
    StatementOrExpression,
}

/// Words that begin statements of PL/pgSQL that do not act by themselves.
const READING: [&str; 28] = [
    "assert",
    "begin",
    "case",
    "close",
    "continue",
    "declare",
    "else",
    "elseif",
    "elsif",
    "end",
    "exception",
    "exit",
    "fetch",
    "for",
    "foreach",
    "get",
    "if",
    "loop",
    "move",
    "null",
    "open",
    "perform",
    "raise",
    "return",
    "select",
    "when",
    "while",
    "with",
];

/// Words that make a body act wherever they stand.
const ACTING: [&str; 7] = ["insert", "update", "delete", "merge", "execute", "truncate", "copy"];

/// Words that begin other commands of SQL.
const COMMANDS: [&str; 33] = [
    "abort",
    "alter",
    "analyse",
    "analyze",
    "call",
    "checkpoint",
    "cluster",
    "comment",
    "commit",
    "create",
    "deallocate",
    "discard",
    "do",
    "drop",
    "grant",
    "import",
    "listen",
    "load",
    "lock",
    "notify",
    "prepare",
    "reassign",
    "refresh",
    "reindex",
    "release",
    "reset",
    "revoke",
    "rollback",
    "savepoint",
    "security",
    "set",
    "unlisten",
    "vacuum",
];

/// Whether what follows a name makes it the target of an assignment, or a label of one.
fn is_assigned(next: Option<&Item<'_>>) -> bool {
    match next {
        Some(Item::Symbol(b':' | b'.' | b'[')) => true,
        Some(Item::Operator(operator)) => operator.starts_with('=') || operator.starts_with(">>"),
        _ => false,
    }
}
