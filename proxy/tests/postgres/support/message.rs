//! Messages to a server, as bytes, and messages from it, taken apart.

use std::fmt;

use pgrouting_proxy::wire::backend::error_field;
use pgrouting_proxy::wire::codec::{put_cstr, put_message, split_cstr, split_i16, split_i32};

/// `Query`
pub fn query(sql: &str) -> Vec<u8> {
    message(b'Q', |body| put_cstr(body, sql.as_bytes()))
}

/// `Parse` without parameter types.
pub fn parse(name: &str, sql: &str) -> Vec<u8> {
    parse_typed(name, sql, &[])
}

/// `Parse`
pub fn parse_typed(name: &str, sql: &str, types: &[i32]) -> Vec<u8> {
    message(b'P', |body| {
        put_cstr(body, name.as_bytes());
        put_cstr(body, sql.as_bytes());
        put_count(body, types.len());
        types.iter().for_each(|oid| body.extend(oid.to_be_bytes()));
    })
}

/// `Bind` with parameters and results in text.
pub fn bind(portal: &str, statement: &str, parameters: &[Option<&str>]) -> Vec<u8> {
    let parameters: Vec<_> = parameters.iter().map(|value| value.map(str::as_bytes)).collect();
    bind_formatted(portal, statement, &[], &parameters, &[])
}

/// `Bind`
pub fn bind_formatted(
    portal: &str,
    statement: &str,
    formats: &[i16],
    parameters: &[Option<&[u8]>],
    result_formats: &[i16],
) -> Vec<u8> {
    message(b'B', |body| {
        put_cstr(body, portal.as_bytes());
        put_cstr(body, statement.as_bytes());
        put_count(body, formats.len());
        formats.iter().for_each(|format| body.extend(format.to_be_bytes()));
        put_count(body, parameters.len());
        for parameter in parameters {
            let length = parameter.map_or(-1, |value| i32::try_from(value.len()).unwrap());
            body.extend(length.to_be_bytes());
            body.extend_from_slice(parameter.unwrap_or_default());
        }
        put_count(body, result_formats.len());
        result_formats.iter().for_each(|format| body.extend(format.to_be_bytes()));
    })
}

/// `Describe` of a statement (`S`) or portal (`P`).
pub fn describe(kind: char, name: &str) -> Vec<u8> {
    message(b'D', |body| put_target(body, kind, name))
}

/// `Close` of a statement (`S`) or portal (`P`).
pub fn close(kind: char, name: &str) -> Vec<u8> {
    message(b'C', |body| put_target(body, kind, name))
}

/// `Execute`; 0 is no limit.
pub fn execute(portal: &str, rows_max: i32) -> Vec<u8> {
    message(b'E', |body| {
        put_cstr(body, portal.as_bytes());
        body.extend(rows_max.to_be_bytes());
    })
}

/// `Sync`
pub fn sync() -> Vec<u8> {
    message(b'S', |_| {})
}

/// `Flush`
pub fn flush() -> Vec<u8> {
    message(b'H', |_| {})
}

/// `Terminate`
pub fn terminate() -> Vec<u8> {
    message(b'X', |_| {})
}

/// `CopyData`
pub fn copy_data(data: &[u8]) -> Vec<u8> {
    message(b'd', |body| body.extend_from_slice(data))
}

/// `CopyDone`
pub fn copy_done() -> Vec<u8> {
    message(b'c', |_| {})
}

/// `CopyFail`
pub fn copy_fail(reason: &str) -> Vec<u8> {
    message(b'f', |body| put_cstr(body, reason.as_bytes()))
}

/// `FunctionCall` with binary arguments and result.
pub fn function_call(oid: i32, arguments: &[&[u8]]) -> Vec<u8> {
    message(b'F', |body| {
        body.extend(oid.to_be_bytes());
        body.extend([0, 1, 0, 1]);
        put_count(body, arguments.len());
        for argument in arguments {
            body.extend(i32::try_from(argument.len()).unwrap().to_be_bytes());
            body.extend_from_slice(argument);
        }
        body.extend([0, 1]);
    })
}

/// Parse, Bind, Execute of the unnamed statement and portal, without Sync.
pub fn unnamed(sql: &str) -> Vec<u8> {
    [parse("", sql), bind("", "", &[]), execute("", 0)].concat()
}

/// Bind and Execute of a statement without parameters on the unnamed portal, without Sync.
pub fn run(statement: &str) -> Vec<u8> {
    [bind("", statement, &[]), execute("", 0)].concat()
}

/// A whole batch that parses, binds, describes and executes a statement without parameters.
pub fn batch(sql: &str) -> Vec<u8> {
    [parse("", sql), bind("", "", &[]), describe('P', ""), execute("", 0), sync()].concat()
}

/// Any message.
pub fn message(kind: u8, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put_message(&mut out, kind, write);
    out
}

fn put_target(body: &mut Vec<u8>, kind: char, name: &str) {
    body.push(u8::try_from(kind).unwrap());
    put_cstr(body, name.as_bytes());
}

fn put_count(body: &mut Vec<u8>, count: usize) {
    body.extend(u16::try_from(count).unwrap().to_be_bytes());
}

/// A message from a server, whole.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Type, length and body.
    pub bytes: Vec<u8>,
}

impl Message {
    /// Its type.
    pub fn kind(&self) -> char {
        char::from(self.bytes[0])
    }

    /// What comes after type and length.
    pub fn body(&self) -> &[u8] {
        &self.bytes[5..]
    }

    /// A field of an error or notice.
    pub fn field(&self, kind: char) -> Option<String> {
        error_field(&self.bytes, u8::try_from(kind).unwrap()).map(text)
    }

    /// The same without the fields of an error that tell the place in the server's source.
    pub fn without_place(&self) -> Self {
        if self.kind() != 'E' {
            return self.clone();
        }
        let fields = self.body().split(|byte| *byte == 0).filter(|field| !field.is_empty());
        let kept = fields.filter(|field| !b"FLR".contains(&field[0]));
        Self { bytes: message(b'E', |body| kept.for_each(|field| put_cstr(body, field))) }
    }

    /// The values of a `DataRow`.
    pub fn values(&self) -> Vec<Option<Vec<u8>>> {
        let (count, mut rest) = split_i16(self.body()).unwrap();
        (0..count)
            .map(|_| {
                let (length, after) = split_i32(rest).unwrap();
                let length = usize::try_from(length).ok();
                let (value, after) = after.split_at(length.unwrap_or_default());
                rest = after;
                length.map(|_| value.to_vec())
            })
            .collect()
    }

    /// The NUL-ended texts that a body begins with.
    pub fn texts(&self) -> Vec<String> {
        let mut rest = self.body();
        let mut texts = Vec::new();
        while let Some((value, after)) = split_cstr(rest) {
            texts.push(text(value));
            rest = after;
        }
        texts
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.body().get(..200).unwrap_or_else(|| self.body());
        write!(f, "{} {}", self.kind(), shown.escape_ascii())
    }
}

/// Everything that came for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// In order.
    pub messages: Vec<Message>,
}

impl Answer {
    /// The types in order, without notices, parameters and notifications, which may come at any time.
    pub fn types(&self) -> String {
        self.messages.iter().map(Message::kind).filter(|kind| !"NSA".contains(*kind)).collect()
    }

    /// The rows as text.
    pub fn rows(&self) -> Vec<Vec<Option<String>>> {
        self.of('D').map(|m| m.values().iter().map(|v| v.as_deref().map(text)).collect()).collect()
    }

    /// The first value of each row.
    pub fn column(&self) -> Vec<String> {
        self.rows().into_iter().filter_map(|row| row.into_iter().next().flatten()).collect()
    }

    /// The command tags.
    pub fn tags(&self) -> Vec<String> {
        self.of('C').map(|m| m.texts().swap_remove(0)).collect()
    }

    /// The code of the first error.
    pub fn sqlstate(&self) -> Option<String> {
        self.of('E').next().and_then(|m| m.field('C'))
    }

    /// The text of the first error.
    pub fn error(&self) -> String {
        self.of('E').next().and_then(|m| m.field('M')).unwrap_or_default()
    }

    /// Channel and payload of the notifications.
    pub fn notifications(&self) -> Vec<String> {
        self.of('A').map(notification).collect()
    }

    /// Names and values that the server reported.
    pub fn parameters(&self) -> Vec<Vec<String>> {
        self.of('S').map(Message::texts).collect()
    }

    /// The transaction status of the last `ReadyForQuery`.
    pub fn status(&self) -> char {
        self.of('Z').last().map_or(' ', |m| char::from(m.body()[0]))
    }

    /// Messages of one type.
    pub fn of(&self, kind: char) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(move |message| message.kind() == kind)
    }
}

/// `channel payload` of a `NotificationResponse`.
pub fn notification(message: &Message) -> String {
    let (channel, rest) = split_cstr(&message.body()[4..]).unwrap();
    format!("{} {}", text(channel), text(split_cstr(rest).unwrap().0))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
