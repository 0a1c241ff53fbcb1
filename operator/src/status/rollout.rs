//! How far a pool has come, and whether its reads go to replicas.

use pgrouting_contract::config::{PoolMode, ProxyConfig};
use pgrouting_contract::split::{Cohort, WhenNoReplica};
use pgrouting_contract::stage;
use pgrouting_crds::spec::Stage;
use pgrouting_crds::status::ConditionStatus::{False, True, Unknown};
use pgrouting_crds::status::{ConditionStatus, PgRoutingPoolStatus, RolloutStatus, ServerRole, ServerState};

use crate::status::condition::{ConditionType, Finding, Reason};
use crate::status::found::Found;

/// The stage in effect: that of the document once every proxy runs it, and until then the one before.
#[must_use]
pub fn rollout(before: Option<&PgRoutingPoolStatus>, found: &Found<'_>) -> Option<RolloutStatus> {
    let config = &found.document?.config;
    let (applied, total) = found.observation.applied_of_total();
    if total == 0 || applied < total {
        let before = before.and_then(|status| status.rollout.clone());
        let nothing = RolloutStatus { stage: Stage::PoolingOnly, split_percent: 0, mirror_percent: 0 };
        return Some(before.unwrap_or(nothing));
    }
    let stage = stage_of(config);
    let split_percent = match (stage, config.pooling.mode) {
        (Stage::PoolingOnly, _) | (Stage::Split | Stage::Mirror, PoolMode::Session) => 0,
        (Stage::Split | Stage::Mirror, PoolMode::Transaction) => i32::from(config.split.percent),
    };
    let mirror_percent = match stage {
        Stage::PoolingOnly | Stage::Split => 0,
        Stage::Mirror => config.mirror.as_ref().map_or(0, |mirror| i32::from(mirror.percent)),
    };
    Some(RolloutStatus { stage, split_percent, mirror_percent })
}

/// The condition SplitActive, given the rollout as it is in effect.
#[must_use]
pub fn split_active(found: &Found<'_>, rollout: Option<&RolloutStatus>) -> Finding {
    let (Some(document), Some(rollout)) = (found.document, rollout) else {
        return finding(Unknown, Reason::Reconciling, "no document yet: see condition Ready");
    };
    if splits(stage_of(&document.config)) != splits(found.target) {
        let message = format!(
            "the spec has not come into effect, the stage is still {}: see condition Ready",
            rollout.stage.as_str()
        );
        return finding(False, Reason::ConfigNotApplied, message);
    }
    // A proxy that is out of step here is told of by ConfigApplied alone: there is nothing that it should split.
    if (rollout.stage, found.target) == (Stage::PoolingOnly, Stage::PoolingOnly) {
        return finding(
            False,
            Reason::StagePoolingOnly,
            "every statement runs on the primary: set spec.rollout.stage to Split for reads to go to replicas",
        );
    }
    let (applied, total) = found.observation.applied_of_total();
    if total == 0 {
        return finding(Unknown, Reason::NoPods, "no proxy is up: see condition Ready");
    }
    if applied < total {
        let message = format!(
            "{applied} of {total} proxies have acknowledged the stage {}: see condition ConfigApplied for the others",
            stage_of(&document.config).as_str()
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

/// The stage of a document, in the words of the API.
#[must_use]
pub fn stage_of(config: &ProxyConfig) -> Stage {
    match config.stage {
        stage::Stage::PoolingOnly => Stage::PoolingOnly,
        stage::Stage::Split => Stage::Split,
        stage::Stage::Mirror => Stage::Mirror,
    }
}

/// Traffic is split at every later stage too.
const fn splits(stage: Stage) -> bool {
    match stage {
        Stage::PoolingOnly => false,
        Stage::Split | Stage::Mirror => true,
    }
}
