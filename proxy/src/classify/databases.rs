//! Which databases a statement needs to be without connections.

use crate::classify::lexer::{Lexer, Token, lower};

/// The databases that a text names where it drops, renames or copies one.
#[must_use]
pub fn databases(sql: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_next = false;
    for token in Lexer::new(sql, false) {
        let name = match token {
            Token::Symbol(b'=') => continue,
            Token::Word(word)
                if ["DATABASE", "TEMPLATE"].iter().any(|w| word.eq_ignore_ascii_case(w.as_bytes())) =>
            {
                is_next = true;
                continue;
            }
            Token::Word(word) if ["IF", "EXISTS"].iter().any(|w| word.eq_ignore_ascii_case(w.as_bytes())) => {
                continue;
            }
            Token::Word(word) => lower(word),
            Token::Quoted(name) => String::from_utf8_lossy(name).replace("\"\"", "\""),
            _ => continue,
        };
        if std::mem::take(&mut is_next) {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_that_must_be_without_connections_are_named() {
        assert_eq!(databases(b"DROP DATABASE IF EXISTS \"My \"\"db\" WITH (FORCE)"), ["My \"db"]);
        assert_eq!(databases(b"create database a owner b template = C"), ["a", "c"]);
        assert_eq!(databases(b"ALTER DATABASE x RENAME TO y; DROP DATABASE z"), ["x", "z"]);
    }
}
