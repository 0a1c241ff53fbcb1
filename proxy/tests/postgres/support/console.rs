//! A proxy whose console can be used, and what its tables say.

use std::collections::BTreeMap;

use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::console::ConsoleConfig;

use super::client::{Client, Login};
use super::poll;
use super::proxy::{Proxy, document, user};
use super::server::password_of;

/// The database of the console in all tests.
pub const CONSOLE: &str = "pgbouncer";

/// The usual document, where `app_b` may do everything at the console and `other` may look.
pub fn document_with_console() -> ProxyConfig {
    let mut config = document();
    if let pgrouting_contract::config::AuthConfig::UserList { users } = &mut config.auth {
        users.push(user("other", &password_of("other")));
    }
    config.console = Some(ConsoleConfig {
        admin_users: vec!["app_b".to_owned()],
        stats_users: vec!["other".to_owned()],
        ..ConsoleConfig::default()
    });
    config
}

/// A client of the console who may do everything.
pub fn console(proxy: &Proxy) -> Client {
    console_login(proxy).connect()
}

/// Its login.
pub fn console_login(proxy: &Proxy) -> Login {
    Login::new(proxy.port, "app_b", CONSOLE)
}

/// A row by the names of its columns; NULL is an empty text.
pub type Row = BTreeMap<String, String>;

/// The rows of a table.
pub fn show(console: &mut Client, what: &str) -> Vec<Row> {
    let answer = console.run(&format!("SHOW {what}"));
    let names = names(&answer);
    let row = |values: Vec<Option<String>>| {
        names.iter().cloned().zip(values.into_iter().map(Option::unwrap_or_default)).collect()
    };
    answer.rows().into_iter().map(row).collect()
}

/// The rows where a column has a value.
pub fn rows(console: &mut Client, what: &str, column: &str, value: &str) -> Vec<Row> {
    let mut rows = show(console, what);
    rows.retain(|row| row[column] == value);
    rows
}

/// Waits until the one row where a column has a value says so in another column.
pub fn await_shown(console: &mut Client, what: &str, key: (&str, &str), column: &str, expected: &str) {
    poll(&format!("{column} of {} to be {expected} in SHOW {what}", key.1), || {
        let found = rows(console, what, key.0, key.1);
        (found.len() == 1 && found[0][column] == expected).then_some(())
    });
}

/// Names and type OIDs of the columns of an answer.
pub fn columns(answer: &super::message::Answer) -> Vec<(String, i32)> {
    let Some(description) = answer.of('T').next() else { return Vec::new() };
    let mut rest = &description.body()[2..];
    let mut columns = Vec::new();
    while let Some(end) = rest.iter().position(|byte| *byte == 0) {
        let name = String::from_utf8_lossy(&rest[..end]).into_owned();
        let oid = i32::from_be_bytes(rest[end + 7..end + 11].try_into().unwrap());
        columns.push((name, oid));
        rest = &rest[end + 19..];
    }
    columns
}

fn names(answer: &super::message::Answer) -> Vec<String> {
    columns(answer).into_iter().map(|(name, _)| name).collect()
}
