//! Figures for people.

use std::time::Duration;

/// A time with the unit that fits.
#[must_use]
pub fn micros_text(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        10_000..1_000_000 => format!("{} ms", micros / 1_000),
        _ => format!("{}.{} s", micros / 1_000_000, micros % 1_000_000 / 100_000),
    }
}

/// A length of time, to the unit that matters.
#[must_use]
pub fn span_text(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// So many of a million, in percent.
#[must_use]
pub fn percent_text(count: u64) -> String {
    format!("{}.{:04} %", count / 10_000, count % 10_000)
}

/// A number with its noun.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit() {
        assert_eq!(micros_text(999), "999 µs");
        assert_eq!(micros_text(1_250), "1.2 ms");
        assert_eq!(micros_text(45_900), "45 ms");
        assert_eq!(micros_text(2_340_000), "2.3 s");
        assert_eq!(span_text(Duration::from_millis(250)), "250 ms");
        assert_eq!(span_text(Duration::from_secs(119)), "119 s");
        assert_eq!(span_text(Duration::from_secs(3 * 3600 + 90)), "3 h 1 min");
        assert_eq!(percent_text(500), "0.0500 %");
        assert_eq!(percent_text(1_000_000), "100.0000 %");
        assert_eq!(counted(1, "replica"), "1 replica");
        assert_eq!(counted(0, "replica"), "0 replicas");
    }
}
