//! What several proxies say of the copied traffic is one thing.

use serde_json::{Value, json};

use super::*;
use crate::fixtures::{SMALL, built};

fn config(stage: &str, percent: u8) -> ProxyConfig {
    let mirror = format!("mirror: {{target: {{host: pg-new.pg}}, maxPercent: {percent}}}");
    built(&format!("{SMALL}rollout: {{stage: {stage}}}\n{mirror}")).document.config
}

fn report(mirror: Value) -> ProxyReport {
    serde_json::from_value(json!({
        "proxyVersion": "0", "state": "Serving",
        "config": {"generation": 1, "hash": "", "stage": "Mirror"},
        "servers": [], "credentials": [],
        "clients": {"connected": 0, "active": 0, "waiting": 0},
        "totals": {"transactions": 0, "queries": 0, "serverErrors": 0, "proxyErrors": 0},
        "mirror": mirror,
    }))
    .unwrap()
}

fn mirror(target: &str, state: &str, message: &str, diverged_since: Value) -> ProxyReport {
    report(json!({
        "target": target, "state": state, "message": message, "offered": 10, "mirrored": 6,
        "dropped": {"queue": 2, "budget": 1}, "skipped": {"writes": 1},
        "verdicts": {"match": 20, "order": 3, "rows": 2, "tag": 1, "failed_there": 1, "new_kind": 1},
        "errors": {"42P01": 1}, "sourceMicros": 100, "mirrorMicros": 300, "queuedBytes": 0,
        "divergedSince": diverged_since,
    }))
}

fn view(reports: &[ProxyReport]) -> Option<MirrorView> {
    mirror_view(&config("Mirror", 100), &reports.iter().collect::<Vec<_>>())
}

const TARGET: &str = "pg-new.pg:5432";

#[test]
fn figures_are_sums_and_match_and_order_are_no_difference() {
    let all = [
        mirror(TARGET, "Running", "", json!("2026-11-29T12:00:05Z")),
        mirror(TARGET, "Running", "", json!("2026-11-29T12:00:01Z")),
        report(Value::Null),
    ];
    let expected = MirrorView {
        is_wanted: true,
        state: MirrorState::Running,
        message: String::new(),
        offered: 20,
        mirrored: 12,
        dropped: 6,
        skipped: 2,
        compared: 56,
        differing: 10,
        errors: 2,
        source_micros: 200,
        mirror_micros: 600,
        diverged_since: Some("2026-11-29T12:00:01Z".parse().unwrap()),
    };
    assert_eq!(view(&all), Some(expected));
}

#[test]
fn worst_state_counts_and_its_message_comes_first() {
    let of = |states: &[&str]| {
        let all: Vec<_> = states
            .iter()
            .map(|state| mirror(TARGET, state, &format!("it is {state}"), Value::Null))
            .collect();
        view(&all).map(|view| (view.state, view.message))
    };
    for (states, worst) in [
        (&["Running", "Running"][..], MirrorState::Running),
        (&["Running", "Inactive"], MirrorState::Inactive),
        (&["Inactive", "Broken", "Running"], MirrorState::Broken),
    ] {
        assert_eq!(of(states), Some((worst, format!("it is {}", worst.as_str()))), "{states:?}");
    }
    assert_eq!(of(&[]), None);
}

#[test]
fn proxy_that_still_sends_elsewhere_does_not_count() {
    let all = [mirror("pg-old.pg:5432", "Broken", "", Value::Null)];
    assert_eq!(view(&all), None);
    assert_eq!(mirror_view(&built(SMALL).document.config, &[&all[0]]), None);
}

#[test]
fn proxy_that_has_sent_nothing_yet_is_off() {
    let fresh = report(serde_json::to_value(MirrorReport::default()).unwrap());
    let running = mirror(TARGET, "Running", "", Value::Null);
    assert_eq!(view(&[running, fresh]).unwrap().state, MirrorState::Inactive);
}

#[test]
fn copies_are_wanted_at_the_stage_mirror_and_a_share_above_nothing() {
    let report = mirror(TARGET, "Inactive", "", Value::Null);
    for (stage, percent, is_wanted) in [("Split", 100, false), ("Mirror", 0, false), ("Mirror", 1, true)] {
        assert_eq!(mirror_view(&config(stage, percent), &[&report]).unwrap().is_wanted, is_wanted);
    }
}
