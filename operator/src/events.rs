//! Events of a pool: what changed from one status to the next, told once.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};
use pgrouting_crds::status::rollout::{GateVerdict, Move, RolloutStatus};
use pgrouting_crds::status::{ConditionStatus, MirrorState, PgRoutingPoolStatus, PoolCondition, ServerState};

/// The longest note that the API server takes, in bytes.
const NOTE_BYTES_MAX: usize = 1000;

/// One event. Reason and action tell it from others; within six minutes a repeat keeps the first note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolEvent {
    /// Whether it is a warning.
    pub is_warning: bool,
    /// What happened, in one word.
    pub reason: String,
    /// What it is about.
    pub action: String,
    /// What happened, for a person.
    pub note: String,
}

/// The reasons of events, beside those of conditions that are not true any more. Stable; `docs/conditions.md` has each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventReason {
    /// Every proxy runs a new document.
    ConfigApplied,
    /// There is another primary.
    PrimaryChanged,
    /// A server is in use no more.
    ServerOut,
    /// A server is in use again.
    ServerIn,
    /// Copies are sent again.
    MirrorRunning,
    /// Clients are held back.
    TrafficPaused,
    /// Clients are served again.
    TrafficResumed,
    /// The rollout begins an attempt.
    AttemptStarted,
    /// The pool has moved to another stage.
    StageAdvanced,
    /// The pool has moved to another share.
    StepAdvanced,
    /// The pool is where it should be.
    StageReached,
    /// A step waits for a person.
    AwaitingApproval,
    /// The pool has its turn in its group.
    WaveStarted,
    /// The pool was taken back.
    RolledBack,
    /// The pool stays at its share for a gate that failed.
    RolloutHeld,
    /// A gate fails.
    GateFailed,
    /// A gate has no figures, or too few.
    GateNoData,
    /// Nothing could be measured.
    MetricsUnavailable,
    /// Another pool of the group was rolled back.
    WaveHalted,
}

impl EventReason {
    /// The word as it stands in the event.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConfigApplied => "ConfigApplied",
            Self::PrimaryChanged => "PrimaryChanged",
            Self::ServerOut => "ServerOut",
            Self::ServerIn => "ServerIn",
            Self::MirrorRunning => "MirrorRunning",
            Self::TrafficPaused => "TrafficPaused",
            Self::TrafficResumed => "TrafficResumed",
            Self::AttemptStarted => "AttemptStarted",
            Self::StageAdvanced => "StageAdvanced",
            Self::StepAdvanced => "StepAdvanced",
            Self::StageReached => "StageReached",
            Self::AwaitingApproval => "AwaitingApproval",
            Self::WaveStarted => "WaveStarted",
            Self::RolledBack => "RolledBack",
            Self::RolloutHeld => "RolloutHeld",
            Self::GateFailed => "GateFailed",
            Self::GateNoData => "GateNoData",
            Self::MetricsUnavailable => "MetricsUnavailable",
            Self::WaveHalted => "WaveHalted",
        }
    }
}

/// What happened between two statuses.
#[must_use]
pub fn events_between(before: Option<&PgRoutingPoolStatus>, after: &PgRoutingPoolStatus) -> Vec<PoolEvent> {
    let mut events = Vec::new();
    for condition in &after.conditions {
        let known = before.and_then(|status| find(status, &condition.kind));
        let is_new =
            known.is_none_or(|known| (known.status, &known.reason) != (condition.status, &condition.reason));
        if is_new && is_bad(condition) {
            events.push(PoolEvent {
                is_warning: true,
                reason: condition.reason.clone(),
                action: condition.kind.clone(),
                note: condition.message.clone(),
            });
        }
    }
    // Ready and Stalled repeat what a more precise condition says.
    let mut reasons = std::collections::BTreeSet::new();
    events.reverse();
    events.retain(|event| reasons.insert(event.reason.clone()));
    events.reverse();
    events.extend(traffic_changed(before, after));
    events.extend(config_applied(before, after));
    events.extend(primary_changed(before, after));
    events.extend(servers_changed(before, after));
    events.extend(mirror_runs_again(before, after));
    events.extend(rollout_events(before, after));
    events
}

fn is_bad(condition: &PoolCondition) -> bool {
    let bad = if condition.kind == "Stalled" { ConditionStatus::True } else { ConditionStatus::False };
    condition.status == bad && !is_expected(condition)
}

/// No split where the spec asks for none; and before the proxies have the document, which other conditions tell of. What
/// the rollout does has events of its own.
fn is_expected(condition: &PoolCondition) -> bool {
    match condition.kind.as_str() {
        "SplitActive" => matches!(condition.reason.as_str(), "StagePoolingOnly" | "ConfigNotApplied"),
        // What the spec asks for, and what passes by itself.
        "Progressing" | "TrafficOpen" | "ReconciliationActive" | "ImageCurrent" => true,
        "Stalled" => condition.reason == "GateFailed",
        _ => false,
    }
}

/// Clients are held back, or are served again.
fn traffic_changed(before: Option<&PgRoutingPoolStatus>, after: &PgRoutingPoolStatus) -> Option<PoolEvent> {
    let condition = find(after, "TrafficOpen")?;
    let known = before.and_then(|status| find(status, "TrafficOpen"))?;
    let reason = match (known.status, condition.status) {
        (ConditionStatus::True, ConditionStatus::False) => EventReason::TrafficPaused,
        (ConditionStatus::False, ConditionStatus::True) => EventReason::TrafficResumed,
        (_, _) => return None,
    };
    Some(PoolEvent {
        is_warning: false,
        reason: reason.as_str().to_owned(),
        action: "Traffic".to_owned(),
        note: condition.message.clone(),
    })
}

/// Once for each document.
fn config_applied(before: Option<&PgRoutingPoolStatus>, after: &PgRoutingPoolStatus) -> Option<PoolEvent> {
    let applied_hash = |status: &PgRoutingPoolStatus| -> Option<String> {
        let condition = find(status, "ConfigApplied")?;
        let config = status.config.as_ref()?;
        (condition.status == ConditionStatus::True).then(|| config.hash.clone())
    };
    let hash = applied_hash(after)?;
    let config = after.config.as_ref()?;
    (before.and_then(applied_hash).as_ref() != Some(&hash)).then(|| PoolEvent {
        is_warning: false,
        reason: EventReason::ConfigApplied.as_str().to_owned(),
        action: format!("Config{}", config.short_hash),
        note: format!(
            "{} of {} proxies run document {} (generation {})",
            config.pods_applied, config.pods_total, config.short_hash, config.generation
        ),
    })
}

fn primary_changed(before: Option<&PgRoutingPoolStatus>, after: &PgRoutingPoolStatus) -> Option<PoolEvent> {
    let primary = |status: &PgRoutingPoolStatus| status.backends.as_ref().and_then(|b| b.primary.clone());
    let now = primary(after)?;
    let then = before.and_then(primary);
    (then.as_ref() != Some(&now)).then(|| PoolEvent {
        is_warning: false,
        reason: EventReason::PrimaryChanged.as_str().to_owned(),
        action: format!("Primary-{now}"),
        note: match then {
            Some(then) => format!("the primary was {then} and is {now}"),
            None => format!("the primary is {now}"),
        },
    })
}

/// Servers that are in use no more, or again.
fn servers_changed<'a>(
    before: Option<&'a PgRoutingPoolStatus>,
    after: &'a PgRoutingPoolStatus,
) -> impl Iterator<Item = PoolEvent> + 'a {
    let known = before.iter().filter_map(|status| status.backends.as_ref()).flat_map(|b| &b.servers);
    let known: Vec<_> = known.collect();
    let servers = after.backends.iter().flat_map(|backends| &backends.servers);
    servers.filter_map(move |server| {
        let then = known.iter().find(|known| known.name == server.name)?;
        if then.state == server.state {
            return None;
        }
        let is_in = server.state == ServerState::Up;
        let reason = server.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        Some(PoolEvent {
            is_warning: !is_in,
            reason: if is_in { EventReason::ServerIn } else { EventReason::ServerOut }.as_str().to_owned(),
            action: format!("Server-{}", server.name),
            note: format!(
                "server {} ({}) was {:?} and is {:?}{reason}",
                server.name, server.address, then.state, server.state
            ),
        })
    })
}

/// That it broke is told by its condition.
fn mirror_runs_again(before: Option<&PgRoutingPoolStatus>, after: &PgRoutingPoolStatus) -> Option<PoolEvent> {
    let then = before?.mirror.as_ref()?;
    let now = after.mirror.as_ref()?;
    ((then.state, now.state) == (MirrorState::Broken, MirrorState::Running)).then(|| PoolEvent {
        is_warning: false,
        reason: EventReason::MirrorRunning.as_str().to_owned(),
        action: "Mirror".to_owned(),
        note: format!("copies are sent to {} again", now.target),
    })
}

/// What the rollout did: each move, each gate that fails, each wait for figures, once.
fn rollout_events(before: Option<&PgRoutingPoolStatus>, after: &PgRoutingPoolStatus) -> Vec<PoolEvent> {
    let Some(now) = &after.rollout else { return Vec::new() };
    let nothing = RolloutStatus::default();
    let then = before.and_then(|status| status.rollout.as_ref()).unwrap_or(&nothing);
    let progress = find(after, "Progressing");
    let said = progress.map(|condition| condition.message.clone()).unwrap_or_default();
    let mut events = Vec::new();
    let mut tell = |is_warning, reason: EventReason, action: String, note: String| {
        events.push(PoolEvent { is_warning, reason: reason.as_str().to_owned(), action, note });
    };
    if now.attempt > then.attempt {
        let note = format!("attempt {} to reach {}", now.attempt, now.target_stage.as_str());
        tell(false, EventReason::AttemptStarted, format!("Attempt-{}", now.attempt), note);
    }
    for made in new_moves(then, now).into_iter().rev() {
        let is_rollback = made.actor == "controller" && made.reason != "StepAdvanced";
        let note = format!("from {} to {} ({}, {})", made.from, made.to, made.reason, made.actor);
        let stage = |place: &str| place.split(' ').next().unwrap_or_default().to_owned();
        let is_stage = stage(&made.from) != stage(&made.to);
        let reason = match (is_rollback, is_stage) {
            (true, _) => EventReason::RolledBack,
            (false, true) => EventReason::StageAdvanced,
            (false, false) => EventReason::StepAdvanced,
        };
        let note = match (&now.last_rollback, is_rollback) {
            (Some(rollback), true) => format!("{}; {}", rollback.message, rollback.remedy),
            (Some(_) | None, _) => note,
        };
        tell(is_rollback, reason, made.to.replace(' ', ""), note);
    }
    if let Some(hold) = &now.hold
        && then.hold.as_ref() != Some(hold)
        && !hold.rolled_back
    {
        tell(true, EventReason::RolloutHeld, hold.gate.clone(), hold.message.clone());
    }
    for gate in &now.gates {
        let known = then.gates.iter().find(|known| known.name == gate.name);
        let is_new = known.is_none_or(|known| known.verdict != gate.verdict);
        if gate.verdict == GateVerdict::Fail && is_new {
            let note = format!(
                "gate {}: {} (limit {}, {} samples)",
                gate.name, gate.value, gate.limit, gate.samples
            );
            tell(true, EventReason::GateFailed, gate.name.clone(), note);
        }
    }
    let is_said = |reason: &str| {
        let is = |status: &PgRoutingPoolStatus| {
            find(status, "Progressing").is_some_and(|condition| condition.reason == reason)
        };
        is(after) && !before.is_some_and(is)
    };
    let step = format!("Step-{}", now.step);
    if is_said("NoData") || is_said("InsufficientSamples") {
        tell(true, EventReason::GateNoData, step.clone(), said.clone());
    }
    if is_said("MetricsUnavailable") {
        tell(true, EventReason::MetricsUnavailable, step.clone(), said.clone());
    }
    if is_said("StageReached") && before.is_some() && !now.history.is_empty() {
        tell(false, EventReason::StageReached, now.stage.as_str().to_owned(), said.clone());
    }
    if is_said("AwaitingApproval") {
        tell(false, EventReason::AwaitingApproval, step.clone(), said.clone());
    }
    if is_said("WaveHalted") {
        tell(true, EventReason::WaveHalted, step, said);
    } else if now.wave.is_some() && then.wave.is_none() {
        let group = now.wave.as_ref().map(|wave| wave.group.clone()).unwrap_or_default();
        tell(false, EventReason::WaveStarted, format!("Wave-{group}"), said);
    }
    events
}

/// Moves that were not there before, the newest first.
fn new_moves<'a>(then: &RolloutStatus, now: &'a RolloutStatus) -> Vec<&'a Move> {
    let known = then.history.first();
    now.history.iter().take_while(|made| Some(*made) != known).collect()
}

fn find<'a>(status: &'a PgRoutingPoolStatus, kind: &str) -> Option<&'a PoolCondition> {
    status.conditions.iter().find(|condition| condition.kind == kind)
}

/// Publishes events. One that does not get through is logged and forgotten.
pub async fn publish(recorder: &Recorder, regarding: &ObjectReference, events: Vec<PoolEvent>) {
    for event in events {
        let mut note = event.note;
        while note.len() > NOTE_BYTES_MAX {
            note.pop();
        }
        let event = Event {
            type_: if event.is_warning { EventType::Warning } else { EventType::Normal },
            reason: event.reason,
            action: event.action,
            note: Some(note),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, regarding).await {
            tracing::warn!(%error, reason = event.reason, "cannot publish an event");
        }
    }
}

#[cfg(test)]
mod tests;
