//! What is said of traffic, image, connections and reconciliation: tables of what was found.

use std::time::Duration;

use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::{ConditionStatus, PgRoutingPoolStatus};

use super::*;
use crate::desired::config_map::Document;
use crate::fixtures::{SMALL, at, built};
use crate::images::ImagePlan;
use crate::observe::{Observation, PodState};
use crate::resolve::CredentialsFault;
use crate::status::found::SpecVerdict;
use crate::status::status;

const DEFAULT: &str = "registry.test/proxy:2";
const OLD: &str = "registry.test/proxy:1";

struct Case {
    verdict: SpecVerdict,
    document: Option<Document>,
    credential_faults: Vec<CredentialsFault>,
    pods: Vec<(PodSync, Option<bool>)>,
    ready_replicas: i32,
    replicas_wanted: i32,
    images: ImagePlan,
    running: &'static str,
    is_rolled_out: bool,
    budget: Budget,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            verdict: SpecVerdict::Accepted,
            document: Some(built(SMALL).document),
            credential_faults: Vec::new(),
            pods: vec![(PodSync::Applied, Some(true)), (PodSync::Applied, Some(true))],
            ready_replicas: 2,
            replicas_wanted: 2,
            images: ImagePlan { image: DEFAULT.into(), standing: Standing::Current },
            running: DEFAULT,
            is_rolled_out: true,
            budget: Budget { connections: 100, pods: 2 },
        }
    }
}

impl Case {
    fn status(&self) -> PgRoutingPoolStatus {
        use pgrouting_crds::status::{ServerRole, ServerState};
        let primary = crate::observe::ServerView {
            name: "pg-0".into(),
            address: "pg-0.pg:5432".into(),
            role: ServerRole::Primary,
            state: ServerState::Up,
            is_probed: true,
            message: String::new(),
            timeline: Some(1),
        };
        let pods = self.pods.iter().enumerate();
        let observation = Observation {
            ready_replicas: self.ready_replicas,
            servers: vec![primary],
            pods: pods
                .map(|(index, (sync, is_drained))| PodState {
                    name: format!("p-{index}"),
                    is_ready: true,
                    sync: sync.clone(),
                    is_drained: *is_drained,
                })
                .collect(),
            reports: self.pods.len(),
            ..Observation::default()
        };
        let found = Found {
            generation: Some(7),
            target: Stage::PoolingOnly,
            rollout: None,
            progress: None,
            progress_deadline: Duration::ZERO,
            verdict: self.verdict.clone(),
            document: self.document.as_ref(),
            backend_faults: &[],
            credential_faults: &self.credential_faults,
            certificate_ends: &[],
            apply_faults: &[],
            missing_parts: &[],
            observation: &observation,
            images: &self.images,
            image: Some(self.running),
            is_rolled_out: self.is_rolled_out,
            budget: Some(self.budget),
            replicas_wanted: self.replicas_wanted,
            selector: "s".into(),
        };
        status(None, &found, at(0))
    }

    fn says(&self, kind: &str) -> (ConditionStatus, String, String) {
        let status = self.status();
        let condition = status.conditions.iter().find(|condition| condition.kind == kind).unwrap();
        (condition.status, condition.reason.clone(), condition.message.clone())
    }
}

fn paused() -> Option<Document> {
    Some(built(&format!("{SMALL}pooling: {{traffic: Paused}}")).document)
}

#[test]
fn pause_counts_the_pods_that_are_paused_and_those_that_are_drained() {
    let behind = PodSync::Behind { hash: "h".into(), reason: "r".into() };
    for (pods, expected) in [
        (
            vec![(PodSync::Applied, Some(true)), (PodSync::Applied, Some(true))],
            "2 of 2 proxies are paused, and 2",
        ),
        (
            vec![(PodSync::Applied, Some(true)), (PodSync::Applied, Some(false))],
            "2 of 2 proxies are paused, and 1",
        ),
        (vec![(PodSync::Applied, Some(true)), (behind, Some(true))], "1 of 2 proxies are paused, and 1"),
        (vec![(PodSync::Starting, None)], "0 of 1 proxies are paused, and 0"),
    ] {
        let (status, reason, message) =
            Case { document: paused(), pods, ..Case::default() }.says("TrafficOpen");
        assert_eq!((status, reason.as_str()), (False, "TrafficPaused"));
        assert!(message.starts_with(expected), "{message}");
        assert!(message.contains("spec.pooling.traffic"), "{message}");
    }
    let (status, reason, _) = Case { document: paused(), ..Case::default() }.says("Ready");
    assert_eq!((status, reason.as_str()), (True, "TrafficPaused"), "the pool is as the spec wants it");
    assert_eq!(Case::default().says("TrafficOpen").0, True);
}

#[test]
fn image_says_what_runs_what_it_waits_for_and_who_waits() {
    let waiting = |cause| Standing::Waiting { newer: DEFAULT.into(), cause };
    let others = vec!["acme/b".to_owned(), "acme/c".to_owned()];
    let updating = || Standing::Updating { others: others.clone() };
    for (standing, image, running, is_rolled_out, ready, expected) in [
        (
            Standing::Current,
            DEFAULT,
            DEFAULT,
            true,
            2,
            (True, "ImageAsWanted", "the operator's default is in use"),
        ),
        (
            Standing::Named,
            "mine",
            "mine",
            true,
            2,
            (True, "ImageAsWanted", "spec.proxy.image is in use: mine"),
        ),
        (Standing::Named, "mine", OLD, true, 2, (False, "ImageWaiting", "not yet mine")),
        (Standing::Kept { newer: DEFAULT.into() }, OLD, OLD, true, 2, (False, "ImageKept", DEFAULT)),
        (
            waiting(Wait::Before("acme/a".into())),
            OLD,
            OLD,
            true,
            2,
            (False, "ImageWaiting", "for acme/a, which comes first"),
        ),
        (
            waiting(Wait::Updating { pool: "acme/a".into(), is_next: true }),
            OLD,
            OLD,
            true,
            2,
            (False, "ImageWaiting", "for acme/a, which is being updated"),
        ),
        (updating(), DEFAULT, DEFAULT, false, 2, (False, "ImageUpdating", "acme/b, acme/c wait for it")),
        // All are there, and none serves: the others are held.
        (
            updating(),
            DEFAULT,
            DEFAULT,
            true,
            0,
            (False, "ImageUpdating", "not Ready: 0 of 2 proxies are ready"),
        ),
        (updating(), DEFAULT, DEFAULT, true, 2, (True, "ImageAsWanted", "in use")),
        // What could not be applied has not begun.
        (updating(), DEFAULT, OLD, true, 2, (False, "ImageWaiting", "not yet")),
    ] {
        let images = ImagePlan { image: image.into(), standing };
        let case = Case { images, running, is_rolled_out, ready_replicas: ready, ..Case::default() };
        let (status, reason, message) = case.says("ImageCurrent");
        assert_eq!((status, reason.as_str()), (expected.0, expected.1), "{message}");
        assert!(message.contains(expected.2), "{message}");
        assert_eq!(case.status().proxies.unwrap().image, running);
    }
    // A pool without pods cannot become ready, and holds nobody.
    let images = ImagePlan { image: DEFAULT.into(), standing: updating() };
    let none = Case { images, ready_replicas: 0, replicas_wanted: 0, pods: Vec::new(), ..Case::default() };
    assert_eq!(none.says("ImageCurrent").0, True);
}

/// Case 234: more pods than connections.
#[test]
fn budget_smaller_than_the_number_of_pods_is_told_with_both_numbers() {
    for (connections, pods, is_enough) in [(100, 2, true), (6, 6, true), (5, 6, false), (1, 2, false)] {
        let case = Case { budget: Budget { connections, pods }, ..Case::default() };
        let (status, reason, message) = case.says("ConnectionBudget");
        assert_eq!(status == True, is_enough, "{message}");
        assert!(
            message.contains(&format!("{connections}")) && message.contains(&format!("{pods} proxies")),
            "{message}"
        );
        if !is_enough {
            assert_eq!(reason, "BudgetBelowPods");
            assert!(message.contains("spec.pooling.maxServerConnections"), "{message}");
        }
        assert_eq!(case.says("Ready").0, True, "it serves all the same");
    }
}

/// Case 232: no pod is wanted.
#[test]
fn scale_to_zero_has_a_reason_of_its_own() {
    let case = Case { ready_replicas: 0, replicas_wanted: 0, pods: Vec::new(), ..Case::default() };
    let (status, reason, message) = case.says("Ready");
    assert_eq!((status, reason.as_str()), (False, "ScaledToZero"));
    assert!(message.contains("spec.proxy.replicas"), "{message}");
}

#[test]
fn suspended_pool_says_so_wherever_the_spec_is_not_acted_on() {
    let case = Case { verdict: SpecVerdict::Suspended, ..Case::default() };
    for (kind, expected) in [
        ("ReconciliationActive", False),
        ("Ready", Unknown),
        ("ConfigApplied", Unknown),
        ("ConfigAccepted", Unknown),
        ("Progressing", Unknown),
    ] {
        let (status, reason, message) = case.says(kind);
        assert_eq!((status, reason.as_str()), (expected, "Suspended"), "{kind}");
        assert!(message.contains("spec.reconciliation"), "{message}");
    }
    assert!(case.says("Ready").2.starts_with("2 proxies serve clients"));
    // A fleet that does not serve is told of all the same.
    let down = Case { ready_replicas: 0, ..case };
    assert_eq!(down.says("Ready").1, "NoReadyProxies");
}

/// Case 216: the Secret or a key of it is missing, and no proxy has ever run.
#[test]
fn pool_that_never_had_its_secret_names_it_in_ready() {
    let missing = CredentialsFault::SecretNotFound("app".into());
    let key = CredentialsFault::KeyMissing { secret: "app".into(), key: "password".into() };
    for (fault, expected, words) in
        [(missing, "SecretNotFound", "Secret app"), (key, "KeyMissing", "password")]
    {
        let case = Case {
            verdict: SpecVerdict::NoLogins(vec![fault.clone()]),
            credential_faults: vec![fault],
            document: None,
            pods: Vec::new(),
            ready_replicas: 0,
            ..Case::default()
        };
        for kind in ["Ready", "CredentialsValid"] {
            let (status, reason, message) = case.says(kind);
            assert_eq!((status, reason.as_str()), (False, expected), "{kind}");
            assert!(message.contains(words), "{message}");
        }
    }
}
