//! Finds the boundaries of messages in a stream of bytes.
//!
//! A message is one type byte, a big-endian 32-bit length that counts itself and the body, and the body:
//! <https://www.postgresql.org/docs/current/protocol-overview.html#PROTOCOL-MESSAGE-CONCEPTS>.

/// Bytes of the type and the length.
pub const HEADER_LEN: usize = 5;

/// The start of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The type byte.
    pub kind: u8,
    /// Bytes of the whole message, header included; at least [`HEADER_LEN`].
    pub total: usize,
}

/// A length that no message can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid message length {length} of a message of type {kind:#04x}")]
pub struct BadLength {
    /// The type byte before it.
    pub kind: u8,
    /// The length as it was sent.
    pub length: i32,
}

/// Reads the header at the start of `bytes`; `None` when there are fewer than [`HEADER_LEN`].
///
/// # Errors
/// When the length is below 4, negative, or makes the message longer than `total_max`.
pub fn header(bytes: &[u8], total_max: usize) -> Result<Option<Header>, BadLength> {
    let [kind, a, b, c, d, ..] = *bytes else { return Ok(None) };
    let length = i32::from_be_bytes([a, b, c, d]);
    match usize::try_from(length) {
        Ok(length) if length >= 4 && length < total_max => Ok(Some(Header { kind, total: length + 1 })),
        _ => Err(BadLength { kind, length }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_soon_as_it_is_there() {
        let message = [b'Q', 0, 0, 0, 6, b'x', 0];
        for cut in 0..HEADER_LEN {
            assert_eq!(header(&message[..cut], 100), Ok(None));
        }
        assert_eq!(header(&message, 100), Ok(Some(Header { kind: b'Q', total: 7 })));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for (length, max) in [(0, 100), (3, 100), (-1, 100), (i32::MIN, 100), (100, 100), (i32::MAX, 100)] {
            let mut message = vec![b'Q'];
            message.extend(length.to_be_bytes());
            assert_eq!(header(&message, max), Err(BadLength { kind: b'Q', length }));
        }
    }
}
