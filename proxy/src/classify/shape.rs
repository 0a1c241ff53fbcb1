//! A text without its constants: texts that differ in nothing else are judged alike.

use crate::classify::lexer::{Lexer, Token};
use crate::classify::pieces::is_operator;

/// The shape of a text.
#[derive(Debug, Default)]
pub struct Shape {
    /// The text without constants, comments and most of its white space.
    pub bytes: Vec<u8>,
    /// A constant of it may decide what it is: the name of a setting, or an option of EXPLAIN; or where its strings end
    /// depends on a setting.
    pub is_open: bool,
}

/// What stands for a constant.
const CONSTANT: u8 = 1;
/// What ends a word, and keeps operators apart that do not touch.
const GAP: u8 = 2;

/// Takes the constants out of a text.
#[must_use]
pub fn shape(sql: &[u8]) -> Shape {
    let mut lexer = Lexer::new(sql, false);
    let mut shape = Shape { bytes: Vec::with_capacity(sql.len()), is_open: false };
    let mut end = 0;
    while let Some((token, from, to)) = lexer.next_placed() {
        match token {
            Token::Word(word) => {
                shape.bytes.push(GAP);
                shape.bytes.extend_from_slice(word);
                shape.is_open |= word.eq_ignore_ascii_case(b"explain") || is_current_setting(word);
            }
            Token::Quoted(name) => {
                shape.bytes.push(b'"');
                shape.bytes.extend_from_slice(name);
                shape.bytes.push(b'"');
                shape.is_open |= is_current_setting(name);
            }
            // What its escapes stand for is not known here.
            Token::UnicodeQuoted(_) => shape.is_open = true,
            Token::Text(_) | Token::DollarText(_) | Token::Number | Token::Parameter => {
                shape.bytes.push(CONSTANT)
            }
            Token::Symbol(byte) => {
                let follows_operator = shape.bytes.last().is_some_and(|last| is_operator(*last));
                if from > end && follows_operator && is_operator(byte) {
                    shape.bytes.push(GAP);
                }
                shape.bytes.push(byte);
            }
        }
        end = to;
    }
    shape.is_open |= lexer.met_backslash;
    shape
}

const fn is_current_setting(name: &[u8]) -> bool {
    name.len() == 15 && name.eq_ignore_ascii_case(b"current_setting")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_and_comments_do_not_count() {
        let of = |sql: &str| shape(sql.as_bytes()).bytes;
        assert_eq!(of("select 1, 'a' from t"), of("select 22 , $$b$$  from t -- x"));
        for (one, other) in [
            ("select 1 from t", "select 1 from u"),
            ("select a b", "select ab"),
            ("select \"A\"", "select \"a\""),
            ("select 1 <= 2", "select 1 < = 2"),
            ("select f(1)", "select \"f\"(1)"),
            ("select 1", "select $1, 1"),
        ] {
            assert_ne!(of(one), of(other), "{one} | {other}");
        }
        for sql in ["EXPLAIN SELECT 1", "SELECT current_setting('a')", "SELECT U&\"a\"", r"SELECT '\'"] {
            assert!(shape(sql.as_bytes()).is_open, "{sql}");
        }
    }
}
