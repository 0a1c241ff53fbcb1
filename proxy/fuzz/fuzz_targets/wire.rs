//! A stream of messages, from a client that is logged in or from a server.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pgrouting_proxy::server::query::text_row;
use pgrouting_proxy::session::request::{Progress, RequestFault, progress};
use pgrouting_proxy::wire::backend::{
    authentication, backend_key, command_tag, error_field, is_fatal, parameter_status, put_backend_key,
    put_parameter_status,
};
use pgrouting_proxy::wire::frame::{HEADER_LEN, header};
use pgrouting_proxy::wire::frontend::{bind_names, parse, put_parse, target};

/// The longest message that is taken; short, so that the limit is met.
const MESSAGE_BYTES_MAX: usize = 600;

fuzz_target!(|bytes: &[u8]| {
    each_message(bytes);
    a_request_is_found_whatever_the_pieces_it_comes_in(bytes);
});

/// Reads each message in turn, whole, cut off, and as one of any type.
fn each_message(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some(header)) = header(rest, MESSAGE_BYTES_MAX) {
        assert!((HEADER_LEN..=MESSAGE_BYTES_MAX).contains(&header.total));
        let Some((message, after)) = rest.split_at_checked(header.total) else { break };
        from_client(message);
        from_server(message);
        rest = after;
    }
    from_client(rest);
    from_server(rest);
}

fn from_client(message: &[u8]) {
    if let Some(parsed) = parse(message) {
        let mut again = Vec::new();
        put_parse(&mut again, parsed.name, parsed.definition);
        assert_eq!(again[HEADER_LEN..], message[HEADER_LEN..]);
    }
    if let Some((portal, statement)) = bind_names(message) {
        assert!(!portal.contains(&0) && !statement.contains(&0));
    }
    let _ = target(message);
}

fn from_server(message: &[u8]) {
    if let Some(key) = backend_key(message) {
        let mut again = Vec::new();
        put_backend_key(&mut again, &key);
        assert_eq!(again[HEADER_LEN..], message[HEADER_LEN..]);
    }
    if let Some((name, value)) = parameter_status(message) {
        let mut again = Vec::new();
        put_parameter_status(&mut again, name, value);
        assert!(message[HEADER_LEN..].starts_with(&again[HEADER_LEN..]));
    }
    let _ = authentication(message);
    for field in *b"SVCMDH" {
        assert!(error_field(message, field).is_none_or(|text| !text.contains(&0)));
    }
    let _ = is_fatal(message);
    let _ = command_tag(message);
    assert!(text_row(message).len() <= message.len());
}

/// A request that comes byte by byte ends where it ends when it is there at once, and no earlier than it was said to.
fn a_request_is_found_whatever_the_pieces_it_comes_in(bytes: &[u8]) {
    let (at_once, scanned_at_once) = look_at(bytes, 0);
    let mut scanned = 0;
    let mut needed = 0;
    for there in 0..=bytes.len() {
        let (found, scanned_now) = look_at(&bytes[..there], scanned);
        assert!(scanned <= scanned_now && scanned_now <= there);
        scanned = scanned_now;
        match found {
            Ok(Progress::Partial(more)) => {
                assert!(more > there && more >= needed);
                needed = more;
            }
            decided => {
                assert!(there >= needed);
                assert_eq!((decided, scanned), (at_once, scanned_at_once));
                return;
            }
        }
    }
    assert!(matches!(at_once, Ok(Progress::Partial(_))));
}

fn look_at(inbox: &[u8], mut scanned: usize) -> (Result<Progress, RequestFault>, usize) {
    let found = progress(inbox, &mut scanned, MESSAGE_BYTES_MAX);
    (found, scanned)
}
