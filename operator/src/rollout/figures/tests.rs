//! What a span of time counts when proxies come, go and start again.

use pgrouting_contract::measures::Arm;

use super::*;
use crate::fixtures::at;

fn counted(process: &str, reads: u64, rescued: u64) -> Figures {
    Figures {
        measures: Measures {
            process: process.to_owned(),
            cohort: Arm { transactions: reads, ..Arm::default() },
            ..Measures::default()
        },
        rescued,
        transactions: reads,
        ..Figures::default()
    }
}

fn proxies(all: &[(&str, Figures)]) -> BTreeMap<String, Figures> {
    all.iter().map(|(pod, figures)| ((*pod).to_owned(), figures.clone())).collect()
}

fn total(window: &Window) -> (u64, u64) {
    let total = window.total();
    (total.measures.cohort.transactions, total.rescued)
}

#[test]
fn each_proxy_counts_from_where_it_was_when_the_span_began() {
    let begun = proxies(&[("a", counted("1", 100, 5)), ("b", counted("2", 7, 0))]);
    let mut window = Window::begin(&begun, Moment::default(), at(0));
    assert_eq!(total(&window), (0, 0));
    window.look(&proxies(&[("a", counted("1", 130, 6)), ("b", counted("2", 8, 0))]), Moment::default());
    assert_eq!(total(&window), (31, 1));
    // One that comes counts from its start, one that is gone for a moment keeps what it had.
    window.look(&proxies(&[("a", counted("1", 140, 6)), ("c", counted("3", 1000, 2))]), Moment::default());
    assert_eq!(total(&window), (1041, 3));
    window.look(&proxies(&[("b", counted("2", 10, 0)), ("c", counted("3", 1001, 2))]), Moment::default());
    assert_eq!(total(&window), (1044, 3));
}

#[test]
fn proxy_that_starts_again_loses_nothing_that_was_seen() {
    let mut window = Window::begin(&proxies(&[("a", counted("1", 100, 0))]), Moment::default(), at(0));
    window.look(&proxies(&[("a", counted("1", 150, 1))]), Moment::default());
    window.look(&proxies(&[("a", counted("9", 20, 3))]), Moment::default());
    assert_eq!(total(&window), (70, 4));
    window.look(&proxies(&[("a", counted("10", 5, 0))]), Moment::default());
    assert_eq!(total(&window), (75, 4));
}

#[test]
fn worst_moment_is_kept() {
    let moment =
        |lag, replicas, used| Moment { lag_ms_max: lag, replicas, primary_use_percent: used, proxies: 2 };
    let mut window = Window::begin(&BTreeMap::new(), moment(Some(5), 2, None), at(0));
    window.look(&BTreeMap::new(), moment(Some(9000), 1, Some(40)));
    window.look(&BTreeMap::new(), moment(None, 2, Some(3)));
    assert_eq!(window.worst(), moment(Some(9000), 1, Some(40)));
    assert_eq!(window.age(at(90)), Duration::from_secs(90));
    assert_eq!(window.age(at(-5)), Duration::ZERO);
}

#[test]
fn mirror_that_was_changed_counts_anew() {
    let mirror = |offered, dropped| MirrorFigures { offered, dropped, compared: offered, diverging: 0 };
    assert_eq!(mirror(10, 3).since(&mirror(4, 1)), mirror(6, 2));
    assert_eq!(mirror(3, 1).since(&mirror(4, 1)), mirror(3, 1));
}
