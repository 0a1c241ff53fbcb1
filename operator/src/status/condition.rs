//! Conditions: their types, their reasons, and the one way to set one.

use jiff::Timestamp;
use pgrouting_crds::status::{ConditionStatus, PoolCondition};

use crate::images::{IMAGE_CURRENT, IMAGE_UPDATING};
use crate::time::whole_seconds;

/// The types of conditions. Stable: scripts wait for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionType {
    /// Clients are served with the config of this generation.
    Ready,
    /// Proxies take the document.
    ConfigAccepted,
    /// All live pods run it.
    ConfigApplied,
    /// One primary, and replicas if there should be any.
    BackendsHealthy,
    /// The Secrets are there and logins work.
    CredentialsValid,
    /// A move to another stage is under way and allowed.
    Progressing,
    /// Reads go to replicas.
    SplitActive,
    /// Copies of the traffic are sent and answered.
    MirrorHealthy,
    /// Clients are not held back.
    TrafficOpen,
    /// The pods run the image that they should.
    ImageCurrent,
    /// The connections that the fleet may have are enough for its pods.
    ConnectionBudget,
    /// The operator acts on the spec.
    ReconciliationActive,
    /// A person is needed.
    Stalled,
}

/// The reasons of conditions. Stable too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// All is as it should be.
    AsExpected,
    /// Clients are served.
    Serving,
    /// Some serving pod runs another document.
    ConfigNotApplied,
    /// No pod is ready.
    NoReadyProxies,
    /// There should be no pod.
    ScaledToZero,
    /// The spec holds clients back.
    TrafficPaused,
    /// The operator leaves the pool as it is.
    Suspended,
    /// The image of the spec, or the operator's default.
    ImageAsWanted,
    /// Pods are being replaced by those of another image.
    ImageUpdating,
    /// Another pool is updated first.
    ImageWaiting,
    /// There is another image, and the spec says that the pods stay.
    ImageKept,
    /// There are fewer connections than pods.
    BudgetBelowPods,
    /// No server is the primary.
    NoPrimary,
    /// More than one server is a primary.
    TwoPrimaries,
    /// There should be replicas, and none is up.
    NoHealthyReplica,
    /// All replicas lag too far behind.
    LagHigh,
    /// No proxy has asked the servers yet.
    ProbeUnavailable,
    /// The spec makes no sense.
    InvalidSpec,
    /// An object of the pool's name is someone else's.
    NameConflict,
    /// The operator lacks a right.
    Forbidden,
    /// The installed definition lacks what the operator acts on.
    CrdOutdated,
    /// The operator has not come to it yet.
    Reconciling,
    /// Every proxy that answered took the document.
    Accepted,
    /// A proxy refused the document.
    RejectedByProxy,
    /// A setting has an impossible name or value.
    UnknownParameter,
    /// Every pod runs the document.
    Applied,
    /// Some pod runs another one.
    PodsOutOfSync,
    /// Some pod cannot be reached.
    PushFailed,
    /// There is no pod to ask.
    NoPods,
    /// Logins work.
    Valid,
    /// A Secret is missing.
    SecretNotFound,
    /// A Secret lacks a key.
    KeyMissing,
    /// A ConfigMap is missing.
    ConfigMapNotFound,
    /// A certificate or its key is of no use.
    CertificateInvalid,
    /// A certificate has ended.
    CertificateExpired,
    /// A certificate is about to end.
    CertificateExpiring,
    /// A server refused a login.
    LoginRejected,
    /// Reads go to replicas.
    Splitting,
    /// The stage does not split.
    StagePoolingOnly,
    /// The pooling mode does not split.
    SessionMode,
    /// The share that is split is nothing.
    MaxPercentZero,
    /// No replica takes reads.
    NoReplicas,
    /// Copies are sent and answered.
    Mirroring,
    /// The stage does not copy.
    StageNotMirror,
    /// The other database failed too often.
    MirrorBroken,
    /// All gates pass, and the time of the step passes.
    Soaking,
    /// The next step has just begun.
    StepAdvanced,
    /// The gates are being looked at.
    Evaluating,
    /// The pool is at the end of the stage that is asked for.
    StageReached,
    /// The mode of the rollout is Paused.
    Paused,
    /// A person has to approve of the next step.
    AwaitingApproval,
    /// Another pool of the group comes first.
    WaitingForWave,
    /// Another pool of the group was rolled back.
    WaveHalted,
    /// Pods are being replaced.
    WaitingForDeployment,
    /// What was measured says nothing.
    NoData,
    /// Too little was measured.
    InsufficientSamples,
    /// Nothing could be measured.
    MetricsUnavailable,
    /// There is another primary than a moment ago.
    PrimaryChanged,
    /// The gate of this name stands in the way.
    Gate(GateReason),
    /// A gate has failed, and a person has to see to it.
    GateFailed,
    /// The rollout has waited for too long.
    ProgressDeadlineExceeded,
}

/// Gates as reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateReason(&'static str);

/// Each gate that may fail with its reason. Those with figures of a Prometheus have one together.
const GATE_REASONS: [(&str, &str); 12] = [
    ("clientErrors", "ClientErrors"),
    ("latencyP99", "LatencyP99"),
    ("misroutedWrites", "MisroutedWrites"),
    ("rescuedStatements", "RescuedStatements"),
    ("replicaLag", "ReplicaLag"),
    ("healthyReplicas", "HealthyReplicas"),
    ("primaryConnections", "PrimaryConnections"),
    ("poolWaitP99", "PoolWaitP99"),
    ("mirrorDivergence", "MirrorDivergence"),
    ("mirrorImpact", "MirrorImpact"),
    ("proxies", "ProxiesCrashing"),
    ("external", "ExternalGate"),
];

impl GateReason {
    /// The reason of a gate.
    #[must_use]
    pub fn of(gate: &str) -> Self {
        let kind = gate.split('/').next().unwrap_or(gate);
        let known = GATE_REASONS.iter().find(|(name, _)| *name == kind);
        Self(known.map_or("GateFailed", |(_, reason)| reason))
    }
}

impl ConditionType {
    /// The name as it stands in the condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::ConfigAccepted => "ConfigAccepted",
            Self::ConfigApplied => "ConfigApplied",
            Self::BackendsHealthy => "BackendsHealthy",
            Self::CredentialsValid => "CredentialsValid",
            Self::Progressing => "Progressing",
            Self::SplitActive => "SplitActive",
            Self::MirrorHealthy => "MirrorHealthy",
            Self::TrafficOpen => "TrafficOpen",
            Self::ImageCurrent => IMAGE_CURRENT,
            Self::ConnectionBudget => "ConnectionBudget",
            Self::ReconciliationActive => "ReconciliationActive",
            Self::Stalled => "Stalled",
        }
    }
}

impl Reason {
    /// The word as it stands in the condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AsExpected => "AsExpected",
            Self::Serving => "Serving",
            Self::ConfigNotApplied => "ConfigNotApplied",
            Self::NoReadyProxies => "NoReadyProxies",
            Self::ScaledToZero => "ScaledToZero",
            Self::TrafficPaused => "TrafficPaused",
            Self::Suspended => "Suspended",
            Self::ImageAsWanted => "ImageAsWanted",
            Self::ImageUpdating => IMAGE_UPDATING,
            Self::ImageWaiting => "ImageWaiting",
            Self::ImageKept => "ImageKept",
            Self::BudgetBelowPods => "BudgetBelowPods",
            Self::NoPrimary => "NoPrimary",
            Self::TwoPrimaries => "TwoPrimaries",
            Self::NoHealthyReplica => "NoHealthyReplica",
            Self::LagHigh => "LagHigh",
            Self::ProbeUnavailable => "ProbeUnavailable",
            Self::InvalidSpec => "InvalidSpec",
            Self::NameConflict => "NameConflict",
            Self::Forbidden => "Forbidden",
            Self::CrdOutdated => "CrdOutdated",
            Self::Reconciling => "Reconciling",
            Self::Accepted => "Accepted",
            Self::RejectedByProxy => "RejectedByProxy",
            Self::UnknownParameter => "UnknownParameter",
            Self::Applied => "Applied",
            Self::PodsOutOfSync => "PodsOutOfSync",
            Self::PushFailed => "PushFailed",
            Self::NoPods => "NoPods",
            Self::Valid => "Valid",
            Self::SecretNotFound => "SecretNotFound",
            Self::KeyMissing => "KeyMissing",
            Self::ConfigMapNotFound => "ConfigMapNotFound",
            Self::CertificateInvalid => "CertificateInvalid",
            Self::CertificateExpired => "CertificateExpired",
            Self::CertificateExpiring => "CertificateExpiring",
            Self::LoginRejected => "LoginRejected",
            Self::Splitting => "Splitting",
            Self::StagePoolingOnly => "StagePoolingOnly",
            Self::SessionMode => "SessionMode",
            Self::MaxPercentZero => "MaxPercentZero",
            Self::NoReplicas => "NoReplicas",
            Self::Mirroring => "Mirroring",
            Self::StageNotMirror => "StageNotMirror",
            Self::MirrorBroken => "MirrorBroken",
            Self::Soaking => "Soaking",
            Self::StepAdvanced => "StepAdvanced",
            Self::Evaluating => "Evaluating",
            Self::StageReached => "StageReached",
            Self::Paused => "Paused",
            Self::AwaitingApproval => "AwaitingApproval",
            Self::WaitingForWave => "WaitingForWave",
            Self::WaveHalted => "WaveHalted",
            Self::WaitingForDeployment => "WaitingForDeployment",
            Self::NoData => "NoData",
            Self::InsufficientSamples => "InsufficientSamples",
            Self::MetricsUnavailable => "MetricsUnavailable",
            Self::PrimaryChanged => "PrimaryChanged",
            Self::Gate(GateReason(reason)) => reason,
            Self::GateFailed => "GateFailed",
            Self::ProgressDeadlineExceeded => "ProgressDeadlineExceeded",
        }
    }
}

/// What a condition should say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub kind: ConditionType,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, in a word.
    pub reason: Reason,
    /// Why, for a person.
    pub message: String,
}

impl Finding {
    /// A finding.
    #[must_use]
    pub fn new(
        kind: ConditionType,
        status: ConditionStatus,
        reason: Reason,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, status, reason, message: message.into() }
    }
}

/// The longest message that a condition may carry, in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Sets one condition. Its time changes only when its status does; its place never does.
pub fn set_condition(
    conditions: &mut Vec<PoolCondition>,
    finding: Finding,
    observed_generation: Option<i64>,
    now: Timestamp,
) {
    let Finding { kind, status, reason, message } = finding;
    let mut condition = PoolCondition {
        kind: kind.as_str().to_owned(),
        status,
        observed_generation,
        reason: reason.as_str().to_owned(),
        message: shortened(message),
        last_transition_time: whole_seconds(now),
    };
    match conditions.iter_mut().find(|known| known.kind == condition.kind) {
        Some(known) => {
            if known.status == condition.status {
                condition.last_transition_time = known.last_transition_time.clone();
            }
            *known = condition;
        }
        None => conditions.push(condition),
    }
}

/// Cut at a character's end, for the API server refuses longer ones.
fn shortened(message: String) -> String {
    match message.char_indices().map(|(at, _)| at).take_while(|at| *at <= MESSAGE_BYTES_MAX).last() {
        Some(end) if message.len() > MESSAGE_BYTES_MAX => format!("{}…", &message[..end]),
        Some(_) | None => message,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ready(status: ConditionStatus, reason: Reason, message: &str) -> Finding {
        Finding::new(ConditionType::Ready, status, reason, message)
    }

    #[test]
    fn first_time_is_now() {
        let mut conditions = Vec::new();
        set_condition(&mut conditions, ready(ConditionStatus::True, Reason::Serving, "m"), Some(1), at(10));
        assert_eq!(conditions[0].last_transition_time, Time(at(10)));
        assert_eq!(conditions[0].observed_generation, Some(1));
    }

    #[test]
    fn time_stays_while_status_stays_even_when_all_else_changes() {
        let mut conditions = Vec::new();
        set_condition(
            &mut conditions,
            ready(ConditionStatus::False, Reason::NoPrimary, "a"),
            Some(1),
            at(10),
        );
        set_condition(
            &mut conditions,
            ready(ConditionStatus::False, Reason::InvalidSpec, "b"),
            Some(2),
            at(20),
        );
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0].last_transition_time, Time(at(10)));
        assert_eq!(conditions[0].reason, "InvalidSpec");
        assert_eq!(conditions[0].message, "b");
        assert_eq!(conditions[0].observed_generation, Some(2));
    }

    #[test]
    fn time_changes_with_each_change_of_status() {
        let mut conditions = Vec::new();
        for (second, status) in [
            (10, ConditionStatus::True),
            (20, ConditionStatus::Unknown),
            (30, ConditionStatus::False),
            (40, ConditionStatus::True),
        ] {
            set_condition(&mut conditions, ready(status, Reason::Serving, "m"), Some(1), at(second));
            assert_eq!(conditions[0].last_transition_time, Time(at(second)), "{status:?}");
        }
    }

    #[test]
    fn setting_the_same_again_changes_nothing() {
        let mut conditions = Vec::new();
        set_condition(&mut conditions, ready(ConditionStatus::True, Reason::Serving, "m"), Some(1), at(10));
        let before = conditions.clone();
        set_condition(&mut conditions, ready(ConditionStatus::True, Reason::Serving, "m"), Some(1), at(99));
        assert_eq!(conditions, before);
    }

    #[test]
    fn others_keep_their_place() {
        let mut conditions = Vec::new();
        for kind in [ConditionType::Ready, ConditionType::Stalled] {
            let finding = Finding::new(kind, ConditionStatus::False, Reason::AsExpected, "");
            set_condition(&mut conditions, finding, Some(1), at(10));
        }
        set_condition(&mut conditions, ready(ConditionStatus::True, Reason::Serving, "m"), Some(1), at(20));
        let kinds: Vec<_> = conditions.iter().map(|condition| condition.kind.as_str()).collect();
        assert_eq!(kinds, ["Ready", "Stalled"]);
    }

    #[test]
    fn time_has_no_fraction_and_long_message_is_cut_at_a_character() {
        let mut conditions = Vec::new();
        let now = Timestamp::from_millisecond(10_500).unwrap();
        let message = "é".repeat(MESSAGE_BYTES_MAX);
        set_condition(&mut conditions, ready(ConditionStatus::True, Reason::Serving, &message), None, now);
        assert_eq!(conditions[0].last_transition_time, Time(at(10)));
        assert!(conditions[0].message.len() <= MESSAGE_BYTES_MAX + 3);
    }
}
