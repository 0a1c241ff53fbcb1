//! How far a pool has come, and whether its reads go to replicas.

use std::time::Duration;

use jiff::Timestamp;
use pgrouting_contract::config::{PoolMode, ProxyConfig};
use pgrouting_contract::split::{Cohort, WhenNoReplica};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::ConditionStatus::{False, True, Unknown};
use pgrouting_crds::status::{ConditionStatus, PoolCondition, ServerRole, ServerState};

use crate::position::stage_of;
use crate::rollout::progress::Word;
use crate::status::condition::{ConditionType, Finding, GateReason, Reason};
use crate::status::found::Found;

/// The condition Progressing: what there is to say of the rollout. `before` is the condition as it was.
#[must_use]
pub fn progressing(found: &Found<'_>, before: Option<&PoolCondition>) -> Finding {
    if found.is_suspended() {
        let message = "no step is made while spec.reconciliation is Suspended";
        return Finding::new(ConditionType::Progressing, Unknown, Reason::Suspended, message);
    }
    let Some(progress) = found.progress else {
        let message = "the rollout stays as it is while the spec makes no sense: see condition Ready";
        return Finding::new(ConditionType::Progressing, Unknown, Reason::Reconciling, message);
    };
    let reason = match &progress.word {
        Word::Soaking => Reason::Soaking,
        Word::StepAdvanced => Reason::StepAdvanced,
        Word::Evaluating => Reason::Evaluating,
        Word::StageReached => Reason::StageReached,
        Word::Paused => Reason::Paused,
        Word::AwaitingApproval => Reason::AwaitingApproval,
        Word::WaitingForWave => Reason::WaitingForWave,
        Word::WaveHalted => Reason::WaveHalted,
        Word::Blocked(gate) | Word::Failed(gate) => Reason::Gate(GateReason::of(gate)),
        Word::WaitingForDeployment => Reason::WaitingForDeployment,
        Word::NoData => Reason::NoData,
        Word::InsufficientSamples => Reason::InsufficientSamples,
        Word::MetricsUnavailable => Reason::MetricsUnavailable,
        Word::PrimaryChanged => Reason::PrimaryChanged,
    };
    let known = before.filter(|known| progress.is_stale && known.reason == reason.as_str());
    let message = known.map_or(&progress.message, |known| &known.message);
    Finding::new(ConditionType::Progressing, progress.word.status(), reason, message.clone())
}

/// Why the rollout needs a person, if it does. `before` says since when it has been waiting.
#[must_use]
pub fn stalled_rollout(found: &Found<'_>, before: Option<&PoolCondition>, now: Timestamp) -> Option<Finding> {
    let progress = found.progress?;
    if progress.needs_person() {
        let message = progress.message.clone();
        return Some(Finding::new(ConditionType::Stalled, True, Reason::GateFailed, message));
    }
    let is_waiting = matches!(
        progress.word,
        Word::NoData | Word::InsufficientSamples | Word::MetricsUnavailable | Word::Blocked(_)
    );
    let since = before.filter(|known| known.status == progress.word.status())?.last_transition_time.0;
    let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    if !is_waiting || waited < found.progress_deadline {
        return None;
    }
    let message = format!(
        "the rollout has not gone on since {since}: {}. Lower spec.rollout.minSamples, correct what is missing, or set \
         spec.rollout.stage to where it is",
        progress.message
    );
    Some(Finding::new(ConditionType::Stalled, True, Reason::ProgressDeadlineExceeded, message))
}

/// The condition SplitActive.
#[must_use]
pub fn split_active(found: &Found<'_>) -> Finding {
    let (Some(document), Some(rollout)) = (found.document, found.rollout) else {
        return finding(Unknown, Reason::Reconciling, "no document yet: see condition Ready");
    };
    let stage = stage_of(&document.config);
    if splits(stage) != splits(rollout.stage) {
        let message = format!(
            "the spec has not come into effect, the stage is still {}: see condition Ready",
            stage.as_str()
        );
        return finding(False, Reason::ConfigNotApplied, message);
    }
    let (applied, total) = found.observation.applied_of_total();
    // A proxy that is out of step here is told of by ConfigApplied alone, unless it may split still.
    let was_split =
        rollout.history.first().is_some_and(|made| !made.from.starts_with(Stage::PoolingOnly.as_str()));
    let may_split = was_split && applied < total;
    if stage == Stage::PoolingOnly && !may_split {
        let next = if found.target == Stage::PoolingOnly {
            "set spec.rollout.stage to Split for reads to go to replicas"
        } else {
            "condition Progressing says what the first step to Split waits for"
        };
        let message = format!("every statement runs on the primary: {next}");
        return finding(False, Reason::StagePoolingOnly, message);
    }
    if total == 0 {
        return finding(Unknown, Reason::NoPods, "no proxy is up: see condition Ready");
    }
    if applied < total {
        let message = format!(
            "{applied} of {total} proxies have acknowledged the stage {}: see condition ConfigApplied for the others",
            stage.as_str()
        );
        return finding(False, Reason::ConfigNotApplied, message);
    }
    at_split(found, &document.config)
}

/// What every proxy does at the stage Split.
fn at_split(found: &Found<'_>, config: &ProxyConfig) -> Finding {
    if config.pooling.mode == PoolMode::Session {
        return finding(
            False,
            Reason::SessionMode,
            "with spec.pooling.mode Session a client keeps one connection, which is to the primary: set it to \
             Transaction for reads to go to replicas",
        );
    }
    if config.split.percent == 0 {
        let message = "spec.split.maxPercent is 0, so every statement runs on the primary: raise it";
        return finding(False, Reason::MaxPercentZero, message);
    }
    let replicas = replicas(found, config);
    if replicas.is_empty() {
        return no_replica(found, config);
    }
    let (percent, noun) = (config.split.percent, if replicas.len() == 1 { "replica" } else { "replicas" });
    let unit = match config.split.cohort {
        Cohort::Session => "sessions",
        Cohort::Transaction => "transactions",
    };
    let primary = if config.split.primary_reads { ", and to the primary too" } else { "" };
    let message = format!(
        "reads of {percent} % of the {unit} go to {} {noun}: {}{primary}",
        replicas.len(),
        replicas.join(", ")
    );
    finding(True, Reason::Splitting, message)
}

/// Replicas that take reads, by name.
fn replicas<'a>(found: &'a Found<'_>, config: &ProxyConfig) -> Vec<&'a str> {
    let takes_reads =
        |name: &str| config.servers.iter().any(|server| server.name == name && server.weight > 0);
    let up = found.observation.servers.iter().filter(|server| {
        server.role == ServerRole::Replica && server.state == ServerState::Up && takes_reads(&server.name)
    });
    up.map(|server| server.name.as_str()).collect()
}

fn no_replica(found: &Found<'_>, config: &ProxyConfig) -> Finding {
    if found.observation.servers.iter().any(|server| !server.is_probed) {
        let message = "no replica is known to be up, and not every server has been asked yet";
        return finding(Unknown, Reason::ProbeUnavailable, message);
    }
    let reads = match config.split.when_no_replica {
        WhenNoReplica::UsePrimary => "reads run on the primary",
        WhenNoReplica::Fail => "reads wait for one and fail",
    };
    let remedy = if config.servers.len() == 1 {
        "add a replica under spec.backends"
    } else {
        "see condition BackendsHealthy, and the weights under spec.backends"
    };
    let message = format!("no replica that takes reads is up, so {reads}: {remedy}");
    finding(False, Reason::NoReplicas, message)
}

fn finding(status: ConditionStatus, reason: Reason, message: impl Into<String>) -> Finding {
    Finding::new(ConditionType::SplitActive, status, reason, message)
}

/// Traffic is split at every later stage too.
const fn splits(stage: Stage) -> bool {
    match stage {
        Stage::PoolingOnly => false,
        Stage::Split | Stage::Mirror => true,
    }
}
