//! What the majority of the proxies says, and which pods are out of step.

use pgrouting_contract::config::{ConfigHash, Generation};
use pgrouting_contract::measures::Measures;
use pgrouting_contract::report::{ClientReport, ConfigReport, ProxyState, Rotation, ServerReport, Totals};
use pgrouting_contract::stage::Stage;
use serde_json::json;

use super::*;
use crate::fixtures::{SMALL, at, built};
use crate::proxies::ProxyError;

fn document() -> Document {
    built(SMALL).document
}

fn pod(name: &str, is_ready: bool, started_at: i64) -> Arc<Pod> {
    let ready = if is_ready { "True" } else { "False" };
    let pod = json!({
        "metadata": {"name": name},
        "status": {
            "podIP": "10.0.0.1",
            "startTime": at(started_at).to_string(),
            "conditions": [{"type": "Ready", "status": ready}],
        },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn server(name: &str, role: Role, health: Health) -> ServerReport {
    ServerReport {
        name: name.into(),
        address: format!("{name}.pg:5432"),
        role,
        health,
        rotation: if health == Health::Up { Rotation::In } else { Rotation::Down },
        lag_ms: None,
        lag_bytes: None,
        message: if health == Health::Down { "no route".into() } else { String::new() },
        timeline: None,
        system_identifier: None,
        connections_active: 0,
        connections_idle: 0,
        connections_max: 1,
    }
}

fn report(hash: &ConfigHash, generation: u64, servers: Vec<ServerReport>) -> ProxyReport {
    ProxyReport {
        proxy_version: "0".into(),
        state: ProxyState::Serving,
        config: ConfigReport {
            generation: Generation(generation),
            hash: hash.clone(),
            stage: Stage::PoolingOnly,
            refused: None,
        },
        servers,
        conflict: None,
        credentials: Vec::new(),
        clients: ClientReport::default(),
        totals: Totals::default(),
        pinned: BTreeMap::new(),
        halts: None,
        split: pgrouting_contract::report::SplitReport::default(),
        mirror: None,
        tls: Vec::new(),
        measures: Measures::default(),
        session_state: Vec::new(),
    }
}

fn answer(pod: &str, report: Result<ProxyReport, ProxyError>) -> ProxyAnswer {
    ProxyAnswer { pod: pod.into(), report, push: None }
}

fn views(reports: &[Vec<ServerReport>]) -> Vec<(ServerRole, ServerState, bool)> {
    let document = document();
    let answers: Vec<_> = reports
        .iter()
        .enumerate()
        .map(|(i, servers)| answer(&format!("p{i}"), Ok(report(&document.hash, 1, servers.clone()))))
        .collect();
    let seen = observe(&[], None, &answers, Some(&document), at(0));
    seen.servers.iter().map(|server| (server.role, server.state, server.is_probed)).collect()
}

#[test]
fn majority_decides_and_the_undecided_do_not_count() {
    let up = |name, role| server(name, role, Health::Up);
    let one = vec![up("pg-0", Role::Primary), up("pg-1", Role::Replica)];
    let other = vec![up("pg-0", Role::Replica), server("pg-1", Role::Unknown, Health::Down)];
    let blind =
        vec![server("pg-0", Role::Unknown, Health::Unknown), server("pg-1", Role::Unknown, Health::Unknown)];
    let (p, r, u) = (ServerRole::Primary, ServerRole::Replica, ServerRole::Unknown);
    let (up, down) = (ServerState::Up, ServerState::Down);
    for (reports, expected) in [
        (vec![one.clone()], [(p, up, true), (r, up, true)]),
        (vec![one.clone(), one.clone(), other.clone()], [(p, up, true), (r, up, true)]),
        // A tie is no majority.
        (vec![one.clone(), other.clone()], [(u, up, true), (r, down, true)]),
        (vec![one.clone(), blind.clone(), blind.clone()], [(p, up, true), (r, up, true)]),
        (vec![blind], [(u, down, false), (u, down, false)]),
        (vec![], [(u, down, false), (u, down, false)]),
    ] {
        assert_eq!(views(&reports), expected, "{} reports", reports.len());
    }
}

#[test]
fn the_majority_tells_what_part_a_server_takes() {
    let with = |rotation, message: &str| {
        vec![ServerReport { rotation, message: message.into(), ..server("pg-0", Role::Replica, Health::Up) }]
    };
    let lagging = || with(Rotation::Lagging, "it lags more than 30s");
    for (reports, state) in [
        (vec![lagging(), lagging(), with(Rotation::In, "")], ServerState::Lagging),
        (vec![with(Rotation::In, ""), with(Rotation::In, ""), lagging()], ServerState::Up),
        (vec![with(Rotation::Settling, "it was down lately")], ServerState::Ejected),
        (vec![with(Rotation::Diverged, "")], ServerState::Ejected),
        (vec![with(Rotation::Fenced, "")], ServerState::Fenced),
        (vec![with(Rotation::Unmeasured, "")], ServerState::Up),
        (
            vec![vec![ServerReport {
                rotation: Rotation::Unmeasured,
                ..server("pg-0", Role::Unknown, Health::Up)
            }]],
            ServerState::Ejected,
        ),
        (vec![vec![server("pg-0", Role::Replica, Health::Down)]], ServerState::Down),
    ] {
        assert_eq!(views(&reports)[0].1, state);
    }
}

#[test]
fn pod_is_in_step_behind_starting_or_unreachable() {
    let document = document();
    let other = ConfigHash::default();
    let refused = ConfigAnswer {
        outcome: ConfigOutcome::Refused,
        generation: Generation(1),
        hash: other.clone(),
        reasons: vec!["servers: no".into()],
    };
    let now = at(100);
    for (what, pod, answer, expected) in [
        (
            "same",
            pod("p", true, 0),
            Some(answer("p", Ok(report(&document.hash, 1, vec![])))),
            PodSync::Applied,
        ),
        (
            "refused",
            pod("p", true, 0),
            Some(ProxyAnswer { push: Some(refused), ..answer("p", Ok(report(&other, 1, vec![]))) }),
            PodSync::Refused { hash: String::new(), reasons: vec!["servers: no".into()] },
        ),
        ("young", pod("p", false, 50), Some(answer("p", Err(ProxyError::Timeout))), PodSync::Starting),
        (
            "old",
            pod("p", false, 0),
            Some(answer("p", Err(ProxyError::Timeout))),
            PodSync::Unreachable { reason: "no answer in time".into() },
        ),
        (
            "ready",
            pod("p", true, 99),
            Some(answer("p", Err(ProxyError::Timeout))),
            PodSync::Unreachable { reason: "no answer in time".into() },
        ),
        ("no address", pod("p", false, 0), None, PodSync::Starting),
    ] {
        let answers: Vec<_> = answer.into_iter().collect();
        let seen = observe(&[pod], None, &answers, Some(&document), now);
        assert_eq!(seen.pods[0].sync, expected, "{what}");
    }
}

#[test]
fn higher_generation_of_another_document_is_learned() {
    let document = document();
    let answers = [
        answer("a", Ok(report(&document.hash, 3, vec![]))),
        answer("b", Ok(report(&ConfigHash::default(), 9, vec![]))),
    ];
    let seen = observe(&[], None, &answers, Some(&document), at(0));
    assert_eq!(seen.foreign_generation, 9);
}

#[test]
fn refused_login_outweighs_a_missing_file() {
    let credential =
        |state, message: &str| CredentialReport { user: "app".into(), state, message: message.into() };
    let document = document();
    let with = |credential| {
        let mut report = report(&document.hash, 1, vec![]);
        report.credentials = vec![credential];
        report
    };
    let answers = [
        answer("a", Ok(with(credential(CredentialState::Rejected, "28P01")))),
        answer("b", Ok(with(credential(CredentialState::Missing, "no file")))),
        answer("c", Ok(with(credential(CredentialState::Valid, "")))),
    ];
    let seen = observe(&[], None, &answers, Some(&document), at(0));
    assert_eq!(seen.bad_credentials.len(), 1);
    assert_eq!(seen.bad_credentials[0].state, CredentialState::Rejected);
}

#[test]
fn pod_of_another_pool_or_one_that_leaves_is_not_ours() {
    let mut writer = kube::runtime::reflector::store::Writer::<Pod>::new(());
    let mut add = |name: &str, pool: &str, is_leaving: bool| {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "acme"},
        }))
        .unwrap();
        pod.metadata.labels = Some(PoolNames(pool).selector());
        if is_leaving {
            pod.metadata.deletion_timestamp = serde_json::from_value(json!(at(0).to_string())).unwrap();
        }
        writer.apply_watcher_event(&kube::runtime::watcher::Event::Apply(pod));
    };
    add("b", "ledger", false);
    add("a", "ledger", false);
    add("c", "ledger", true);
    add("d", "other", false);
    let names: Vec<_> =
        pods_of(&writer.as_reader(), "acme", "ledger").iter().map(|pod| pod.name_any()).collect();
    assert_eq!(names, ["a", "b"]);
}
