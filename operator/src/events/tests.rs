//! Each change is told once, and nothing is told of what stays.

use super::*;

fn status(conditions: &[(&str, &str, &str)], hash: &str, primary: Option<&str>) -> PgRoutingPoolStatus {
    serde_json::from_value(serde_json::json!({
        "conditions": conditions.iter().map(|(kind, status, reason)| serde_json::json!({
            "type": kind, "status": status, "reason": reason, "message": format!("{reason} it is"),
            "lastTransitionTime": "2026-11-29T12:00:00Z",
        })).collect::<Vec<_>>(),
        "config": {
            "hash": hash, "shortHash": hash, "generation": 3, "podsApplied": 2, "podsTotal": 2,
            "renderedAt": "2026-11-29T12:00:00Z",
        },
        "backends": {"replicasSummary": "1/1", "primary": primary, "servers": []},
    }))
    .unwrap()
}

fn reasons(before: Option<&PgRoutingPoolStatus>, after: &PgRoutingPoolStatus) -> Vec<String> {
    events_between(before, after).into_iter().map(|event| event.reason).collect()
}

const WELL: [(&str, &str, &str); 3] =
    [("Ready", "True", "Serving"), ("ConfigApplied", "True", "Applied"), ("Stalled", "False", "AsExpected")];

#[test]
fn first_good_status_tells_of_config_and_primary() {
    assert_eq!(reasons(None, &status(&WELL, "aaa", Some("pg-0"))), ["ConfigApplied", "PrimaryChanged"]);
}

#[test]
fn split_that_nobody_asked_for_is_no_warning_and_one_that_cannot_be_is() {
    let well = status(&WELL, "aaa", Some("pg-0"));
    for (reason, is_told) in [
        ("StagePoolingOnly", false),
        ("ConfigNotApplied", false),
        ("SessionMode", true),
        ("NoReplicas", true),
    ] {
        let mut conditions = WELL.to_vec();
        conditions.push(("SplitActive", "False", reason));
        let told = reasons(Some(&well), &status(&conditions, "aaa", Some("pg-0")));
        assert_eq!(told.contains(&reason.to_owned()), is_told, "{reason}");
    }
}

#[test]
fn same_status_tells_nothing() {
    let same = status(&WELL, "aaa", Some("pg-0"));
    assert_eq!(reasons(Some(&same), &same), [""; 0]);
}

#[test]
fn each_document_is_told_once_even_after_a_moment_out_of_step() {
    let before = status(&WELL, "aaa", Some("pg-0"));
    let behind = status(&[("ConfigApplied", "False", "PodsOutOfSync")], "bbb", Some("pg-0"));
    assert_eq!(reasons(Some(&before), &behind), ["PodsOutOfSync"]);
    let after = status(&WELL, "bbb", Some("pg-0"));
    assert_eq!(reasons(Some(&behind), &after), ["ConfigApplied"]);
    assert_eq!(reasons(Some(&after), &after), [""; 0]);
}

#[test]
fn one_mistake_is_one_event() {
    let bad = [
        ("Ready", "False", "InvalidSpec"),
        ("ConfigAccepted", "False", "InvalidSpec"),
        ("ConfigApplied", "True", "Applied"),
        ("Stalled", "True", "InvalidSpec"),
    ];
    let before = status(&WELL, "aaa", Some("pg-0"));
    let events = events_between(Some(&before), &status(&bad, "aaa", Some("pg-0")));
    assert_eq!(events.len(), 1);
    assert!(events[0].is_warning);
    assert_eq!(events[0].reason, "InvalidSpec");
}

#[test]
fn a_server_that_goes_out_of_use_is_told_of_and_when_it_comes_back() {
    let with = |state: &str, reason: &str| {
        let mut status = status(&WELL, "aaa", Some("pg-0"));
        let server = serde_json::json!({
            "name": "pg-1", "address": "pg-1.pg:5432", "role": "Replica", "state": state, "reason": reason,
            "since": "2026-11-29T12:00:00Z",
        });
        status.backends.as_mut().unwrap().servers = vec![serde_json::from_value(server).unwrap()];
        status
    };
    let (up, lagging) = (with("Up", ""), with("Lagging", "it lags more than 30s"));
    let out = events_between(Some(&up), &lagging);
    assert_eq!((out[0].reason.as_str(), out[0].is_warning), ("ServerOut", true));
    assert_eq!(out[0].note, "server pg-1 (pg-1.pg:5432) was Up and is Lagging: it lags more than 30s");
    assert_eq!(reasons(Some(&lagging), &up), ["ServerIn"]);
    assert_eq!(
        reasons(None, &lagging),
        ["ConfigApplied", "PrimaryChanged"],
        "what is seen first is no change"
    );
}

#[test]
fn mirror_that_breaks_is_a_warning_and_that_it_runs_again_is_told() {
    let with = |state: &str, condition: (&str, &str)| {
        let mut conditions = WELL.to_vec();
        conditions.push(("MirrorHealthy", condition.0, condition.1));
        let mut status = status(&conditions, "aaa", Some("pg-0"));
        let mirror =
            serde_json::json!({"target": "m:5432", "state": state, "takenAt": "2026-11-29T12:00:00Z"});
        status.mirror = Some(serde_json::from_value(mirror).unwrap());
        status
    };
    let off = with("Inactive", ("Unknown", "StageNotMirror"));
    let running = with("Running", ("True", "Mirroring"));
    let broken = with("Broken", ("False", "MirrorBroken"));
    assert_eq!(reasons(Some(&off), &running), [""; 0], "a promotion is no repair");
    let warning = events_between(Some(&running), &broken);
    assert_eq!((warning[0].reason.as_str(), warning[0].is_warning), ("MirrorBroken", true));
    let again = events_between(Some(&broken), &running);
    assert_eq!((again[0].note.as_str(), again[0].is_warning), ("copies are sent to m:5432 again", false));
    assert_eq!(reasons(Some(&broken), &off), [""; 0]);
}

#[test]
fn failover_names_both_servers() {
    let events =
        events_between(Some(&status(&WELL, "aaa", Some("pg-0"))), &status(&WELL, "aaa", Some("pg-1")));
    assert_eq!(events[0].note, "the primary was pg-0 and is pg-1");
}

#[test]
fn pause_and_its_end_are_told_and_are_no_warnings() {
    let open = status(&[("TrafficOpen", "True", "AsExpected")], "aaa", Some("pg-0"));
    let paused = status(&[("TrafficOpen", "False", "TrafficPaused")], "aaa", Some("pg-0"));
    for (before, after, expected) in [(&open, &paused, "TrafficPaused"), (&paused, &open, "TrafficResumed")] {
        let events = events_between(Some(before), after);
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!((events[0].reason.as_str(), events[0].is_warning), (expected, false));
    }
    // A pool that is paused from its beginning has not been paused.
    assert_eq!(reasons(None, &open), ["PrimaryChanged"]);
}
