//! A position in the write-ahead log that clients carry from one session to another: `timeline:X/Y`, with the position
//! as PostgreSQL writes it. A timeline of 0 is one that is not known.

use std::fmt;

/// A position and its timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Token {
    /// The timeline, 0 where it is not known.
    pub timeline: u32,
    /// The position; 0 is satisfied by anything.
    pub lsn: u64,
}

impl Token {
    /// Reads one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (timeline, position) = text.split_once(':')?;
        let (high, low) = position.split_once('/')?;
        let hex = |digits: &str| {
            let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
        };
        let is_number = !timeline.is_empty() && timeline.bytes().all(|byte| byte.is_ascii_digit());
        let timeline = if is_number { timeline.parse().ok()? } else { return None };
        Some(Self { timeline, lsn: u64::from(hex(high)?) << 32 | u64::from(hex(low)?) })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:X}/{:X}", self.timeline, self.lsn >> 32, self.lsn & u64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written() {
        for (text, token) in [
            ("1:16/B374D848", Some(Token { timeline: 1, lsn: 0x16_B374_D848 })),
            ("0:0/0", Some(Token::default())),
            ("7:FFFFFFFF/FFFFFFFF", Some(Token { timeline: 7, lsn: u64::MAX })),
            ("1:16/1B374D848", None),
            ("16/B374D848", None),
            ("1:/0", None),
            ("1:+1/0", None),
            ("-1:0/0", None),
            ("", None),
        ] {
            assert_eq!(Token::parse(text), token, "{text}");
            assert!(token.is_none_or(|token| token.to_string() == text));
        }
    }
}
