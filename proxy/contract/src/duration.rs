//! Durations as text, in the form that Kubernetes' Gateway API uses.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A span of time written as `1h30m`, `500ms` or `10s`: one to four parts of at most five digits each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DurationText(Duration);

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration: write for example 500ms, 10s, 5m or 1h30m")]
pub struct NotADuration(String);

impl DurationText {
    /// No time at all.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// Whether it is no time at all.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    /// A duration of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// A duration of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// When the text is not one to four of `<1..5 digits><h|m|s|ms>`.
    pub fn parse(text: &str) -> Result<Self, NotADuration> {
        let refuse = || NotADuration(text.to_owned());
        let mut rest = text;
        let mut total = Duration::ZERO;
        let mut parts = 0;
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, unit_and_rest) = rest.split_at(digits);
            if !(1..=5).contains(&digits) || parts == 4 {
                return Err(refuse());
            }
            let number: u64 = number.parse().map_err(|_| refuse())?;
            let (millis_each, after) = if let Some(after) = unit_and_rest.strip_prefix("ms") {
                (1, after)
            } else if let Some(after) = unit_and_rest.strip_prefix('s') {
                (1_000, after)
            } else if let Some(after) = unit_and_rest.strip_prefix('m') {
                (60_000, after)
            } else if let Some(after) = unit_and_rest.strip_prefix('h') {
                (3_600_000, after)
            } else {
                return Err(refuse());
            };
            total += Duration::from_millis(number * millis_each);
            parts += 1;
            rest = after;
        }
        if parts == 0 { Err(refuse()) } else { Ok(Self(total)) }
    }

    /// The span itself.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis == 0 {
            return f.write_str("0s");
        }
        for (value, unit) in [
            (millis / 3_600_000, "h"),
            (millis / 60_000 % 60, "m"),
            (millis / 1_000 % 60, "s"),
            (millis % 1_000, "ms"),
        ] {
            if value > 0 {
                write!(f, "{value}{unit}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for DurationText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_and_written_back() {
        for (text, millis, canonical) in [
            ("500ms", 500, "500ms"),
            ("10s", 10_000, "10s"),
            ("1h30m", 5_400_000, "1h30m"),
            ("90s", 90_000, "1m30s"),
            ("0s", 0, "0s"),
            ("99999h", 359_996_400_000, "99999h"),
        ] {
            let duration = DurationText::parse(text).unwrap();
            assert_eq!(duration, DurationText::from_millis(millis), "{text}");
            assert_eq!(duration.to_string(), canonical);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "10", "s", "1d", "-1s", "1.5s", "123456s", "1h1m1s1ms1h", "10 s", "١s"] {
            assert!(DurationText::parse(text).is_err(), "{text}");
        }
    }
}
