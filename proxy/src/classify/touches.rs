//! What a statement may do to the session that runs it, from its text alone: which settings, tables, locks and the
//! like may outlive its transaction.
//!
//! The answer errs on one side: what is named here may turn out to have changed nothing, which the server is then asked
//! about; what is not named has changed nothing, but for what functions do, whose names are given too.

use crate::classify::definitions::defines_for_catalog;
use crate::classify::kinds::Kinds;
use crate::classify::lexer::{Lexer, Token, is_syntax, lower, unescaped};
use crate::classify::plain::is_plain;

/// What a text may do to its session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Touches {
    /// What may come to be.
    pub begins: Kinds,
    /// What may come to an end.
    pub ends: Kinds,
    /// The names, in lower case, of settings with a dot in it, which the server lists nowhere.
    pub settings: Vec<Box<str>>,
    /// The names of functions that are called, or of what looks like one; in lower case where they had no quotes.
    pub calls: Vec<Box<str>>,
}

impl Touches {
    /// Whether nothing of it is of interest.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.begins.is_empty() && self.ends.is_empty() && self.settings.is_empty() && self.calls.is_empty()
    }

    fn begins(&mut self, kinds: Kinds) {
        self.begins = self.begins.and(kinds);
    }

    fn add_call(&mut self, name: String) {
        if !self.calls.iter().any(|known| **known == *name) {
            self.calls.push(name.into());
        }
    }
}

/// What a statement, or several of them, may do to the session.
#[must_use]
pub fn touches(sql: &[u8]) -> Touches {
    if is_plain(sql) { Touches::default() } else { scan(sql, Where::Statement) }
}

/// What the body of a function may do to the session that calls it.
#[must_use]
pub fn touches_of_body(body: &[u8]) -> Touches {
    scan(body, Where::Body)
}

/// Where a text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    /// Sent by a client.
    Statement,
    /// In the body of a function or of DO, where words like THEN begin statements too and text may be executed.
    Body,
}

fn scan(sql: &[u8], place: Where) -> Touches {
    let mut walk = Walk::new(sql, place, false);
    walk.run();
    let mut found = walk.found;
    if walk.lexer.met_backslash {
        // Where strings end depends on standard_conforming_strings: both readings count.
        let mut other = Walk::new(sql, place, true);
        other.run();
        found.begins(other.found.begins);
        found.ends = found.ends.and(other.found.ends);
        found.settings.extend(other.found.settings);
        other.found.calls.into_iter().for_each(|call| found.add_call(call.into()));
    }
    found
}

/// A walk over a text's tokens.
struct Walk<'a> {
    lexer: Lexer<'a>,
    place: Where,
    found: Touches,
    /// The next token begins a statement.
    is_start: bool,
    /// The token before.
    before: Option<Token<'a>>,
    /// The one before that.
    before_that: Option<Token<'a>>,
    /// The statement is a DO: its text is run.
    is_do: bool,
}

impl<'a> Walk<'a> {
    const fn new(sql: &'a [u8], place: Where, is_backslash_plain: bool) -> Self {
        Self {
            lexer: Lexer::new(sql, is_backslash_plain),
            place,
            found: Touches {
                begins: Kinds::NONE,
                ends: Kinds::NONE,
                settings: Vec::new(),
                calls: Vec::new(),
            },
            is_start: true,
            before: None,
            before_that: None,
            is_do: false,
        }
    }

    fn run(&mut self) {
        while let Some(token) = self.lexer.next() {
            let was_start = std::mem::replace(&mut self.is_start, false);
            match token {
                Token::Word(word) if was_start => self.statement(word),
                Token::Word(word) => self.inside(word),
                // Whatever it names.
                Token::UnicodeQuoted(_) => self.found.begins(Kinds::ASKABLE),
                Token::Quoted(name) if name == b"pg_temp" => self.found.begins(Kinds::TEMP),
                Token::Text(text) => self.text(&unescaped(text)),
                Token::DollarText(text) => self.text(text),
                Token::Symbol(b';') => {
                    self.is_start = true;
                    self.is_do = false;
                }
                Token::Symbol(b'(') => self.call(),
                Token::Quoted(_) | Token::Parameter | Token::Number | Token::Symbol(_) => {}
            }
            self.before_that = self.before.replace(token);
        }
    }

    /// The first word of a statement.
    fn statement(&mut self, word: &[u8]) {
        let is = |keyword: &str| word.eq_ignore_ascii_case(keyword.as_bytes());
        match word.len() {
            2 if is("DO") => {
                self.is_do = true;
                self.found.begins(Kinds::ASKABLE);
                self.found.ends = self.found.ends.and(Kinds::ASKABLE);
            }
            3 if is("SET") => self.set(),
            4 if is("LOAD") => self.found.begins(Kinds::LOAD),
            4 if is("DROP") => self.drop_or_alter(Kinds::TEMP),
            5 if is("RESET") => self.reset(),
            5 if is("CLOSE") => self.found.ends = self.found.ends.and(Kinds::CURSOR),
            5 if is("ALTER") => self.drop_or_alter(Kinds::NONE),
            6 if is("LISTEN") => self.found.begins(Kinds::LISTEN),
            6 if is("CREATE") => self.drop_or_alter(Kinds::NONE),
            7 if is("PREPARE") && !self.next_is("TRANSACTION") => self.found.begins(Kinds::PREPARE),
            // In a statement it runs what was prepared; in a body it runs a text that is put together there.
            7 if is("EXECUTE") => self.found.begins(Kinds::ASKABLE),
            7 if is("DISCARD") => self.found.ends = self.found.ends.and(Kinds::TEMP),
            8 if is("UNLISTEN") => self.found.ends = self.found.ends.and(Kinds::LISTEN),
            // What was prepared may have done anything meanwhile.
            10 if is("DEALLOCATE") => self.found.ends = self.found.ends.and(Kinds::ASKABLE),
            _ if self.place == Where::Body => self.begin_in_body(word),
            _ => {}
        }
    }

    fn drop_or_alter(&mut self, ends: Kinds) {
        self.found.ends = self.found.ends.and(ends);
        if ends.is_empty() {
            self.found.begins(Kinds::CREATE);
            if defines_for_catalog(self.lexer.clone()) {
                self.found.begins(Kinds::CATALOG);
            }
        }
        if self.next_is("DATABASE") {
            self.found.begins(Kinds::DATABASE);
        }
        let mut ahead = self.lexer.clone();
        let about_functions = ["FUNCTION", "PROCEDURE", "ROUTINE", "EXTENSION", "AGGREGATE", "SCHEMA"];
        let is_about = ahead.by_ref().take(3).any(|token| {
            matches!(token, Token::Word(word)
                if about_functions.iter().any(|about| word.eq_ignore_ascii_case(about.as_bytes())))
        });
        if is_about {
            self.found.begins(Kinds::FUNCTIONS);
        }
    }

    /// A word that does not begin a statement.
    fn inside(&mut self, word: &[u8]) {
        let is = |keyword: &str| word.eq_ignore_ascii_case(keyword.as_bytes());
        match word.len() {
            4 if is("TEMP") && self.follows_creation() => self.found.begins(Kinds::TEMP),
            9 if is("TEMPORARY") && self.follows_creation() => self.found.begins(Kinds::TEMP),
            7 if is("PG_TEMP") => self.found.begins(Kinds::TEMP),
            4 if is("DROP") && self.follows(&["COMMIT"]) => self.found.begins(Kinds::BRIEF),
            4 if is("HOLD") && self.follows(&["WITH"]) => self.found.begins(Kinds::CURSOR),
            _ if self.place == Where::Body => self.begin_in_body(word),
            _ => {}
        }
    }

    /// In a body these words are followed by a statement.
    fn begin_in_body(&mut self, word: &[u8]) {
        const BEFORE_STATEMENTS: [&str; 6] = ["BEGIN", "THEN", "ELSE", "LOOP", "ATOMIC", "AS"];
        self.is_start = BEFORE_STATEMENTS.iter().any(|before| word.eq_ignore_ascii_case(before.as_bytes()));
    }

    fn follows(&self, words: &[&str]) -> bool {
        matches!(self.before, Some(Token::Word(before))
            if words.iter().any(|word| before.eq_ignore_ascii_case(word.as_bytes())))
    }

    fn follows_creation(&self) -> bool {
        self.follows(&["CREATE", "REPLACE", "LOCAL", "GLOBAL", "INTO"])
    }

    fn next_is(&self, keyword: &str) -> bool {
        matches!(self.lexer.clone().next(), Some(Token::Word(word))
            if word.eq_ignore_ascii_case(keyword.as_bytes()))
    }

    fn set(&mut self) {
        if self.next_is("LOCAL") || self.next_is("TRANSACTION") || self.next_is("CONSTRAINTS") {
            self.found.begins(Kinds::LOCAL);
            return;
        }
        self.found.begins(Kinds::SETTING);
        let mut ahead = self.lexer.clone();
        if self.next_is("SESSION") {
            ahead.next();
        }
        self.named_setting(ahead);
    }

    fn reset(&mut self) {
        self.found.begins(Kinds::SETTING);
        self.named_setting(self.lexer.clone());
    }

    /// Notes a name with dots in it.
    fn named_setting(&mut self, tokens: Lexer<'_>) {
        let mut name = String::new();
        for token in tokens {
            match token {
                Token::Word(part) if name.is_empty() || name.ends_with('.') => name.push_str(&lower(part)),
                Token::Quoted(part) if name.is_empty() || name.ends_with('.') => {
                    name.push_str(&lower(part).replace("\"\"", "\""));
                }
                Token::Symbol(b'.') => name.push('.'),
                _ => break,
            }
        }
        self.note_setting(name);
    }

    fn note_setting(&mut self, name: String) {
        if name.contains('.') && !self.found.settings.iter().any(|known| **known == *name) {
            self.found.settings.push(name.into());
        }
    }

    /// A string constant, unescaped.
    fn text(&mut self, text: &[u8]) {
        if self.is_do {
            let body = touches_of_body(text);
            self.found.begins(body.begins);
            body.settings.into_iter().for_each(|name| self.note_setting(name.into()));
            body.calls.into_iter().for_each(|call| self.found.add_call(call.into()));
        } else if self.place == Where::Body && may_set(text) {
            // It may be run by EXECUTE, with a name that is put together.
            self.found.begins(Kinds::OPAQUE);
        }
    }

    /// An opening parenthesis.
    fn call(&mut self) {
        let name = match self.before {
            Some(Token::Word(word)) if !is_syntax(word) && !self.names_a_relation() => lower(word),
            Some(Token::Quoted(name)) if !self.names_a_relation() => {
                String::from_utf8_lossy(name).replace("\"\"", "\"")
            }
            _ => return,
        };
        match name.as_str() {
            "set_config" => self.set_config(),
            "pg_advisory_lock"
            | "pg_advisory_lock_shared"
            | "pg_try_advisory_lock"
            | "pg_try_advisory_lock_shared" => self.found.begins(Kinds::LOCK),
            "pg_advisory_unlock" | "pg_advisory_unlock_shared" | "pg_advisory_unlock_all" => {
                self.found.ends = self.found.ends.and(Kinds::LOCK);
            }
            "set_limit" => self.found.begins(Kinds::SETTING),
            // The seed, connections of dblink, and temporary replication slots stay with the server process.
            "setseed"
            | "dblink_connect"
            | "dblink_connect_u"
            | "dblink_open"
            | "pg_create_logical_replication_slot"
            | "pg_create_physical_replication_slot" => self.found.begins(Kinds::OPAQUE),
            "currval" | "lastval" | "pg_backend_pid" => self.found.begins(Kinds::READS_SESSION),
            _ => self.found.add_call(name),
        }
    }

    /// The word before is a table, as in `INSERT INTO t (a)`.
    fn names_a_relation(&self) -> bool {
        matches!(self.before_that, Some(Token::Word(word))
            if [&b"INTO"[..], b"TABLE", b"ON", b"REFERENCES", b"EXISTS"]
                .iter()
                .any(|before| word.eq_ignore_ascii_case(before)))
    }

    /// `set_config(`: which setting, and for how long.
    fn set_config(&mut self) {
        let mut depth = 1_usize;
        let mut argument = 0_usize;
        let mut name = None;
        let mut is_name_computed = false;
        let mut is_local = false;
        let mut length = 0_usize;
        for token in self.lexer.clone() {
            match token {
                Token::Symbol(b'(') => depth += 1,
                Token::Symbol(b')') if depth == 1 => break,
                Token::Symbol(b')') => depth -= 1,
                Token::Symbol(b',') if depth == 1 => {
                    argument += 1;
                    length = 0;
                    continue;
                }
                _ => {}
            }
            length += 1;
            match (argument, token) {
                (0, Token::Text(text) | Token::DollarText(text)) if length == 1 => name = Some(lower(text)),
                // A cast may follow.
                (0, Token::Symbol(b':')) => {}
                (0, Token::Word(word)) if lower(word) == "text" => {}
                (0, _) => is_name_computed = true,
                (2, Token::Word(word)) if length == 1 => is_local = lower(word) == "true",
                (2, _) if length > 1 => is_local = false,
                _ => {}
            }
        }
        if is_local {
            self.found.begins(Kinds::LOCAL);
            return;
        }
        self.found.begins(Kinds::SETTING);
        match name {
            Some(name) if !is_name_computed => self.note_setting(name),
            _ => self.found.begins(Kinds::OPAQUE),
        }
    }
}

/// Whether a text that a body may run could change a setting: it begins with SET, or calls `set_config`.
fn may_set(text: &[u8]) -> bool {
    let mut tokens = Lexer::new(text, false);
    let begins = matches!(tokens.next(), Some(Token::Word(word))
        if word.eq_ignore_ascii_case(b"SET") || word.eq_ignore_ascii_case(b"RESET"));
    begins
        || tokens.any(|token| matches!(token, Token::Word(word) if word.eq_ignore_ascii_case(b"set_config")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_statements_touch_nothing() {
        for sql in [
            "SELECT abalance FROM pgbench_accounts WHERE aid = 1;",
            "UPDATE t SET a = 1, temp = 2 WHERE b IN (1, 2)",
            "INSERT INTO t (a, b) VALUES ('SET x', $1)",
            "SELECT temp, listen FROM weather -- ; SET x = 1",
            "BEGIN; COMMIT; PREPARE TRANSACTION 'x'",
            "ALTER ROLE x SET a = 1",
            "DECLARE c CURSOR FOR SELECT 1",
            "DECLARE c CURSOR WITHOUT HOLD FOR SELECT 1",
        ] {
            let found = touches(sql.as_bytes());
            assert_eq!(
                (found.begins.without(Kinds::CREATE), &found.calls[..]),
                (Kinds::NONE, &[][..]),
                "{sql}"
            );
        }
    }

    #[test]
    fn state_that_outlives_the_transaction_is_named() {
        for (sql, kinds) in [
            ("SET x = 1", Kinds::SETTING),
            ("/* a */ set Session Authorization bob", Kinds::SETTING),
            ("SELECT 1; RESET ALL", Kinds::SETTING),
            ("SET LOCAL a.b = 1", Kinds::LOCAL),
            ("SET TRANSACTION READ ONLY", Kinds::LOCAL),
            ("SELECT set_config('a.b', $1, true)", Kinds::LOCAL),
            ("SELECT pg_catalog.set_config('a', $1, false)", Kinds::SETTING),
            ("SELECT set_config($1, $2, false)", Kinds::SETTING.and(Kinds::OPAQUE)),
            ("SELECT set_config('a' || b, 'x', false)", Kinds::SETTING.and(Kinds::OPAQUE)),
            ("SELECT set_config('a', f(true), x = true)", Kinds::SETTING),
            ("CREATE TEMP TABLE t (a int)", Kinds::TEMP),
            ("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1", Kinds::TEMP),
            ("SELECT 1 INTO TEMP t", Kinds::TEMP),
            ("CREATE TABLE pg_temp.t ()", Kinds::TEMP),
            ("CREATE FUNCTION \"pg_temp\".f() RETURNS int", Kinds::TEMP),
            ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", Kinds::CURSOR),
            ("LISTEN x", Kinds::LISTEN),
            ("PREPARE p AS SELECT 1", Kinds::PREPARE),
            ("LOAD 'x'", Kinds::LOAD),
            ("SELECT pg_try_advisory_lock(1), pg_advisory_xact_lock(2)", Kinds::LOCK),
            ("SELECT setseed(0.5)", Kinds::OPAQUE),
            ("SELECT lastval()", Kinds::READS_SESSION),
            ("drop database if exists x", Kinds::DATABASE),
            ("CREATE DATABASE x TEMPLATE y", Kinds::DATABASE),
            ("DO $$ BEGIN PERFORM 1; END $$", Kinds::ASKABLE),
            ("DO 'BEGIN EXECUTE ''SET a.'' || x; END'", Kinds::ASKABLE.and(Kinds::OPAQUE)),
            ("EXECUTE p", Kinds::ASKABLE),
        ] {
            let begins = touches(sql.as_bytes())
                .begins
                .without(Kinds::CREATE.and(Kinds::FUNCTIONS).and(Kinds::CATALOG));
            assert_eq!(begins, kinds, "{sql}");
        }
    }

    #[test]
    fn ends_of_state_are_named() {
        for (sql, kinds) in [
            ("UNLISTEN *", Kinds::LISTEN),
            ("CLOSE ALL", Kinds::CURSOR),
            ("DROP TABLE t", Kinds::TEMP),
            ("DEALLOCATE p", Kinds::ASKABLE),
            ("SELECT pg_advisory_unlock(1)", Kinds::LOCK),
        ] {
            assert_eq!(touches(sql.as_bytes()).ends, kinds, "{sql}");
        }
    }

    #[test]
    fn settings_with_a_dot_and_calls_are_listed() {
        let found =
            touches(b"SET App.\"User\".x = 1; SELECT set_config('my.b', 'x', false), F(1), s.g(), \"H\"()");
        let settings: Vec<&str> = found.settings.iter().map(|name| &**name).collect();
        let calls: Vec<&str> = found.calls.iter().map(|name| &**name).collect();
        assert_eq!(settings, ["app.user.x", "my.b"]);
        assert_eq!(calls, ["f", "g", "H"]);
    }

    #[test]
    fn bodies_are_read_where_they_are_run() {
        let found =
            touches(b"DO $$ BEGIN IF a THEN SET my.x = 1; END IF; PERFORM f(); UPDATE t SET b = 1; END $$");
        assert_eq!(found.settings.len(), 1);
        assert_eq!(&*found.calls[0], "f");
        let defined = touches(b"CREATE FUNCTION f() RETURNS int AS $$ BEGIN SET my.x = 1; END $$");
        assert_eq!(defined.begins, Kinds::CREATE.and(Kinds::FUNCTIONS).and(Kinds::CATALOG));
        assert!(touches_of_body(b"UPDATE t SET a = 1").begins.is_empty());
        assert_eq!(touches_of_body(b"BEGIN SET x = 1; END").begins, Kinds::SETTING);
    }

    #[test]
    fn both_meanings_of_a_backslash_count() {
        let found = touches(br"SELECT 'a\', '; SET x = 1 --'");
        assert_eq!(found.begins, Kinds::SETTING);
    }

    proptest! {
        #[test]
        fn random_text_never_panics(sql in "(set|do|create|temp|set_config|[$'\"(), ;a1.]|\\PC){0,40}") {
            let _ = touches(sql.as_bytes());
        }
    }
}
