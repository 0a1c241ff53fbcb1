//! Statements and their words, as far as the console's commands need them.

/// One statement that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement<'a> {
    /// Its text, without what is around it.
    pub text: &'a str,
    /// Its words, at least one.
    pub words: Vec<Word>,
}

/// A word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// What it says, without quotes.
    pub value: String,
    /// Whether it had quotes, so that it is no keyword.
    pub is_quoted: bool,
}

impl Word {
    /// The keyword that it is, in small letters; nothing is one where it had quotes.
    #[must_use]
    pub fn keyword(&self) -> String {
        if self.is_quoted { String::new() } else { self.value.to_ascii_lowercase() }
    }
}

/// Takes a text apart at its semicolons, and each statement at blanks, commas and `=`. Comments are left out.
#[must_use]
pub fn statements(sql: &str) -> Vec<Statement<'_>> {
    let mut found = Vec::new();
    let (mut words, mut first, mut last) = (Vec::new(), 0, 0);
    let mut at = 0;
    while let Some(c) = sql.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = sql.get(at..).unwrap_or_default();
        let length = if c == ';' {
            take_statement(sql, first, last, &mut words, &mut found);
            1
        } else if let Some(comment) = comment(rest) {
            comment
        } else if c.is_whitespace() || c == ',' || c == '=' {
            c.len_utf8()
        } else {
            if words.is_empty() {
                first = at;
            }
            let (word, length) = word(rest, c);
            words.push(word);
            last = at + length;
            length
        };
        at += length;
    }
    take_statement(sql, first, last, &mut words, &mut found);
    found
}

fn take_statement<'a>(
    sql: &'a str,
    first: usize,
    last: usize,
    words: &mut Vec<Word>,
    found: &mut Vec<Statement<'a>>,
) {
    if !words.is_empty() {
        found
            .push(Statement { text: sql.get(first..last).unwrap_or_default(), words: std::mem::take(words) });
    }
}

/// The length of the comment at the front, if there is one.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("--") {
        return Some(text.find('\n').map_or(text.len(), |end| end + 1));
    }
    let inner = text.strip_prefix("/*")?;
    Some(inner.find("*/").map_or(text.len(), |end| end + 4))
}

/// The word at the front, which begins with `c`, and its length.
fn word(text: &str, c: char) -> (Word, usize) {
    if c != '"' && c != '\'' {
        let is_end = |c: char| c.is_whitespace() || matches!(c, ';' | ',' | '=' | '"' | '\'');
        let end = text.find(is_end).unwrap_or(text.len());
        let value = text.get(..end).unwrap_or_default().to_owned();
        return (Word { value, is_quoted: false }, end);
    }
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, inner)) = chars.next() {
        if inner != c {
            value.push(inner);
        } else if chars.next_if(|(_, next)| *next == c).is_some() {
            value.push(c);
        } else {
            return (Word { value, is_quoted: true }, at + 1);
        }
    }
    // It does not end.
    (Word { value, is_quoted: true }, text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quotes_hold_words_together() {
        let found = statements("SET a = 'it''s; x' ; PAUSE \"two words\"");
        let texts: Vec<_> = found.iter().map(|statement| statement.text).collect();
        assert_eq!(texts, ["SET a = 'it''s; x'", "PAUSE \"two words\""]);
        assert_eq!(found[0].words[2], Word { value: "it's; x".to_owned(), is_quoted: true });
        assert_eq!(found[1].words[1].keyword(), "");
    }

    proptest! {
        #[test]
        fn any_text_is_taken_apart(text in "[a-z;\"'ä /*-]{0,40}") {
            for statement in statements(&text) {
                prop_assert!(!statement.words.is_empty());
                prop_assert!(text.contains(statement.text));
            }
        }
    }
}
