//! The first packet of a connection, which has no type byte.
//!
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>: StartupMessage, SSLRequest, GSSENCRequest,
//! CancelRequest.

use crate::wire::codec::{put_cstr, put_length_prefixed, split_cstr, split_i32};

/// The largest first packet that PostgreSQL reads (`MAX_STARTUP_PACKET_LENGTH`), in bytes.
pub const STARTUP_LEN_MAX: usize = 10_000;

const SSL_REQUEST: i32 = 80_877_103;
const GSSENC_REQUEST: i32 = 80_877_104;
const CANCEL_REQUEST: i32 = 80_877_102;
/// A whole SSLRequest.
pub const SSL_REQUEST_PACKET: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

const PROTOCOL_3_0: i32 = 196_608;

/// The newest minor version of protocol 3 that is spoken to clients.
const MINOR_VERSION_MAX: u16 = 2;

/// The longest secret of a cancel key in protocol 3.2, in bytes; in 3.0 it has [`SHORT_SECRET_LEN`].
pub const SECRET_LEN_MAX: usize = 256;

/// The secret of a cancel key in protocol 3.0, in bytes.
pub const SHORT_SECRET_LEN: usize = 4;

/// The secret of a cancel key that we give a client of protocol 3.2, in bytes, as PostgreSQL 18 does.
pub const LONG_SECRET_LEN: usize = 32;

/// What a client wants first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstPacket {
    /// To go on over TLS.
    Ssl,
    /// To go on over GSSAPI encryption.
    GssEnc,
    /// To cancel what another connection runs.
    Cancel(CancelKey),
    /// To log in.
    Startup(Startup),
}

/// What identifies a connection to a cancel request.
#[derive(Clone, PartialEq, Eq)]
pub struct CancelKey {
    /// The process id of BackendKeyData.
    pub process_id: i32,
    /// Its secret: 4 bytes in protocol 3.0, up to 256 in 3.2.
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for CancelKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secret is left out, so that no log line can hold one.
        f.debug_struct("CancelKey").field("process_id", &self.process_id).finish_non_exhaustive()
    }
}

/// A StartupMessage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Startup {
    /// The minor version asked for, which may be newer than any that is known.
    pub minor_version: u16,
    /// The role to log in as.
    pub user: String,
    /// The database; the user's name where the client gave none.
    pub database: String,
    /// All other parameters in the order given, `options` not yet taken apart.
    pub parameters: Vec<(String, String)>,
    /// Names that begin with `_pq_.`: protocol options, none of which is known.
    pub protocol_options: Vec<String>,
}

impl Startup {
    /// The protocol that the session goes on with, as NegotiateProtocolVersion tells it: the one asked for or the newest
    /// that we know. 3.1 was never used, and PostgreSQL 18 takes it for a 3.0 without remark.
    #[must_use]
    pub fn protocol(&self) -> i32 {
        PROTOCOL_3_0 | i32::from(self.minor_version.min(MINOR_VERSION_MAX))
    }

    /// Whether the client must be told what is not served: a newer minor version, or options.
    #[must_use]
    pub fn needs_negotiation(&self) -> bool {
        self.minor_version > MINOR_VERSION_MAX || !self.protocol_options.is_empty()
    }

    /// The bytes that the secret of its cancel key has.
    #[must_use]
    pub const fn secret_len(&self) -> usize {
        if self.minor_version >= 2 { LONG_SECRET_LEN } else { SHORT_SECRET_LEN }
    }
}

/// Why a first packet is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartupFault {
    /// Not the start of anything that PostgreSQL knows; PostgreSQL closes without an answer.
    #[error("invalid length of startup packet")]
    Length,
    /// Another major version.
    #[error("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.2")]
    Version {
        /// The major version asked for.
        major: u16,
        /// The minor version asked for.
        minor: u16,
    },
    /// The list of parameters does not end, or a text is not UTF-8.
    #[error("invalid startup packet layout: expected terminator as last byte")]
    Layout,
    /// There is no user.
    #[error("no PostgreSQL user name specified in startup packet")]
    NoUser,
}

/// The length of the packet at the start of `bytes`, itself included; `None` until four bytes are there.
///
/// # Errors
/// When no first packet has that length.
pub fn packet_len(bytes: &[u8]) -> Result<Option<usize>, StartupFault> {
    let Some((length, _)) = split_i32(bytes) else { return Ok(None) };
    match usize::try_from(length) {
        Ok(length) if (8..=STARTUP_LEN_MAX).contains(&length) => Ok(Some(length)),
        _ => Err(StartupFault::Length),
    }
}

/// Reads one whole first packet.
///
/// # Errors
/// When it is none that can be served.
pub fn read(packet: &[u8]) -> Result<FirstPacket, StartupFault> {
    let (_, rest) = split_i32(packet).ok_or(StartupFault::Length)?;
    let (code, rest) = split_i32(rest).ok_or(StartupFault::Length)?;
    match code {
        SSL_REQUEST => Ok(FirstPacket::Ssl),
        GSSENC_REQUEST => Ok(FirstPacket::GssEnc),
        CANCEL_REQUEST => {
            let (process_id, secret) = split_i32(rest).ok_or(StartupFault::Length)?;
            if secret.len() < SHORT_SECRET_LEN || secret.len() > SECRET_LEN_MAX {
                return Err(StartupFault::Length);
            }
            Ok(FirstPacket::Cancel(CancelKey { process_id, secret: secret.to_vec() }))
        }
        _ => read_startup(code, rest).map(FirstPacket::Startup),
    }
}

fn read_startup(code: i32, mut rest: &[u8]) -> Result<Startup, StartupFault> {
    let [major_high, major_low, minor_high, minor_low] = code.to_be_bytes();
    let major = u16::from_be_bytes([major_high, major_low]);
    let minor_version = u16::from_be_bytes([minor_high, minor_low]);
    if major != 3 {
        return Err(StartupFault::Version { major, minor: minor_version });
    }
    let mut startup = Startup { minor_version, ..Startup::default() };
    let mut database = String::new();
    loop {
        let (name, after) = split_text(rest)?;
        if name.is_empty() {
            if !after.is_empty() {
                return Err(StartupFault::Layout);
            }
            break;
        }
        let (value, after) = split_text(after)?;
        rest = after;
        match name {
            "user" => value.clone_into(&mut startup.user),
            "database" => value.clone_into(&mut database),
            _ if name.starts_with("_pq_.") => startup.protocol_options.push(name.to_owned()),
            _ => startup.parameters.push((name.to_owned(), value.to_owned())),
        }
    }
    if startup.user.is_empty() {
        return Err(StartupFault::NoUser);
    }
    startup.database = if database.is_empty() { startup.user.clone() } else { database };
    Ok(startup)
}

fn split_text(bytes: &[u8]) -> Result<(&str, &[u8]), StartupFault> {
    let (text, rest) = split_cstr(bytes).ok_or(StartupFault::Layout)?;
    Ok((std::str::from_utf8(text).map_err(|_| StartupFault::Layout)?, rest))
}

/// Appends a StartupMessage of protocol 3.0.
pub fn put_startup(out: &mut Vec<u8>, parameters: &[(&str, &str)]) {
    put_length_prefixed(out, |body| {
        body.extend_from_slice(&PROTOCOL_3_0.to_be_bytes());
        for (name, value) in parameters {
            put_cstr(body, name.as_bytes());
            put_cstr(body, value.as_bytes());
        }
        body.push(0);
    });
}

/// Appends a CancelRequest.
pub fn put_cancel(out: &mut Vec<u8>, key: &CancelKey) {
    put_length_prefixed(out, |body| {
        body.extend_from_slice(&CANCEL_REQUEST.to_be_bytes());
        body.extend_from_slice(&key.process_id.to_be_bytes());
        body.extend_from_slice(&key.secret);
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(parameters: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        put_startup(&mut out, parameters);
        out
    }

    #[test]
    fn a_startup_message_is_read_back() {
        let bytes = packet(&[("user", "app"), ("database", "shop"), ("DateStyle", "ISO")]);
        assert_eq!(packet_len(&bytes), Ok(Some(bytes.len())));
        let FirstPacket::Startup(startup) = read(&bytes).unwrap() else { panic!("not a startup") };
        assert_eq!((startup.user.as_str(), startup.database.as_str()), ("app", "shop"));
        assert_eq!(startup.parameters, [("DateStyle".to_owned(), "ISO".to_owned())]);
    }

    #[test]
    fn the_database_is_the_user_where_none_is_given() {
        let FirstPacket::Startup(startup) = read(&packet(&[("user", "app")])).unwrap() else {
            panic!("not a startup")
        };
        assert_eq!(startup.database, "app");
    }

    #[test]
    fn faults_are_told_apart() {
        assert_eq!(read(&packet(&[("database", "x")])), Err(StartupFault::NoUser));
        assert_eq!(read(b"\0\0\0\x0d\0\x03\0\0user\0"), Err(StartupFault::Layout));
        assert_eq!(read(b"\0\0\0\x0d\0\x04\0\0user\0"), Err(StartupFault::Version { major: 4, minor: 0 }));
        for length in [0, 7, STARTUP_LEN_MAX + 1, 0x7fff_ffff, 0x4745_5420] {
            let bytes = u32::try_from(length).unwrap().to_be_bytes();
            assert_eq!(packet_len(&bytes), Err(StartupFault::Length));
        }
    }

    #[test]
    fn protocol_options_are_kept_apart_from_settings() {
        let FirstPacket::Startup(startup) = read(&packet(&[("user", "a"), ("_pq_.x", "1")])).unwrap() else {
            panic!("not a startup")
        };
        assert_eq!(startup.protocol_options, ["_pq_.x"]);
        assert!(startup.parameters.is_empty());
    }

    #[test]
    fn a_cancel_request_is_read_back() {
        let key = CancelKey { process_id: -5, secret: vec![1, 2, 3, 4] };
        let mut bytes = Vec::new();
        put_cancel(&mut bytes, &key);
        assert_eq!(bytes.len(), 16);
        assert_eq!(read(&bytes), Ok(FirstPacket::Cancel(key)));
    }

    #[test]
    fn a_key_is_shown_without_its_secret() {
        let key = CancelKey { process_id: 7, secret: vec![201, 202, 203, 204] };
        assert_eq!(format!("{key:?}"), "CancelKey { process_id: 7, .. }");
    }

    #[test]
    fn a_cancel_request_has_a_secret_of_4_to_256_bytes() {
        for (length, is_read) in [(0, false), (3, false), (4, true), (32, true), (256, true), (257, false)] {
            let key = CancelKey { process_id: 7, secret: vec![9; length] };
            let mut bytes = Vec::new();
            put_cancel(&mut bytes, &key);
            let expected = if is_read { Ok(FirstPacket::Cancel(key)) } else { Err(StartupFault::Length) };
            assert_eq!(read(&bytes), expected, "{length} bytes");
        }
    }

    #[test]
    fn the_protocol_is_the_one_asked_for_or_the_newest_that_is_known() {
        for (minor_version, protocol, is_newer, secret_len) in [
            (0, 196_608, false, 4),
            (1, 196_609, false, 4),
            (2, 196_610, false, 32),
            (3, 196_610, true, 32),
            (u16::MAX, 196_610, true, 32),
        ] {
            let startup = Startup { minor_version, ..Startup::default() };
            assert_eq!(startup.protocol(), protocol);
            assert_eq!(startup.needs_negotiation(), is_newer);
            assert_eq!(startup.secret_len(), secret_len);
        }
        let asking = Startup { protocol_options: vec!["_pq_.x".to_owned()], ..Startup::default() };
        assert!(asking.needs_negotiation());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = packet_len(&bytes);
            let _ = read(&bytes);
        }
    }
}
