//! Messages that go from a server to a client.
//!
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>, those marked (B), and
//! <https://www.postgresql.org/docs/current/protocol-error-fields.html>.

use crate::wire::codec::{put_cstr, put_message, split_cstr, split_i32};
use crate::wire::frame::HEADER_LEN;
use crate::wire::startup::{CancelKey, SECRET_LEN_MAX};

/// `Authentication…`
pub const AUTHENTICATION: u8 = b'R';
/// `BackendKeyData`
pub const BACKEND_KEY_DATA: u8 = b'K';
/// `BindComplete`
pub const BIND_COMPLETE: u8 = b'2';
/// `CloseComplete`
pub const CLOSE_COMPLETE: u8 = b'3';
/// `CommandComplete`
pub const COMMAND_COMPLETE: u8 = b'C';
/// `CopyBothResponse`
pub const COPY_BOTH_RESPONSE: u8 = b'W';
/// `CopyInResponse`
pub const COPY_IN_RESPONSE: u8 = b'G';
/// `DataRow`
pub const DATA_ROW: u8 = b'D';
/// `EmptyQueryResponse`
pub const EMPTY_QUERY_RESPONSE: u8 = b'I';
/// `ErrorResponse`
pub const ERROR_RESPONSE: u8 = b'E';
/// `NegotiateProtocolVersion`
pub const NEGOTIATE_PROTOCOL_VERSION: u8 = b'v';
/// `NoData`
pub const NO_DATA: u8 = b'n';
/// `NoticeResponse`
pub const NOTICE_RESPONSE: u8 = b'N';
/// `NotificationResponse`
pub const NOTIFICATION_RESPONSE: u8 = b'A';
/// `ParameterStatus`
pub const PARAMETER_STATUS: u8 = b'S';
/// The types of a statement's parameters.
pub const PARAMETER_DESCRIPTION: u8 = b't';
/// `ParseComplete`
pub const PARSE_COMPLETE: u8 = b'1';
/// `PortalSuspended`
pub const PORTAL_SUSPENDED: u8 = b's';
/// `ReadyForQuery`
pub const READY_FOR_QUERY: u8 = b'Z';
/// `RowDescription`
pub const ROW_DESCRIPTION: u8 = b'T';

/// A whole `ParseComplete`.
pub const PARSE_COMPLETE_MESSAGE: [u8; 5] = [PARSE_COMPLETE, 0, 0, 0, 4];
/// A whole `BindComplete`.
pub const BIND_COMPLETE_MESSAGE: [u8; 5] = [BIND_COMPLETE, 0, 0, 0, 4];
/// A whole `NoData`.
pub const NO_DATA_MESSAGE: [u8; 5] = [NO_DATA, 0, 0, 0, 4];
/// A whole `CloseComplete`.
pub const CLOSE_COMPLETE_MESSAGE: [u8; 5] = [CLOSE_COMPLETE, 0, 0, 0, 4];

/// The authentication requests that we send or answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authentication<'a> {
    /// Logged in.
    Ok,
    /// A password in clear text.
    CleartextPassword,
    /// An MD5 hash with this salt.
    Md5Password([u8; 4]),
    /// One of these SASL mechanisms.
    Sasl(Vec<&'a [u8]>),
    /// The server's part of a SASL exchange.
    SaslContinue(&'a [u8]),
    /// The end of a SASL exchange.
    SaslFinal(&'a [u8]),
    /// Kerberos, GSSAPI, SSPI and what may come.
    Other(i32),
}

/// Reads a whole `Authentication…` message.
#[must_use]
pub fn authentication(message: &[u8]) -> Option<Authentication<'_>> {
    let (code, rest) = split_i32(message.get(HEADER_LEN..)?)?;
    Some(match code {
        0 => Authentication::Ok,
        3 => Authentication::CleartextPassword,
        5 => Authentication::Md5Password(*rest.first_chunk()?),
        10 => {
            let mut mechanisms = Vec::new();
            let mut rest = rest;
            loop {
                let (name, after) = split_cstr(rest)?;
                if name.is_empty() {
                    break;
                }
                mechanisms.push(name);
                rest = after;
            }
            Authentication::Sasl(mechanisms)
        }
        11 => Authentication::SaslContinue(rest),
        12 => Authentication::SaslFinal(rest),
        other => Authentication::Other(other),
    })
}

/// Appends an `Authentication…` message with this code and data.
pub fn put_authentication(out: &mut Vec<u8>, code: i32, data: &[u8]) {
    put_message(out, AUTHENTICATION, |body| {
        body.extend_from_slice(&code.to_be_bytes());
        body.extend_from_slice(data);
    });
}

/// Appends a `ParameterStatus`.
pub fn put_parameter_status(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    put_message(out, PARAMETER_STATUS, |body| {
        put_cstr(body, name);
        put_cstr(body, value);
    });
}

/// Name and value of a whole `ParameterStatus`.
#[must_use]
pub fn parameter_status(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = split_cstr(message.get(HEADER_LEN..)?)?;
    let (value, _) = split_cstr(rest)?;
    Some((name, value))
}

/// Appends a `BackendKeyData`.
pub fn put_backend_key(out: &mut Vec<u8>, key: &CancelKey) {
    put_message(out, BACKEND_KEY_DATA, |body| {
        body.extend_from_slice(&key.process_id.to_be_bytes());
        body.extend_from_slice(&key.secret);
    });
}

/// Reads a whole `BackendKeyData`. Servers of protocol 3.0 send 4 bytes of secret; other lengths are taken too, as long
/// as a CancelRequest can hold them.
#[must_use]
pub fn backend_key(message: &[u8]) -> Option<CancelKey> {
    let (process_id, secret) = split_i32(message.get(HEADER_LEN..)?)?;
    (secret.len() <= SECRET_LEN_MAX).then(|| CancelKey { process_id, secret: secret.to_vec() })
}

/// A column as a `RowDescription` has it, of no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnDescription<'a> {
    /// Its name.
    pub name: &'a str,
    /// The OID of its type.
    pub oid: i32,
    /// The bytes that a value has, or -1.
    pub size: i16,
    /// 0 where values come as text, 1 where they are binary.
    pub format: i16,
}

impl<'a> ColumnDescription<'a> {
    /// A column of texts.
    #[must_use]
    pub const fn text(name: &'a str) -> Self {
        Self { name, oid: 25, size: -1, format: 0 }
    }
}

/// Appends a `RowDescription` of text columns.
pub fn put_row_description(out: &mut Vec<u8>, columns: &[&str]) {
    put_columns(out, columns.iter().map(|name| ColumnDescription::text(name)));
}

/// Appends a `RowDescription`.
pub fn put_columns<'a>(out: &mut Vec<u8>, columns: impl ExactSizeIterator<Item = ColumnDescription<'a>>) {
    put_message(out, ROW_DESCRIPTION, |body| {
        body.extend_from_slice(&i16::try_from(columns.len()).unwrap_or(i16::MAX).to_be_bytes());
        for ColumnDescription { name, oid, size, format } in columns {
            put_cstr(body, name.as_bytes());
            // Neither table nor column; the type without a modifier.
            body.extend_from_slice(&[0; 6]);
            body.extend_from_slice(&oid.to_be_bytes());
            body.extend_from_slice(&size.to_be_bytes());
            body.extend_from_slice(&(-1_i32).to_be_bytes());
            body.extend_from_slice(&format.to_be_bytes());
        }
    });
}

/// Appends a `DataRow` of texts.
pub fn put_data_row(out: &mut Vec<u8>, fields: &[String]) {
    put_fields(out, fields.iter().map(|field| Some(field.as_bytes())));
}

/// Appends a `DataRow` of values, or of NULL.
pub fn put_fields<T: AsRef<[u8]>>(out: &mut Vec<u8>, fields: impl ExactSizeIterator<Item = Option<T>>) {
    put_message(out, DATA_ROW, |body| {
        body.extend_from_slice(&i16::try_from(fields.len()).unwrap_or(i16::MAX).to_be_bytes());
        for field in fields {
            let Some(field) = field else {
                body.extend_from_slice(&(-1_i32).to_be_bytes());
                continue;
            };
            let field = field.as_ref();
            body.extend_from_slice(&i32::try_from(field.len()).unwrap_or(i32::MAX).to_be_bytes());
            body.extend_from_slice(field);
        }
    });
}

/// Appends an `EmptyQueryResponse`.
pub fn put_empty_query(out: &mut Vec<u8>) {
    put_message(out, EMPTY_QUERY_RESPONSE, |_| {});
}

/// Appends a `NoticeResponse` with a detail.
pub fn put_notice(out: &mut Vec<u8>, message: &str, detail: &str) {
    put_told(
        out,
        NOTICE_RESPONSE,
        &[(b'S', "NOTICE"), (b'V', "NOTICE"), (b'C', "00000"), (b'M', message), (b'D', detail)],
    );
}

/// Appends a `CommandComplete`.
pub fn put_command_complete(out: &mut Vec<u8>, tag: &str) {
    put_message(out, COMMAND_COMPLETE, |body| put_cstr(body, tag.as_bytes()));
}

/// Appends a `ParameterDescription` of none.
pub fn put_no_parameters(out: &mut Vec<u8>) {
    put_message(out, PARAMETER_DESCRIPTION, |body| body.extend_from_slice(&[0; 2]));
}

/// Appends a `ReadyForQuery` with the status byte `I`, `T` or `E`.
pub fn put_ready(out: &mut Vec<u8>, status: u8) {
    put_message(out, READY_FOR_QUERY, |body| body.push(status));
}

/// Appends a `NegotiateProtocolVersion`: the protocol that is gone on with, and the options that are not served.
pub fn put_negotiate(out: &mut Vec<u8>, protocol: i32, unknown_options: &[String]) {
    put_message(out, NEGOTIATE_PROTOCOL_VERSION, |body| {
        body.extend_from_slice(&protocol.to_be_bytes());
        body.extend_from_slice(&i32::try_from(unknown_options.len()).unwrap_or(i32::MAX).to_be_bytes());
        for option in unknown_options {
            put_cstr(body, option.as_bytes());
        }
    });
}

/// The tag of a whole `CommandComplete`.
#[must_use]
pub fn command_tag(message: &[u8]) -> &[u8] {
    message.get(HEADER_LEN..).and_then(split_cstr).map_or(&[], |(tag, _)| tag)
}

/// One field of an `ErrorResponse` or `NoticeResponse`, by its type byte: `S` severity, `V` severity untranslated,
/// `C` SQLSTATE, `M` message, `D` detail, `H` hint.
#[must_use]
pub fn error_field(message: &[u8], field: u8) -> Option<&[u8]> {
    let mut rest = message.get(HEADER_LEN..)?;
    loop {
        let (&kind, after) = rest.split_first()?;
        if kind == 0 {
            return None;
        }
        let (text, after) = split_cstr(after)?;
        if kind == field {
            return Some(text);
        }
        rest = after;
    }
}

/// Whether an `ErrorResponse` ends the connection: its severity is FATAL or PANIC.
#[must_use]
pub fn is_fatal(message: &[u8]) -> bool {
    let severity = error_field(message, b'V').or_else(|| error_field(message, b'S'));
    matches!(severity, Some(b"FATAL" | b"PANIC"))
}

/// Appends an `ErrorResponse` with these fields.
pub fn put_error(out: &mut Vec<u8>, fields: &[(u8, &str)]) {
    put_told(out, ERROR_RESPONSE, fields);
}

fn put_told(out: &mut Vec<u8>, kind: u8, fields: &[(u8, &str)]) {
    put_message(out, kind, |body| {
        for (kind, text) in fields {
            body.push(*kind);
            put_cstr(body, text.as_bytes());
        }
        body.push(0);
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn error_fields_are_found_by_type() {
        let mut out = Vec::new();
        put_error(&mut out, &[(b'S', "FATAL"), (b'V', "FATAL"), (b'C', "57P01"), (b'M', "bye")]);
        assert_eq!(error_field(&out, b'C'), Some(&b"57P01"[..]));
        assert_eq!(error_field(&out, b'H'), None);
        assert!(is_fatal(&out));
    }

    #[test]
    fn a_translated_severity_does_not_hide_the_real_one() {
        let mut out = Vec::new();
        put_error(&mut out, &[(b'S', "FEHLER"), (b'V', "ERROR"), (b'C', "22012")]);
        assert!(!is_fatal(&out));
        let mut out = Vec::new();
        put_error(&mut out, &[(b'S', "SCHWERWIEGEND"), (b'V', "FATAL"), (b'C', "57P01")]);
        assert!(is_fatal(&out));
    }

    #[test]
    fn a_key_has_a_secret_of_256_bytes_at_most() {
        for (length, is_taken) in [(4, true), (32, true), (256, true), (257, false)] {
            let key = CancelKey { process_id: -7, secret: vec![1; length] };
            let mut message = Vec::new();
            put_backend_key(&mut message, &key);
            assert_eq!(backend_key(&message), is_taken.then_some(key), "{length} bytes");
        }
    }

    #[test]
    fn sasl_mechanisms_are_listed() {
        let mut out = Vec::new();
        put_authentication(&mut out, 10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0");
        assert_eq!(
            authentication(&out),
            Some(Authentication::Sasl(vec![b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"]))
        );
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = authentication(&bytes);
            let _ = parameter_status(&bytes);
            let _ = backend_key(&bytes);
            let _ = error_field(&bytes, b'M');
            let _ = command_tag(&bytes);
        }
    }
}
