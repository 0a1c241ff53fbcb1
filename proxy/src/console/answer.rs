//! What one command is answered.

use pgrouting_contract::console::ConsoleRight;

use crate::console::actions::{Done, act};
use crate::console::command::{Command, Show};
use crate::console::rows::{Column, Formats, Table, Type, Value, put_description, put_rows};
use crate::console::sources::Sources;
use crate::console::tables::{columns, table};
use crate::error::{ClientError, ErrorKind};
use crate::roster::Seat;
use crate::wire::backend::{NO_DATA_MESSAGE, put_command_complete, put_notice};
use crate::wire::sqlstate;

/// What `SELECT 1` gives.
const ONE: [Column; 1] = [("?column?", Type::Int4)];

/// What SHOW HELP says.
const HELP: &str = "
\tSHOW HELP|CONFIG|DATABASES|POOLS|CLIENTS|SERVERS|USERS|VERSION
\tSHOW PEERS|PEER_POOLS
\tSHOW SOCKETS|ACTIVE_SOCKETS|LISTS|MEM|STATE
\tSHOW DNS_HOSTS|DNS_ZONES
\tSHOW STATS|STATS_TOTALS|STATS_AVERAGES|TOTALS
\tSHOW HOSTS
\tSHOW MIRROR [DIFFS|REPORT]
\tPAUSE [<db>]
\tRESUME [<db>]
\tDISABLE <db>
\tENABLE <db>
\tRECONNECT [<db>]
\tKILL [<db>]
\tKILL_CLIENT <client id>
\tWAIT_CLOSE [<db>]
\tRELOAD
\tSHUTDOWN [WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS]";

/// Answers a command, with its columns first where they are to be described. Dropped, it has answered nothing.
///
/// # Errors
/// When it fails, or the user may not run it.
pub async fn answer(
    command: &Command,
    sources: &Sources,
    own: &Seat,
    formats: &Formats,
    is_described: bool,
    out: &mut Vec<u8>,
) -> Result<(), ClientError> {
    // Looked up each time: a document may have taken the right away.
    let right = sources.config().right_of(&own.identity.user);
    let tag = match command {
        _ if right.is_none() => {
            return Err(forbidden(&own.identity.user, "may not use the console any more"));
        }
        Command::Show(Show::Fds) => return Err(no_fds()),
        Command::Show(Show::Help) => {
            put_notice(out, "Console usage", HELP);
            "SHOW"
        }
        Command::Show(show) => {
            put_table(&table(*show, sources), formats, is_described, out);
            "SHOW"
        }
        Command::SelectOne => {
            let one = Table { columns: &ONE, rows: vec![vec![Value::Number(1)]] };
            put_table(&one, formats, is_described, out);
            "SELECT 1"
        }
        Command::SetOfClient => "SET",
        Command::Reset(tag) => tag,
        Command::SetOther(name) => return Err(no_setting(name)),
        Command::Transaction => return Err(no_transaction()),
        _ if right != Some(ConsoleRight::Admin) => {
            return Err(forbidden(&own.identity.user, "may only use SHOW at the console"));
        }
        action => {
            let Done { tag, notice } = act(action, sources, own).await?;
            if let Some(notice) = notice {
                put_notice(out, &notice, "The name is taken as it is written here, with its case.");
            }
            tag
        }
    };
    put_command_complete(out, tag);
    Ok(())
}

/// Appends what a command's rows will look like.
pub fn describe(command: Option<&Command>, formats: &Formats, out: &mut Vec<u8>) {
    let columns = match command {
        Some(Command::Show(show)) => columns(*show),
        Some(Command::SelectOne) => &ONE,
        _ => &[],
    };
    if columns.is_empty() {
        out.extend_from_slice(&NO_DATA_MESSAGE);
    } else {
        put_description(out, columns, formats);
    }
}

fn put_table(table: &Table, formats: &Formats, is_described: bool, out: &mut Vec<u8>) {
    if is_described {
        put_description(out, table.columns, formats);
    }
    put_rows(out, table, formats);
}

/// What a user is told who may not do something at the console.
#[must_use]
pub fn forbidden(user: &str, what: &str) -> ClientError {
    let message = format!("user \"{user}\" {what}");
    ClientError::error(ErrorKind::Policy, sqlstate::INSUFFICIENT_PRIVILEGE, message)
        .with_hint("console.adminUsers and console.statsUsers of the document say who may do what.")
}

fn no_fds() -> ClientError {
    let message = "SHOW FDS is not supported: this process hands its sockets to no other";
    ClientError::error(ErrorKind::Client, sqlstate::FEATURE_NOT_SUPPORTED, message)
        .with_hint("SHOW SOCKETS shows them.")
}

fn no_setting(name: &str) -> ClientError {
    let message = format!("\"{name}\" cannot be set at the console");
    ClientError::error(ErrorKind::Client, sqlstate::FEATURE_NOT_SUPPORTED, message)
        .with_hint("Settings are fields of the document; SHOW CONFIG lists them, RELOAD reads it again.")
}

fn no_transaction() -> ClientError {
    let message = "the console has no transactions";
    ClientError::error(ErrorKind::Client, sqlstate::FEATURE_NOT_SUPPORTED, message)
        .with_hint("Have the driver commit automatically.")
}
