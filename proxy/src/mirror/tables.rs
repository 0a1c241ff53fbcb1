//! What came of the copies, for people: as rows of a table, and as a text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pgrouting_contract::mirror::{MirrorReport, MirrorStatement, differing};

use crate::mirror::ledger::timed;

/// The columns of [`statements`].
pub const DIFFS: [&str; 7] =
    ["statement", "compared", "differing", "verdicts", "mean_us_here", "mean_us_there", "difference"];

/// Items and their values.
#[must_use]
pub fn summary(report: &MirrorReport) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut put = |item: &str, value: String| rows.push(vec![item.to_owned(), value]);
    put("state", report.state.as_str().to_owned());
    put("target", report.target.clone());
    put("transactions offered", report.offered.to_string());
    put("transactions mirrored", report.mirrored.to_string());
    put("transactions dropped", counts(&report.dropped));
    put("transactions skipped", counts(&report.skipped));
    put("requests compared", report.verdicts.values().sum::<u64>().to_string());
    put("requests differing", differing(&report.verdicts).to_string());
    put("verdicts", counts(&report.verdicts));
    put("errors there", counts(&report.errors));
    put("mean microseconds here", mean(report.source_micros, timed(&report.verdicts)));
    put("mean microseconds there", mean(report.mirror_micros, timed(&report.verdicts)));
    put("bytes queued", report.queued_bytes.to_string());
    put("diverged since", report.diverged_since.clone().unwrap_or_default());
    put("last failure", report.message.clone());
    rows
}

/// One row a statement, those that differ first.
#[must_use]
pub fn statements(report: &MirrorReport) -> Vec<Vec<String>> {
    let row = |statement: &MirrorStatement| {
        vec![
            statement.statement.clone(),
            statement.count.to_string(),
            differing(&statement.verdicts).to_string(),
            counts(&statement.verdicts),
            mean(statement.source_micros, timed(&statement.verdicts)),
            mean(statement.mirror_micros, timed(&statement.verdicts)),
            statement.difference.clone(),
        ]
    };
    report.statements.iter().map(row).collect()
}

/// The whole report as a text: is the other database faster, where is it slower, what fails there.
#[must_use]
pub fn text(report: &MirrorReport) -> String {
    let mut text = String::new();
    let compared: u64 = report.verdicts.values().sum();
    let _ = writeln!(text, "Mirror {} ({})", report.target, report.state.as_str());
    let _ = writeln!(
        text,
        "{} of {} transactions were run there; dropped: {}; skipped: {}",
        report.mirrored,
        report.offered,
        or_none(counts(&report.dropped)),
        or_none(counts(&report.skipped)),
    );
    if let Some(since) = &report.diverged_since {
        let _ = writeln!(
            text,
            "The two databases may differ since {since}, when a write was left out: rows are not compared since then."
        );
    }
    let _ = writeln!(
        text,
        "{compared} requests were compared: {}; {} differ",
        or_none(counts(&report.verdicts)),
        differing(&report.verdicts)
    );
    if !report.errors.is_empty() {
        let _ = writeln!(text, "Errors there and none, or another one, here: {}", counts(&report.errors));
    }
    if !report.message.is_empty() {
        let _ = writeln!(text, "The last failure: {}", report.message);
    }
    let timed_all = timed(&report.verdicts);
    if timed_all > 0 {
        let _ = writeln!(
            text,
            "Time of a request that failed on neither side alone: {} µs here, {} µs there ({})",
            mean(report.source_micros, timed_all),
            mean(report.mirror_micros, timed_all),
            pace(report.source_micros, report.mirror_micros),
        );
    }
    let mut section = |title: &str, of: &dyn Fn(&MirrorStatement) -> bool| {
        let found: Vec<_> = report.statements.iter().filter(|statement| of(statement)).take(10).collect();
        if found.is_empty() {
            return;
        }
        let _ = writeln!(text, "\n{title}");
        for statement in found {
            let timed = timed(&statement.verdicts);
            let times = if timed == 0 {
                String::new()
            } else {
                format!(
                    ", {} µs here, {} µs there ({})",
                    mean(statement.source_micros, timed),
                    mean(statement.mirror_micros, timed),
                    pace(statement.source_micros, statement.mirror_micros)
                )
            };
            let _ = writeln!(
                text,
                "  {}\n    {} times{times}; {} differ{}",
                statement.statement,
                statement.count,
                differing(&statement.verdicts),
                if statement.difference.is_empty() {
                    String::new()
                } else {
                    format!(", the last: {}", statement.difference)
                },
            );
        }
    };
    section("What differs there:", &|statement| differing(&statement.verdicts) > 0);
    section("What is slower there, by half or more:", &|statement| {
        statement.mirror_micros > statement.source_micros.saturating_mul(3) / 2
    });
    section("What is faster there, by a third or more:", &|statement| {
        statement.mirror_micros < statement.source_micros.saturating_mul(2) / 3
    });
    text
}

fn counts(counts: &BTreeMap<String, u64>) -> String {
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}

fn mean(micros: u64, count: u64) -> String {
    micros.checked_div(count).map_or_else(String::new, |mean| mean.to_string())
}

/// How much faster or slower.
fn pace(here: u64, there: u64) -> String {
    match there.saturating_mul(100).checked_div(here) {
        None => "no time was measured here".to_owned(),
        Some(percent) if percent > 100 => format!("{} % slower there", percent - 100),
        Some(percent) if percent < 100 => format!("{} % faster there", 100 - percent),
        Some(_) => "as fast there".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_differs_and_what_is_slower() {
        let statement = |text: &str, verdict: &str, here, there| MirrorStatement {
            statement: text.to_owned(),
            count: 10,
            verdicts: BTreeMap::from([(verdict.to_owned(), 10)]),
            source_micros: here,
            mirror_micros: there,
            difference: if verdict == "match" { String::new() } else { "42P01 there".to_owned() },
            ..MirrorStatement::default()
        };
        let report = MirrorReport {
            target: "next:5432".to_owned(),
            offered: 30,
            mirrored: 30,
            verdicts: BTreeMap::from([("match".to_owned(), 20), ("failed_there".to_owned(), 10)]),
            source_micros: 3000,
            mirror_micros: 4500,
            statements: vec![
                statement("select a from gone", "failed_there", 1000, 1000),
                statement("select b from t", "match", 1000, 3000),
                statement("select c from t", "match", 1000, 500),
            ],
            ..MirrorReport::default()
        };
        let text = text(&report);
        for part in [
            "30 of 30 transactions",
            "10 differ",
            "50 % slower there",
            "What differs there:\n  select a from gone",
            "the last: 42P01 there",
            "slower there, by half or more:\n  select b from t",
            "faster there, by a third or more:\n  select c from t",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert_eq!(statements(&report)[0][..3], ["select a from gone", "10", "10"]);
        assert!(summary(&report).contains(&vec!["requests differing".to_owned(), "10".to_owned()]));
    }
}
