//! Figures for people.

use std::time::Duration;

use jiff::Timestamp;

/// A length of time, to the unit that matters.
#[must_use]
pub fn span_text(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A point in time, in UTC to the second.
#[must_use]
pub fn time_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// How long it is from one time to another; nothing where it is over.
#[must_use]
pub fn until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

/// A time with the unit that fits.
#[must_use]
pub fn micros_text(micros: i64) -> String {
    match micros {
        ..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        10_000..1_000_000 => format!("{} ms", micros / 1_000),
        _ => format!("{}.{} s", micros / 1_000_000, micros % 1_000_000 / 100_000),
    }
}

/// Bytes with the unit that fits.
#[must_use]
pub fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / 1_048_576),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit() {
        for (seconds, text) in [(0, "0 s"), (119, "119 s"), (120, "2 min"), (11_000, "3 h 3 min")] {
            assert_eq!(span_text(Duration::from_secs(seconds)), text);
        }
        for (micros, text) in [(999, "999 µs"), (1_250, "1.2 ms"), (45_900, "45 ms"), (2_340_000, "2.3 s")] {
            assert_eq!(micros_text(micros), text);
        }
        for (bytes, text) in [(0, "0 B"), (16_384, "16 KiB"), (33_554_432, "32 MiB")] {
            assert_eq!(bytes_text(bytes), text);
        }
    }

    #[test]
    fn what_is_over_has_no_time_left() {
        let now = Timestamp::from_second(100).unwrap();
        assert_eq!(until(now, Timestamp::from_second(40).unwrap()), Duration::ZERO);
        assert_eq!(until(now, Timestamp::from_second(140).unwrap()), Duration::from_secs(40));
    }
}
