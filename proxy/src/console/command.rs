//! What a text asks of the console: pure.
//!
//! As in PgBouncer, words are matched whatever their case, and a database is named as it is: nothing is folded.

use crate::console::words::{Statement, statements};

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `SHOW x`
    Show(Show),
    /// `PAUSE [db]`
    Pause(Option<String>),
    /// `RESUME [db]`
    Resume(Option<String>),
    /// `DISABLE db`
    Disable(String),
    /// `ENABLE db`
    Enable(String),
    /// `RECONNECT [db]`
    Reconnect(Option<String>),
    /// `KILL [db]`
    Kill(Option<String>),
    /// `KILL_CLIENT id`
    KillClient(u64),
    /// `WAIT_CLOSE [db]`
    WaitClose(Option<String>),
    /// `RELOAD`
    Reload,
    /// `SUSPEND`
    Suspend,
    /// `SHUTDOWN [WAIT_FOR_…]`
    Shutdown(Shutdown),
    /// `SET` of what drivers set at any session.
    SetOfClient,
    /// `SET` of anything else.
    SetOther(String),
    /// `RESET x` and `DISCARD x`, after which drivers take a session for new: the tag.
    Reset(&'static str),
    /// `SELECT 1`, by which drivers see whether anybody is there.
    SelectOne,
    /// `BEGIN` and its kin.
    Transaction,
}

/// How the process is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// At once.
    AtOnce,
    /// When transactions have ended.
    WaitForServers,
    /// When the last client has left by itself.
    WaitForClients,
}

/// What can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is called what it shows")]
pub enum Show {
    ActiveSockets,
    Clients,
    Config,
    Databases,
    DnsHosts,
    DnsZones,
    Fds,
    Help,
    Hosts,
    Lists,
    Mem,
    Mirror,
    MirrorDiffs,
    MirrorReport,
    PeerPools,
    Peers,
    Pools,
    Servers,
    Sockets,
    State,
    Stats,
    StatsAverages,
    StatsTotals,
    Totals,
    Users,
    Version,
}

impl Show {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 26] = [
        ("active_sockets", Self::ActiveSockets),
        ("clients", Self::Clients),
        ("config", Self::Config),
        ("databases", Self::Databases),
        ("dns_hosts", Self::DnsHosts),
        ("dns_zones", Self::DnsZones),
        ("fds", Self::Fds),
        ("help", Self::Help),
        ("hosts", Self::Hosts),
        ("lists", Self::Lists),
        ("mem", Self::Mem),
        ("mirror", Self::Mirror),
        ("mirror diffs", Self::MirrorDiffs),
        ("mirror report", Self::MirrorReport),
        ("peer_pools", Self::PeerPools),
        ("peers", Self::Peers),
        ("pools", Self::Pools),
        ("servers", Self::Servers),
        ("sockets", Self::Sockets),
        ("state", Self::State),
        ("stats", Self::Stats),
        ("stats_averages", Self::StatsAverages),
        ("stats_totals", Self::StatsTotals),
        ("totals", Self::Totals),
        ("users", Self::Users),
        ("version", Self::Version),
    ];
}

/// Settings that drivers set at the begin of any session. They mean nothing here.
const CLIENT_SETTINGS: [&str; 19] = [
    "application_name",
    "bytea_output",
    "client_encoding",
    "client_min_messages",
    "datestyle",
    "default_transaction_read_only",
    "escape_string_warning",
    "extra_float_digits",
    "idle_in_transaction_session_timeout",
    "intervalstyle",
    "lock_timeout",
    "names",
    "search_path",
    "session",
    "standard_conforming_strings",
    "statement_timeout",
    "synchronize_seqscans",
    "time",
    "timezone",
];

/// The commands of a text, in order; where one is none, its text is in its place.
#[must_use]
pub fn commands(sql: &str) -> Vec<Result<Command, String>> {
    statements(sql).iter().map(|found| command(found).ok_or_else(|| found.text.to_owned())).collect()
}

fn command(statement: &Statement<'_>) -> Option<Command> {
    let words = statement.words.as_slice();
    let (first, rest) = words.split_first()?;
    let database = || match rest {
        [] => Some(None),
        [name] => Some(Some(name.value.clone())),
        _ => None,
    };
    let one = || match rest {
        [name] => Some(name.value.clone()),
        _ => None,
    };
    Some(match first.keyword().as_str() {
        "show" => Command::Show(show(statement)?),
        "pause" => Command::Pause(database()?),
        "resume" => Command::Resume(database()?),
        "disable" => Command::Disable(one()?),
        "enable" => Command::Enable(one()?),
        "reconnect" => Command::Reconnect(database()?),
        "kill" => Command::Kill(database()?),
        "kill_client" => Command::KillClient(one()?.parse().ok()?),
        "wait_close" => Command::WaitClose(database()?),
        "reload" if rest.is_empty() => Command::Reload,
        "suspend" if rest.is_empty() => Command::Suspend,
        "shutdown" => Command::Shutdown(match rest {
            [] => Shutdown::AtOnce,
            [how] if how.keyword() == "wait_for_servers" => Shutdown::WaitForServers,
            [how] if how.keyword() == "wait_for_clients" => Shutdown::WaitForClients,
            _ => return None,
        }),
        "set" => set(statement)?,
        "reset" if !rest.is_empty() => Command::Reset("RESET"),
        "discard" if one()?.eq_ignore_ascii_case("all") => Command::Reset("DISCARD ALL"),
        "select" if one()? == "1" => Command::SelectOne,
        "begin" | "start" | "commit" | "end" | "rollback" | "abort" | "savepoint" | "release" => {
            Command::Transaction
        }
        _ => return None,
    })
}

fn show(statement: &Statement<'_>) -> Option<Show> {
    let words: Vec<_> = statement.words.iter().skip(1).map(|word| word.keyword()).collect();
    let name = words.join(" ");
    Show::ALL.iter().find(|(known, _)| *known == name).map(|(_, show)| *show)
}

/// `SET [SESSION | LOCAL] name TO value`; what the value is matters to nobody.
fn set(statement: &Statement<'_>) -> Option<Command> {
    let names = statement.words.iter().skip(1).map(|word| word.keyword());
    let mut names = names.skip_while(|word| word == "session" || word == "local").peekable();
    // `SET SESSION CHARACTERISTICS AS TRANSACTION …`
    let name = names.next()?;
    names.peek()?;
    let is_known = name == "characteristics" || CLIENT_SETTINGS.contains(&name.as_str());
    Some(if is_known { Command::SetOfClient } else { Command::SetOther(name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_whatever_their_case() {
        let shop = || Some("shop".to_owned());
        for (sql, expected) in [
            ("SHOW STATS", Command::Show(Show::Stats)),
            ("show  Stats_Totals ;", Command::Show(Show::StatsTotals)),
            ("SHOW MIRROR DIFFS", Command::Show(Show::MirrorDiffs)),
            ("/* health */ SHOW VERSION -- here", Command::Show(Show::Version)),
            ("pause", Command::Pause(None)),
            ("PAUSE shop;", Command::Pause(shop())),
            ("PAUSE \"shop\"", Command::Pause(shop())),
            ("PAUSE my-Shop", Command::Pause(Some("my-Shop".to_owned()))),
            ("Resume 'shop'", Command::Resume(shop())),
            ("DISABLE shop", Command::Disable("shop".to_owned())),
            ("ENABLE \"my \"\"shop\"\"\"", Command::Enable("my \"shop\"".to_owned())),
            ("RECONNECT", Command::Reconnect(None)),
            ("KILL shop", Command::Kill(shop())),
            ("KILL_CLIENT 12", Command::KillClient(12)),
            ("WAIT_CLOSE shop", Command::WaitClose(shop())),
            ("RELOAD", Command::Reload),
            ("SHUTDOWN", Command::Shutdown(Shutdown::AtOnce)),
            ("shutdown wait_for_clients", Command::Shutdown(Shutdown::WaitForClients)),
            ("SET extra_float_digits = 2", Command::SetOfClient),
            ("set session application_name to 'x; y'", Command::SetOfClient),
            ("SET client_encoding='UTF8'", Command::SetOfClient),
            ("SET NAMES 'utf8'", Command::SetOfClient),
            (
                "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
                Command::SetOfClient,
            ),
            ("SET pool_mode = session", Command::SetOther("pool_mode".to_owned())),
            ("DISCARD ALL", Command::Reset("DISCARD ALL")),
            ("RESET ALL", Command::Reset("RESET")),
            ("select 1", Command::SelectOne),
            ("BEGIN", Command::Transaction),
        ] {
            assert_eq!(commands(sql), [Ok(expected)], "{sql}");
        }
    }

    #[test]
    fn what_is_no_command_is_given_back_as_it_is() {
        for sql in [
            "SHOW",
            "SHOW nothing",
            "PAUSE a b",
            "DISABLE",
            "KILL_CLIENT shop",
            "SHUTDOWN now",
            "SET x",
            "SELECT 2",
            "bogus",
        ] {
            assert_eq!(commands(sql), [Err(sql.to_owned())], "{sql}");
        }
    }

    #[test]
    fn several_commands_come_in_their_order_and_nothing_is_none() {
        let found = commands(" PAUSE shop; bogus ; RESUME shop;; ");
        assert_eq!(found.len(), 3);
        assert_eq!(found[1], Err("bogus".to_owned()));
        for empty in ["", " ;; ", "-- ping", "/* nothing */"] {
            assert!(commands(empty).is_empty(), "{empty}");
        }
    }

    #[test]
    fn every_show_has_one_name() {
        let mut names: Vec<_> = Show::ALL.iter().map(|(name, _)| *name).collect();
        names.dedup();
        assert_eq!(names.len(), Show::ALL.len());
        assert!(names.is_sorted());
    }
}
