//! PostgreSQL's lexical rules, on bytes: where words, strings and comments begin and end.
//!
//! <https://www.postgresql.org/docs/current/sql-syntax-lexical.html>. Nothing is unescaped and nothing can fail: what
//! does not end reaches to the end of the text, and the server will say so.

use std::borrow::Cow;

/// One token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    /// A keyword or an identifier without quotes, as written.
    Word(&'a [u8]),
    /// An identifier in quotes, without them; doubled quotes inside are left.
    Quoted(&'a [u8]),
    /// The same with Unicode escapes in it, `U&"..."`.
    UnicodeQuoted(&'a [u8]),
    /// A string constant, without its quotes and not unescaped.
    Text(&'a [u8]),
    /// A dollar-quoted string constant, which is as it stands.
    DollarText(&'a [u8]),
    /// A parameter, `$1`.
    Parameter,
    /// A number.
    Number,
    /// Any other character, one at a time.
    Symbol(u8),
}

/// Takes a text apart.
#[derive(Debug, Clone)]
pub struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    /// Whether a backslash escapes in plain strings: `standard_conforming_strings` is off.
    is_backslash_plain: bool,
    /// Whether a plain string with a backslash was met, so that the setting matters.
    pub met_backslash: bool,
}

impl<'a> Lexer<'a> {
    /// At the beginning of a text.
    #[must_use]
    pub const fn new(text: &'a [u8], is_backslash_plain: bool) -> Self {
        Self { text, at: 0, is_backslash_plain, met_backslash: false }
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or_default()
    }

    fn slice(&self, from: usize, to: usize) -> &'a [u8] {
        self.text.get(from..to.min(self.text.len())).unwrap_or_default()
    }

    /// Moves behind white space and comments.
    fn skip_blank(&mut self) {
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                _ if is(byte, BLANK) => self.at += 1,
                b'-' if self.peek(1) == b'-' => {
                    let rest = self.slice(self.at, self.text.len());
                    let length = rest.iter().position(|b| matches!(b, b'\n' | b'\r'));
                    self.at += length.unwrap_or(rest.len());
                }
                b'/' if self.peek(1) == b'*' => self.skip_comment(),
                _ => return,
            }
        }
    }

    /// Comments nest.
    fn skip_comment(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.text.len() {
            match (self.peek(0), self.peek(1)) {
                (b'/', b'*') => {
                    depth += 1;
                    self.at += 2;
                }
                (b'*', b'/') => {
                    depth -= 1;
                    self.at += 2;
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.at += 1,
            }
        }
    }

    /// A string from its opening quote on.
    fn string(&mut self, has_escapes: bool) -> Token<'a> {
        let from = self.at + 1;
        self.at = from;
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                b'\'' if self.peek(1) == b'\'' => self.at += 2,
                b'\'' => break,
                b'\\' if has_escapes => self.at += 2,
                b'\\' => {
                    self.met_backslash = true;
                    self.at += 1;
                }
                _ => self.at += 1,
            }
        }
        let content = self.slice(from, self.at);
        self.at += 1;
        Token::Text(content)
    }

    fn quoted(&mut self) -> Token<'a> {
        let from = self.at + 1;
        self.at = from;
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                b'"' if self.peek(1) == b'"' => self.at += 2,
                b'"' => break,
                _ => self.at += 1,
            }
        }
        let content = self.slice(from, self.at);
        self.at += 1;
        Token::Quoted(content)
    }

    fn quoted_or_string(&mut self) -> Token<'a> {
        if self.peek(0) == b'"' { self.quoted() } else { self.string(false) }
    }

    /// The next token and where it begins and ends.
    pub fn next_placed(&mut self) -> Option<(Token<'a>, usize, usize)> {
        self.skip_blank();
        let from = self.at;
        let token = self.next()?;
        Some((token, from, self.at.min(self.text.len())))
    }

    fn word(&mut self) -> &'a [u8] {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| !is_inside_word(*byte)).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    /// At a dollar: a parameter, a dollar-quoted string, or just a dollar.
    fn dollar(&mut self) -> Token<'a> {
        if self.peek(1).is_ascii_digit() {
            self.at += 1;
            while self.peek(0).is_ascii_digit() {
                self.at += 1;
            }
            return Token::Parameter;
        }
        let mut end = self.at + 1;
        if self.text.get(end).is_some_and(|b| is_word_start(*b)) {
            while self.text.get(end).is_some_and(|b| is_inside_word(*b) && *b != b'$') {
                end += 1;
            }
        }
        if self.text.get(end) != Some(&b'$') {
            self.at += 1;
            return Token::Symbol(b'$');
        }
        let tag = self.slice(self.at, end + 1);
        let from = end + 1;
        let rest = self.slice(from, self.text.len());
        let length = rest.windows(tag.len()).position(|window| window == tag).unwrap_or(rest.len());
        self.at = from + length + tag.len();
        Token::DollarText(self.slice(from, from + length))
    }

    fn number(&mut self) -> Token<'a> {
        while matches!(self.peek(0), b'0'..=b'9' | b'.') {
            self.at += 1;
        }
        Token::Number
    }
}

/// What a byte can be the beginning or a part of.
const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut index = 0;
    while index < classes.len() {
        #[expect(clippy::cast_possible_truncation, reason = "there are 256")]
        let byte = index as u8;
        if byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80 {
            classes[index] |= WORD_START | IN_WORD;
        }
        if byte.is_ascii_digit() || byte == b'$' {
            classes[index] |= IN_WORD;
        }
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c) {
            classes[index] |= BLANK;
        }
        if matches!(byte, b'e' | b'E' | b'n' | b'N' | b'b' | b'B' | b'x' | b'X' | b'u' | b'U') {
            classes[index] |= PREFIX;
        }
        index += 1;
    }
    classes
};
const WORD_START: u8 = 1;
const IN_WORD: u8 = 2;
const BLANK: u8 = 4;
/// It may begin a string, before a quote.
const PREFIX: u8 = 8;

const fn is(byte: u8, class: u8) -> bool {
    CLASSES[byte as usize] & class != 0
}

const fn is_word_start(byte: u8) -> bool {
    is(byte, WORD_START)
}

const fn is_inside_word(byte: u8) -> bool {
    is(byte, IN_WORD)
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blank();
        let byte = *self.text.get(self.at)?;
        if is(byte, WORD_START) && !(is(byte, PREFIX) && matches!(self.peek(1), b'\'' | b'&')) {
            return Some(Token::Word(self.word()));
        }
        Some(match byte {
            b'\'' => self.string(self.is_backslash_plain),
            b'"' => self.quoted(),
            b'$' => self.dollar(),
            b'0'..=b'9' => self.number(),
            b'.' if self.peek(1).is_ascii_digit() => self.number(),
            // A prefix that changes what the quotes mean.
            b'e' | b'E' if self.peek(1) == b'\'' => {
                self.at += 1;
                self.string(true)
            }
            b'n' | b'N' | b'b' | b'B' | b'x' | b'X' if self.peek(1) == b'\'' => {
                self.at += 1;
                self.string(false)
            }
            b'u' | b'U' if self.peek(1) == b'&' && matches!(self.peek(2), b'\'' | b'"') => {
                self.at += 2;
                match self.quoted_or_string() {
                    Token::Quoted(name) => Token::UnicodeQuoted(name),
                    other => other,
                }
            }
            _ if is_word_start(byte) => Token::Word(self.word()),
            _ => {
                self.at += 1;
                Token::Symbol(byte)
            }
        })
    }
}

/// A string's content as its reader gets it, as far as quotes are concerned.
#[must_use]
pub fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'\'') {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.iter().peekable();
    while let Some(&byte) = rest.next() {
        if matches!(byte, b'\'' | b'\\') && rest.peek() == Some(&&b'\'') {
            rest.next();
            out.push(b'\'');
        } else {
            out.push(byte);
        }
    }
    Cow::Owned(out)
}

/// An unquoted word as PostgreSQL folds it.
#[must_use]
pub fn lower(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_ascii_lowercase()
}

/// Whether a word before a parenthesis is part of the grammar and cannot be a function's name without quotes
/// (<https://www.postgresql.org/docs/current/sql-keywords-appendix.html>).
#[must_use]
pub fn is_syntax(word: &[u8]) -> bool {
    const SYNTAX: [&str; 35] = [
        "ALL",
        "AND",
        "ANY",
        "ARRAY",
        "AS",
        "BETWEEN",
        "CASE",
        "CAST",
        "CHECK",
        "COALESCE",
        "DISTINCT",
        "ELSE",
        "EXCEPT",
        "EXISTS",
        "EXTRACT",
        "FROM",
        "GREATEST",
        "HAVING",
        "IN",
        "INTERSECT",
        "LATERAL",
        "LEAST",
        "LIMIT",
        "NOT",
        "NULLIF",
        "OFFSET",
        "ON",
        "OR",
        "ROW",
        "SELECT",
        "SOME",
        "THEN",
        "UNION",
        "VALUES",
        "WHERE",
    ];
    SYNTAX.iter().any(|syntax| word.eq_ignore_ascii_case(syntax.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Token::{DollarText, Number, Parameter, Quoted, Symbol, Text, UnicodeQuoted, Word};
    use super::*;

    fn tokens(text: &str) -> Vec<Token<'_>> {
        Lexer::new(text.as_bytes(), false).collect()
    }

    #[test]
    fn words_strings_and_symbols_are_told_apart() {
        assert_eq!(
            tokens(r#"select a$1, "B""c", 'it''s', $1, 1.5e3 from t"#),
            [
                Word(b"select"),
                Word(b"a$1"),
                Symbol(b','),
                Quoted(b"B\"\"c"),
                Symbol(b','),
                Text(b"it''s"),
                Symbol(b','),
                Parameter,
                Symbol(b','),
                Number,
                Word(b"e3"),
                Word(b"from"),
                Word(b"t")
            ]
        );
    }

    #[test]
    fn comments_separate_and_nest() {
        assert_eq!(tokens("a/* x /* y */ z */b -- c\n d"), [Word(b"a"), Word(b"b"), Word(b"d")]);
        assert_eq!(tokens("a /* never /* ended */"), [Word(b"a")]);
    }

    #[test]
    fn dollar_quotes_end_at_their_own_tag() {
        assert_eq!(tokens("$a$ $b$ it's $$ $a$ x"), [DollarText(b" $b$ it's $$ "), Word(b"x")]);
        assert_eq!(tokens("$$x$$"), [DollarText(b"x")]);
        assert_eq!(tokens("a$$x"), [Word(b"a$$x")], "a dollar inside an identifier is no quote");
        assert_eq!(tokens("$$never"), [DollarText(b"never")]);
    }

    #[test]
    fn escapes_follow_the_kind_of_string() {
        assert_eq!(tokens(r"E'a\'b' c"), [Text(br"a\'b"), Word(b"c")]);
        assert_eq!(tokens(r"'a\' c"), [Text(br"a\"), Word(b"c")]);
        assert_eq!(tokens(r#"U&"a" U&'b' x'0f'"#), [UnicodeQuoted(b"a"), Text(b"b"), Text(b"0f")]);
        let mut lexer = Lexer::new(br"'a\' b'", true);
        assert_eq!(lexer.next(), Some(Text(br"a\' b")));
        let mut lexer = Lexer::new(br"'a\b'", false);
        lexer.by_ref().for_each(drop);
        assert!(lexer.met_backslash);
    }

    proptest! {
        #[test]
        fn any_text_comes_to_an_end(text in proptest::collection::vec(any::<u8>(), 0..200), plain: bool) {
            prop_assert!(Lexer::new(&text, plain).count() <= text.len());
        }
    }
}
