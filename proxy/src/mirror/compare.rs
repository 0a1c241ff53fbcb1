//! What two answers to one request are to each other; pure.

use crate::classify::repeatable::Rows;
use crate::mirror::answer::{Answer, Outcome, Sqlstate};

/// What the answer of the mirror is to the one that the client got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The same.
    Match,
    /// The same rows in another order.
    Order,
    /// Other rows.
    Rows,
    /// Another command tag: another number of rows.
    Tag,
    /// An error there and none here.
    FailedThere,
    /// An error here and none there.
    FailedHere,
    /// Another error.
    OtherError,
}

impl Verdict {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 7] = [
        Self::Match,
        Self::Order,
        Self::Rows,
        Self::Tag,
        Self::FailedThere,
        Self::FailedHere,
        Self::OtherError,
    ];

    /// Its name in metrics and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Match => "match",
            Self::Order => "order",
            Self::Rows => "rows",
            Self::Tag => "tag",
            Self::FailedThere => "failed_there",
            Self::FailedHere => "failed_here",
            Self::OtherError => "other_error",
        }
    }

    /// Whether one side failed in another way than the other.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::FailedThere | Self::FailedHere | Self::OtherError)
    }
}

/// A verdict, with the difference in a few words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// The verdict.
    pub verdict: Verdict,
    /// Empty where there is none.
    pub difference: String,
}

/// Compares the client's answer with the mirror's.
#[must_use]
pub fn compare(here: &Answer, there: &Answer, rows: Rows) -> Comparison {
    let told = |verdict, difference: String| Comparison { verdict, difference };
    match (&here.error, &there.error) {
        (None, Some(code)) => return told(Verdict::FailedThere, format!("{} there", name(code))),
        (Some(code), None) => return told(Verdict::FailedHere, format!("{} here", name(code))),
        (Some(one), Some(other)) if one != other => {
            return told(Verdict::OtherError, format!("{} here, {} there", name(one), name(other)));
        }
        _ => {}
    }
    let tags =
        |answer: &Answer| answer.results.iter().map(|result| &*result.tag).collect::<Vec<_>>().join("; ");
    let has_same_tags = here.results.len() == there.results.len()
        && here.results.iter().zip(&there.results).all(|(one, other)| one.tag == other.tag);
    if !has_same_tags {
        return told(Verdict::Tag, format!("{} here, {} there", tags(here), tags(there)));
    }
    if rows == Rows::Counted {
        return told(Verdict::Match, String::new());
    }
    let differs =
        |of: fn(&Outcome) -> u64| here.results.iter().zip(&there.results).any(|(a, b)| of(a) != of(b));
    if differs(|result| result.unordered) {
        told(Verdict::Rows, format!("{}: other rows", tags(here)))
    } else if differs(|result| result.ordered) {
        told(Verdict::Order, String::new())
    } else {
        told(Verdict::Match, String::new())
    }
}

/// A code as text.
#[must_use]
pub fn name(code: &Sqlstate) -> String {
    String::from_utf8_lossy(code).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(tags: &[(&str, u64, u64)], error: Option<&[u8; 5]>) -> Answer {
        let result = |(tag, ordered, unordered): &(&str, u64, u64)| Outcome {
            tag: (*tag).into(),
            ordered: *ordered,
            unordered: *unordered,
        };
        Answer { results: tags.iter().map(result).collect(), error: error.copied(), status: b'I' }
    }

    #[test]
    fn each_difference_has_its_verdict() {
        let one = answer(&[("SELECT 2", 1, 9)], None);
        for (other, rows, expected) in [
            (one.clone(), Rows::Comparable, Verdict::Match),
            (answer(&[("SELECT 2", 2, 9)], None), Rows::Comparable, Verdict::Order),
            (answer(&[("SELECT 2", 2, 8)], None), Rows::Comparable, Verdict::Rows),
            (answer(&[("SELECT 2", 2, 8)], None), Rows::Counted, Verdict::Match),
            (answer(&[("SELECT 3", 1, 9)], None), Rows::Counted, Verdict::Tag),
            (answer(&[], None), Rows::Counted, Verdict::Tag),
            (answer(&[], Some(b"42P01")), Rows::Comparable, Verdict::FailedThere),
        ] {
            assert_eq!(compare(&one, &other, rows).verdict, expected, "{other:?}");
        }
        let (here, there) = (answer(&[], Some(b"23505")), answer(&[], Some(b"40001")));
        assert_eq!(compare(&here, &one, Rows::Comparable).verdict, Verdict::FailedHere);
        assert_eq!(compare(&here, &here, Rows::Comparable).verdict, Verdict::Match);
        assert_eq!(
            compare(&here, &there, Rows::Comparable),
            Comparison { verdict: Verdict::OtherError, difference: "23505 here, 40001 there".to_owned() }
        );
    }
}
