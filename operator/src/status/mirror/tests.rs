//! How often the figures are told, and what the condition says.

use pgrouting_crds::status::rollout::RolloutStatus;

use super::*;
use crate::desired::config_map::Document;
use crate::fixtures::{SMALL, at, built};
use crate::images::{ImagePlan, Standing};
use crate::observe::{Observation, PodState, PodSync};
use crate::status::found::SpecVerdict;
use crate::status::status;

/// Two pods, and what they say of the copies.
struct Case {
    target: Stage,
    /// As the document says where it is absent.
    decided: Option<Stage>,
    document: Document,
    pods: Vec<PodSync>,
    view: Option<MirrorView>,
}

fn document(stage: &str, mirror: &str) -> Document {
    built(&format!("{SMALL}rollout: {{stage: {stage}}}\nmirror: {{target: {{host: m}}{mirror}}}")).document
}

fn view(state: mirror::MirrorState, mirrored: u64) -> MirrorView {
    MirrorView { is_wanted: true, state, mirrored, ..MirrorView::default() }
}

impl Case {
    fn at(stage: Stage) -> Self {
        let state = match stage {
            Stage::PoolingOnly | Stage::Split => mirror::MirrorState::Inactive,
            Stage::Mirror => mirror::MirrorState::Running,
        };
        Self {
            target: stage,
            decided: None,
            document: document(stage.as_str(), ""),
            pods: vec![PodSync::Applied, PodSync::Applied],
            view: Some(view(state, 1)),
        }
    }

    fn status(&self, before: Option<&PgRoutingPoolStatus>, second: i64) -> PgRoutingPoolStatus {
        let pods = self.pods.iter().enumerate();
        let pods = pods.map(|(i, sync)| PodState {
            name: format!("p-{i}"),
            is_ready: true,
            sync: sync.clone(),
            is_drained: None,
        });
        let observation = Observation {
            ready_replicas: 2,
            pods: pods.collect(),
            reports: 2,
            mirror: self.view.clone(),
            ..Observation::default()
        };
        let stage = self.decided.unwrap_or_else(|| stage_of(&self.document.config));
        let rollout = RolloutStatus { stage, ..RolloutStatus::default() };
        let images = ImagePlan { image: "i".to_owned(), standing: Standing::Current };
        let found = Found {
            generation: Some(7),
            target: self.target,
            rollout: Some(&rollout),
            progress: None,
            progress_deadline: Duration::ZERO,
            verdict: SpecVerdict::Accepted,
            document: Some(&self.document),
            backend_faults: &[],
            credential_faults: &[],
            certificate_ends: &[],
            apply_faults: &[],
            missing_parts: &[],
            observation: &observation,
            images: &images,
            image: None,
            is_rolled_out: true,
            budget: None,
            replicas_wanted: 2,
            selector: "s".into(),
        };
        status(before, &found, at(second))
    }
}

fn behind() -> PodSync {
    PodSync::Behind { hash: "h".into(), reason: "why".into() }
}

fn condition(status: &PgRoutingPoolStatus) -> (ConditionStatus, String, String) {
    let found = status.conditions.iter().find(|condition| condition.kind == "MirrorHealthy").unwrap();
    (found.status, found.reason.clone(), found.message.clone())
}

#[test]
fn condition_says_whether_copies_are_sent_and_why_not() {
    use mirror::MirrorState::{Broken, Inactive, Running};
    let pool = Case::at;
    let broken = MirrorView { message: "connection refused".into(), ..view(Broken, 1) };
    let diverged = MirrorView { diverged_since: Some(at(0)), ..view(Running, 1) };
    let none = Case { document: built(SMALL).document, view: None, ..pool(Stage::PoolingOnly) };
    let half = || vec![PodSync::Applied, behind()];
    let rolled_back = document("Mirror", ", statements: RolledBackWrites, maxPercent: 20");
    for (case, status, reason, says) in [
        (none, Unknown, "StageNotMirror", "set spec.mirror, and spec.rollout.stage to Mirror"),
        (pool(Stage::Split), Unknown, "StageNotMirror", "no traffic is copied"),
        (pool(Stage::Mirror), True, "Mirroring", "reads of 100 % of the sessions are copied to m:5432"),
        (
            Case { document: rolled_back, ..pool(Stage::Mirror) },
            True,
            "Mirroring",
            "all transactions, rolled back there, of 20 % of the sessions",
        ),
        (
            Case {
                document: document("Mirror", ", statements: All"),
                view: Some(diverged),
                ..pool(Stage::Mirror)
            },
            True,
            "Mirroring",
            "rows there may differ since 2026-11-30T00:53:20Z",
        ),
        (
            Case { view: Some(broken.clone()), ..pool(Stage::Mirror) },
            False,
            "MirrorBroken",
            "nothing is sent to m:5432 for a while: connection refused; clients do not notice",
        ),
        (Case { pods: half(), view: Some(broken), ..pool(Stage::Mirror) }, False, "MirrorBroken", "m:5432"),
        (Case { pods: half(), ..pool(Stage::Mirror) }, Unknown, "ConfigNotApplied", "1 of 2 proxies have"),
        (
            Case { view: Some(view(Inactive, 0)), ..pool(Stage::Mirror) },
            Unknown,
            "Reconciling",
            "not every proxy has begun",
        ),
        (Case { view: None, ..pool(Stage::Mirror) }, Unknown, "Reconciling", "not every proxy has begun"),
        (Case { pods: Vec::new(), ..pool(Stage::Mirror) }, Unknown, "NoPods", "no proxy is up"),
        (
            Case { document: document("Mirror", ", maxPercent: 0"), ..pool(Stage::Mirror) },
            False,
            "MaxPercentZero",
            "raise it",
        ),
        (
            Case { decided: Some(Stage::Mirror), ..pool(Stage::Split) },
            Unknown,
            "ConfigNotApplied",
            "the stage is still Split: see conditions CredentialsValid and Ready",
        ),
        (
            Case { target: Stage::Mirror, ..pool(Stage::Split) },
            Unknown,
            "StageNotMirror",
            "condition Progressing says what the first step to Mirror waits for",
        ),
    ] {
        let seen = condition(&case.status(None, 0));
        assert_eq!((seen.0, seen.1.as_str()), (status, reason), "{}", seen.2);
        assert!(seen.2.contains(says), "{}", seen.2);
    }
}

#[test]
fn broken_mirror_takes_nothing_from_ready() {
    let well = Case::at(Stage::Mirror).status(None, 0);
    let broken = Case { view: Some(view(mirror::MirrorState::Broken, 1)), ..Case::at(Stage::Mirror) };
    let ready = |status: &PgRoutingPoolStatus| status.conditions[0].clone();
    assert_eq!(ready(&broken.status(Some(&well), 10)), ready(&well));
}

#[test]
fn growing_figures_are_told_twice_a_minute_and_those_that_stay_never_again() {
    let running = |mirrored| Case {
        view: Some(view(mirror::MirrorState::Running, mirrored)),
        ..Case::at(Stage::Mirror)
    };
    let first = running(1).status(None, 0);
    assert_eq!(running(500).status(Some(&first), 29), first);
    let second = running(500).status(Some(&first), 30);
    let told = second.mirror.clone().unwrap();
    assert_eq!((told.mirrored, told.taken_at), (500, whole_seconds(at(30))));
    assert_eq!(running(500).status(Some(&second), 3600), second);
}

#[test]
fn turn_of_the_mirror_is_told_at_once() {
    let first = Case::at(Stage::Mirror).status(None, 0);
    let broken = Case { view: Some(view(mirror::MirrorState::Broken, 2)), ..Case::at(Stage::Mirror) };
    let seen = broken.status(Some(&first), 1).mirror.unwrap();
    assert_eq!((seen.state, seen.mirrored), (MirrorState::Broken, 2));
    let since = MirrorView { diverged_since: Some(at(1)), ..view(mirror::MirrorState::Running, 1) };
    let diverged = Case { view: Some(since), ..Case::at(Stage::Mirror) };
    let seen = diverged.status(Some(&first), 1).mirror.unwrap();
    assert_eq!(seen.diverged_since, Some(whole_seconds(at(1))));
}

#[test]
fn another_target_begins_anew_and_no_answer_leaves_the_figures() {
    let first = Case::at(Stage::Mirror).status(None, 0);
    let silent = Case { view: None, ..Case::at(Stage::Mirror) };
    assert_eq!(silent.status(Some(&first), 60).mirror, first.mirror);
    let moved = SMALL.to_owned() + "rollout: {stage: Mirror}\nmirror: {target: {host: m, port: 6432}}";
    let moved = Case { document: built(&moved).document, ..silent };
    assert_eq!(moved.status(Some(&first), 60).mirror, None);
    let gone = Case { document: built(SMALL).document, view: None, ..Case::at(Stage::PoolingOnly) };
    assert_eq!(gone.status(Some(&first), 60).mirror, None);
}

#[test]
fn figures_survive_the_way_through_the_api_server() {
    let since = Some(Timestamp::from_millisecond(at(1).as_millisecond() + 250).unwrap());
    let view = MirrorView {
        diverged_since: since,
        message: "x".repeat(9999),
        ..view(mirror::MirrorState::Broken, u64::MAX)
    };
    let status = Case { view: Some(view), ..Case::at(Stage::Mirror) }.status(None, 0);
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<PgRoutingPoolStatus>(&text).unwrap(), status);
    assert_eq!(status.mirror.unwrap().message.unwrap().len(), MESSAGE_CHARS_MAX);
}
