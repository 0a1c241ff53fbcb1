//! Speaks with one client of the console, in the simple and in the extended protocol.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::cancel::CancelHandle;
use crate::console::answer::{answer, describe};
use crate::console::command::{Command, commands};
use crate::console::rows::Formats;
use crate::console::sources::Sources;
use crate::console::tables::process::LIKE;
use crate::error::{ClientError, ErrorKind, Severity};
use crate::metrics::pools::PoolMetrics;
use crate::roster::Seated;
use crate::socket::stream::Stream;
use crate::socket::{Inbox, Outbox};
use crate::wire::backend::{
    BIND_COMPLETE_MESSAGE, CLOSE_COMPLETE_MESSAGE, PARSE_COMPLETE_MESSAGE, put_backend_key, put_empty_query,
    put_no_parameters, put_parameter_status, put_ready,
};
use crate::wire::codec::split_cstr;
use crate::wire::frame::{HEADER_LEN, header};
use crate::wire::frontend::{
    BIND, CLOSE, DESCRIBE, EXECUTE, FLUSH, FUNCTION_CALL, PARSE, QUERY, SYNC, TERMINATE, Target,
    bind_formats, bind_names, parse, query_text, target,
};
use crate::wire::sqlstate;

/// Bytes that one read may bring.
const READ_BYTES: usize = 1024;

/// The longest message of a client, header included, and as much is read ahead.
const MESSAGE_MAX: usize = 64 * 1024;

/// Statements and portals of one client, each.
const NAMES_MAX: usize = 64;

/// A client that may use the console, before its greeting.
#[derive(Debug)]
pub struct Conversation {
    /// The client's socket.
    pub stream: Stream,
    /// What it has sent.
    pub inbox: Inbox,
    /// What it is to get.
    pub outbox: Outbox,
    /// What is shown and changed.
    pub sources: Arc<Sources>,
    /// Its place on the roster.
    pub seat: Seated,
    /// The key that it can cancel with.
    pub cancel: CancelHandle,
    /// What this thread counts of it.
    pub counts: Arc<PoolMetrics>,
    /// Cancelled when the process is being stopped.
    pub drain: CancellationToken,
}

/// What the client has prepared; `None` is an empty statement.
#[derive(Debug, Default)]
struct Prepared {
    statements: HashMap<Vec<u8>, Option<Command>>,
    portals: HashMap<Vec<u8>, (Option<Command>, Formats)>,
    /// After an error everything to the next Sync is ignored.
    is_skipping: bool,
}

/// Why it ends.
enum End {
    /// The client has left.
    Left,
    /// It is told why.
    Told(ClientError),
}

impl Conversation {
    /// Serves the client until it leaves, or has to: then gives its socket back with what it is to be told last.
    pub async fn serve(mut self) -> Option<(Stream, Outbox)> {
        let counts = Arc::clone(&self.counts);
        counts.clients.add_one();
        counts.logins.add_one();
        self.greet();
        let mut prepared = Prepared::default();
        let end = loop {
            if let Err(end) = self.exchange(&mut prepared).await {
                break end;
            }
        };
        counts.clients.take_one();
        match end {
            End::Left => None,
            End::Told(error) => {
                debug!(%error, "a conversation ends");
                error.put(self.outbox.bytes());
                Some((self.stream, self.outbox))
            }
        }
    }

    fn greet(&mut self) {
        let version = format!("{LIKE}/bouncer");
        let parameters = [
            ("server_version", version.as_str()),
            ("client_encoding", "UTF8"),
            ("server_encoding", "UTF8"),
            ("DateStyle", "ISO"),
            ("TimeZone", "GMT"),
            ("standard_conforming_strings", "on"),
            ("integer_datetimes", "on"),
            ("is_superuser", "on"),
        ];
        for (name, value) in parameters {
            put_parameter_status(self.outbox.bytes(), name.as_bytes(), value.as_bytes());
        }
        put_backend_key(self.outbox.bytes(), &self.cancel.key);
        put_ready(self.outbox.bytes(), b'I');
    }

    /// Sends what there is, and answers the next message.
    async fn exchange(&mut self, prepared: &mut Prepared) -> Result<(), End> {
        let message = self.message().await?;
        let kind = message.first().copied().unwrap_or_default();
        if prepared.is_skipping && !matches!(kind, SYNC | TERMINATE) {
            return Ok(());
        }
        match kind {
            TERMINATE => return Err(End::Left),
            QUERY => {
                self.query(query_text(&message)).await?;
                put_ready(self.outbox.bytes(), b'I');
            }
            SYNC => {
                prepared.is_skipping = false;
                prepared.portals.clear();
                put_ready(self.outbox.bytes(), b'I');
            }
            FUNCTION_CALL => {
                no_functions().put(self.outbox.bytes());
                put_ready(self.outbox.bytes(), b'I');
            }
            FLUSH => {}
            EXECUTE => {
                let portal = split_cstr(message.get(HEADER_LEN..).unwrap_or_default()).map(|(name, _)| name);
                let found = portal.and_then(|name| prepared.portals.get(name)).cloned();
                let done = match found {
                    None => Err(not_prepared()),
                    Some((None, _)) => {
                        put_empty_query(self.outbox.bytes());
                        Ok(())
                    }
                    Some((Some(command), formats)) => self.run(&command, &formats, false).await?,
                };
                self.note(prepared, done);
            }
            _ => {
                let done = prepared.take(kind, &message, self.outbox.bytes());
                self.note(prepared, done);
            }
        }
        Ok(())
    }

    fn note(&mut self, prepared: &mut Prepared, done: Result<(), ClientError>) {
        if let Err(error) = done {
            error.put(self.outbox.bytes());
            prepared.is_skipping = true;
        }
    }

    /// Runs a simple query: one command after the other, to the first that fails.
    async fn query(&mut self, sql: &[u8]) -> Result<(), End> {
        let commands = commands(&String::from_utf8_lossy(sql));
        if commands.is_empty() {
            put_empty_query(self.outbox.bytes());
        }
        for command in commands {
            let done = match command {
                Ok(command) => self.run(&command, &Formats::default(), true).await?,
                Err(text) => Err(no_command(&text)),
            };
            if let Err(error) = done {
                error.put(self.outbox.bytes());
                break;
            }
        }
        Ok(())
    }

    /// Runs one command, which ends early when the client leaves, cancels it or has to go.
    async fn run(
        &mut self,
        command: &Command,
        formats: &Formats,
        is_described: bool,
    ) -> Result<Result<(), ClientError>, End> {
        self.counts.queries.add_one();
        self.counts.transactions.add_one();
        let Self { stream, inbox, outbox, sources, seat, cancel, .. } = self;
        tokio::select! {
            biased;
            done = answer(command, sources, seat, formats, is_described, outbox.bytes()) => Ok(done),
            () = cancel.cancelled() => Ok(Err(ClientError::error(
                ErrorKind::Client,
                sqlstate::QUERY_CANCELED,
                "canceling statement due to user request",
            ))),
            () = seat.killed() => Err(End::Told(stopped())),
            () = gone(stream, inbox) => Err(End::Left),
        }
    }

    /// The next whole message. What is to be sent goes first.
    async fn message(&mut self) -> Result<Vec<u8>, End> {
        loop {
            let found = header(&self.inbox, MESSAGE_MAX).map_err(|fault| {
                End::Told(ClientError::fatal(
                    ErrorKind::Client,
                    sqlstate::PROTOCOL_VIOLATION,
                    fault.to_string(),
                ))
            })?;
            if let Some(message) = found.and_then(|header| self.inbox.get(..header.total)) {
                let message = message.to_vec();
                self.inbox.advance(message.len());
                return Ok(message);
            }
            let Self { stream, inbox, outbox, seat, drain, .. } = self;
            // Each step can be left off and gone on with: what has been sent and read is in the boxes.
            let exchange = async {
                poll_fn(|cx| outbox.poll_send(stream, cx)).await?;
                poll_fn(|cx| inbox.poll_read(stream, cx, READ_BYTES)).await
            };
            tokio::select! {
                biased;
                () = seat.killed() => return Err(End::Told(stopped())),
                () = drain.cancelled() => return Err(End::Told(stopped())),
                read = exchange => match read {
                    Ok(0) | Err(_) => return Err(End::Left),
                    Ok(_) => self.counts.received.add(self.inbox.take_received()),
                },
            }
        }
    }
}

impl Prepared {
    /// Takes one message of the extended protocol that runs nothing.
    fn take(&mut self, kind: u8, message: &[u8], out: &mut Vec<u8>) -> Result<(), ClientError> {
        match kind {
            PARSE => {
                let parsed = parse(message).ok_or_else(malformed)?;
                let text = String::from_utf8_lossy(parsed.text().ok_or_else(malformed)?).into_owned();
                let mut found = commands(&text);
                if found.len() > 1 {
                    return Err(ClientError::error(
                        ErrorKind::Client,
                        sqlstate::SYNTAX_ERROR,
                        "cannot insert multiple commands into a prepared statement",
                    ));
                }
                let command = found.pop().transpose().map_err(|text| no_command(&text))?;
                if self.statements.len() >= NAMES_MAX {
                    self.statements.clear();
                }
                self.statements.insert(parsed.name.to_vec(), command);
                out.extend_from_slice(&PARSE_COMPLETE_MESSAGE);
            }
            BIND => {
                let (portal, name) = bind_names(message).ok_or_else(malformed)?;
                let command = self.statements.get(name).ok_or_else(not_prepared)?.clone();
                let formats = Formats(bind_formats(message).ok_or_else(malformed)?);
                if self.portals.len() >= NAMES_MAX {
                    self.portals.clear();
                }
                self.portals.insert(portal.to_vec(), (command, formats));
                out.extend_from_slice(&BIND_COMPLETE_MESSAGE);
            }
            DESCRIBE => match target(message).ok_or_else(malformed)? {
                Target::Statement(name) => {
                    let command = self.statements.get(name).ok_or_else(not_prepared)?;
                    put_no_parameters(out);
                    describe(command.as_ref(), &Formats::default(), out);
                }
                Target::Portal(name) => {
                    let (command, formats) = self.portals.get(name).ok_or_else(not_prepared)?;
                    describe(command.as_ref(), formats, out);
                }
            },
            CLOSE => {
                match target(message).ok_or_else(malformed)? {
                    Target::Statement(name) => drop(self.statements.remove(name)),
                    Target::Portal(name) => drop(self.portals.remove(name)),
                }
                out.extend_from_slice(&CLOSE_COMPLETE_MESSAGE);
            }
            _ => return Err(malformed()),
        }
        Ok(())
    }
}

/// Ends when the client has gone. What it sends meanwhile is kept, up to a limit.
async fn gone(stream: &mut Stream, inbox: &mut Inbox) {
    while inbox.len() < MESSAGE_MAX {
        match poll_fn(|cx| inbox.poll_read(stream, cx, READ_BYTES)).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    std::future::pending().await
}

fn no_command(text: &str) -> ClientError {
    const SHOWN: usize = 100;
    let shown: String = text.chars().take(SHOWN).collect();
    let message = format!("the console has no command \"{shown}\"");
    ClientError::error(ErrorKind::Client, sqlstate::SYNTAX_ERROR, message)
        .with_hint("SHOW HELP lists the commands. Statements run at any other database.")
}

fn not_prepared() -> ClientError {
    let message = "no such prepared statement or portal";
    ClientError::error(ErrorKind::Client, sqlstate::INVALID_SQL_STATEMENT_NAME, message)
}

fn malformed() -> ClientError {
    let message = "the console cannot read this message";
    ClientError::error(ErrorKind::Client, sqlstate::PROTOCOL_VIOLATION, message)
}

fn no_functions() -> ClientError {
    let message = "the console has no functions";
    ClientError::error(ErrorKind::Client, sqlstate::FEATURE_NOT_SUPPORTED, message)
}

fn stopped() -> ClientError {
    let message = "terminating connection due to administrator command";
    ClientError {
        severity: Severity::Fatal,
        ..ClientError::error(ErrorKind::Policy, sqlstate::ADMIN_SHUTDOWN, message)
    }
}
