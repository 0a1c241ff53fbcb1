//! Pools as YAML, and the lines that are shown of them.

use serde_json::json;

use super::*;
use crate::pods::{Pod, PodAnswer, PodState};

fn pool(name: &str) -> PgRoutingPool {
    let text = match name {
        "soaking" => include_str!("../../testdata/soaking.yaml"),
        "rolled-back" => include_str!("../../testdata/rolled-back.yaml"),
        _ => include_str!("../../testdata/waiting.yaml"),
    };
    serde_yaml::from_str(text).unwrap()
}

fn now() -> Timestamp {
    "2026-05-01T12:16:00Z".parse().unwrap()
}

fn pod(name: &str, state: PodState) -> Pod {
    Pod { name: name.to_owned(), state }
}

/// What a proxy with two servers reports.
fn report(lag_ms: u64, active: u32) -> pgrouting_contract::report::ProxyReport {
    let server = |name: &str, role: &str, lag: Option<u64>, active: u32| {
        json!({
            "name": name, "address": format!("{name}.pg:5432"), "role": role, "health": "Up", "rotation": "In",
            "lagMs": lag, "lagBytes": lag.map(|lag| lag * 1024), "connectionsActive": active, "connectionsIdle": 2,
            "connectionsMax": 50,
        })
    };
    serde_json::from_value(json!({
        "proxyVersion": "0.1.0", "state": "Serving",
        "config": {"generation": 4, "hash": "0".repeat(64), "stage": "Split"},
        "servers": [
            server("pg-0", "Primary", None, active),
            server("pg-1", "Replica", Some(lag_ms), active),
        ],
        "credentials": [],
        "clients": {"connected": 40, "active": active, "waiting": 1},
        "totals": {"transactions": 1, "queries": 1, "serverErrors": 0, "proxyErrors": 0},
    }))
    .unwrap()
}

fn both_proxies() -> Reports {
    Ok(vec![
        PodAnswer { pod: pod("shop-proxy-a", PodState::Ready), answer: Ok(report(3, 4)) },
        PodAnswer { pod: pod("shop-proxy-b", PodState::Ready), answer: Ok(report(12, 1)) },
    ])
}

#[test]
fn soaking_pool_is_shown_with_its_gates_servers_and_lag() {
    let text = picture(&pool("soaking"), &both_proxies(), now(), Paint::Plain);
    assert_eq!(text, include_str!("../../testdata/soaking.txt"));
}

#[test]
fn rolled_back_pool_is_shown_with_what_failed_and_the_remedy() {
    let reports = Err("you may not read Secret shop-admin: no".to_owned());
    let text = picture(&pool("rolled-back"), &reports, now(), Paint::Plain);
    assert_eq!(text, include_str!("../../testdata/rolled-back.txt"));
}

#[test]
fn waiting_pool_is_shown_with_its_forecast_and_the_proxy_that_lags() {
    let reports = Ok(vec![PodAnswer {
        pod: pod("shop-proxy-a", PodState::NotReady),
        answer: Err("no answer in time".to_owned()),
    }]);
    let text = picture(&pool("waiting"), &reports, now(), Paint::Plain);
    assert_eq!(text, include_str!("../../testdata/waiting.txt"));
}

#[test]
fn pools_are_a_line_each() {
    let mut fresh = pool("waiting");
    (fresh.status, fresh.metadata.name) = (None, Some("fresh".to_owned()));
    let all = [pool("soaking"), pool("rolled-back"), fresh];
    let text = pools(&all, Namespaces::One, Paint::Plain);
    let expected = "\
NAME    STAGE         TARGET   SPLIT%   MIRROR%   ROLLOUT
shop    Split         Mirror   25       0         Soaking
shop    PoolingOnly   Split    0        0         LatencyP99
fresh   -             Split    -        -         -
";
    assert_eq!(text, expected);
    let text = pools(&all, Namespaces::All, Paint::Colours);
    assert!(text.starts_with("NAMESPACE   NAME    STAGE"), "{text}");
    assert!(
        text.contains("acme        shop    PoolingOnly   Split    0        0         \u{1b}[31mLatencyP99")
    );
}

#[test]
fn pool_without_status_says_what_to_look_at() {
    let mut pool = pool("waiting");
    pool.status = None;
    let text = picture(&pool, &Ok(Vec::new()), now(), Paint::Plain);
    let expected = "\
Pool          acme/shop
Status        there is none yet: does the operator run, and does it watch this namespace?
";
    assert_eq!(text, expected);
}

#[test]
fn mirror_reports_have_headings_and_fall_back_to_the_status() {
    let pool = pool("soaking");
    let answers = Ok(vec![
        PodAnswer { pod: pod("a", PodState::Ready), answer: Ok("Mirror new:5432 (Running)\n".to_owned()) },
        PodAnswer { pod: pod("b", PodState::Ready), answer: Err("no answer in time".to_owned()) },
    ]);
    let expected = "\
== a ==
Mirror new:5432 (Running)

== b ==
Not asked: no answer in time
";
    assert_eq!(mirror::reports(&pool, &answers), expected);
    let expected = "\
Proxies       not asked: no proxy is ready
Mirror        Inactive to new-db:5432: 90 of 100 transactions were run there; 3 of 60 compared requests differ
              4 transactions were dropped, 6 are not of the kind that is copied
              errors there that were none here: 1
              a compared request took 1.5 ms here and 900 µs there
              as of 2026-05-01 12:15:30Z, in the status of the pool
";
    assert_eq!(mirror::reports(&pool, &Ok(Vec::new())), expected);
}
