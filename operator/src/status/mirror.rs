//! What comes of the copied traffic, and whether all is well with it.

use std::time::Duration;

use jiff::Timestamp;
use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::mirror::{self, MirrorStatements};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::ConditionStatus::{False, True, Unknown};
use pgrouting_crds::status::{ConditionStatus, MirrorState, MirrorStatus, PgRoutingPoolStatus};

use crate::observe::mirror::{MirrorView, mirror_target};
use crate::position::stage_of;
use crate::status::condition::{ConditionType, Finding, Reason};
use crate::status::found::Found;
use crate::time::whole_seconds;

/// Figures that only grow are written no more often than this.
const FIGURES_PERIOD: Duration = Duration::from_secs(30);
const MESSAGE_CHARS_MAX: usize = 500;

/// The figures as they are, or as they were: they grow with every transaction, and the status must not be written with
/// every pass. Whatever is more than that is told at once.
#[must_use]
pub fn mirror_status(
    before: Option<&PgRoutingPoolStatus>,
    found: &Found<'_>,
    now: Timestamp,
) -> Option<MirrorStatus> {
    let target = mirror_target(&found.document?.config)?;
    let before = before.and_then(|status| status.mirror.as_ref()).filter(|before| before.target == target);
    // Where nobody can say anything new it stays as it was.
    let Some(view) = &found.observation.mirror else { return before.cloned() };
    let after = figures(target, view, now);
    Some(before.filter(|before| is_kept(before, &after)).cloned().unwrap_or(after))
}

fn figures(target: String, view: &MirrorView, now: Timestamp) -> MirrorStatus {
    let figure = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let MirrorView {
        is_wanted: _,
        state,
        message,
        offered,
        mirrored,
        dropped,
        skipped,
        compared,
        differing,
        errors,
        source_micros,
        mirror_micros,
        diverged_since,
    } = view;
    MirrorStatus {
        target,
        state: match state {
            mirror::MirrorState::Running => MirrorState::Running,
            mirror::MirrorState::Inactive => MirrorState::Inactive,
            mirror::MirrorState::Broken => MirrorState::Broken,
        },
        offered: figure(*offered),
        mirrored: figure(*mirrored),
        dropped: figure(*dropped),
        skipped: figure(*skipped),
        compared: figure(*compared),
        differing: figure(*differing),
        errors: figure(*errors),
        source_micros: figure(*source_micros),
        mirror_micros: figure(*mirror_micros),
        diverged_since: diverged_since.map(whole_seconds),
        message: Some(message.chars().take(MESSAGE_CHARS_MAX).collect::<String>())
            .filter(|message| !message.is_empty()),
        taken_at: whole_seconds(now),
    }
}

fn is_kept(before: &MirrorStatus, after: &MirrorStatus) -> bool {
    let is_same = MirrorStatus { taken_at: before.taken_at.clone(), ..after.clone() } == *before;
    let is_turn = (before.state, &before.diverged_since) != (after.state, &after.diverged_since);
    let age = after.taken_at.0.duration_since(before.taken_at.0).unsigned_abs();
    is_same || (!is_turn && age < FIGURES_PERIOD)
}

/// The condition MirrorHealthy. It says nothing that is not in the figures, so that it changes
/// no more often than they do.
#[must_use]
pub fn mirror_healthy(found: &Found<'_>, mirror: Option<&MirrorStatus>) -> Finding {
    let (Some(document), Some(rollout)) = (found.document, found.rollout) else {
        return finding(Unknown, Reason::Reconciling, "no document yet: see condition Ready");
    };
    let stage = stage_of(&document.config);
    let (applied, total) = found.observation.applied_of_total();
    let behind = || {
        let message = format!(
            "{applied} of {total} proxies have acknowledged the stage {}: see condition ConfigApplied for the others",
            stage.as_str()
        );
        finding(Unknown, Reason::ConfigNotApplied, message)
    };
    if stage != Stage::Mirror {
        if rollout.stage == Stage::Mirror {
            let message = format!(
                "the spec has not come into effect, the stage is still {}: see conditions CredentialsValid and Ready",
                stage.as_str()
            );
            return finding(Unknown, Reason::ConfigNotApplied, message);
        }
        if found.target == Stage::Mirror {
            let message = "no traffic is copied yet: condition Progressing says what the first step to Mirror waits for";
            return finding(Unknown, Reason::StageNotMirror, message);
        }
        return finding(
            Unknown,
            Reason::StageNotMirror,
            "no traffic is copied: set spec.mirror, and spec.rollout.stage to Mirror, to try another database out",
        );
    }
    if total == 0 {
        return finding(Unknown, Reason::NoPods, "no proxy is up: see condition Ready");
    }
    match mirror {
        Some(mirror) if mirror.state == MirrorState::Broken => broken(mirror),
        _ if applied < total => behind(),
        _ => at_mirror(&document.config, mirror),
    }
}

fn broken(mirror: &MirrorStatus) -> Finding {
    let why = mirror.message.as_deref().unwrap_or("it failed too often");
    let message = format!(
        "nothing is sent to {} for a while: {why}; clients do not notice. Look at that server, or set \
         spec.rollout.stage to Split",
        mirror.target
    );
    finding(False, Reason::MirrorBroken, message)
}

/// What every proxy does at the stage Mirror.
fn at_mirror(config: &ProxyConfig, mirror: Option<&MirrorStatus>) -> Finding {
    let (percent, statements) =
        config.mirror.as_ref().map_or((0, MirrorStatements::ReadsOnly), |m| (m.percent, m.statements));
    if percent == 0 {
        let message = "spec.mirror.maxPercent is 0, so nothing is copied: raise it";
        return finding(False, Reason::MaxPercentZero, message);
    }
    let Some(mirror) = mirror.filter(|mirror| mirror.state == MirrorState::Running) else {
        return finding(Unknown, Reason::Reconciling, "not every proxy has begun to send copies");
    };
    let what = match statements {
        MirrorStatements::ReadsOnly => "reads",
        MirrorStatements::RolledBackWrites => "all transactions, rolled back there,",
        MirrorStatements::All => "all transactions",
    };
    let mut message = format!("{what} of {percent} % of the sessions are copied to {}", mirror.target);
    if let Some(since) = &mirror.diverged_since {
        message.push_str(&format!(
            "; rows there may differ since {}, when a transaction was left out: make that database anew where it matters",
            since.0
        ));
    }
    finding(True, Reason::Mirroring, message)
}

fn finding(status: ConditionStatus, reason: Reason, message: impl Into<String>) -> Finding {
    Finding::new(ConditionType::MirrorHealthy, status, reason, message)
}

#[cfg(test)]
mod tests;
