//! The messages of a recorded request as a connection of the mirror needs them: with the names that statements have there,
//! and with whatever is not prepared there yet.

use std::sync::Arc;

use crate::classify::blocks::{Boundary, boundary};
use crate::classify::lexer::{Lexer, Token};
use crate::mirror::unit::Step;
use crate::server::connection::ServerConnection;
use crate::server::prepared::{Standing, Statement, server_name};
use crate::wire::frame::{HEADER_LEN, header};
use crate::wire::frontend::{
    BIND, CLOSE, DESCRIBE, FLUSH, PARSE, QUERY, Target, bind_names, parse, put_bind, put_close_statement,
    put_describe_statement, put_parse, query_text, target,
};

/// Puts a request into a connection's outbox. Gives the statements that are prepared with it, which may fail.
pub fn put_step(server: &mut ServerConnection, step: &Step, is_tracked: bool) -> Vec<u64> {
    let mut fresh = Vec::new();
    let mut uses = step.uses.iter();
    for message in whole_messages(&step.messages) {
        let named = is_named(message).then(|| uses.next().cloned().flatten()).flatten();
        match (message.first(), named) {
            (Some(&FLUSH), _) => {}
            (Some(&CLOSE), _) if is_tracked && is_of_statement(message) => {}
            (Some(&PARSE), Some(statement)) if statement.name.is_empty() => {
                server.unnamed = Some(statement.id);
                server.outbox.bytes().extend_from_slice(message);
            }
            (Some(&PARSE), Some(statement)) => prepare(server, &statement, &mut fresh),
            (Some(&(BIND | DESCRIBE)), Some(statement)) if statement.name.is_empty() => {
                if server.unnamed.replace(statement.id) != Some(statement.id) {
                    put_parse(server.outbox.bytes(), b"", &statement.definition);
                }
                server.outbox.bytes().extend_from_slice(message);
            }
            (Some(&BIND), Some(statement)) => {
                prepare(server, &statement, &mut fresh);
                if let Some(names) = bind_names(message) {
                    let name = statement.name.as_bytes();
                    let _ = put_bind(server.outbox.bytes(), message, message.len(), names, name);
                }
            }
            (Some(&DESCRIBE), Some(statement)) => {
                prepare(server, &statement, &mut fresh);
                put_describe_statement(server.outbox.bytes(), statement.name.as_bytes());
            }
            _ => {
                if message.first() == Some(&QUERY) {
                    server.unnamed = None;
                }
                server.outbox.bytes().extend_from_slice(message);
            }
        }
    }
    fresh
}

fn prepare(server: &mut ServerConnection, statement: &Arc<Statement>, fresh: &mut Vec<u64>) {
    if server.prepared.touch(statement) == Standing::Ready {
        return;
    }
    server.prepared.remove(statement.id);
    // One that failed before may be there after all.
    put_close_statement(server.outbox.bytes(), statement.name.as_bytes());
    if let Some(evicted) = server.prepared.insert(statement) {
        put_close_statement(server.outbox.bytes(), server_name(evicted).as_bytes());
    }
    put_parse(server.outbox.bytes(), statement.name.as_bytes(), &statement.definition);
    fresh.push(statement.id);
}

fn whole_messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let found = header(bytes, usize::MAX).ok()??;
        let (message, rest) = bytes.split_at_checked(found.total)?;
        bytes = rest;
        Some(message)
    })
}

/// Whether a message may name a statement, so that there is an entry for it.
fn is_named(message: &[u8]) -> bool {
    match message.first() {
        Some(&(PARSE | BIND)) => true,
        Some(&DESCRIBE) => is_of_statement(message),
        _ => false,
    }
}

fn is_of_statement(message: &[u8]) -> bool {
    matches!(target(message), Some(Target::Statement(_)))
}

/// The texts that a request runs, or prepares where it runs none.
#[must_use]
pub fn texts(step: &Step) -> Vec<&[u8]> {
    let mut uses = step.uses.iter();
    let (mut run, mut prepared) = (Vec::new(), Vec::new());
    for message in whole_messages(&step.messages) {
        let named = is_named(message).then(|| uses.next()).flatten();
        match message.first() {
            Some(&QUERY) => run.push(query_text(message)),
            Some(&BIND) => run.extend(named.and_then(Option::as_deref).map(Statement::text)),
            Some(&PARSE) => prepared.extend(parse(message).and_then(|parsed| parsed.text())),
            _ => {}
        }
    }
    if run.is_empty() { prepared } else { run }
}

/// Whether a request is in the extended protocol.
#[must_use]
pub fn is_extended(step: &Step) -> bool {
    step.messages.first() != Some(&QUERY)
}

/// What becomes of a request where all that is written is rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolledBack {
    /// It runs as it is, inside a transaction.
    AsItIs,
    /// It ends its transaction, which is rolled back.
    Ends,
    /// It cannot be run so.
    Unfit,
}

/// What becomes of a request where all that is written is rolled back: what could end a transaction otherwise, or runs
/// in none, is not run.
#[must_use]
pub fn rolled_back(step: &Step) -> RolledBack {
    let texts = texts(step);
    if let [only] = texts[..]
        && boundary(only) == Some(Boundary::Commit)
        && step.messages.len() < HEADER_LEN + 400
    {
        return RolledBack::Ends;
    }
    if texts.iter().all(|sql| is_fit(sql)) { RolledBack::AsItIs } else { RolledBack::Unfit }
}

/// Whether a request sets something, or may: before its first query a transaction that is declared READ ONLY can take that
/// back where it is run.
#[must_use]
pub fn may_set(step: &Step) -> bool {
    texts(step).iter().any(|sql| {
        let mut lexer = Lexer::new(sql, false);
        let mut is_start = true;
        let found = lexer.by_ref().any(|token| {
            let was_start = std::mem::replace(&mut is_start, token == Token::Symbol(b';'));
            let is = |name: &[u8]| matches!(token, Token::Word(word) if word.eq_ignore_ascii_case(name));
            was_start && (is(b"set") || is(b"reset"))
        });
        // Where its strings end would decide where its statements begin.
        found || lexer.met_backslash
    })
}

fn is_fit(sql: &[u8]) -> bool {
    const ENDS: [&str; 3] = ["commit", "end", "prepare"];
    const LONERS: [&str; 12] = [
        "vacuum",
        "cluster",
        "reindex",
        "checkpoint",
        "call",
        "do",
        "execute",
        "concurrently",
        "database",
        "tablespace",
        "system",
        "subscription",
    ];
    if matches!(boundary(sql), Some(Boundary::Begin(_) | Boundary::Rollback)) {
        return true;
    }
    let mut is_start = true;
    let mut lexer = Lexer::new(sql, false);
    for token in lexer.by_ref() {
        if let Token::Word(word) = token {
            let is = |name: &&str| word.eq_ignore_ascii_case(name.as_bytes());
            if (is_start && ENDS.iter().any(is)) || LONERS.iter().any(is) {
                return false;
            }
        }
        is_start = token == Token::Symbol(b';');
    }
    // Where its strings end would decide where its statements begin.
    !lexer.met_backslash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_could_commit_is_run_where_writes_are_rolled_back() {
        for (sql, fit) in [
            ("insert into t values (1)", true),
            ("select case when a then b end from t", true),
            ("begin", true),
            ("rollback", true),
            ("insert into t values (1); commit", false),
            ("insert into t values (1); END; select 1", false),
            ("commit and chain", false),
            ("prepare transaction 'x'", false),
            ("vacuum t", false),
            ("call p()", false),
            ("create index concurrently i on t(a)", false),
            ("select E'\\'; commit; --'", true),
            ("select '\\'; commit; --'", false),
        ] {
            assert_eq!(is_fit(sql.as_bytes()), fit, "{sql}");
        }
    }
}
