//! Events of a pool: what changed from one status to the next, told once.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};
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
    events.extend(config_applied(before, after));
    events.extend(primary_changed(before, after));
    events.extend(servers_changed(before, after));
    events.extend(mirror_runs_again(before, after));
    events
}

fn is_bad(condition: &PoolCondition) -> bool {
    let bad = if condition.kind == "Stalled" { ConditionStatus::True } else { ConditionStatus::False };
    condition.status == bad && !is_expected(condition)
}

/// No split where the spec asks for none; and before the proxies have the document, which other conditions tell of.
fn is_expected(condition: &PoolCondition) -> bool {
    condition.kind == "SplitActive"
        && matches!(condition.reason.as_str(), "StagePoolingOnly" | "ConfigNotApplied")
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
        reason: "ConfigApplied".to_owned(),
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
        reason: "PrimaryChanged".to_owned(),
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
            reason: if is_in { "ServerIn" } else { "ServerOut" }.to_owned(),
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
        reason: "MirrorRunning".to_owned(),
        action: "Mirror".to_owned(),
        note: format!("copies are sent to {} again", now.target),
    })
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
