//! Proves from a statement's pieces that it only reads, as far as its own text goes; what it names is judged by whoever
//! knows the catalog.
//!
//! The proof errs on one side. Everything that PostgreSQL's grammar lets a reading statement do begins with one of a few
//! words and holds none of the words that make it write or lock; every function that it runs is called by name, by an
//! operator, by a type or by a relation, and each name that could be one of these is shown to `see`.

use crate::classify::pieces::{Item, Piece};
use crate::classify::verdict::Reason;
use crate::classify::words::{WordClass, class_of, is_soft};

/// Something that a statement names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mention<'a> {
    /// A function that is called.
    Call(&'a str),
    /// What may be a call, or the columns of an alias, or a part of the grammar.
    MaybeCall(&'a str),
    /// What follows a dot: a column, or a function called like one.
    Attribute(&'a str),
    /// A name that may be a relation, a type, a column or an alias.
    Name(&'a str),
    /// An operator.
    Operator(&'a str),
    /// The setting that `current_setting` asks for, where it is a constant.
    Setting(Option<&'a [u8]>),
}

/// Why a statement is not proved, and the piece that shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Why.
    pub reason: Reason,
    /// The index of the piece.
    pub piece: usize,
    /// Whether another reading of the grammar may still clear it: a word that is also a name stood where a statement
    /// could begin.
    pub is_doubtful: bool,
}

/// Judges what is named: gives the reason why it cannot be read on a replica.
pub type See<'s> = &'s mut dyn FnMut(Mention<'_>) -> Option<Reason>;

/// What a proof allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Nothing but reading.
    Reads,
    /// What a statement would do that is explained and not run.
    Plans,
}

/// Proves one statement, without its semicolon, to be a read.
///
/// # Errors
/// With the first reason why it is none.
pub fn prove(pieces: &[Piece<'_>], see: See<'_>) -> Result<(), Fault> {
    let start = pieces.iter().take_while(|piece| piece.item == Item::Symbol(b'(')).count();
    let Some(first) = pieces.get(start) else { return Err(fault(Reason::Unparsed, 0)) };
    let Item::Word(word) = &first.item else { return Err(fault(Reason::Unparsed, start)) };
    match &**word {
        "select" | "values" | "table" | "with" => Body { pieces, see, extent: Extent::Reads }.run(0),
        "explain" if start == 0 => explain(pieces, see),
        "copy" if start == 0 => copy(pieces, see),
        word => Err(fault(reason_of(word, pieces.get(start + 1)), start)),
    }
}

/// Proves an expression, as in a policy, to be a read.
///
/// # Errors
/// With the first reason why it is none.
pub fn prove_expression(pieces: &[Piece<'_>], see: See<'_>) -> Result<(), Fault> {
    Body { pieces, see, extent: Extent::Reads }.run(0)
}

const fn fault(reason: Reason, piece: usize) -> Fault {
    Fault { reason, piece, is_doubtful: false }
}

/// Why a statement that begins with this word belongs to the primary.
fn reason_of(word: &str, next: Option<&Piece<'_>>) -> Reason {
    let is_next = |wanted: &str| next.is_some_and(|piece| piece.item == Item::Word(wanted.into()));
    match word {
        "insert" | "update" | "delete" | "merge" | "truncate" => Reason::Write,
        "lock" => Reason::Locking,
        "begin" | "start" | "commit" | "end" | "rollback" | "abort" | "savepoint" | "release" => {
            Reason::Transaction
        }
        "prepare" if is_next("transaction") => Reason::Transaction,
        "prepare" | "execute" | "deallocate" => Reason::Prepared,
        "set" | "reset" | "discard" | "listen" | "unlisten" | "notify" | "load" => Reason::SessionState,
        "show" => Reason::ServerState,
        "declare" | "fetch" | "move" | "close" => Reason::Cursor,
        "do" | "call" => Reason::Procedure,
        "create" | "alter" | "drop" | "comment" | "grant" | "revoke" | "vacuum" | "analyze" | "analyse"
        | "cluster" | "reindex" | "refresh" | "checkpoint" | "security" | "reassign" | "import" => {
            Reason::Ddl
        }
        _ => Reason::Unparsed,
    }
}

/// EXPLAIN, whose options may say that the statement is run.
fn explain(pieces: &[Piece<'_>], see: See<'_>) -> Result<(), Fault> {
    let mut at = 1;
    let mut is_run = false;
    let word = |at: usize| match pieces.get(at).map(|piece| &piece.item) {
        Some(Item::Word(word)) => &**word,
        _ => "",
    };
    let is_option_list = pieces.get(1).is_some_and(|piece| piece.item == Item::Symbol(b'('))
        && !matches!(word(2), "select" | "with" | "values" | "table" | "");
    if is_option_list {
        at = 2;
        loop {
            if matches!(word(at), "analyze" | "analyse") {
                is_run = !is_false(pieces.get(at + 1).map(|piece| &piece.item));
            }
            match pieces.get(at).map(|piece| &piece.item) {
                Some(Item::Symbol(b')')) => break,
                Some(Item::Symbol(b'(')) | None => return Err(fault(Reason::Explain, at)),
                // A name in quotes is an option too.
                Some(Item::Name(name)) if name.starts_with("anal") => return Err(fault(Reason::Explain, at)),
                Some(_) => at += 1,
            }
        }
        at += 1;
    } else {
        if matches!(word(at), "analyze" | "analyse") {
            is_run = true;
            at += 1;
        }
        if word(at) == "verbose" {
            at += 1;
        }
    }
    let start = at + pieces.iter().skip(at).take_while(|piece| piece.item == Item::Symbol(b'(')).count();
    match word(start) {
        "select" | "values" | "table" | "with" => {
            let extent = if is_run { Extent::Reads } else { Extent::Plans };
            Body { pieces, see, extent }.run(at)
        }
        "insert" | "update" | "delete" | "merge" if !is_run && start == at => {
            Body { pieces, see, extent: Extent::Plans }.run(at)
        }
        "insert" | "update" | "delete" | "merge" => Err(fault(Reason::Write, start)),
        _ => Err(fault(Reason::Explain, start)),
    }
}

/// The value of an option that switches it off.
fn is_false(item: Option<&Item<'_>>) -> bool {
    match item {
        Some(Item::Word(word)) => matches!(&**word, "false" | "off"),
        Some(Item::Number(number)) => *number == "0",
        _ => false,
    }
}

/// COPY to the client.
fn copy(pieces: &[Piece<'_>], see: See<'_>) -> Result<(), Fault> {
    let Some(Piece { item: Item::Symbol(b'('), .. }) = pieces.get(1) else { return copy_table(pieces, see) };
    let end = closing(pieces, 1).ok_or(fault(Reason::Unparsed, 1))?;
    check_target(pieces, end + 1)?;
    let inner = pieces.get(2..end).unwrap_or_default();
    prove_query(inner, see).map_err(|fault| Fault { piece: fault.piece + 2, ..fault })
}

/// A query in parentheses, which may itself begin with some.
fn prove_query(pieces: &[Piece<'_>], see: See<'_>) -> Result<(), Fault> {
    let start = pieces.iter().take_while(|piece| piece.item == Item::Symbol(b'(')).count();
    match pieces.get(start).map(|piece| &piece.item) {
        Some(Item::Word(word)) if matches!(&**word, "select" | "values" | "table" | "with") => {
            Body { pieces, see, extent: Extent::Reads }.run(0)
        }
        Some(Item::Word(word)) => Err(fault(reason_of(word, pieces.get(start + 1)), start)),
        _ => Err(fault(Reason::Unparsed, start)),
    }
}

/// `COPY table [(columns)] TO STDOUT`.
fn copy_table(pieces: &[Piece<'_>], see: See<'_>) -> Result<(), Fault> {
    let to = pieces.iter().position(|piece| piece.item == Item::Word("to".into()));
    let to = to.ok_or(fault(Reason::Copy, 0))?;
    if pieces.iter().take(to).any(|piece| piece.item == Item::Word("from".into())) {
        return Err(fault(Reason::Copy, 0));
    }
    check_target(pieces, to)?;
    for (index, piece) in pieces.iter().enumerate().take(to).skip(1) {
        let reason = match &piece.item {
            Item::Word(name) | Item::Name(name) => see(Mention::Name(name)),
            Item::Symbol(b'.' | b'(' | b')' | b',') => None,
            _ => Some(Reason::Unparsed),
        };
        if let Some(reason) = reason {
            return Err(fault(reason, index));
        }
    }
    Ok(())
}

/// What follows must be TO STDOUT, and options.
fn check_target(pieces: &[Piece<'_>], at: usize) -> Result<(), Fault> {
    let is =
        |at: usize, wanted: &str| pieces.get(at).is_some_and(|piece| piece.item == Item::Word(wanted.into()));
    if is(at, "to") && is(at + 1, "stdout") { Ok(()) } else { Err(fault(Reason::Copy, at)) }
}

/// The index of the parenthesis that closes the one at `open`.
fn closing(pieces: &[Piece<'_>], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, piece) in pieces.iter().enumerate().skip(open) {
        match piece.item {
            Item::Symbol(b'(') => depth += 1,
            Item::Symbol(b')') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(index);
                }
            }
            _ => {}
        }
    }
    None
}

/// A walk over a query.
struct Body<'p, 'a, 's> {
    pieces: &'p [Piece<'a>],
    see: See<'s>,
    extent: Extent,
}

impl<'p, 'a> Body<'p, 'a, '_> {
    fn run(&mut self, from: usize) -> Result<(), Fault> {
        let mut open: Vec<u8> = Vec::new();
        for index in from..self.pieces.len() {
            let Some(piece) = self.pieces.get(index) else { break };
            let seen = match &piece.item {
                Item::Word(word) => self.word(index, word)?,
                Item::Name(name) => self.name(index, name),
                Item::Unreadable => Some(Reason::Unparsed),
                Item::Text(_) | Item::Number(_) | Item::Value => None,
                Item::Operator(operator) => (self.see)(Mention::Operator(operator)),
                Item::Symbol(byte) => {
                    let is_fine = match byte {
                        b'(' | b'[' => {
                            open.push(*byte);
                            true
                        }
                        b')' => open.pop() == Some(b'('),
                        b']' => open.pop() == Some(b'['),
                        b',' | b'.' => true,
                        b':' => self.is_colon_fine(index, open.last() == Some(&b'[')),
                        _ => false,
                    };
                    (!is_fine).then_some(Reason::Unparsed)
                }
            };
            if let Some(reason) = seen {
                return Err(fault(reason, index));
            }
        }
        if open.is_empty() { Ok(()) } else { Err(fault(Reason::Unparsed, self.pieces.len())) }
    }

    fn item(&self, index: Option<usize>) -> Option<&'p Item<'a>> {
        self.pieces.get(index?).map(|piece| &piece.item)
    }

    fn is_symbol(&self, index: Option<usize>, byte: u8) -> bool {
        self.item(index) == Some(&Item::Symbol(byte))
    }

    fn word_at(&self, index: Option<usize>) -> &'p str {
        match self.item(index) {
            Some(Item::Word(word)) => word,
            _ => "",
        }
    }

    /// A colon is one of two, or between the bounds of an array's slice; or one of `:=`, or of `=>`'s kin.
    fn is_colon_fine(&self, index: usize, is_in_brackets: bool) -> bool {
        let touches = |a: Option<usize>, b: Option<usize>| {
            let (a, b) = (a.and_then(|a| self.pieces.get(a)), b.and_then(|b| self.pieces.get(b)));
            matches!((a, b), (Some(a), Some(b)) if a.to == b.from)
        };
        let before = index.checked_sub(1);
        let after = Some(index + 1);
        is_in_brackets
            || (self.is_symbol(before, b':') && touches(before, Some(index)))
            || (self.is_symbol(after, b':') && touches(Some(index), after))
            || (matches!(self.item(after), Some(Item::Operator(operator)) if operator.starts_with('='))
                && touches(Some(index), after))
    }

    /// A word that may be a name or a part of the grammar.
    fn word(&mut self, index: usize, word: &str) -> Result<Option<Reason>, Fault> {
        let before = index.checked_sub(1);
        if self.is_symbol(before, b'.') {
            return Ok(self.name(index, word));
        }
        let is_label = self.word_at(before) == "as";
        match word {
            "into" if !is_label && self.extent == Extent::Reads => {
                return Err(fault(Reason::SelectInto, index));
            }
            "for" if !is_label && self.extent == Extent::Reads => {
                let next = self.word_at(Some(index + 1));
                if matches!(next, "update" | "share" | "no" | "key") {
                    return Err(fault(Reason::Locking, index));
                }
                return Ok(None);
            }
            "insert" | "update" | "delete" | "merge" if !is_label && self.extent == Extent::Reads => {
                self.writing_word(index)?;
            }
            _ => {}
        }
        let is_call = self.is_symbol(Some(index + 1), b'(');
        Ok(match class_of(word) {
            WordClass::Reserved => None,
            WordClass::ColumnName | WordClass::FunctionName if is_call => {
                (self.see)(Mention::MaybeCall(word))
            }
            WordClass::Name if is_call && is_soft(word) => (self.see)(Mention::MaybeCall(word)),
            WordClass::Name | WordClass::FunctionName | WordClass::ColumnName => self.name(index, word),
        })
    }

    /// A word that begins a writing statement, or is a name.
    fn writing_word(&self, index: usize) -> Result<(), Fault> {
        let before = self.item(index.checked_sub(1));
        let is_name = before == Some(&Item::Symbol(b','))
            || matches!(before, Some(Item::Operator(_)))
            || matches!(before, Some(Item::Word(word)) if &**word == "select");
        if is_name { Ok(()) } else { Err(Fault { reason: Reason::Write, piece: index, is_doubtful: true }) }
    }

    /// A name, with or without quotes.
    fn name(&mut self, index: usize, name: &str) -> Option<Reason> {
        let is_after_dot = self.is_symbol(index.checked_sub(1), b'.');
        if self.is_symbol(Some(index + 1), b'(') {
            let mention =
                if self.is_surely_called(index) { Mention::Call(name) } else { Mention::MaybeCall(name) };
            if let Some(reason) = (self.see)(mention) {
                return Some(reason);
            }
            if name == "current_setting" {
                let setting = match (self.item(Some(index + 2)), self.item(Some(index + 3))) {
                    (Some(Item::Text(text)), Some(Item::Symbol(b',' | b')'))) => Some(*text),
                    _ => None,
                };
                if let Some(reason) = (self.see)(Mention::Setting(setting)) {
                    return Some(reason);
                }
            }
        } else if is_after_dot && let Some(reason) = (self.see)(Mention::Attribute(name)) {
            return Some(reason);
        }
        (self.see)(Mention::Name(name))
    }

    /// Whether a name before a parenthesis is that of a function, and not an alias with its columns or a type with its
    /// modifier.
    fn is_surely_called(&self, index: usize) -> bool {
        // The first part of a qualified name decides.
        let mut first = index;
        while first >= 2 && self.is_symbol(Some(first - 1), b'.') {
            first -= 2;
        }
        let before = first.checked_sub(1);
        match self.item(before) {
            Some(Item::Word(word)) => match &**word {
                "as" | "with" | "recursive" | "into" => false,
                word => class_of(word) != WordClass::Name || is_soft(word),
            },
            Some(Item::Name(_)) => false,
            Some(Item::Symbol(b')')) => self.follows_distinct_on(before.unwrap_or_default()),
            Some(Item::Symbol(b',')) => !self.begins_cte(index),
            Some(Item::Symbol(b':')) => false,
            _ => true,
        }
    }

    /// Whether the parenthesis that closes here is that of DISTINCT ON.
    fn follows_distinct_on(&self, close: usize) -> bool {
        let mut depth = 0_usize;
        for index in (0..=close).rev() {
            if self.is_symbol(Some(index), b')') {
                depth += 1;
            } else if self.is_symbol(Some(index), b'(') {
                depth -= 1;
                if depth == 0 {
                    return self.word_at(index.checked_sub(1)) == "on"
                        && self.word_at(index.checked_sub(2)) == "distinct";
                }
            }
        }
        true
    }

    /// Whether a name with a list of columns is followed by a query: `, name (columns) AS (SELECT`.
    fn begins_cte(&self, index: usize) -> bool {
        let Some(end) = closing(self.pieces, index + 1) else { return false };
        if self.word_at(Some(end + 1)) != "as" {
            return false;
        }
        let mut at = end + 2;
        if self.word_at(Some(at)) == "not" {
            at += 1;
        }
        if self.word_at(Some(at)) == "materialized" {
            at += 1;
        }
        self.is_symbol(Some(at), b'(')
            && (self.is_symbol(Some(at + 1), b'(')
                || matches!(
                    self.word_at(Some(at + 1)),
                    "select" | "with" | "values" | "table" | "insert" | "update" | "delete" | "merge"
                ))
    }
}
