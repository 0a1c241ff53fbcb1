//! The tags that sqlcommenter puts behind a statement (<https://google.github.io/sqlcommenter/spec/>).

use crate::classify::lexer::Lexer;

/// The tags of a statement, `name='value'` with commas in between, where it has any.
#[must_use]
pub fn comment_tags(sql: &[u8]) -> Option<String> {
    let text = sql.trim_ascii_end();
    let text = text.strip_suffix(b";").unwrap_or(text).trim_ascii_end();
    if !text.ends_with(b"*/") {
        return None;
    }
    let mut lexer = Lexer::new(text, false);
    let mut end = 0;
    while let Some((_, _, to)) = lexer.next_placed() {
        end = to;
    }
    let comment = text.get(end..)?.trim_ascii().strip_prefix(b"/*")?.strip_suffix(b"*/")?;
    let comment = String::from_utf8_lossy(comment);
    let kept: Vec<&str> = comment.split(',').map(str::trim).filter(|pair| pair.contains("='")).collect();
    (!kept.is_empty()).then(|| kept.join(","))
}

/// At most so many bytes of a text, in whole characters.
#[must_use]
pub fn cut(mut text: String, bytes_max: usize) -> String {
    let at = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(at.unwrap_or_default());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_those_of_the_last_comment() {
        for (sql, tags) in [
            (
                "SELECT 1 /*action='show',traceparent='00-a-b-01'*/;",
                Some("action='show',traceparent='00-a-b-01'"),
            ),
            ("SELECT '/*a=''b''*/'", None),
            ("SELECT 1 /* a remark */", None),
            ("SELECT 1", None),
        ] {
            assert_eq!(comment_tags(sql.as_bytes()).as_deref(), tags, "{sql}");
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("aé".to_owned(), 2), "a");
        assert_eq!(cut("aé".to_owned(), 3), "aé");
    }
}
