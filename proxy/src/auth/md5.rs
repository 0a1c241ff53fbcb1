//! Passwords as `password_encryption = md5` stores them, without I/O.
//!
//! PostgreSQL has SCRAM-SHA-256 in its place since version 10 and stores nothing else by default since 14; some servers have
//! old passwords yet (<https://www.postgresql.org/docs/current/auth-password.html>).

use std::fmt;

use md5::{Digest as _, Md5};
use subtle::ConstantTimeEq as _;

/// Digits of a hash.
const DIGITS: usize = 32;

/// What both the stored text and the answer begin with.
const PREFIX: &str = "md5";

/// The hash of password and name, as hexadecimal digits. Whoever has it can log in: it is as good as the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Md5Secret([u8; DIGITS]);

impl fmt::Debug for Md5Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Md5Secret(..)")
    }
}

impl Md5Secret {
    /// Of a password.
    #[must_use]
    pub fn derive(password: &str, user: &str) -> Self {
        Self(digits(&[password.as_bytes(), user.as_bytes()]))
    }

    /// Reads the text that PostgreSQL stores in `pg_authid.rolpassword`: `md5` and 32 digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let found: [u8; DIGITS] = text.strip_prefix(PREFIX)?.as_bytes().try_into().ok()?;
        let is_hash = found.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        is_hash.then_some(Self(found))
    }

    /// The answer to a salt, as it stands in a PasswordMessage.
    #[must_use]
    pub fn answer(&self, salt: [u8; 4]) -> Vec<u8> {
        let mut answer = PREFIX.as_bytes().to_vec();
        answer.extend_from_slice(&digits(&[&self.0, &salt]));
        answer.push(0);
        answer
    }

    /// Whether that is the answer to a salt.
    #[must_use]
    pub fn is_answer(&self, salt: [u8; 4], answer: &[u8]) -> bool {
        self.answer(salt).as_slice().ct_eq(answer).into()
    }
}

/// The hash of parts, one behind the other.
fn digits(parts: &[&[u8]]) -> [u8; DIGITS] {
    let mut hash = Md5::new();
    for part in parts {
        hash.update(part);
    }
    let mut digits = [0; DIGITS];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(hash.finalize()) {
        for (digit, value) in pair.iter_mut().zip([byte >> 4, byte & 15]) {
            *digit =
                char::from_digit(value.into(), 16).map_or(b'0', |digit| u8::try_from(digit).unwrap_or(b'0'));
        }
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_text_is_that_of_postgresql() {
        // SET password_encryption = md5; CREATE ROLE app PASSWORD 'secret'
        let stored = "md56a422f785c9e20873908ce25d1736ae2";
        assert_eq!(Md5Secret::parse(stored), Some(Md5Secret::derive("secret", "app")));
        for other in [
            "md5",
            "md5d13cf6ac5cef2e8de6dd11f5c33f9dcg",
            "MD5d13cf6ac5cef2e8de6dd11f5c33f9dc4",
            "secret",
            "",
        ] {
            assert_eq!(Md5Secret::parse(other), None, "{other}");
        }
    }

    #[test]
    fn only_the_answer_to_this_salt_by_this_secret_is_right() {
        let secret = Md5Secret::derive("secret", "app");
        let answer = secret.answer(*b"salt");
        assert!(answer.starts_with(b"md5") && answer.ends_with(b"\0") && answer.len() == 36);
        assert!(secret.is_answer(*b"salt", &answer));
        assert!(!secret.is_answer(*b"Salt", &answer));
        assert!(!Md5Secret::derive("Secret", "app").is_answer(*b"salt", &answer));
        assert!(!Md5Secret::derive("secret", "ap").is_answer(*b"salt", &answer));
        assert!(!secret.is_answer(*b"salt", b"") && !secret.is_answer(*b"salt", &answer[..35]));
    }

    #[test]
    fn digits_are_those_of_md5() {
        // RFC 1321, A.5.
        assert_eq!(digits(&[b""]), *b"d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(digits(&[b"message ", b"digest"]), *b"f96b697d7cb7938d525a2f31aaf161d0");
    }
}
