//! Commands that the proxy answers itself: those of pgcat, with its spellings and some more, and questions about routes.

use crate::classify::pieces::{Item, Piece, pieces};
use crate::classify::token::Token;

/// The setting that carries a position from one session to another; the proxy answers for it.
pub const CAUSAL_TOKEN: &str = "pgrouting.causal_token";

/// A command to the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `SET SERVER ROLE TO 'x'`.
    SetRole(RoleValue),
    /// `SHOW SERVER ROLE`.
    ShowRole,
    /// `SET PRIMARY READS TO x`; `None` is what the pool says.
    SetPrimaryReads(Option<bool>),
    /// `SHOW PRIMARY READS`.
    ShowPrimaryReads,
    /// `SET SHARD TO 'x'` and `SET SHARDING KEY TO 'x'`: there is one shard, 0.
    SetShard(&'static str),
    /// `SHOW SHARD`.
    ShowShard,
    /// `SHOW pgrouting.causal_token`.
    ShowToken,
    /// `SET pgrouting.causal_token TO 'x'`.
    SetToken(Token),
    /// `SHOW MIRROR`.
    ShowMirror,
    /// `SHOW MIRROR DIFFS`.
    ShowMirrorDiffs,
    /// `SHOW MIRROR REPORT`.
    ShowMirrorReport,
    /// `SHOW ROUTE LAST`.
    ShowRoute,
    /// `EXPLAIN ROUTE statement`.
    ExplainRoute(String),
    /// A transaction begins, at no server yet: the tag.
    Begin(&'static str),
    /// One that has begun at no server ends: the tag.
    End(&'static str),
    /// One of these with a value that it does not take: what to say.
    Wrong(&'static str),
}

/// What `SET SERVER ROLE` sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleValue {
    /// The primary.
    Primary,
    /// A replica.
    Replica,
    /// As statements are judged; reads may go to the primary too.
    Any,
    /// As statements are judged.
    Auto,
    /// As if nothing had been set.
    Default,
}

impl RoleValue {
    /// The role of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "primary" => Self::Primary,
            "replica" => Self::Replica,
            "any" => Self::Any,
            "auto" => Self::Auto,
            "default" => Self::Default,
            _ => return None,
        })
    }
}

/// The command that a text is, if it is one.
#[must_use]
pub fn command(sql: &[u8]) -> Option<Command> {
    if !may_be_one(sql) {
        return None;
    }
    let text = str::from_utf8(sql).ok()?;
    let found = pieces(text, false).pieces;
    let words = without_semicolon(&found);
    let word = |index: usize| match words.get(index).map(|piece| &piece.item) {
        Some(Item::Word(word)) => &**word,
        _ => "",
    };
    match (word(0), word(1), word(2), words.len()) {
        ("show", "server", "role", 3) => Some(Command::ShowRole),
        ("show", "primary", "reads", 3) => Some(Command::ShowPrimaryReads),
        ("show", "shard", _, 2) => Some(Command::ShowShard),
        ("show", "route", _, 2) | ("show", "route", "last", 3) => Some(Command::ShowRoute),
        ("show", "mirror", _, 2) => Some(Command::ShowMirror),
        ("show", "mirror", "diffs", 3) => Some(Command::ShowMirrorDiffs),
        ("show", "mirror", "report", 3) => Some(Command::ShowMirrorReport),
        ("explain", "route", _, 3..) => {
            let from = words.get(2)?.from;
            Some(Command::ExplainRoute(text.get(from..)?.to_owned()))
        }
        ("set", "server", "role", _) => {
            let value = value(words.get(3..)?)?;
            Some(RoleValue::named(&value).map_or(
                Command::Wrong("SERVER ROLE is one of 'primary', 'replica', 'any', 'auto' and 'default'"),
                Command::SetRole,
            ))
        }
        ("set", "primary", "reads", _) => Some(match value(words.get(3..)?)?.to_ascii_lowercase().as_str() {
            "on" => Command::SetPrimaryReads(Some(true)),
            "off" => Command::SetPrimaryReads(Some(false)),
            "default" => Command::SetPrimaryReads(None),
            _ => Command::Wrong("PRIMARY READS is one of 'on', 'off' and 'default'"),
        }),
        ("set", "shard", _, _) => Some(shard(&value(words.get(2..)?)?, "SET SHARD")),
        ("show", "pgrouting", _, 4) if is_token(words.get(1..)?) => Some(Command::ShowToken),
        ("set", "pgrouting", _, _) if is_token(words.get(1..)?) => Some(set_token(&value(words.get(4..)?)?)),
        ("set", "session", "pgrouting", _) if is_token(words.get(2..)?) => {
            Some(set_token(&value(words.get(5..)?)?))
        }
        ("set", "sharding", "key", _) => {
            value(words.get(3..)?)?;
            Some(Command::SetShard("SET SHARDING KEY"))
        }
        _ => None,
    }
}

fn is_token(rest: &[Piece<'_>]) -> bool {
    let mut items = rest.iter().map(|piece| &piece.item);
    items.next() == Some(&Item::Word("pgrouting".into()))
        && items.next() == Some(&Item::Symbol(b'.'))
        && items.next() == Some(&Item::Word("causal_token".into()))
}

fn set_token(value: &str) -> Command {
    Token::parse(value).map_or(
        Command::Wrong("pgrouting.causal_token is what SHOW pgrouting.causal_token gives, as 1:16/B374D848"),
        Command::SetToken,
    )
}

fn shard(value: &str, tag: &'static str) -> Command {
    if value == "0" || value.eq_ignore_ascii_case("any") {
        Command::SetShard(tag)
    } else {
        Command::Wrong("this pool has one shard: SHARD is '0' or 'ANY'")
    }
}

/// `TO value` or `= value`.
fn value(rest: &[Piece<'_>]) -> Option<String> {
    let [to, value] = rest else { return None };
    if to.item != Item::Word("to".into()) && to.item != Item::Operator("=") {
        return None;
    }
    match &value.item {
        Item::Word(word) | Item::Name(word) => Some(word.to_string()),
        Item::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Item::Number(number) => Some((*number).to_owned()),
        _ => None,
    }
}

fn without_semicolon<'p, 'a>(pieces: &'p [Piece<'a>]) -> &'p [Piece<'a>] {
    match pieces {
        [rest @ .., last] if last.item == Item::Symbol(b';') => rest,
        all => all,
    }
}

/// A quick look whether a text, or what begins with one, may be a command: most are none.
#[must_use]
pub fn may_be_one(sql: &[u8]) -> bool {
    // Nearly always the first letters tell.
    let blanks = sql.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let text = sql.get(blanks..).unwrap_or_default();
    let Some(&[a, b, c]) = text.first_chunk::<3>() else { return false };
    let (length, seconds): (usize, &[&[u8]]) = match &[a | 0x20, b | 0x20, c | 0x20] {
        b"set" => (3, &[b"server", b"primary", b"shard", b"pgrouting", b"session"]),
        b"sho" => (4, &[b"server", b"primary", b"shard", b"route", b"pgrouting", b"mirror"]),
        b"exp" => (7, &[b"route"]),
        _ => return false,
    };
    let rest = text.get(length..).unwrap_or_default();
    let second = rest.trim_ascii_start();
    let starts =
        |word: &&[u8]| second.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    rest.len() > second.len() && seconds.iter().any(starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_statements() {
        for (sql, expected) in [
            ("SET SERVER ROLE TO 'primary'", Some(Command::SetRole(RoleValue::Primary))),
            ("SHOW MIRROR", Some(Command::ShowMirror)),
            ("show mirror  diffs;", Some(Command::ShowMirrorDiffs)),
            ("show mirror report", Some(Command::ShowMirrorReport)),
            ("show mirrors", None),
            ("set server role to 'Replica';", Some(Command::SetRole(RoleValue::Replica))),
            ("  SET  SERVER ROLE = auto", Some(Command::SetRole(RoleValue::Auto))),
            ("SET SERVER ROLE TO default", Some(Command::SetRole(RoleValue::Default))),
            ("SHOW SERVER ROLE", Some(Command::ShowRole)),
            ("SET PRIMARY READS TO on", Some(Command::SetPrimaryReads(Some(true)))),
            ("SET PRIMARY READS TO 'default'", Some(Command::SetPrimaryReads(None))),
            ("SHOW PRIMARY READS;", Some(Command::ShowPrimaryReads)),
            ("SET SHARD TO '0'", Some(Command::SetShard("SET SHARD"))),
            ("SET SHARD TO 0", Some(Command::SetShard("SET SHARD"))),
            ("SET SHARDING KEY TO '12'", Some(Command::SetShard("SET SHARDING KEY"))),
            ("SHOW SHARD", Some(Command::ShowShard)),
            ("SHOW ROUTE LAST", Some(Command::ShowRoute)),
            ("EXPLAIN ROUTE  SELECT 1;", Some(Command::ExplainRoute("SELECT 1;".to_owned()))),
            ("SHOW pgrouting.causal_token", Some(Command::ShowToken)),
            (
                "SET PgRouting.Causal_Token = '1:0/FF'",
                Some(Command::SetToken(Token { timeline: 1, lsn: 255 })),
            ),
            (
                "SET SESSION pgrouting.causal_token TO '1:0/1';",
                Some(Command::SetToken(Token { timeline: 1, lsn: 1 })),
            ),
            ("SET LOCAL pgrouting.causal_token TO '1:0/1'", None),
            ("SET pgrouting.role TO 'primary'", None),
            ("SET SESSION work_mem TO '1MB'", None),
            ("SET server.role TO 'x'", None),
            ("SET server_role TO 'x'", None),
            ("SHOW server_version", None),
            ("SET SERVER ROLE", None),
            ("SET SERVER ROLE TO 'primary'; SELECT 1", None),
            ("EXPLAIN SELECT 1", None),
            ("SELECT 'SET SERVER ROLE TO primary'", None),
        ] {
            assert_eq!(command(sql.as_bytes()), expected, "{sql}");
        }
        for sql in [
            "SET SERVER ROLE TO 'x'",
            "SET PRIMARY READS TO 'x'",
            "SET SHARD TO '1'",
            "SET pgrouting.causal_token TO 'x'",
        ] {
            assert!(matches!(command(sql.as_bytes()), Some(Command::Wrong(_))), "{sql}");
        }
    }
}
