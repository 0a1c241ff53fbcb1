//! Finds out when a client has sent a whole request, without looking into its messages.
//!
//! A request is a `Query`, a `FunctionCall`, or everything to a `Sync` or `Flush`: a server never sees half of one. A
//! message that is too large to be collected is passed on as it comes.

use crate::wire::frame::{BadLength, HEADER_LEN, Header, header};
use crate::wire::frontend::{
    BIND, CLOSE, COPY_DATA, COPY_DONE, COPY_FAIL, DESCRIBE, EXECUTE, FLUSH, FUNCTION_CALL, PARSE, QUERY,
    SYNC, TERMINATE,
};

/// A message that is longer is not collected but passed on as it comes, in bytes.
pub const COLLECTED_MAX: usize = 64 * 1024;

/// A batch that is longer is passed on before its Sync or Flush, in bytes: a client that never sends one must not fill
/// the memory.
pub const BATCH_COLLECTED_MAX: usize = 256 * 1024;

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A server is needed now.
    Whole,
    /// More bytes are needed; at least this many in all, where it is known.
    Partial(usize),
    /// The message in front, of this many bytes, has no meaning here: COPY data that a failed COPY left behind, which
    /// PostgreSQL ignores too.
    Meaningless(usize),
    /// The client leaves.
    Terminate,
}

/// A message that no client may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// Its length cannot be.
    #[error(transparent)]
    Length(#[from] BadLength),
    /// It is longer than the pool allows, in bytes.
    #[error("message of {0} bytes")]
    TooLong(usize),
    /// Its type is unknown.
    #[error("invalid frontend message type {0}")]
    Type(u8),
}

/// Whether a message of which `there` bytes have arrived is passed on before the rest of it.
#[must_use]
pub const fn is_streamed(header: Header, there: usize) -> bool {
    matches!(header.kind, QUERY | BIND | COPY_DATA | FUNCTION_CALL)
        && header.total > COLLECTED_MAX
        && there >= COLLECTED_MAX
}

/// The whole messages at the front of some bytes, one after the other.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    std::iter::from_fn(move || {
        let header = client_header(bytes, usize::MAX).ok()??;
        let (message, rest) = bytes.split_at_checked(header.total)?;
        bytes = rest;
        Some((header, message))
    })
}

/// Reads a header and checks it against what clients may send.
///
/// # Errors
/// When no client may send it.
pub fn client_header(bytes: &[u8], message_bytes_max: usize) -> Result<Option<Header>, RequestFault> {
    let Some(header) = header(bytes, 0x7fff_ffff)? else { return Ok(None) };
    match header.kind {
        BIND | CLOSE | COPY_DATA | COPY_DONE | COPY_FAIL | DESCRIBE | EXECUTE | FLUSH | FUNCTION_CALL
        | PARSE | QUERY | SYNC | TERMINATE => {}
        kind => return Err(RequestFault::Type(kind)),
    }
    if header.total > message_bytes_max {
        return Err(RequestFault::TooLong(header.total));
    }
    Ok(Some(header))
}

/// Looks at what has arrived, from `scanned` on, where earlier calls came to; moves `scanned` past whole messages.
///
/// # Errors
/// When a message is one that no client may send.
pub fn progress(
    inbox: &[u8],
    scanned: &mut usize,
    message_bytes_max: usize,
) -> Result<Progress, RequestFault> {
    loop {
        let rest = inbox.get(*scanned..).unwrap_or_default();
        let Some(header) = client_header(rest, message_bytes_max)? else {
            return Ok(Progress::Partial(*scanned + HEADER_LEN));
        };
        let is_there = rest.len() >= header.total;
        match header.kind {
            TERMINATE if *scanned == 0 => return Ok(Progress::Terminate),
            COPY_DATA | COPY_DONE | COPY_FAIL if *scanned == 0 => {
                return Ok(Progress::Meaningless(header.total));
            }
            // Whatever came before it is served first.
            TERMINATE => return Ok(Progress::Whole),
            _ if !is_there => {
                return Ok(if is_streamed(header, rest.len()) {
                    Progress::Whole
                } else {
                    Progress::Partial(*scanned + header.total)
                });
            }
            QUERY | FUNCTION_CALL | SYNC | FLUSH => return Ok(Progress::Whole),
            _ => *scanned += header.total,
        }
        if *scanned >= BATCH_COLLECTED_MAX {
            return Ok(Progress::Whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::codec::put_message;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_message(&mut out, kind, |b| b.extend_from_slice(body));
        out
    }

    fn progress_of(inbox: &[u8]) -> Result<Progress, RequestFault> {
        progress(inbox, &mut 0, 1 << 20)
    }

    #[test]
    fn a_request_is_whole_at_its_last_byte() {
        let batch = [message(b'P', b"\0SELECT 1\0\0\0"), message(b'B', b"\0\0"), message(b'S', b"")].concat();
        for request in [message(b'Q', b"SELECT 1\0"), batch] {
            let mut scanned = 0;
            for cut in 0..request.len() {
                let progress = progress(&request[..cut], &mut scanned, 1 << 20);
                assert!(matches!(progress, Ok(Progress::Partial(_))), "{cut}: {progress:?}");
            }
            assert_eq!(progress(&request, &mut scanned, 1 << 20), Ok(Progress::Whole));
        }
    }

    #[test]
    fn a_batch_without_end_is_not_collected_without_end() {
        let bind = message(b'B', &[0; 1024]);
        let batch = bind.repeat(BATCH_COLLECTED_MAX / bind.len());
        assert!(matches!(progress_of(&batch), Ok(Progress::Partial(_))));
        assert_eq!(progress_of(&[batch, bind].concat()), Ok(Progress::Whole));
    }

    #[test]
    fn a_flush_ends_a_request_too() {
        assert_eq!(
            progress_of(&[message(b'P', b"\0x\0\0\0"), message(b'H', b"")].concat()),
            Ok(Progress::Whole)
        );
    }

    #[test]
    fn a_large_message_is_passed_on_as_it_comes() {
        let query = message(b'Q', &[b'x'; 2 * COLLECTED_MAX]);
        assert!(matches!(progress_of(&query[..COLLECTED_MAX - 1]), Ok(Progress::Partial(_))));
        assert_eq!(progress_of(&query[..COLLECTED_MAX]), Ok(Progress::Whole));
        let parse = message(b'P', &[b'x'; 2 * COLLECTED_MAX]);
        assert!(matches!(progress_of(&parse[..COLLECTED_MAX]), Ok(Progress::Partial(_))));
    }

    #[test]
    fn what_no_client_may_send_is_refused() {
        assert_eq!(progress_of(b"Y\0\0\0\x04"), Err(RequestFault::Type(b'Y')));
        assert!(matches!(progress_of(b"Q\0\0\0\x03"), Err(RequestFault::Length(_))));
        assert!(matches!(progress_of(b"Q\x7f\xff\xff\xf0"), Err(RequestFault::TooLong(_))));
    }

    #[test]
    fn copy_data_after_a_failed_copy_is_not_collected() {
        assert_eq!(progress_of(b"d\0\0\x10\0"), Ok(Progress::Meaningless(0x1001)));
        let batch = [message(b'E', b"\0\0\0\0\0"), message(b'd', b"1\n"), message(b'S', b"")].concat();
        assert_eq!(progress_of(&batch), Ok(Progress::Whole), "inside a request it is the server's business");
    }

    #[test]
    fn goodbye_is_heard_after_what_came_before_it() {
        let goodbye = message(b'X', b"");
        assert_eq!(progress_of(&goodbye), Ok(Progress::Terminate));
        assert_eq!(progress_of(&[message(b'E', b"\0\0\0\0\0"), goodbye].concat()), Ok(Progress::Whole));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = progress_of(&bytes);
        }
    }
}
