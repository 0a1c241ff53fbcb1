//! Whether a text may run on a replica: a proof by our own reading and the catalog, which a second reading must not
//! contradict.

use crate::catalog::{Catalog, FunctionClass, RelationClass};
use crate::classify::functions::is_server_setting;
use crate::classify::grammar::{Opinion, opinion};
use crate::classify::pieces::{Item, Piece, pieces};
use crate::classify::reading::{Fault, Mention, prove};
use crate::classify::verdict::{Reason, Verdict};

/// A longer text is not looked at, in bytes.
pub const TEXT_MAX: usize = 64 * 1024;

/// A text of more pieces is not read a second time: that reader goes as deep as an expression does.
const PIECES_MAX: usize = 1000;

/// A verdict with what led to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// Where in the text it was decided, in bytes.
    pub at: usize,
}

/// Judges a text of any number of statements.
#[must_use]
pub fn judge(sql: &[u8], catalog: &Catalog) -> Judgement {
    let primary = |reason| Judgement { verdict: Verdict::Primary(reason), at: 0 };
    if sql.len() > TEXT_MAX {
        return primary(Reason::TooLong);
    }
    let Ok(sql) = str::from_utf8(sql) else { return primary(Reason::NotUtf8) };
    let plain = pieces(sql, false);
    let judgement = judge_pieces(sql, &plain.pieces, catalog);
    if !plain.met_backslash || judgement.verdict != Verdict::Read {
        return judgement;
    }
    // Where strings end depends on standard_conforming_strings: it has to be a read either way.
    judge_pieces(sql, &pieces(sql, true).pieces, catalog)
}

/// Whether a text is the begin of a READ ONLY transaction and nothing else: `BEGIN` or `START TRANSACTION` with its modes
/// (<https://www.postgresql.org/docs/current/sql-begin.html>), of which the last one of a kind counts. A standby takes no
/// SERIALIZABLE ones.
fn begins_read_only(pieces: &[Piece<'_>]) -> bool {
    let mut words: Vec<&str> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match &piece.item {
            Item::Word(word) => words.push(word),
            Item::Symbol(b',') => {}
            Item::Symbol(b';') if words.is_empty() => {}
            Item::Symbol(b';') => words.push(";"),
            _ => return false,
        }
    }
    while words.last() == Some(&";") {
        words.pop();
    }
    let mut rest = match &words[..] {
        ["begin", "work" | "transaction", rest @ ..]
        | ["start", "transaction", rest @ ..]
        | ["begin", rest @ ..] => rest,
        _ => return false,
    };
    let mut is_read_only = false;
    loop {
        rest = match rest {
            ["read", "only", rest @ ..] => {
                is_read_only = true;
                rest
            }
            ["read", "write", rest @ ..] => {
                is_read_only = false;
                rest
            }
            ["isolation", "level", "repeatable", "read", rest @ ..]
            | ["isolation", "level", "read", "committed" | "uncommitted", rest @ ..]
            | ["not", "deferrable", rest @ ..]
            | ["deferrable", rest @ ..] => rest,
            [] => return is_read_only,
            _ => return false,
        };
    }
}

/// Judges a text that was taken to pieces.
#[must_use]
pub fn judge_pieces(sql: &str, pieces: &[Piece<'_>], catalog: &Catalog) -> Judgement {
    if begins_read_only(pieces) {
        return Judgement { verdict: Verdict::ReadOnlyBlock, at: 0 };
    }
    let mut is_empty = true;
    let mut has_doubt = false;
    for (from, statement) in statements(pieces) {
        if statement.is_empty() {
            continue;
        }
        is_empty = false;
        let mut see = |mention: Mention<'_>| see(catalog, mention);
        let proved = prove(statement, &mut see);
        let fault = match proved {
            Ok(()) => continue,
            Err(fault) => fault,
        };
        if fault.is_doubtful && prove_past(statement, fault, catalog) {
            has_doubt = true;
            continue;
        }
        let at = pieces.get(from + fault.piece).map_or(sql.len(), |piece| piece.from);
        return Judgement { verdict: Verdict::Primary(fault.reason), at };
    }
    let verdict = if is_empty {
        Verdict::Read
    } else {
        let opinion = if pieces.len() > PIECES_MAX { Opinion::None } else { opinion(sql) };
        match opinion {
            Opinion::Reads => Verdict::Read,
            Opinion::None if !has_doubt => Verdict::Read,
            Opinion::Acts | Opinion::None => Verdict::Primary(Reason::Write),
        }
    };
    Judgement { verdict, at: 0 }
}

/// Whether nothing but words that may be names stands against a statement.
fn prove_past(statement: &[Piece<'_>], first: Fault, catalog: &Catalog) -> bool {
    let mut statement = statement.to_vec();
    let mut fault = first;
    loop {
        // Taken as a name in quotes, which the second reading must confirm.
        match statement.get_mut(fault.piece) {
            Some(piece) => match &piece.item {
                Item::Word(word) => piece.item = Item::Name(word.clone()),
                _ => return false,
            },
            None => return false,
        }
        match prove(&statement, &mut |mention| see(catalog, mention)) {
            Ok(()) => return true,
            Err(next) if next.is_doubtful => fault = next,
            Err(_) => return false,
        }
    }
}

/// The statements of a text, without their semicolons, and where each begins.
pub fn statements<'p, 'a>(pieces: &'p [Piece<'a>]) -> impl Iterator<Item = (usize, &'p [Piece<'a>])> {
    let mut from = 0;
    pieces.split(|piece| piece.item == Item::Symbol(b';')).map(move |statement| {
        let start = from;
        from += statement.len() + 1;
        (start, statement)
    })
}

/// What the catalog has against a name.
fn see(catalog: &Catalog, mention: Mention<'_>) -> Option<Reason> {
    match mention {
        Mention::Operator(operator) => {
            // An operator may end before a sign that follows it.
            let is_unsafe = catalog.operators.iter().any(|known| operator.contains(&**known));
            is_unsafe.then_some(Reason::Operator)
        }
        Mention::Setting(setting) => match setting.map(str::from_utf8) {
            Some(Ok(name)) if !is_server_setting(name) => None,
            _ => Some(Reason::ServerState),
        },
        Mention::Call(name) => match catalog.find(name).function {
            Some(class) => function(class),
            None => Some(Reason::UnknownFunction),
        },
        Mention::MaybeCall(name) => catalog.find(name).function.and_then(function),
        Mention::Attribute(name) => catalog.find(name).is_attribute.then_some(Reason::VolatileFunction),
        Mention::Name(name) => {
            let named = catalog.find(name);
            let of_relation = named.relation.map(|class| match class {
                RelationClass::Unlogged => Reason::UnloggedTable,
                RelationClass::Foreign => Reason::ForeignTable,
                RelationClass::Sequence => Reason::Sequence,
                RelationClass::View => Reason::View,
            });
            of_relation.or_else(|| named.is_unsafe_type.then_some(Reason::Type))
        }
    }
}

const fn function(class: FunctionClass) -> Option<Reason> {
    match class {
        FunctionClass::Safe | FunctionClass::Setting => None,
        FunctionClass::Volatile => Some(Reason::VolatileFunction),
        FunctionClass::ServerState => Some(Reason::ServerState),
    }
}

#[cfg(test)]
mod tests;
