//! What a comment before or behind a statement asks for: `/* route: primary */`, `/* pgdog_role: replica */`.
//!
//! Only real comments count, never what stands in a string, and only for the text that they stand in.

use crate::classify::lexer::{Lexer, Token};

/// The server that a comment asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// The primary.
    Primary,
    /// A replica.
    Replica,
}

/// What the comments before the first and behind the last word of a text ask for; the primary where they disagree.
#[must_use]
pub fn hint(sql: &[u8]) -> Option<Hint> {
    // Most texts have no comment at either end, which shows at once.
    let text = sql.trim_ascii();
    let starts = text.starts_with(b"/*") || text.starts_with(b"--");
    let ends = without_end(text).ends_with(b"*/");
    if !starts && !ends {
        return None;
    }
    let mut lexer = Lexer::new(text, false);
    let (mut first, mut last) = (text.len(), 0);
    while let Some((token, from, to)) = lexer.next_placed() {
        if token != Token::Symbol(b';') {
            first = first.min(from);
            last = to;
        }
    }
    let before = text.get(..first).unwrap_or_default();
    let behind = text.get(last.max(first)..).unwrap_or_default();
    match (asked(before), asked(behind)) {
        (Some(Hint::Primary), _) | (_, Some(Hint::Primary)) => Some(Hint::Primary),
        (first, second) => first.or(second),
    }
}

/// The text without semicolons and white space at its end.
fn without_end(mut text: &[u8]) -> &[u8] {
    while let [before @ .., b';' | b' ' | b'\n' | b'\t' | b'\r'] = text {
        text = before;
    }
    text
}

/// What a run of comments asks for.
fn asked(comments: &[u8]) -> Option<Hint> {
    const KEYS: [&str; 3] = ["route", "pgrouting_role", "pgdog_role"];
    let text = String::from_utf8_lossy(comments).to_ascii_lowercase();
    let mut found = None;
    for key in KEYS {
        for (at, _) in text.match_indices(key) {
            let starts_word = !text.get(..at).is_some_and(|before| before.ends_with(is_inside_word));
            let rest = text.get(at + key.len()..).unwrap_or_default().trim_start();
            let Some(value) = rest.strip_prefix(':').filter(|_| starts_word) else { continue };
            let value = value.trim_start();
            let word = value.split(|c: char| !is_inside_word(c)).next().unwrap_or_default();
            match word {
                "primary" => return Some(Hint::Primary),
                "replica" => found = Some(Hint::Replica),
                _ => {}
            }
        }
    }
    found
}

fn is_inside_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_at_either_end_count_and_nothing_else() {
        for (sql, expected) in [
            ("/* route: primary */ SELECT 1", Some(Hint::Primary)),
            ("SELECT 1 /* pgdog_role: replica */", Some(Hint::Replica)),
            ("SELECT 1 /* pgdog_role: replica */ ;\n", Some(Hint::Replica)),
            ("-- ROUTE: Replica\nSELECT 1", Some(Hint::Replica)),
            ("/* app */ /* pgrouting_role:primary */ SELECT 1 /* route: replica */", Some(Hint::Primary)),
            ("SELECT /* route: primary */ 1", None),
            ("SELECT '/* route: primary */'", None),
            ("/* my_route: primary */ SELECT 1", None),
            ("/* route: elsewhere */ SELECT 1", None),
            ("SELECT 1", None),
        ] {
            assert_eq!(hint(sql.as_bytes()), expected, "{sql}");
        }
    }
}
