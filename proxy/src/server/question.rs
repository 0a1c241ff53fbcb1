//! Asks a server what state a session has left on its connection.
//!
//! One statement, with one row for each thing that is there: settings with their values, kinds of state, and the
//! bodies of functions. All names are qualified, so that a search path of the client's changes nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::classify::kinds::Kinds;
use crate::server::settings::{ROLE, SESSION_AUTHORIZATION, quoted_text};

/// Names of temporary objects that a session may have to be asked for them; one more is told of, as a sign.
pub const TEMPORARY_MAX: usize = 1000;

/// The longest body of a function that is read, in characters.
const BODY_MAX: usize = 100_000;

/// A question and what has been answered so far.
#[derive(Debug)]
pub struct Question {
    /// What was asked about.
    pub kinds: Kinds,
    /// The functions whose bodies were asked for.
    pub functions: Vec<Box<str>>,
    /// The settings that the session has set, where they were asked for.
    pub settings: BTreeMap<String, String>,
    /// What is there of what was asked about.
    pub present: Kinds,
    /// The names of temporary relations and types; `None` where one of them has another character than ASCII prints, or a
    /// temporary table is the child of one that is not, which then shows its rows.
    pub temporary: Option<Vec<Box<str>>>,
    /// Names and bodies.
    pub bodies: Vec<(String, String)>,
    /// Whether everything could be read; a value may be in another encoding.
    pub is_readable: bool,
}

/// What is asked for each kind but settings: a letter, and when it is there.
const KINDS: [(Kinds, &str, &str); 5] = [
    (
        Kinds::TEMP,
        "t",
        "pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.<>) 0::pg_catalog.oid AND EXISTS (SELECT FROM \
         pg_catalog.pg_depend WHERE refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass \
         AND refobjid OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema())",
    ),
    (Kinds::CURSOR, "c", "EXISTS (SELECT FROM pg_catalog.pg_cursors WHERE is_holdable)"),
    (Kinds::LISTEN, "l", "EXISTS (SELECT FROM pg_catalog.pg_listening_channels())"),
    (Kinds::PREPARE, "p", "EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE from_sql)"),
    (
        Kinds::LOCK,
        "a",
        "EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND pid \
         OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid())",
    ),
];

/// The names of temporary relations and types, as far as they can be compared with those in a text; see
/// [`Question::temporary`].
const TEMPORARY_NAMES: &str = " UNION ALL \
    (SELECT CASE WHEN named.n OPERATOR(pg_catalog.~) '[^ -~]' THEN 'h' ELSE 'n' END, \
     CASE WHEN named.n OPERATOR(pg_catalog.~) '[^ -~]' THEN '' ELSE named.n END, '' FROM (\
     SELECT c.relname::pg_catalog.text FROM pg_catalog.pg_class c \
     WHERE c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema() AND c.relkind OPERATOR(pg_catalog.<>) 'i' \
     UNION SELECT t.typname::pg_catalog.text FROM pg_catalog.pg_type t \
     WHERE t.typnamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema()) named(n) LIMIT {limit}) \
    UNION ALL SELECT 'h','','' WHERE EXISTS (SELECT FROM pg_catalog.pg_class c \
     JOIN pg_catalog.pg_inherits i ON i.inhrelid OPERATOR(pg_catalog.=) c.oid \
     JOIN pg_catalog.pg_class p ON p.oid OPERATOR(pg_catalog.=) i.inhparent \
     WHERE c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema() \
     AND p.relnamespace OPERATOR(pg_catalog.<>) c.relnamespace)";

impl Question {
    /// A question about these kinds and functions.
    #[must_use]
    pub const fn new(kinds: Kinds, functions: Vec<Box<str>>) -> Self {
        Self {
            kinds,
            functions,
            settings: BTreeMap::new(),
            present: Kinds::NONE,
            temporary: Some(Vec::new()),
            bodies: Vec::new(),
            is_readable: true,
        }
    }

    /// The statement for a server of this major version. `dotted` are the settings with a dot in their names, which are
    /// listed nowhere.
    #[must_use]
    pub fn sql<'a>(&self, dotted: impl Iterator<Item = &'a str>, major_version: u32) -> String {
        let mut sql = String::from(
            "SELECT NULL::pg_catalog.text,NULL::pg_catalog.text,NULL::pg_catalog.text WHERE false",
        );
        if self.kinds.has(Kinds::SETTING) {
            sql.push_str(
                " UNION ALL SELECT 's',name,pg_catalog.current_setting(name) FROM pg_catalog.pg_settings WHERE \
                 source OPERATOR(pg_catalog.=) 'session' AND name NOT IN \
                 ('exit_on_error','transaction_isolation','transaction_read_only','transaction_deferrable')",
            );
            for name in [ROLE, SESSION_AUTHORIZATION].into_iter().chain(dotted) {
                let name = quoted_text(name);
                let _ = write!(sql, " UNION ALL SELECT 's',{name},pg_catalog.current_setting({name},true)");
            }
        }
        for (_, letter, condition) in KINDS.iter().filter(|(kind, ..)| self.kinds.has(*kind)) {
            let _ = write!(sql, " UNION ALL SELECT '{letter}','','' WHERE {condition}");
        }
        if self.kinds.has(Kinds::TEMP_NAMES) {
            sql.push_str(&TEMPORARY_NAMES.replace("{limit}", &(TEMPORARY_MAX + 1).to_string()));
        }
        if !self.functions.is_empty() {
            // Functions with a body in standard SQL came with version 14.
            let body = if major_version >= 14 {
                "COALESCE(pg_catalog.pg_get_function_sqlbody(p.oid),p.prosrc)"
            } else {
                "p.prosrc"
            };
            let names: Vec<_> = self.functions.iter().map(|name| quoted_text(name)).collect();
            let _ = write!(
                sql,
                " UNION ALL SELECT 'f',p.proname,CASE WHEN l.lanname IN ('sql','plpgsql') THEN pg_catalog.left(\
                 {body},{BODY_MAX}) ELSE 'EXECUTE' END FROM \
                 pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid OPERATOR(pg_catalog.=) p.prolang WHERE \
                 l.lanname NOT IN ('internal','c') AND p.proname IN ({})",
                names.join(",")
            );
        }
        sql
    }

    /// Takes a row.
    pub fn take_row(&mut self, row: Vec<Option<String>>) {
        let mut fields = row.into_iter();
        let (Some(Some(letter)), Some(Some(name)), value) =
            (fields.next(), fields.next(), fields.next().flatten())
        else {
            return;
        };
        let value = value.unwrap_or_default();
        if name.contains(char::REPLACEMENT_CHARACTER) || value.contains(char::REPLACEMENT_CHARACTER) {
            self.is_readable = false;
        }
        match letter.as_str() {
            "s" if name == ROLE && value == "none" => {}
            // A setting with a dot that is not set, or was reset, is empty.
            "s" if name.contains('.') && value.is_empty() => {}
            "s" => {
                self.settings.insert(name.to_ascii_lowercase(), value);
            }
            "f" => self.bodies.push((name, value)),
            "n" => self.temporary.iter_mut().for_each(|names| names.push(name.as_str().into())),
            "h" => self.temporary = None,
            letter => {
                if let Some((kind, ..)) = KINDS.iter().find(|(_, known, _)| *known == letter) {
                    self.present = self.present.and(*kind);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_their_letter() {
        let mut question = Question::new(Kinds::ASKABLE, vec!["f".into()]);
        for fields in [
            ["s", "DateStyle", "German, DMY"],
            ["s", "role", "none"],
            ["s", "my.gone", ""],
            ["s", "search_path", ""],
            ["t", "", ""],
            ["n", "orders", ""],
            ["f", "f", "SELECT 1"],
        ] {
            question.take_row(fields.map(|field| Some(field.to_owned())).to_vec());
        }
        let settings: Vec<_> = question.settings.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(settings, [("datestyle", "German, DMY"), ("search_path", "")]);
        assert_eq!(question.present, Kinds::TEMP);
        assert_eq!(question.temporary, Some(vec!["orders".into()]));
        question.take_row(["h", "", ""].map(|field| Some(field.to_owned())).to_vec());
        assert_eq!(question.temporary, None);
        assert_eq!(question.bodies, [("f".to_owned(), "SELECT 1".to_owned())]);
        assert!(question.is_readable);
    }

    #[test]
    fn only_what_is_of_interest_is_asked() {
        let sql = Question::new(Kinds::LOCK, Vec::new()).sql(std::iter::empty(), 15);
        let functions = Question::new(Kinds::NONE, vec!["f".into()]);
        assert!(functions.sql(std::iter::empty(), 14).contains("sqlbody"));
        assert!(!functions.sql(std::iter::empty(), 13).contains("sqlbody"));
        assert!(sql.contains("pg_locks") && !sql.contains("pg_settings") && !sql.contains("pg_proc"));
        let all = Question::new(Kinds::ASKABLE, Vec::new()).sql(std::iter::empty(), 15);
        assert!(!all.contains("pg_inherits"), "names are asked for when there are some");
    }
}
