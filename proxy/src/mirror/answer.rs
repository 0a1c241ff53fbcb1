//! What a server answers to one request, as far as the answers of two servers can be compared.

use std::hash::{BuildHasher as _, Hasher as _};

use foldhash::fast::FixedState;

use crate::wire::backend::{
    COMMAND_COMPLETE, COPY_IN_RESPONSE, DATA_ROW, EMPTY_QUERY_RESPONSE, ERROR_RESPONSE, PORTAL_SUSPENDED,
    READY_FOR_QUERY, error_field, is_fatal,
};
use crate::wire::frame::HEADER_LEN;
use crate::wire::frontend::COPY_DATA;

/// A row is hashed in pieces of this length, in bytes, so that a long one needs no more memory.
const PIECE: usize = 64 * 1024;

/// A longer error is not read to its end, in bytes.
const ERROR_MAX: usize = 64 * 1024;

/// The answer to one request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// What its statements came to, one after the other.
    pub results: Vec<Outcome>,
    /// The SQLSTATE of its error.
    pub error: Option<Sqlstate>,
    /// The transaction status behind it.
    pub status: u8,
}

/// Five letters and digits.
pub type Sqlstate = [u8; 5];

/// What one statement came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The command tag, with its number of rows.
    pub tag: Box<str>,
    /// The rows in their order.
    pub ordered: u64,
    /// The rows in any order.
    pub unordered: u64,
}

/// What a digest has come to.
#[derive(Debug, PartialEq, Eq)]
pub enum Met {
    /// An answer is whole.
    Answer(Answer),
    /// The server wants data for a COPY.
    CopyIn,
    /// The server ends the connection.
    Fatal(Sqlstate),
}

/// Walks the messages of a server, in pieces of any size, and keeps what is compared.
#[derive(Debug)]
pub struct Digest {
    header: [u8; HEADER_LEN],
    header_len: usize,
    /// Bytes of the current message's body that are still to come.
    left: usize,
    body: Vec<u8>,
    hash: u64,
    outcome: Outcome,
    answer: Answer,
    hasher: FixedState,
}

impl Default for Digest {
    fn default() -> Self {
        Self {
            header: [0; HEADER_LEN],
            header_len: 0,
            left: 0,
            body: Vec::new(),
            hash: 0,
            outcome: Outcome::default(),
            answer: Answer::default(),
            hasher: FixedState::with_seed(0),
        }
    }
}

impl Digest {
    /// Takes bytes; tells what they lead to, and how many of them were taken for that. `None` when all were.
    pub fn take(&mut self, bytes: &[u8]) -> Option<(Met, usize)> {
        let mut rest = bytes;
        loop {
            while self.header_len < HEADER_LEN {
                let (&byte, behind) = rest.split_first()?;
                if let Some(place) = self.header.get_mut(self.header_len) {
                    *place = byte;
                }
                self.header_len += 1;
                rest = behind;
                if self.header_len == HEADER_LEN {
                    let [_, a, b, c, d] = self.header;
                    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
                    // The length counts itself.
                    self.left = length.saturating_sub(4);
                }
            }
            let (piece, behind) = rest.split_at(self.left.min(rest.len()));
            self.left -= piece.len();
            rest = behind;
            if self.left > 0 {
                self.collect(piece);
                return None;
            }
            self.header_len = 0;
            let met = if self.body.is_empty() {
                self.message(piece)
            } else {
                self.collect(piece);
                let body = std::mem::take(&mut self.body);
                let met = self.message(&body);
                self.body = body;
                self.body.clear();
                met
            };
            if let Some(met) = met {
                return Some((met, bytes.len() - rest.len()));
            }
        }
    }

    /// Keeps a piece of a body that is not whole, if it matters.
    fn collect(&mut self, mut piece: &[u8]) {
        match self.header[0] {
            DATA_ROW | COPY_DATA => {
                while let Some((front, behind)) = piece.split_at_checked(PIECE - self.body.len()) {
                    self.body.extend_from_slice(front);
                    let body = std::mem::take(&mut self.body);
                    self.hash_piece(&body);
                    piece = behind;
                }
                self.body.extend_from_slice(piece);
            }
            COMMAND_COMPLETE | ERROR_RESPONSE | READY_FOR_QUERY => {
                let room = ERROR_MAX - self.body.len().min(ERROR_MAX);
                self.body.extend_from_slice(piece.get(..piece.len().min(room)).unwrap_or_default());
            }
            _ => {}
        }
    }

    fn hash_piece(&mut self, piece: &[u8]) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(self.hash);
        hasher.write(piece);
        self.hash = hasher.finish();
    }

    /// A message whose body (or what is left of a row that was hashed in pieces) is this.
    fn message(&mut self, body: &[u8]) -> Option<Met> {
        match self.header[0] {
            DATA_ROW | COPY_DATA => {
                for piece in body.chunks(PIECE) {
                    self.hash_piece(piece);
                }
                let row = std::mem::take(&mut self.hash);
                self.outcome.unordered = self.outcome.unordered.wrapping_add(row);
                self.outcome.ordered =
                    (self.outcome.ordered.rotate_left(5) ^ row).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
            COMMAND_COMPLETE => {
                let tag = String::from_utf8_lossy(body.strip_suffix(b"\0").unwrap_or(body)).into();
                self.end_of_statement(tag);
            }
            EMPTY_QUERY_RESPONSE => self.end_of_statement("".into()),
            PORTAL_SUSPENDED => self.end_of_statement("(suspended)".into()),
            ERROR_RESPONSE => {
                self.outcome = Outcome::default();
                let mut message = self.header.to_vec();
                message.extend_from_slice(body);
                let code = error_field(&message, b'C').and_then(|code| code.try_into().ok());
                let code = code.unwrap_or(*b"XX000");
                self.answer.error.get_or_insert(code);
                if is_fatal(&message) {
                    return Some(Met::Fatal(code));
                }
            }
            COPY_IN_RESPONSE => return Some(Met::CopyIn),
            READY_FOR_QUERY => {
                self.outcome = Outcome::default();
                self.answer.status = body.first().copied().unwrap_or_default();
                return Some(Met::Answer(std::mem::take(&mut self.answer)));
            }
            _ => {}
        }
        None
    }

    fn end_of_statement(&mut self, tag: Box<str>) {
        let outcome = Outcome { tag, ..std::mem::take(&mut self.outcome) };
        self.answer.results.push(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec::put_message;

    fn message(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
        put_message(out, kind, |out| out.extend_from_slice(body));
    }

    fn stream(rows: &[&[u8]], error: Option<&str>) -> Vec<u8> {
        let mut out = Vec::new();
        message(&mut out, b'T', b"whatever");
        for row in rows {
            message(&mut out, DATA_ROW, row);
        }
        match error {
            Some(code) => {
                message(&mut out, ERROR_RESPONSE, format!("SERROR\0C{code}\0Mno\0\0").as_bytes());
            }
            None => message(&mut out, COMMAND_COMPLETE, format!("SELECT {}\0", rows.len()).as_bytes()),
        }
        message(&mut out, READY_FOR_QUERY, b"I");
        out
    }

    fn digest(bytes: &[u8], step: usize) -> Vec<Answer> {
        let mut digest = Digest::default();
        let mut answers = Vec::new();
        for mut piece in bytes.chunks(step) {
            while let Some((met, taken)) = digest.take(piece) {
                piece = &piece[taken..];
                match met {
                    Met::Answer(answer) => answers.push(answer),
                    other => panic!("{other:?}"),
                }
            }
        }
        answers
    }

    #[test]
    fn an_answer_is_the_same_in_pieces_of_any_size() {
        let long = vec![7; 3 * PIECE + 5];
        let mut bytes = stream(&[b"one", &long, b"", b"two"], None);
        bytes.extend(stream(&[b"three"], Some("42P01")));
        let whole = digest(&bytes, bytes.len());
        assert_eq!(whole.len(), 2);
        assert_eq!(&*whole[0].results[0].tag, "SELECT 4");
        assert_eq!((whole[0].status, whole[1].error), (b'I', Some(*b"42P01")));
        for step in [1, 2, 5, 7, 1000, PIECE, PIECE + 1] {
            assert_eq!(digest(&bytes, step), whole, "{step}");
        }
    }

    #[test]
    fn rows_in_another_order_differ_in_their_order_only() {
        let one = digest(&stream(&[b"a", b"b"], None), 100).remove(0).results.remove(0);
        let other = digest(&stream(&[b"b", b"a"], None), 100).remove(0).results.remove(0);
        assert_eq!(one.unordered, other.unordered);
        assert_ne!(one.ordered, other.ordered);
        let third = digest(&stream(&[b"b", b"c"], None), 100).remove(0).results.remove(0);
        assert_ne!(one.unordered, third.unordered);
    }
}
