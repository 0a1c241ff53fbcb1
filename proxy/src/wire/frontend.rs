//! Messages that go from a client to a server.
//!
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>, those marked (F).

use crate::wire::codec::{put_cstr, put_message, split_cstr, split_i16, split_i32};
use crate::wire::frame::HEADER_LEN;

/// `Bind`
pub const BIND: u8 = b'B';
/// `Close`
pub const CLOSE: u8 = b'C';
/// `CopyData`
pub const COPY_DATA: u8 = b'd';
/// `CopyDone`
pub const COPY_DONE: u8 = b'c';
/// `CopyFail`
pub const COPY_FAIL: u8 = b'f';
/// `Describe`
pub const DESCRIBE: u8 = b'D';
/// `Execute`
pub const EXECUTE: u8 = b'E';
/// `Flush`
pub const FLUSH: u8 = b'H';
/// `FunctionCall`
pub const FUNCTION_CALL: u8 = b'F';
/// `Parse`
pub const PARSE: u8 = b'P';
/// `PasswordMessage`, `SASLInitialResponse`, `SASLResponse`, `GSSResponse`
pub const PASSWORD: u8 = b'p';
/// `Query`
pub const QUERY: u8 = b'Q';
/// `Sync`
pub const SYNC: u8 = b'S';
/// `Terminate`
pub const TERMINATE: u8 = b'X';

/// A whole `Terminate` message.
pub const TERMINATE_MESSAGE: [u8; 5] = [TERMINATE, 0, 0, 0, 4];

/// A whole `Sync` message.
pub const SYNC_MESSAGE: [u8; 5] = [SYNC, 0, 0, 0, 4];

/// What `Describe` and `Close` name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// A prepared statement.
    Statement(&'a [u8]),
    /// A portal.
    Portal(&'a [u8]),
}

/// A `Parse` message taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parse<'a> {
    /// The statement's name; empty for the unnamed one.
    pub name: &'a [u8],
    /// Everything after the name: the text, its NUL, the count and the OIDs of parameter types.
    pub definition: &'a [u8],
}

/// Reads a whole `Parse`.
#[must_use]
pub fn parse(message: &[u8]) -> Option<Parse<'_>> {
    let (name, definition) = split_cstr(message.get(HEADER_LEN..)?)?;
    Some(Parse { name, definition })
}

impl<'a> Parse<'a> {
    /// The statement's text.
    #[must_use]
    pub fn text(&self) -> Option<&'a [u8]> {
        split_cstr(self.definition).map(|(text, _)| text)
    }
}

/// The text of a whole `Query`.
#[must_use]
pub fn query_text(message: &[u8]) -> &[u8] {
    let text = message.get(HEADER_LEN..).unwrap_or_default();
    text.strip_suffix(b"\0").unwrap_or(text)
}

/// The portal and statement names of a `Bind`, which may be cut off after them.
#[must_use]
pub fn bind_names(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let (portal, rest) = split_cstr(message.get(HEADER_LEN..)?)?;
    let (statement, _) = split_cstr(rest)?;
    Some((portal, statement))
}

/// The formats that a whole `Bind` asks the results in.
#[must_use]
pub fn bind_formats(message: &[u8]) -> Option<Vec<i16>> {
    let (_, rest) = split_cstr(message.get(HEADER_LEN..)?)?;
    let (_, rest) = split_cstr(rest)?;
    let (_, rest) = split_formats(rest)?;
    let (parameters, mut rest) = split_i16(rest)?;
    for _ in 0..parameters {
        let (length, after) = split_i32(rest)?;
        // NULL has a length of -1.
        rest = after.get(usize::try_from(length).unwrap_or_default()..)?;
    }
    split_formats(rest).map(|(formats, _)| formats)
}

fn split_formats(bytes: &[u8]) -> Option<(Vec<i16>, &[u8])> {
    let (count, mut rest) = split_i16(bytes)?;
    let mut formats = Vec::new();
    for _ in 0..count {
        let (format, after) = split_i16(rest)?;
        formats.push(format);
        rest = after;
    }
    Some((formats, rest))
}

/// What a whole `Describe` or `Close` names.
#[must_use]
pub fn target(message: &[u8]) -> Option<Target<'_>> {
    let (&which, rest) = message.get(HEADER_LEN..)?.split_first()?;
    let (name, _) = split_cstr(rest)?;
    match which {
        b'S' => Some(Target::Statement(name)),
        b'P' => Some(Target::Portal(name)),
        _ => None,
    }
}

/// Appends a `Query`.
pub fn put_query(out: &mut Vec<u8>, sql: &str) {
    put_message(out, QUERY, |body| put_cstr(body, sql.as_bytes()));
}

/// Appends a `Parse` with another name before the same definition.
pub fn put_parse(out: &mut Vec<u8>, name: &[u8], definition: &[u8]) {
    put_message(out, PARSE, |body| {
        put_cstr(body, name);
        body.extend_from_slice(definition);
    });
}

/// Appends a `Bind` with another statement's name; `message`, which has these names of portal and statement, may be cut
/// off after them and is `total` long.
#[must_use]
pub fn put_bind(
    out: &mut Vec<u8>,
    message: &[u8],
    total: usize,
    (portal, name): (&[u8], &[u8]),
    statement: &[u8],
) -> Option<()> {
    let after = HEADER_LEN + portal.len() + 1 + name.len() + 1;
    // The length counts itself and the whole body, of which the rest may still be on its way.
    let length = i32::try_from(total - 1 - name.len() + statement.len()).ok()?;
    out.push(BIND);
    out.extend_from_slice(&length.to_be_bytes());
    put_cstr(out, portal);
    put_cstr(out, statement);
    out.extend_from_slice(message.get(after..)?);
    Some(())
}

/// Appends a `Close` of a prepared statement.
pub fn put_close_statement(out: &mut Vec<u8>, name: &[u8]) {
    put_message(out, CLOSE, |body| {
        body.push(b'S');
        put_cstr(body, name);
    });
}

/// Appends a `Describe` of a prepared statement.
pub fn put_describe_statement(out: &mut Vec<u8>, name: &[u8]) {
    put_message(out, DESCRIBE, |body| {
        body.push(b'S');
        put_cstr(body, name);
    });
}

/// Appends a `SASLInitialResponse`.
pub fn put_sasl_initial(out: &mut Vec<u8>, mechanism: &str, data: &[u8]) {
    put_message(out, PASSWORD, |body| {
        put_cstr(body, mechanism.as_bytes());
        body.extend_from_slice(&i32::try_from(data.len()).unwrap_or(i32::MAX).to_be_bytes());
        body.extend_from_slice(data);
    });
}

/// Appends a `PasswordMessage`, or a `SASLResponse`, which looks the same.
pub fn put_password(out: &mut Vec<u8>, data: &[u8]) {
    put_message(out, PASSWORD, |body| body.extend_from_slice(data));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parse_bind_and_targets_are_taken_apart() {
        let mut out = Vec::new();
        put_parse(&mut out, b"s1", b"SELECT $1\0\0\x01\0\0\0\x17");
        let parsed = parse(&out).unwrap();
        assert_eq!(parsed.name, b"s1");
        assert_eq!(parsed.definition, b"SELECT $1\0\0\x01\0\0\0\x17");
        assert_eq!(parsed.text(), Some(&b"SELECT $1"[..]));
        assert_eq!(query_text(b"Q\0\0\0\x0cSELECT 1\0"), b"SELECT 1");
        assert_eq!(bind_names(b"B\0\0\0\x0bp\0s\0\0"), Some((&b"p"[..], &b"s"[..])));
        let bind = b"B\0\0\0\x1bp\0s\0\0\x01\0\x01\0\x02\0\0\0\x01x\xff\xff\xff\xff\0\x02\0\x01\0\0";
        assert_eq!(bind_formats(bind), Some(vec![1, 0]));
        assert_eq!(target(b"D\0\0\0\x07Ss\0"), Some(Target::Statement(b"s")));
        assert_eq!(target(b"C\0\0\0\x06P\0"), Some(Target::Portal(b"")));
        assert_eq!(target(b"D\0\0\0\x06X\0"), None);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes).and_then(|parsed| parsed.text());
            let _ = query_text(&bytes);
            let _ = bind_names(&bytes);
            let _ = bind_formats(&bytes);
            let _ = target(&bytes);
        }
    }
}
