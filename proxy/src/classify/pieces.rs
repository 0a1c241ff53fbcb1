//! A text in pieces, with names as PostgreSQL reads them and operators put together.

use std::borrow::Cow;

use crate::classify::lexer::{Lexer, Token};

/// One piece of a text and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece<'a> {
    /// What it is.
    pub item: Item<'a>,
    /// Its first byte.
    pub from: usize,
    /// Behind its last byte.
    pub to: usize,
}

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item<'a> {
    /// A keyword or a name without quotes, in lower case.
    Word(Cow<'a, str>),
    /// A name in quotes.
    Name(Cow<'a, str>),
    /// A name whose escapes cannot be read here.
    Unreadable,
    /// A string constant.
    Text(&'a [u8]),
    /// A number, as it stands.
    Number(&'a str),
    /// A parameter.
    Value,
    /// An operator, as it stands.
    Operator(&'a str),
    /// A parenthesis, bracket, comma, semicolon, dot or anything else.
    Symbol(u8),
}

/// All pieces of a text.
#[derive(Debug)]
pub struct Pieces<'a> {
    /// In order.
    pub pieces: Vec<Piece<'a>>,
    /// A plain string with a backslash is among them, so that it depends on a setting where strings end.
    pub met_backslash: bool,
}

/// Takes a text to pieces.
#[must_use]
pub fn pieces(sql: &str, is_backslash_plain: bool) -> Pieces<'_> {
    let mut lexer = Lexer::new(sql.as_bytes(), is_backslash_plain);
    let mut pieces: Vec<Piece<'_>> = Vec::with_capacity(sql.len() / 4 + 8);
    while let Some((token, from, to)) = lexer.next_placed() {
        let item = match token {
            Token::Word(word) => Item::Word(folded(word)),
            Token::Quoted(name) => Item::Name(unquoted(name)),
            Token::UnicodeQuoted(name) => unicode(&unquoted(name)),
            Token::Text(text) | Token::DollarText(text) => Item::Text(text),
            Token::Number => Item::Number(sql.get(from..to).unwrap_or_default()),
            Token::Parameter => Item::Value,
            Token::Symbol(byte) if is_operator(byte) => {
                if let Some(last) = pieces.last_mut().filter(|last| last.to == from)
                    && matches!(last.item, Item::Operator(_))
                {
                    last.to = to;
                    last.item = Item::Operator(sql.get(last.from..to).unwrap_or_default());
                    continue;
                }
                Item::Operator(sql.get(from..to).unwrap_or_default())
            }
            Token::Symbol(byte) => Item::Symbol(byte),
        };
        pieces.push(Piece { item, from, to });
    }
    Pieces { pieces, met_backslash: lexer.met_backslash }
}

/// Whether a character is one of those that operators are made of.
#[must_use]
pub const fn is_operator(byte: u8) -> bool {
    matches!(
        byte,
        b'~' | b'!'
            | b'@'
            | b'#'
            | b'^'
            | b'&'
            | b'|'
            | b'`'
            | b'?'
            | b'+'
            | b'-'
            | b'*'
            | b'/'
            | b'%'
            | b'<'
            | b'>'
            | b'='
    )
}

/// A text that is UTF-8, in lower case as far as ASCII goes.
fn folded(word: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(word) {
        Ok(word) if !word.bytes().any(|byte| byte.is_ascii_uppercase()) => Cow::Borrowed(word),
        _ => Cow::Owned(String::from_utf8_lossy(word).to_ascii_lowercase()),
    }
}

fn unquoted(name: &[u8]) -> Cow<'_, str> {
    let name = String::from_utf8_lossy(name);
    if name.contains('"') { Cow::Owned(name.replace("\"\"", "\"")) } else { name }
}

/// A name with `\0061` and `\+000061` in it.
fn unicode<'a>(name: &str) -> Item<'a> {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find('\\') {
        out.push_str(rest.get(..at).unwrap_or_default());
        let escape = rest.get(at + 1..).unwrap_or_default();
        if let Some(after) = escape.strip_prefix('\\') {
            out.push('\\');
            rest = after;
            continue;
        }
        let (digits, length) =
            if let Some(long) = escape.strip_prefix('+') { (long, 6) } else { (escape, 4) };
        let decoded =
            digits.get(..length).and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        let Some(decoded) = decoded else { return Item::Unreadable };
        out.push(decoded);
        rest = digits.get(length..).unwrap_or_default();
    }
    out.push_str(rest);
    Item::Name(Cow::Owned(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(sql: &str) -> Vec<Item<'_>> {
        pieces(sql, false).pieces.into_iter().map(|piece| piece.item).collect()
    }

    #[test]
    fn names_are_read_as_the_server_does() {
        assert_eq!(
            items(r#"NextVal "A""b" U&"n\0065xt" U&"\+00006eext" U&"\00""#),
            [
                Item::Word("nextval".into()),
                Item::Name("A\"b".into()),
                Item::Name("next".into()),
                Item::Name("next".into()),
                Item::Unreadable,
            ]
        );
    }

    #[test]
    fn operators_are_whole_and_end_at_comments() {
        assert_eq!(
            items("a <=>b || -1+/* x */+2::int"),
            [
                Item::Word("a".into()),
                Item::Operator("<=>"),
                Item::Word("b".into()),
                Item::Operator("||"),
                Item::Operator("-"),
                Item::Number("1"),
                Item::Operator("+"),
                Item::Operator("+"),
                Item::Number("2"),
                Item::Symbol(b':'),
                Item::Symbol(b':'),
                Item::Word("int".into()),
            ]
        );
    }
}
