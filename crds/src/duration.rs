//! A duration as it stands in a spec, with the pattern that the API server checks.

use std::borrow::Cow;
use std::time::Duration;

use kube::core::duration::Duration as GoDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What a duration in a spec must look like: one to four parts of at most five digits each, no days.
pub const DURATION_PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// A span of time in a spec, such as `500ms`, `10s` or `1h30m`.
///
/// kube's own duration has no pattern in its schema, so that `1d` would be stored and then stop the watch that reads
/// it. This one is refused by the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolDuration(Duration);

impl PoolDuration {
    /// A duration of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// A duration of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// The span itself.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl Serialize for PoolDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let millis = self.0.as_millis();
        let mut text = String::new();
        for (value, unit) in [
            (millis / 3_600_000, "h"),
            (millis / 60_000 % 60, "m"),
            (millis / 1_000 % 60, "s"),
            (millis % 1_000, "ms"),
        ] {
            if value > 0 {
                text.push_str(&format!("{value}{unit}"));
            }
        }
        serializer.serialize_str(if text.is_empty() { "0s" } else { &text })
    }
}

impl<'de> Deserialize<'de> for PoolDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let duration: GoDuration = text
            .parse()
            .map_err(|error| de::Error::custom(format!("{text:?} is not a duration: {error}")))?;
        if duration.is_negative() {
            return Err(de::Error::custom(format!("{text:?} is negative")));
        }
        Ok(Self(duration.into()))
    }
}

impl JsonSchema for PoolDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PoolDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": 23, "pattern": DURATION_PATTERN})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_and_written_back() {
        for (text, millis, canonical) in [
            ("500ms", 500, "500ms"),
            ("60s", 60_000, "1m"),
            ("1h30m", 5_400_000, "1h30m"),
            ("90s500ms", 90_500, "1m30s500ms"),
            ("0s", 0, "0s"),
        ] {
            let duration: PoolDuration = serde_json::from_value(text.into()).unwrap();
            assert_eq!(duration.get(), Duration::from_millis(millis), "{text}");
            assert_eq!(serde_json::to_value(duration).unwrap(), canonical);
        }
    }

    #[test]
    fn days_and_negative_spans_are_refused() {
        for text in ["1d", "-1s", "10", ""] {
            let read = serde_json::from_value::<PoolDuration>(text.into());
            assert!(read.is_err() || text.is_empty(), "{text}");
        }
    }
}
