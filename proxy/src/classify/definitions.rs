//! What CREATE and ALTER are about.

use crate::classify::lexer::{Lexer, Token};

/// Whether what is created or altered, by the words behind that, may change where statements run; what is only the
/// session's does not.
#[must_use]
pub fn defines_for_catalog(mut ahead: Lexer<'_>) -> bool {
    const OTHERS: [&str; 20] = [
        "TEMP",
        "TEMPORARY",
        "LOCAL",
        "GLOBAL",
        "INDEX",
        "UNIQUE",
        "STATISTICS",
        "DATABASE",
        "ROLE",
        "USER",
        "GROUP",
        "TABLESPACE",
        "PUBLICATION",
        "SUBSCRIPTION",
        "SERVER",
        "TRIGGER",
        "EVENT",
        "SYSTEM",
        "DEFAULT",
        "MATERIALIZED",
    ];
    let mut second = ahead.next();
    if matches!(second, Some(Token::Word(word)) if word.eq_ignore_ascii_case(b"OR")) {
        ahead.next();
        second = ahead.next();
    }
    !matches!(second, Some(Token::Word(word))
        if OTHERS.iter().any(|other| word.eq_ignore_ascii_case(other.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_and_other_objects_are_left_out() {
        for (rest, expected) in [
            ("FUNCTION f()", true),
            ("OR REPLACE VIEW v", true),
            ("TABLE t (a int)", true),
            ("UNLOGGED TABLE t (a int)", true),
            ("temp table t (a int)", false),
            ("OR REPLACE TEMPORARY VIEW v", false),
            ("UNIQUE INDEX i", false),
            ("ROLE r", false),
        ] {
            assert_eq!(defines_for_catalog(Lexer::new(rest.as_bytes(), false)), expected, "{rest}");
        }
    }
}
