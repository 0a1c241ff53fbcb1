//! Reads rows of statements that the proxy runs for itself.

use crate::wire::codec::{split_i16, split_i32};
use crate::wire::frame::HEADER_LEN;

/// The fields of a whole `DataRow` in text format; what is malformed ends the row.
#[must_use]
pub fn text_row(message: &[u8]) -> Vec<Option<String>> {
    let mut fields = Vec::new();
    let Some((count, mut rest)) = message.get(HEADER_LEN..).and_then(split_i16) else { return fields };
    for _ in 0..count {
        let Some((length, after)) = split_i32(rest) else { break };
        let Ok(length) = usize::try_from(length) else {
            fields.push(None);
            rest = after;
            continue;
        };
        let Some((field, after)) = after.split_at_checked(length) else { break };
        fields.push(Some(String::from_utf8_lossy(field).into_owned()));
        rest = after;
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_text_or_null() {
        let row = b"D\0\0\0\x16\0\x03\0\0\0\x01t\xff\xff\xff\xff\0\0\0\x02ab";
        assert_eq!(text_row(row), [Some("t".to_owned()), None, Some("ab".to_owned())]);
        assert_eq!(text_row(b"D\0\0\0\x08\0\x02\0\0"), []);
    }
}
