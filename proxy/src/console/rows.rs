//! Tables on the wire: columns with their types, and rows as text or, for drivers that ask for it, in binary.

use crate::wire::backend::{ColumnDescription, put_columns, put_fields};

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `text`
    Text,
    /// `int4`
    Int4,
    /// `int8`
    Int8,
    /// `numeric`, of whole numbers.
    Numeric,
}

/// A column.
pub type Column = (&'static str, Type);

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// None.
    Null,
    /// A text.
    Text(String),
    /// A number, of whatever type its column has.
    Number(i64),
}

/// Columns and rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The columns.
    pub columns: &'static [Column],
    /// As many values in each as there are columns.
    pub rows: Vec<Vec<Value>>,
}

/// The columns of two lists, one after the other.
#[must_use]
pub const fn joined<const A: usize, const B: usize, const N: usize>(
    first: &[Column; A],
    second: &[Column; B],
) -> [Column; N] {
    assert!(A + B == N);
    let mut columns = [("", Type::Text); N];
    let mut index = 0;
    while index < N {
        columns[index] = if index < A { first[index] } else { second[index - A] };
        index += 1;
    }
    columns
}

/// How a client wants the values: as text where there is none, all alike where there is one, else each column as it says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Formats(pub Vec<i16>);

impl Formats {
    fn of(&self, column: usize) -> i16 {
        match *self.0 {
            [] => 0,
            [all] => all,
            _ => self.0.get(column).copied().unwrap_or_default(),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value {
    fn from(is_so: bool) -> Self {
        Self::Number(is_so.into())
    }
}

/// Appends the `RowDescription`.
pub fn put_description(out: &mut Vec<u8>, columns: &[Column], formats: &Formats) {
    let described = columns.iter().enumerate().map(|(index, (name, kind))| {
        let (oid, size) = match kind {
            Type::Text => (25, -1),
            Type::Int4 => (23, 4),
            Type::Int8 => (20, 8),
            Type::Numeric => (1700, -1),
        };
        ColumnDescription { name, oid, size, format: formats.of(index) }
    });
    put_columns(out, described);
}

/// Appends the rows.
pub fn put_rows(out: &mut Vec<u8>, table: &Table, formats: &Formats) {
    for row in &table.rows {
        let cells = row.iter().zip(table.columns).enumerate();
        let fields: Vec<_> =
            cells.map(|(index, (value, (_, kind)))| encoded(value, *kind, formats.of(index))).collect();
        put_fields(out, fields.into_iter());
    }
}

fn encoded(value: &Value, kind: Type, format: i16) -> Option<Vec<u8>> {
    match (value, kind) {
        (Value::Null, _) => None,
        (Value::Text(text), _) => Some(text.clone().into_bytes()),
        // What does not fit is as large as can be.
        (Value::Number(number), Type::Int4) => {
            let fits = i32::try_from(*number).unwrap_or(i32::MAX);
            Some(if format == 1 { fits.to_be_bytes().to_vec() } else { fits.to_string().into_bytes() })
        }
        (Value::Number(number), Type::Int8) if format == 1 => Some(number.to_be_bytes().to_vec()),
        (Value::Number(number), Type::Numeric) if format == 1 => Some(binary_numeric(*number)),
        (Value::Number(number), _) => Some(number.to_string().into_bytes()),
    }
}

/// A whole number as `numeric_send` writes it: how many digits to the base of 10,000, the weight of the first, the sign,
/// no decimal places, and the digits.
fn binary_numeric(number: i64) -> Vec<u8> {
    const NEGATIVE: u16 = 0x4000;
    let mut digits = Vec::new();
    let mut rest = number.unsigned_abs();
    while rest > 0 {
        digits.push(u16::try_from(rest % 10_000).unwrap_or_default());
        rest /= 10_000;
    }
    let count = u16::try_from(digits.len()).unwrap_or_default();
    let mut out = Vec::new();
    for field in [count, count.saturating_sub(1), if number < 0 { NEGATIVE } else { 0 }, 0] {
        out.extend_from_slice(&field.to_be_bytes());
    }
    digits.iter().rev().for_each(|digit| out.extend_from_slice(&digit.to_be_bytes()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_text_or_binary_as_the_client_says() {
        let number = Value::Number(7);
        assert_eq!(encoded(&number, Type::Int4, 0), Some(b"7".to_vec()));
        assert_eq!(encoded(&number, Type::Int4, 1), Some(vec![0, 0, 0, 7]));
        assert_eq!(encoded(&number, Type::Int8, 1), Some(vec![0, 0, 0, 0, 0, 0, 0, 7]));
        assert_eq!(encoded(&Value::Number(i64::MAX), Type::Int4, 0), Some(b"2147483647".to_vec()));
        assert_eq!(encoded(&Value::Null, Type::Int4, 1), None);
        assert_eq!(encoded(&"a".into(), Type::Text, 1), Some(b"a".to_vec()));
    }

    #[test]
    fn whole_numerics_are_sent_as_postgresql_sends_them() {
        // SELECT numeric_send(0), numeric_send(12345678), numeric_send(10000), numeric_send(-1);
        for (number, expected) in [
            (0, "0000000000000000"),
            (12_345_678, "000200010000000004d2162e"),
            (10_000, "000200010000000000010000"),
            (-1, "00010000400000000001"),
        ] {
            let hex: String = binary_numeric(number).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected, "{number}");
        }
    }

    #[test]
    fn one_format_counts_for_all_columns() {
        assert_eq!(Formats(vec![]).of(3), 0);
        assert_eq!(Formats(vec![1]).of(3), 1);
        assert_eq!(Formats(vec![0, 1]).of(1), 1);
    }
}
