//! The pieces that messages are made of: NUL-ended strings, big-endian numbers, and lengths filled in afterwards.

/// Splits a NUL-ended string off the front; `None` when no NUL is there.
#[must_use]
pub fn split_cstr(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&b| b == 0)?;
    let (text, rest) = bytes.split_at(end);
    Some((text, rest.get(1..)?))
}

/// Splits a 32-bit number off the front.
#[must_use]
pub fn split_i32(bytes: &[u8]) -> Option<(i32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((i32::from_be_bytes(*number), rest))
}

/// Splits a 16-bit number off the front.
#[must_use]
pub fn split_i16(bytes: &[u8]) -> Option<(i16, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((i16::from_be_bytes(*number), rest))
}

/// Appends a message of type `kind` whose body `write` appends.
pub fn put_message(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    put_length_prefixed(out, write);
}

/// Appends a length, which counts itself, and the body that `write` appends. The first message of a connection has
/// this form, without a type.
///
/// # Panics
/// When the body has 2 GiB or more, which no caller writes.
pub fn put_length_prefixed(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = i32::try_from(out.len() - start).expect("messages that we write are below 2 GiB");
    if let Some(place) = out.get_mut(start..start + 4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

/// Appends a string and its NUL. A NUL inside would end it early, so it is cut there.
pub fn put_cstr(out: &mut Vec<u8>, text: &[u8]) {
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    out.extend_from_slice(text.get(..end).unwrap_or(text));
    out.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_its_length_and_body() {
        let mut out = Vec::new();
        put_message(&mut out, b'Q', |body| put_cstr(body, b"SELECT 1"));
        assert_eq!(out, b"Q\0\0\0\x0dSELECT 1\0");
    }

    #[test]
    fn pieces_are_split_off_or_missing() {
        assert_eq!(split_cstr(b"ab\0rest"), Some((&b"ab"[..], &b"rest"[..])));
        assert_eq!(split_cstr(b"ab"), None);
        assert_eq!(split_i32(&[0, 0, 1, 0, 9]), Some((256, &[9][..])));
        assert_eq!(split_i32(&[0, 0, 1]), None);
        assert_eq!(split_i16(&[1, 0]), Some((256, &[][..])));
    }
}
