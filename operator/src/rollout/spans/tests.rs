//! When a span is over.

use pgrouting_contract::measures::{Arm, Measures};
use pgrouting_crds::stage::Stage;

use super::*;
use crate::fixtures::at;

const RULES: SpanRules = SpanRules { period: Duration::from_secs(10), min_samples: 100 };
const MOMENT: Moment = Moment { lag_ms_max: None, replicas: 1, primary_use_percent: None, proxies: 1 };

fn key(split_percent: u8) -> SpanKey {
    let position = Position { stage: Stage::Split, split_percent, mirror_percent: 0, salt: 0 };
    SpanKey { position, attempt: 1, policy: String::new() }
}

fn reads(cohort: u64, control: u64) -> BTreeMap<String, Figures> {
    let arm = |transactions| Arm { transactions, ..Arm::default() };
    let measures = Measures {
        process: "1".to_owned(),
        cohort: arm(cohort),
        control: arm(control),
        ..Measures::default()
    };
    let figures = Figures { measures, transactions: cohort + control, ..Figures::default() };
    [("a".to_owned(), figures)].into()
}

fn over(spans: &Spans) -> [bool; 3] {
    [spans.moments.is_over, spans.pool.is_over, spans.split.is_over]
}

#[test]
fn span_grows_until_time_and_both_groups_are_there() {
    let mut collector = Collector::default();
    let mut look =
        |second, cohort, control| collector.look(key(5), &reads(cohort, control), MOMENT, RULES, at(second));
    assert_eq!(over(&look(0, 1000, 1000)), [false; 3]);
    // Enough, and too early.
    assert_eq!(over(&look(9, 1200, 1200)), [false; 3]);
    let first = look(10, 1050, 1900);
    // What was over begins anew; the smaller group has to grow.
    assert_eq!(over(&first), [true, true, false]);
    assert!(!first.were_all_over);
    assert_eq!(over(&look(19, 1099, 9000)), [false; 3]);
    let second = look(25, 1100, 9000);
    assert_eq!(over(&second), [true, true, true]);
    assert!(second.were_all_over);
    assert_eq!(second.split.figures.measures.cohort.transactions, 100);
    // They do not overlap.
    let third = look(26, 1130, 9010);
    assert_eq!(third.split.figures.measures.cohort.transactions, 30);
    assert!(third.were_all_over);
}

#[test]
fn where_all_are_split_there_is_one_group() {
    let mut collector = Collector::default();
    collector.look(key(100), &reads(0, 0), MOMENT, RULES, at(0));
    let spans = collector.look(key(100), &reads(100, 0), MOMENT, RULES, at(10));
    assert_eq!((over(&spans), spans.were_all_over), ([true; 3], true));
}

#[test]
fn another_place_attempt_or_limit_begins_anew_and_so_does_what_is_forgotten() {
    let begin = || {
        let mut collector = Collector::default();
        collector.look(key(5), &reads(0, 0), MOMENT, RULES, at(0));
        collector
    };
    let later = |collector: &mut Collector, key: SpanKey| {
        collector.look(key, &reads(500, 500), MOMENT, RULES, at(60)).split
    };
    assert_eq!(later(&mut begin(), key(5)).figures.measures.cohort.transactions, 500);
    for other in [key(25), SpanKey { attempt: 2, ..key(5) }, SpanKey { policy: "x".into(), ..key(5) }] {
        let span = later(&mut begin(), other);
        assert_eq!((span.figures.measures.cohort.transactions, span.is_over), (0, false));
    }
    let mut collector = begin();
    collector.forget();
    assert!(!later(&mut collector, key(5)).is_over);
}

#[test]
fn nobody_that_answers_is_no_span() {
    let mut collector = Collector::default();
    let silent = Moment { proxies: 0, ..MOMENT };
    collector.look(key(5), &BTreeMap::new(), silent, RULES, at(0));
    let spans = collector.look(key(5), &BTreeMap::new(), silent, RULES, at(60));
    assert_eq!(over(&spans), [false; 3]);
}
