//! The status of a pool as a table: what was found, what it says.

use pgrouting_contract::report::{CredentialReport, CredentialState};
use std::time::Duration;

use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::RolloutStatus;

use super::*;
use crate::apply::ApplyFault;
use crate::desired::config_map::Document;
use crate::fixtures::{SMALL, at, built};
use crate::images::{ImagePlan, Standing};
use crate::observe::{PodState, ServerView};
use crate::position::{Position, stand_at};
use crate::resolve::CredentialsFault;
use crate::rollout::progress::{Progress, Word};
use crate::status::found::{Budget, Found, SpecVerdict};
use crate::validate::tls::CertificateEnd;

fn server(name: &str, role: ServerRole, state: ServerState) -> ServerView {
    ServerView {
        name: name.into(),
        address: format!("{name}.pg:5432"),
        role,
        state,
        is_probed: true,
        message: if state == ServerState::Down { "no route".into() } else { String::new() },
        timeline: Some(1),
    }
}

fn pod(name: &str, sync: PodSync) -> PodState {
    PodState { name: name.into(), is_ready: true, sync, is_drained: Some(true) }
}

/// Two pods, one primary, one replica, all well.
fn well() -> Observation {
    Observation {
        replicas: 2,
        ready_replicas: 2,
        pods: vec![pod("p-a", PodSync::Applied), pod("p-b", PodSync::Applied)],
        servers: vec![
            server("pg-0", ServerRole::Primary, ServerState::Up),
            server("pg-1", ServerRole::Replica, ServerState::Up),
        ],
        reports: 2,
        has_used_credentials: true,
        ..Observation::default()
    }
}

struct Case {
    target: Stage,
    /// As the document says where it is absent.
    rollout: Option<RolloutStatus>,
    progress: Progress,
    verdict: SpecVerdict,
    document: Document,
    backend_faults: Vec<String>,
    credential_faults: Vec<CredentialsFault>,
    certificate_ends: Vec<CertificateEnd>,
    apply_faults: Vec<ApplyFault>,
    missing_parts: Vec<String>,
    observation: Observation,
    replicas_wanted: i32,
    images: ImagePlan,
    is_rolled_out: bool,
    budget: Option<Budget>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            target: Stage::PoolingOnly,
            rollout: None,
            progress: Progress::of(Word::StageReached, "there"),
            verdict: SpecVerdict::Accepted,
            document: built(SMALL).document,
            backend_faults: Vec::new(),
            credential_faults: Vec::new(),
            certificate_ends: Vec::new(),
            apply_faults: Vec::new(),
            missing_parts: Vec::new(),
            observation: well(),
            replicas_wanted: 2,
            images: ImagePlan { image: "i".into(), standing: Standing::Current },
            is_rolled_out: true,
            budget: Some(Budget { connections: 100, pods: 2 }),
        }
    }
}

impl Case {
    fn status(&self, before: Option<&PgRoutingPoolStatus>, second: i64) -> PgRoutingPoolStatus {
        let position = Position::of_document(&self.document.config);
        let rollout = RolloutStatus {
            stage: position.stage,
            split_percent: i32::from(position.split_percent),
            mirror_percent: i32::from(position.mirror_percent),
            ..RolloutStatus::default()
        };
        let found = Found {
            generation: Some(7),
            target: self.target,
            rollout: self.rollout.as_ref().or(Some(&rollout)),
            progress: Some(&self.progress),
            progress_deadline: Duration::from_secs(3600),
            verdict: self.verdict.clone(),
            document: Some(&self.document),
            backend_faults: &self.backend_faults,
            credential_faults: &self.credential_faults,
            certificate_ends: &self.certificate_ends,
            apply_faults: &self.apply_faults,
            missing_parts: &self.missing_parts,
            observation: &self.observation,
            images: &self.images,
            image: None,
            is_rolled_out: self.is_rolled_out,
            budget: self.budget,
            replicas_wanted: self.replicas_wanted,
            selector: "s".into(),
        };
        status(before, &found, at(second))
    }
}

fn condition(status: &PgRoutingPoolStatus, kind: &str) -> (ConditionStatus, String, String) {
    let condition = status.conditions.iter().find(|condition| condition.kind == kind).unwrap();
    (condition.status, condition.reason.clone(), condition.message.clone())
}

#[test]
fn healthy_pool_is_ready_and_every_condition_carries_the_generation() {
    let status = Case::default().status(None, 0);
    let seen: Vec<_> = status
        .conditions
        .iter()
        .map(|c| (c.kind.as_str(), c.status.as_str(), c.reason.as_str(), c.observed_generation))
        .collect();
    assert_eq!(
        seen,
        [
            ("Ready", "True", "Serving", Some(7)),
            ("ConfigAccepted", "True", "Accepted", Some(7)),
            ("ConfigApplied", "True", "Applied", Some(7)),
            ("BackendsHealthy", "True", "AsExpected", Some(7)),
            ("CredentialsValid", "True", "Valid", Some(7)),
            ("Progressing", "False", "StageReached", Some(7)),
            ("SplitActive", "False", "StagePoolingOnly", Some(7)),
            ("MirrorHealthy", "Unknown", "StageNotMirror", Some(7)),
            ("TrafficOpen", "True", "AsExpected", Some(7)),
            ("ImageCurrent", "True", "ImageAsWanted", Some(7)),
            ("ConnectionBudget", "True", "AsExpected", Some(7)),
            ("ReconciliationActive", "True", "AsExpected", Some(7)),
            ("Stalled", "False", "AsExpected", Some(7)),
        ]
    );
    assert_eq!(status.observed_generation, Some(7));
    assert_eq!(status.proxies.as_ref().unwrap().summary, "2/2");
    let backends = status.backends.unwrap();
    assert_eq!((backends.primary.as_deref(), backends.replicas_summary.as_str()), (Some("pg-0"), "1/1"));
    let rollout = status.rollout.unwrap();
    assert_eq!((rollout.stage, rollout.split_percent), (Stage::PoolingOnly, 0));
}

#[test]
fn nothing_changes_while_nothing_happens() {
    let first = Case::default().status(None, 0);
    let later = Case::default().status(Some(&first), 3600);
    assert_eq!(first, later);
}

#[test]
fn status_survives_the_way_through_the_api_server() {
    let status = Case::default().status(None, 0);
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<PgRoutingPoolStatus>(&text).unwrap(), status);
}

#[test]
fn servers_decide_on_backends_healthy() {
    use ServerRole::{Primary, Replica, Unknown as NoRole};
    use ServerState::{Down, Ejected, Fenced, Lagging, Up};
    for (servers, status, reason, says) in [
        (
            vec![server("a", Primary, Up)],
            ConditionStatus::True,
            "AsExpected",
            "a is the primary, 0 of 0 replicas",
        ),
        (
            vec![server("a", Primary, Up), server("b", Replica, Up), server("c", Replica, Down)],
            ConditionStatus::True,
            "AsExpected",
            "not in use: c (no route)",
        ),
        (
            vec![server("a", Primary, Up), server("b", Replica, Lagging), server("c", Replica, Lagging)],
            ConditionStatus::False,
            "LagHigh",
            "a is the primary, no replica takes reads; not in use: b (), c ()",
        ),
        (
            vec![server("a", Primary, Up), server("b", Replica, Lagging), server("c", Replica, Ejected)],
            ConditionStatus::False,
            "NoHealthyReplica",
            "no replica takes reads",
        ),
        (
            vec![server("a", Primary, Fenced), server("b", Primary, Up)],
            ConditionStatus::False,
            "TwoPrimaries",
            "a says that it is the primary too, and gets nothing: b is taken for it",
        ),
        (
            vec![server("a", Primary, Up), server("b", Replica, Down)],
            ConditionStatus::False,
            "NoHealthyReplica",
            "no replica takes reads",
        ),
        (
            vec![server("a", Primary, Down), server("b", Replica, Up)],
            ConditionStatus::False,
            "NoPrimary",
            "none of 2 servers is a primary that answers; not in use: a (no route)",
        ),
        (vec![server("a", NoRole, Up)], ConditionStatus::False, "NoPrimary", "none of 1 servers"),
        (
            vec![server("a", Primary, Up), server("b", Primary, Up)],
            ConditionStatus::False,
            "TwoPrimaries",
            "a and b all say",
        ),
    ] {
        let observation = Observation { servers, ..well() };
        let seen = condition(&Case { observation, ..Case::default() }.status(None, 0), "BackendsHealthy");
        assert_eq!((seen.0, seen.1.as_str()), (status, reason), "{}", seen.2);
        assert!(seen.2.contains(says), "{}", seen.2);
    }
}

#[test]
fn servers_that_nobody_has_asked_are_unknown_not_down() {
    let mut observation = well();
    observation.servers.iter_mut().for_each(|server| server.is_probed = false);
    let status = Case { observation, ..Case::default() }.status(None, 0);
    let seen = condition(&status, "BackendsHealthy");
    assert_eq!((seen.0, seen.1.as_str()), (ConditionStatus::Unknown, "ProbeUnavailable"));
}

#[test]
fn pods_decide_on_config_conditions() {
    let behind = PodSync::Behind { hash: "h".into(), reason: "why".into() };
    let refused = PodSync::Refused { hash: "h".into(), reasons: vec!["servers: no".into()] };
    let lost = PodSync::Unreachable { reason: "no answer".into() };
    let (yes, no, unknown) = (ConditionStatus::True, ConditionStatus::False, ConditionStatus::Unknown);
    for (pods, accepted, applied, laggards) in [
        (vec![], (unknown, "NoPods"), (unknown, "NoPods"), 0),
        (vec![PodSync::Starting], (unknown, "NoPods"), (unknown, "NoPods"), 0),
        (vec![PodSync::Applied, PodSync::Starting], (yes, "Accepted"), (yes, "Applied"), 0),
        (vec![PodSync::Applied, behind], (yes, "Accepted"), (no, "PodsOutOfSync"), 1),
        (vec![PodSync::Applied, lost], (yes, "Accepted"), (no, "PushFailed"), 1),
        (vec![PodSync::Applied, refused], (no, "RejectedByProxy"), (no, "PodsOutOfSync"), 1),
    ] {
        let pods: Vec<_> =
            pods.into_iter().enumerate().map(|(i, sync)| pod(&format!("p-{i}"), sync)).collect();
        let observation = Observation { pods: pods.clone(), ..well() };
        let status = Case { observation, ..Case::default() }.status(None, 0);
        let seen = condition(&status, "ConfigAccepted");
        assert_eq!((seen.0, seen.1.as_str()), accepted, "{pods:?}");
        let seen = condition(&status, "ConfigApplied");
        assert_eq!((seen.0, seen.1.as_str()), applied, "{pods:?}");
        assert_eq!(status.proxies.unwrap().out_of_sync.len(), laggards, "{pods:?}");
    }
}

#[test]
fn ready_says_the_first_thing_that_is_in_the_way() {
    let conflict =
        || ApplyFault::NameConflict { kind: "Service".into(), name: "ledger".into(), owner: "x".into() };
    let forbidden = || ApplyFault::Forbidden {
        verb: "patch",
        kind: "Service".into(),
        name: "ledger".into(),
        message: "m".into(),
    };
    let behind = vec![pod("p", PodSync::Unreachable { reason: "r".into() })];
    let no_primary = vec![server("a", ServerRole::Replica, ServerState::Up)];
    let cases = [
        (
            Case { verdict: SpecVerdict::Invalid(vec!["spec.x: bad".into()]), ..Case::default() },
            "InvalidSpec",
            true,
        ),
        (
            Case { verdict: SpecVerdict::InvalidParameter(vec!["p".into()]), ..Case::default() },
            "InvalidSpec",
            true,
        ),
        (Case { apply_faults: vec![conflict()], ..Case::default() }, "NameConflict", true),
        (Case { apply_faults: vec![forbidden()], ..Case::default() }, "Forbidden", true),
        (
            Case { verdict: SpecVerdict::NoServers(vec!["Service x".into()]), ..Case::default() },
            "NoPrimary",
            false,
        ),
        (
            Case { observation: Observation { ready_replicas: 0, ..well() }, ..Case::default() },
            "NoReadyProxies",
            false,
        ),
        (
            Case { observation: Observation { pods: behind, ..well() }, ..Case::default() },
            "ConfigNotApplied",
            false,
        ),
        (
            Case { observation: Observation { servers: no_primary, ..well() }, ..Case::default() },
            "NoPrimary",
            false,
        ),
    ];
    for (found, reason, is_stalled) in cases {
        let status = found.status(None, 0);
        let ready = condition(&status, "Ready");
        assert_eq!((ready.0, ready.1.as_str()), (ConditionStatus::False, reason), "{}", ready.2);
        let stalled = condition(&status, "Stalled");
        assert_eq!(stalled.0 == ConditionStatus::True, is_stalled, "{reason}");
        if is_stalled {
            assert_eq!(stalled.1, reason);
        }
    }
}

#[test]
fn old_definition_is_told_and_takes_nothing_from_ready() {
    let case = Case { missing_parts: vec!["spec.mirror".into()], ..Case::default() };
    let status = case.status(None, 0);
    assert_eq!(condition(&status, "Ready").0, ConditionStatus::True);
    let (value, reason, message) = condition(&status, "Stalled");
    assert_eq!((value, reason.as_str()), (ConditionStatus::True, "CrdOutdated"));
    assert!(message.contains("lacks spec.mirror: update it"), "{message}");
}

#[test]
fn bad_spec_says_that_traffic_goes_on() {
    let found = Case { verdict: SpecVerdict::Invalid(vec!["spec.x: bad".into()]), ..Case::default() };
    let (_, _, message) = condition(&found.status(None, 0), "Ready");
    assert_eq!(message, "spec.x: bad; the last good config stays in use. 2 proxies serve clients");
}

#[test]
fn secrets_and_logins_decide_on_credentials_valid() {
    let rejected =
        CredentialReport { user: "app".into(), state: CredentialState::Rejected, message: "28P01".into() };
    let missing =
        CredentialReport { user: "app".into(), state: CredentialState::Missing, message: String::new() };
    let key = CredentialsFault::KeyMissing { secret: "app".into(), key: "password".into() };
    let (no, unknown) = (ConditionStatus::False, ConditionStatus::Unknown);
    for (faults, bad, status, reason) in [
        (vec![CredentialsFault::SecretNotFound("app".into())], vec![], no, "SecretNotFound"),
        (vec![key], vec![], no, "KeyMissing"),
        (vec![], vec![rejected], no, "LoginRejected"),
        (vec![], vec![missing], unknown, "Reconciling"),
        (vec![], vec![], ConditionStatus::True, "Valid"),
    ] {
        let observation = Observation { bad_credentials: bad, ..well() };
        let found = Case { credential_faults: faults, observation, ..Case::default() };
        let seen = condition(&found.status(None, 0), "CredentialsValid");
        assert_eq!((seen.0, seen.1.as_str()), (status, reason), "{}", seen.2);
    }
}

#[test]
fn certificates_that_end_are_told_of_in_time_and_after() {
    let day = 24 * 3600;
    for (ends, status, reason) in [
        (vec![15 * day, 40 * day], ConditionStatus::True, "Valid"),
        (vec![40 * day, 13 * day], ConditionStatus::True, "CertificateExpiring"),
        (vec![13 * day, -1], ConditionStatus::False, "CertificateExpired"),
    ] {
        let end = |second: &i64| CertificateEnd { object: "Secret shop-tls".into(), at: at(*second) };
        let found = Case { certificate_ends: ends.iter().map(end).collect(), ..Case::default() };
        let seen = condition(&found.status(None, 0), "CredentialsValid");
        assert_eq!((seen.0, seen.1.as_str()), (status, reason), "{}", seen.2);
        assert_eq!(
            seen.2.contains("the certificate of Secret shop-tls ends at 2026-"),
            reason != "Valid",
            "{}",
            seen.2
        );
    }
}

#[test]
fn times_of_servers_and_laggards_stay_until_they_change() {
    let lost = |second| Case {
        observation: Observation {
            pods: vec![pod("p", PodSync::Unreachable { reason: format!("try {second}") })],
            ..well()
        },
        ..Case::default()
    };
    let first = lost(0).status(None, 0);
    let second = lost(60).status(Some(&first), 60);
    let since = |status: &PgRoutingPoolStatus| status.proxies.as_ref().unwrap().out_of_sync[0].since.clone();
    assert_eq!(since(&first), since(&second));

    let mut observation = well();
    observation.servers[1].state = ServerState::Down;
    let third = Case { observation, ..Case::default() }.status(Some(&second), 90);
    let servers = |status: &PgRoutingPoolStatus| status.backends.as_ref().unwrap().servers.clone();
    assert_eq!(servers(&third)[0].since, servers(&second)[0].since);
    assert_eq!(servers(&third)[1].since, whole_seconds(at(90)));
}

#[test]
fn servers_are_kept_as_they_were_while_no_proxy_answers() {
    let first = Case::default().status(None, 0);
    let observation = Observation { reports: 0, servers: Vec::new(), ..well() };
    let second = Case { observation, ..Case::default() }.status(Some(&first), 60);
    assert_eq!(second.backends, first.backends);
}

/// A pool whose spec is at the stage Split, with more of it.
fn splitting(spec: &str) -> Case {
    let document = built(&format!("{SMALL}rollout: {{stage: Split}}\n{spec}")).document;
    Case { target: Stage::Split, document, ..Case::default() }
}

#[test]
fn split_is_active_when_all_proxies_are_there_and_a_replica_takes_reads() {
    let (yes, no, unknown) = (ConditionStatus::True, ConditionStatus::False, ConditionStatus::Unknown);
    let seen_as = |servers: Vec<ServerView>, case: Case| Case {
        observation: Observation { servers, ..well() },
        ..case
    };
    let down = || vec![well().servers.remove(0), server("pg-1", ServerRole::Replica, ServerState::Down)];
    let mut unasked = down();
    unasked[1].is_probed = false;
    let weightless = "backends: {type: Static, static: {servers: [{name: pg-0, host: a}, {name: pg-1, host: b, weight: 0}]}}";
    let weightless = built(&format!(
        "{weightless}\nauth: {{type: UserList, users: [{{name: app}}]}}\nrollout: {{stage: Split}}"
    ));
    for (case, status, reason, says) in [
        (splitting(""), yes, "Splitting", "reads of 100 % of the sessions go to 1 replica: pg-1"),
        (
            splitting("split: {maxPercent: 30, cohort: Transaction, primaryReads: true}"),
            yes,
            "Splitting",
            "reads of 30 % of the transactions go to 1 replica: pg-1, and to the primary too",
        ),
        (splitting("pooling: {mode: Session}"), no, "SessionMode", "set it to Transaction"),
        (splitting("split: {maxPercent: 0}"), no, "MaxPercentZero", "raise it"),
        (seen_as(down(), splitting("")), no, "NoReplicas", "so reads run on the primary: see condition"),
        (
            seen_as(down(), splitting("split: {whenNoReplica: Fail}")),
            no,
            "NoReplicas",
            "so reads wait for one and fail: see condition BackendsHealthy",
        ),
        (seen_as(unasked, splitting("")), unknown, "ProbeUnavailable", "not every server"),
        (
            Case { document: weightless.document, ..splitting("") },
            no,
            "NoReplicas",
            "the weights under spec.backends",
        ),
        (Case { observation: Observation::default(), ..splitting("") }, unknown, "NoPods", "no proxy is up"),
    ] {
        let seen = condition(&case.status(None, 0), "SplitActive");
        assert_eq!((seen.0, seen.1.as_str()), (status, reason), "{}", seen.2);
        assert!(seen.2.contains(says), "{}", seen.2);
    }
}

/// Case 220: a pool of one server at the stage Split serves, and says that no read leaves the primary.
#[test]
fn split_without_a_replica_serves_and_says_so() {
    let primary = server("pg-0", ServerRole::Primary, ServerState::Up);
    let alone = SMALL.replace(", {name: pg-1, host: pg-1.pg}", "");
    let case = Case {
        observation: Observation { servers: vec![primary], ..well() },
        ..splitting(&format!("{alone}rollout: {{stage: Split}}"))
    };
    let status = case.status(None, 0);
    assert_eq!(condition(&status, "Ready").0, ConditionStatus::True);
    assert_eq!(condition(&status, "BackendsHealthy").0, ConditionStatus::True);
    let (split, reason, message) = condition(&status, "SplitActive");
    assert_eq!((split, reason.as_str()), (ConditionStatus::False, "NoReplicas"));
    assert!(message.contains("reads run on the primary"), "{message}");
}

#[test]
fn split_is_active_once_every_proxy_has_acknowledged_it() {
    let behind = PodSync::Behind { hash: "h".into(), reason: "why".into() };
    let half =
        || Observation { pods: vec![pod("p-a", PodSync::Applied), pod("p-b", behind.clone())], ..well() };
    let reason = |status: &PgRoutingPoolStatus| condition(status, "SplitActive").1;

    let pooling = Case::default().status(None, 0);
    let waiting = Case { observation: half(), ..splitting("") }.status(Some(&pooling), 10);
    assert_eq!(reason(&waiting), "ConfigNotApplied");
    let message = condition(&waiting, "SplitActive").2;
    assert!(message.starts_with("1 of 2 proxies have acknowledged the stage Split"), "{message}");
    let split = splitting("split: {maxPercent: 40}").status(Some(&waiting), 20);
    assert_eq!(reason(&split), "Splitting");

    // And back: reads may go to replicas until the last one has acknowledged.
    let mut rollout = RolloutStatus { split_percent: 40, stage: Stage::Split, ..RolloutStatus::default() };
    stand_at(&mut rollout, Position::default(), "SpecEdit", "spec edit", at(30));
    let back = |observation| Case { observation, rollout: Some(rollout.clone()), ..Case::default() };
    assert_eq!(reason(&back(half()).status(Some(&split), 30)), "ConfigNotApplied");
    assert_eq!(reason(&back(well()).status(Some(&split), 40)), "StagePoolingOnly");
    // One that has never split cannot.
    let never = Case { observation: half(), ..Case::default() }.status(Some(&pooling), 10);
    assert_eq!(reason(&never), "StagePoolingOnly");
}

#[test]
fn progressing_says_what_the_rollout_says_and_a_long_wait_calls_a_person() {
    let case = |word, message: &str| Case {
        target: Stage::Split,
        progress: Progress::of(word, message),
        ..Case::default()
    };
    let waiting = case(Word::InsufficientSamples, "waits for reads");
    let first = waiting.status(None, 0);
    let seen = condition(&first, "Progressing");
    assert_eq!(
        (seen.0, seen.1.as_str(), seen.2.as_str()),
        (ConditionStatus::Unknown, "InsufficientSamples", "waits for reads")
    );
    assert_eq!(condition(&waiting.status(Some(&first), 3599), "Stalled").0, ConditionStatus::False);
    let late = condition(&waiting.status(Some(&first), 3600), "Stalled");
    assert_eq!((late.0, late.1.as_str()), (ConditionStatus::True, "ProgressDeadlineExceeded"));
    // Figures that grow are not written each time; another word is.
    let progress = |word, message: &str| Progress { is_stale: true, ..Progress::of(word, message) };
    let again =
        |word| Case { target: Stage::Split, progress: progress(word, "waits for more"), ..Case::default() };
    let later = again(Word::InsufficientSamples).status(Some(&first), 1);
    assert_eq!(condition(&later, "Progressing").2, "waits for reads");
    assert_eq!(condition(&again(Word::NoData).status(Some(&first), 1), "Progressing").2, "waits for more");
    // A step that goes on for long waits for nobody.
    let soaking = case(Word::Soaking, "soaks");
    let first = soaking.status(None, 0);
    assert_eq!(condition(&soaking.status(Some(&first), 7200), "Stalled").0, ConditionStatus::False);

    let failed = case(Word::Failed("misroutedWrites".into()), "rolled back").status(None, 0);
    let seen = condition(&failed, "Progressing");
    assert_eq!((seen.0, seen.1.as_str()), (ConditionStatus::False, "MisroutedWrites"));
    let seen = condition(&failed, "Stalled");
    assert_eq!(
        (seen.0, seen.1.as_str(), seen.2.as_str()),
        (ConditionStatus::True, "GateFailed", "rolled back")
    );
}

#[test]
fn stage_of_a_spec_that_makes_no_sense_is_not_claimed() {
    let verdict = SpecVerdict::Invalid(vec!["spec.x: bad".into()]);
    let rollout = RolloutStatus { stage: Stage::Split, ..RolloutStatus::default() };
    let case = Case { target: Stage::Split, verdict, rollout: Some(rollout), ..Case::default() };
    let status = case.status(None, 0);
    let (value, reason, message) = condition(&status, "SplitActive");
    assert_eq!((value, reason.as_str()), (ConditionStatus::False, "ConfigNotApplied"));
    assert!(message.contains("the stage is still PoolingOnly: see condition Ready"), "{message}");
}

#[test]
fn object_that_does_not_read_is_stalled() {
    let conditions = unreadable("unknown variant `Sideways`", Some(3), at(0));
    let kinds: Vec<_> =
        conditions.iter().map(|c| (c.kind.as_str(), c.status, c.observed_generation)).collect();
    assert_eq!(
        kinds,
        [("Ready", ConditionStatus::False, Some(3)), ("Stalled", ConditionStatus::True, Some(3))]
    );
}
