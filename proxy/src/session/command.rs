//! Commands that the proxy answers itself, in the simple and in the extended protocol.

use crate::classify::blocks::{Boundary, boundary};
use crate::classify::commands::{CAUSAL_TOKEN, Command, RoleValue, command, may_be_one};
use crate::classify::verdict::Verdict;
use crate::error::{ClientError, ErrorKind};
use crate::fleet::View;
use crate::mirror::tables as mirror_tables;
use crate::route::{Access, ServerRole};
use crate::session::client::Client;
use crate::session::named_commands::NamedCommands;
use crate::session::request::{client_header, messages};
use crate::session::routing::Routing;
use crate::wire::backend::{
    BIND_COMPLETE_MESSAGE, CLOSE_COMPLETE_MESSAGE, NO_DATA_MESSAGE, PARSE_COMPLETE_MESSAGE,
    put_command_complete, put_data_row, put_no_parameters, put_ready, put_row_description,
};
use crate::wire::codec::split_cstr;
use crate::wire::frame::{HEADER_LEN, Header};
use crate::wire::frontend::{
    BIND, CLOSE, DESCRIBE, EXECUTE, FLUSH, PARSE, QUERY, SYNC, Target, bind_names, parse, query_text, target,
};
use crate::wire::sqlstate;

/// Which boundaries of transactions the proxy answers itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lazy {
    /// None.
    Off,
    /// The begin: it is put off until the first statement is known.
    Begin,
    /// The end of one that has been put off.
    End,
}

/// The command that a text is, boundaries of transactions among them.
fn command_of(sql: &[u8], lazy: Lazy) -> Option<Command> {
    let at_boundary = match lazy {
        Lazy::Off => None,
        Lazy::Begin | Lazy::End => boundary(sql),
    };
    match (lazy, at_boundary) {
        (Lazy::Begin, Some(Boundary::Begin(tag))) => Some(Command::Begin(tag)),
        (Lazy::End, Some(Boundary::Commit)) => Some(Command::End("COMMIT")),
        (Lazy::End, Some(Boundary::Rollback)) => Some(Command::End("ROLLBACK")),
        _ => command(sql),
    }
}

/// A question for a position is not longer, in bytes.
const FRONT_MAX: usize = 200;

/// Prepared commands of one client that are kept.
const PREPARED_MAX: usize = 64;

/// What a command says: rows under names, and a tag.
#[derive(Debug)]
struct Answer {
    columns: &'static [&'static str],
    rows: Vec<Vec<String>>,
    tag: String,
}

/// A quick look whether the request at the front of the client's inbox is surely none: most are, and their first letters
/// tell.
#[must_use]
pub fn is_surely_none(client: &Client, view: &View, access: Access) -> bool {
    let routing = &client.routing;
    let Some((&[kind, ..], body)) = client.inbox.split_first_chunk::<HEADER_LEN>() else { return false };
    let text = match kind {
        QUERY => body,
        PARSE if routing.prepared.is_none() => split_cstr(body).map_or(body, |(_, text)| text),
        BIND | DESCRIBE if routing.prepared.is_none() => b"",
        _ => return false,
    };
    !may_be_one(text) && !routing.is_put_off() && !routing.may_put_off(view, access)
}

/// Answers the request at the front of the client's inbox, where it is a command to the proxy. Tells whether it was.
pub fn take(client: &mut Client, view: &View, access: Access) -> bool {
    let lazy = if client.routing.is_put_off() {
        Lazy::End
    } else if client.routing.may_put_off(view, access) {
        Lazy::Begin
    } else {
        Lazy::Off
    };
    let Ok(Some(header)) = client_header(&client.inbox, usize::MAX) else { return false };
    let Some(message) = client.inbox.get(..header.total) else { return false };
    match header.kind {
        QUERY => {
            let Some(command) = command_of(query_text(message), lazy) else { return false };
            let mut out = Vec::new();
            answer_query(&command, &mut client.routing, view, &mut out);
            put_ready(&mut out, client.routing.status());
            client.outbox.bytes().extend_from_slice(&out);
            client.inbox.advance(header.total);
            true
        }
        CLOSE => take_batch(client, view, lazy) || take_closes(client),
        PARSE | BIND | DESCRIBE => take_batch(client, view, lazy),
        _ => false,
    }
}

/// Whether the request at the front may be a question for the position that covers what the session has written.
#[must_use]
pub fn may_ask_token(client: &Client) -> bool {
    let has_prepared =
        |prepared: &NamedCommands| prepared.statements.values().any(|command| *command == Command::ShowToken);
    let text = match client.inbox.first() {
        Some(&QUERY) => client.inbox.get(HEADER_LEN..),
        Some(&PARSE) => client.inbox.get(HEADER_LEN..).and_then(split_cstr).map(|(_, text)| text),
        _ => None,
    };
    // Nearly always the first letters tell.
    let shows = text.is_some_and(|text| {
        let text = text.trim_ascii_start();
        let name = CAUSAL_TOKEN.as_bytes();
        text.get(..4).is_some_and(|word| word.eq_ignore_ascii_case(b"SHOW"))
            && text.get(..text.len().min(FRONT_MAX)).is_some_and(|front| {
                front.windows(name.len()).any(|window| window.eq_ignore_ascii_case(name))
            })
    });
    shows || client.routing.prepared.as_deref().is_some_and(has_prepared)
}

/// What the simple protocol answers, but for the end.
pub fn answer_query(command: &Command, routing: &mut Routing, view: &View, out: &mut Vec<u8>) {
    match run(command, routing, view) {
        Ok(answer) => {
            if !answer.columns.is_empty() {
                put_row_description(out, answer.columns);
            }
            answer.put_rows(out);
        }
        Err(error) => error.put(out),
    }
}

impl Answer {
    fn done(tag: &str) -> Self {
        Self { columns: &[], rows: Vec::new(), tag: tag.to_owned() }
    }

    fn one(column: &'static [&'static str], value: &str) -> Self {
        Self { columns: column, rows: vec![vec![value.to_owned()]], tag: "SHOW".to_owned() }
    }

    fn put_rows(&self, out: &mut Vec<u8>) {
        for row in &self.rows {
            put_data_row(out, row);
        }
        put_command_complete(out, &self.tag);
    }
}

/// The columns of a command's answer.
const fn columns(command: &Command) -> &'static [&'static str] {
    match command {
        Command::ShowRole => &["server role"],
        Command::ShowPrimaryReads => &["primary reads"],
        Command::ShowShard => &["shard"],
        Command::ShowToken => &[CAUSAL_TOKEN],
        Command::ShowRoute => &["server", "reason"],
        Command::ShowMirror => &["item", "value"],
        Command::ShowMirrorDiffs => &mirror_tables::DIFFS,
        Command::ShowMirrorReport => &["report"],
        Command::ExplainRoute(_) => &["item", "value"],
        Command::SetRole(_)
        | Command::SetPrimaryReads(_)
        | Command::SetShard(_)
        | Command::SetToken(_)
        | Command::Begin(_)
        | Command::End(_)
        | Command::Wrong(_) => &[],
    }
}

fn run(command: &Command, routing: &mut Routing, view: &View) -> Result<Answer, ClientError> {
    let columns = columns(command);
    if matches!(command, Command::ShowMirrorDiffs | Command::ShowMirrorReport) {
        may_see_statements(routing.user(), view)?;
    }
    Ok(match command {
        Command::SetRole(value) => {
            routing.role = match value {
                RoleValue::Primary => Some(ServerRole::Primary),
                RoleValue::Replica => Some(ServerRole::Replica),
                RoleValue::Any => Some(ServerRole::Any),
                RoleValue::Auto => Some(ServerRole::Auto),
                RoleValue::Default => None,
            };
            Answer::done("SET SERVER ROLE")
        }
        Command::ShowRole => Answer::one(columns, routing.role().as_str()),
        Command::SetPrimaryReads(value) => {
            routing.primary_reads = *value;
            Answer::done("SET PRIMARY READS")
        }
        Command::ShowPrimaryReads => {
            let is_on = routing.primary_reads.unwrap_or(view.active.config.split.primary_reads);
            Answer::one(columns, if is_on { "on" } else { "off" })
        }
        Command::SetShard(tag) => Answer::done(tag),
        Command::Begin(tag) => {
            routing.put_off(tag);
            Answer::done(tag)
        }
        Command::End(tag) => {
            routing.forget_put_off();
            Answer::done(tag)
        }
        Command::ShowShard => Answer::one(columns, "0"),
        Command::SetToken(token) => {
            routing.freshness.take_token(*token, view);
            Answer::done("SET")
        }
        Command::ShowToken => match routing.freshness.token() {
            Some(token) => Answer::one(columns, &token.to_string()),
            None => {
                return Err(ClientError::error(
                    ErrorKind::Server,
                    sqlstate::CANNOT_CONNECT_NOW,
                    "the primary's position is not known",
                )
                .with_hint("Ask between transactions, in transaction mode, while there is a primary."));
            }
        },
        Command::ShowRoute => {
            let primary =
                view.topology.primary.and_then(|index| view.pools.get(index)).map(|pool| &*pool.name);
            let rows = routing.last.iter().map(|(server, why)| {
                let name = server.as_deref().or(primary).unwrap_or_default();
                vec![name.to_owned(), why.as_str().to_owned()]
            });
            Answer { columns, rows: rows.collect(), tag: "SHOW".to_owned() }
        }
        Command::ShowMirror => {
            let rows = mirror_tables::summary(&routing.mirror.report());
            Answer { columns, rows, tag: "SHOW".to_owned() }
        }
        Command::ShowMirrorDiffs => {
            let rows = mirror_tables::statements(&routing.mirror.report());
            Answer { columns, rows, tag: "SHOW".to_owned() }
        }
        Command::ShowMirrorReport => {
            let text = mirror_tables::text(&routing.mirror.report());
            let rows = text.lines().map(|line| vec![line.to_owned()]).collect();
            Answer { columns, rows, tag: "SHOW".to_owned() }
        }
        Command::ExplainRoute(sql) => {
            let rows = explain(sql, routing, view);
            Answer { columns, rows, tag: "EXPLAIN".to_owned() }
        }
        Command::Wrong(message) => {
            return Err(ClientError::error(ErrorKind::Client, sqlstate::INVALID_PARAMETER_VALUE, *message));
        }
    })
}

/// Whether a user may see statements of others, which takes the right to use the console.
fn may_see_statements(user: &str, view: &View) -> Result<(), ClientError> {
    let console = view.active.config.console.as_ref();
    if console.and_then(|console| console.right_of(user)).is_some() {
        return Ok(());
    }
    let message = format!("user \"{user}\" may not see the statements of others");
    Err(ClientError::error(ErrorKind::Policy, sqlstate::INSUFFICIENT_PRIVILEGE, message).with_hint(
        "Those in console.adminUsers and console.statsUsers may. SHOW MIRROR shows the counts to everybody.",
    ))
}

/// Where a statement would go now, and why.
fn explain(sql: &str, routing: &mut Routing, view: &View) -> Vec<Vec<String>> {
    let explanation = routing.explain(sql, view);
    let mut rows = vec![
        vec!["target".to_owned(), explanation.target.to_owned()],
        vec!["reason".to_owned(), explanation.why.as_str().to_owned()],
    ];
    let verdict = match explanation.verdict {
        Verdict::Read => "read",
        Verdict::ReadOnlyBlock => "read_only_transaction",
        Verdict::Primary(reason) => reason.as_str(),
    };
    rows.push(vec!["verdict".to_owned(), verdict.to_owned()]);
    if let Some((at, near)) = explanation.place {
        rows.push(vec!["position".to_owned(), at.to_string()]);
        rows.push(vec!["near".to_owned(), near]);
    }
    rows.push(vec!["catalog".to_owned(), explanation.catalog]);
    rows.push(vec!["found".to_owned(), explanation.found.to_owned()]);
    for (server, state) in explanation.candidates {
        rows.push(vec![format!("server {server}"), state]);
    }
    rows
}

/// Answers a batch to its Sync or Flush, where all that it parses, binds and executes are commands.
fn take_batch(client: &mut Client, view: &View, lazy: Lazy) -> bool {
    let has_any = client.routing.prepared.is_some();
    let first_is_command = client_header(&client.inbox, usize::MAX).ok().flatten().is_some_and(|header| {
        header.kind == PARSE
            && parsed_command(client.inbox.get(..header.total).unwrap_or_default(), lazy).is_some()
    });
    if !has_any && !first_is_command {
        return false;
    }
    let Some(length) = batch_of_commands(client, lazy) else { return false };
    let batch = client.inbox.get(..length).unwrap_or_default().to_vec();
    let mut prepared = client.routing.prepared.take().unwrap_or_default();
    let mut out = Vec::new();
    let mut is_skipping = false;
    for (header, message) in messages(&batch) {
        if header.kind == SYNC {
            prepared.portals.clear();
            put_ready(&mut out, client.routing.status());
        } else if !is_skipping
            && let Err(error) = prepared.answer(message, header, lazy, &mut client.routing, view, &mut out)
        {
            error.put(&mut out);
            is_skipping = true;
        }
    }
    client.is_skipping = is_skipping && batch.get(batch.len().wrapping_sub(HEADER_LEN)) == Some(&FLUSH);
    client.routing.prepared = (!prepared.statements.is_empty()).then_some(prepared);
    client.outbox.bytes().extend_from_slice(&out);
    client.inbox.advance(length);
    true
}

/// Answers a batch that only closes statements, as drivers send before their next request. There is no portal between
/// transactions, and servers keep their statements for whoever else has prepared the same.
fn take_closes(client: &mut Client) -> bool {
    if client.routing.is_put_off() || !client.state.is_tracked {
        return false;
    }
    let Some((names, closes, length)) = closes(&client.inbox) else { return false };
    for name in names {
        if name.is_empty() {
            client.statements.define_unnamed(None);
        } else {
            client.statements.define(&name, None);
        }
    }
    let out = client.outbox.bytes();
    (0..closes).for_each(|_| out.extend_from_slice(&CLOSE_COMPLETE_MESSAGE));
    put_ready(out, b'I');
    client.inbox.advance(length);
    true
}

/// The batch at the front, if it only closes: the statements' names, how often it closes, and its length.
fn closes(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize, usize)> {
    let (mut names, mut count, mut length) = (Vec::new(), 0, 0);
    for (header, message) in messages(bytes) {
        length += header.total;
        match (header.kind, target(message)) {
            (CLOSE, Some(Target::Statement(name))) => names.push(name.to_vec()),
            (CLOSE, Some(Target::Portal(_))) => {}
            (SYNC, _) => return Some((names, count, length)),
            _ => return None,
        }
        count += 1;
    }
    None
}

fn parsed_command(parse_message: &[u8], lazy: Lazy) -> Option<Command> {
    command_of(parse(parse_message)?.text()?, lazy)
}

/// The length of the batch at the front, if it is about commands only. A statement that is none takes its name back.
fn batch_of_commands(client: &mut Client, lazy: Lazy) -> Option<usize> {
    let mut at = 0;
    let mut defined: Vec<&[u8]> = Vec::new();
    let mut taken_back: Vec<Vec<u8>> = Vec::new();
    let mut is_ours = true;
    let prepared = client.routing.prepared.as_deref();
    let is_known = |name: &[u8], defined: &[&[u8]]| {
        defined.contains(&name) || prepared.is_some_and(|known| known.statements.contains_key(name))
    };
    loop {
        let rest = client.inbox.get(at..)?;
        let header = client_header(rest, usize::MAX).ok()??;
        let message = rest.get(..header.total)?;
        at += header.total;
        match header.kind {
            SYNC | FLUSH => break,
            PARSE => {
                let name = parse(message)?.name;
                if parsed_command(message, lazy).is_some() {
                    defined.push(name);
                } else {
                    taken_back.push(name.to_vec());
                    is_ours = false;
                }
            }
            BIND => is_ours &= is_known(bind_names(message)?.1, &defined),
            DESCRIBE | CLOSE => {
                if let Some(Target::Statement(name)) = target(message) {
                    is_ours &= is_known(name, &defined);
                }
            }
            EXECUTE => {}
            _ => is_ours = false,
        }
    }
    if !is_ours && let Some(prepared) = client.routing.prepared.as_mut() {
        taken_back.iter().for_each(|name| drop(prepared.statements.remove(name)));
    }
    is_ours.then_some(at)
}

impl NamedCommands {
    /// Answers one message.
    fn answer(
        &mut self,
        message: &[u8],
        header: Header,
        lazy: Lazy,
        routing: &mut Routing,
        view: &View,
        out: &mut Vec<u8>,
    ) -> Result<(), ClientError> {
        let unknown = || {
            ClientError::error(
                ErrorKind::Client,
                sqlstate::INVALID_SQL_STATEMENT_NAME,
                "no such prepared statement or portal",
            )
        };
        match header.kind {
            PARSE => {
                let parsed = parse(message).ok_or_else(unknown)?;
                let command = parsed_command(message, lazy).ok_or_else(unknown)?;
                if self.statements.len() >= PREPARED_MAX {
                    self.statements.clear();
                }
                self.statements.insert(parsed.name.to_vec(), command);
                out.extend_from_slice(&PARSE_COMPLETE_MESSAGE);
            }
            BIND => {
                let (portal, name) = bind_names(message).ok_or_else(unknown)?;
                let command = self.statements.get(name).ok_or_else(unknown)?.clone();
                self.portals.insert(portal.to_vec(), command);
                out.extend_from_slice(&BIND_COMPLETE_MESSAGE);
            }
            DESCRIBE => {
                let (command, is_statement) = match target(message).ok_or_else(unknown)? {
                    Target::Statement(name) => (self.statements.get(name), true),
                    Target::Portal(name) => (self.portals.get(name), false),
                };
                let columns = columns(command.ok_or_else(unknown)?);
                if is_statement {
                    put_no_parameters(out);
                }
                if columns.is_empty() {
                    out.extend_from_slice(&NO_DATA_MESSAGE);
                } else {
                    put_row_description(out, columns);
                }
            }
            EXECUTE => {
                let portal = split_cstr(message.get(HEADER_LEN..).unwrap_or_default()).map(|(name, _)| name);
                let command = portal.and_then(|name| self.portals.get(name)).ok_or_else(unknown)?;
                run(command, routing, view)?.put_rows(out);
            }
            CLOSE => {
                match target(message).ok_or_else(unknown)? {
                    Target::Statement(name) => drop(self.statements.remove(name)),
                    Target::Portal(name) => drop(self.portals.remove(name)),
                }
                out.extend_from_slice(&CLOSE_COMPLETE_MESSAGE);
            }
            _ => {}
        }
        Ok(())
    }
}
