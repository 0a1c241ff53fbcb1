//! A statement without its constants, so that equal statements with other values look the same.

use crate::classify::lexer::{Lexer, Token};

/// The most of a folded statement that is kept, in bytes.
const FOLDED_MAX: usize = 160;

/// The statement with `?` in place of each constant, its comments and white space gone, cut off where it is long.
#[must_use]
pub fn folded(sql: &[u8]) -> String {
    let mut out = String::new();
    let mut ends_in_word = false;
    for token in Lexer::new(sql, false) {
        let (text, is_word) = match token {
            Token::Word(word) => (String::from_utf8_lossy(word).into_owned(), true),
            Token::Quoted(name) | Token::UnicodeQuoted(name) => {
                (format!("\"{}\"", String::from_utf8_lossy(name)), true)
            }
            Token::Text(_) | Token::DollarText(_) | Token::Number => ("?".to_owned(), true),
            Token::Parameter => ("$".to_owned(), true),
            Token::Symbol(symbol) => (char::from(symbol).to_string(), false),
        };
        if is_word && ends_in_word {
            out.push(' ');
        }
        out.push_str(&text);
        if matches!(token, Token::Symbol(b',' | b')')) {
            out.push(' ');
        }
        ends_in_word = is_word;
        if out.len() > FOLDED_MAX {
            let cut = out.floor_char_boundary(FOLDED_MAX);
            out.truncate(cut);
            out.push('…');
            return out;
        }
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_comments_and_white_space_are_folded() {
        assert_eq!(
            folded(b"SELECT  pg_advisory_lock(42) /* job */, 'it''s' FROM \"T\" WHERE a=$1"),
            "SELECT pg_advisory_lock(?) , ? FROM \"T\" WHERE a=$"
        );
    }

    #[test]
    fn long_statements_are_cut() {
        let long = folded(format!("SELECT {}", "a, ".repeat(1000)).as_bytes());
        assert!(long.len() <= FOLDED_MAX + '…'.len_utf8() && long.ends_with('…'));
    }
}
