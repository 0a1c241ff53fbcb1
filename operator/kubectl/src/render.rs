//! Pools as text: all of them in a table, or one in full; pure.

use jiff::Timestamp;
use kube::ResourceExt as _;
use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::status::{ConditionStatus, PgRoutingPoolStatus, PoolCondition};

use crate::pods::Reports;
use crate::render::facts::Facts;
use crate::table::{Cell, Paint, Table, Tone};

pub mod facts;
pub mod mirror;
pub mod rollout;
pub mod servers;

/// Whether a table of pools names their namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespaces {
    /// All pools are of one.
    One,
    /// They may be of any.
    All,
}

/// All pools, each in a line.
#[must_use]
pub fn pools(pools: &[PgRoutingPool], namespaces: Namespaces, paint: Paint) -> String {
    let columns = ["NAMESPACE", "NAME", "STAGE", "TARGET", "SPLIT%", "MIRROR%", "ROLLOUT"];
    let skipped = usize::from(namespaces == Namespaces::One);
    let mut table = Table::new(columns.get(skipped..).unwrap_or_default());
    for pool in pools {
        let rollout = pool.status.as_ref().and_then(|status| status.rollout.as_ref());
        let progressing = pool.status.as_ref().and_then(|status| condition(status, "Progressing"));
        let reason = progressing.map_or_else(String::new, |progressing| progressing.reason.clone());
        let needs_person = pool.status.as_ref().and_then(|status| condition(status, "Stalled"));
        let tone = match needs_person.map(|stalled| stalled.status) {
            Some(ConditionStatus::True) => Tone::Bad,
            Some(ConditionStatus::False | ConditionStatus::Unknown) | None => Tone::Plain,
        };
        let figure =
            |value: Option<i32>| Cell::from(value.map_or_else(String::new, |value| value.to_string()));
        let cells = vec![
            pool.namespace().unwrap_or_default().into(),
            pool.name_any().into(),
            rollout.map_or("", |rollout| rollout.stage.as_str()).into(),
            pool.spec.rollout.stage.as_str().into(),
            figure(rollout.map(|rollout| rollout.split_percent)),
            figure(rollout.map(|rollout| rollout.mirror_percent)),
            Cell::toned(reason, tone),
        ];
        table.row(cells.into_iter().skip(skipped).collect());
    }
    table.text(paint)
}

/// One pool in full, with what its proxies said.
#[must_use]
pub fn picture(pool: &PgRoutingPool, reports: &Reports, now: Timestamp, paint: Paint) -> String {
    let mut facts = Facts::default();
    let name = pool.name_any();
    facts.add(
        "Pool",
        pool.namespace().map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}")),
    );
    let Some(status) = &pool.status else {
        facts.add("Status", "there is none yet: does the operator run, and does it watch this namespace?");
        return facts.text();
    };
    if status.observed_generation < pool.metadata.generation {
        facts.add("Status", "of before the last edit, which the operator has not come to yet");
    }
    let mut sections = Vec::new();
    if let Some(rollout) = &status.rollout {
        rollout::facts(&mut facts, &pool.spec, rollout, condition(status, "Progressing"), now);
        sections.push(rollout::gates(rollout, paint));
        sections.push(rollout::comparisons(rollout));
    } else {
        facts.add("Stage", format!("{} is asked for", pool.spec.rollout.stage.as_str()));
    }
    if let Some(mirror) = &status.mirror {
        facts.add("Mirror", mirror::summary(mirror));
    }
    servers::facts(&mut facts, status, reports);
    sections.push(servers::proxies(status, reports, paint));
    sections.push(servers::servers(status, reports, paint));
    sections.push(conditions(status, paint));
    sections.insert(0, facts.text());
    sections.retain(|section| !section.is_empty());
    sections.join("\n")
}

/// Conditions that are not as they should be.
fn conditions(status: &PgRoutingPoolStatus, paint: Paint) -> String {
    let mut table = Table::new(&["CONDITION", "STATUS", "REASON"]);
    for condition in status.conditions.iter().filter(|condition| is_bad(condition)) {
        let tone = if condition.status == ConditionStatus::Unknown { Tone::Warning } else { Tone::Bad };
        table.row(vec![
            condition.kind.as_str().into(),
            Cell::toned(condition.status.as_str(), tone),
            condition.reason.as_str().into(),
        ]);
        table.line(&condition.message);
    }
    if table.is_empty() { String::new() } else { table.text(paint) }
}

/// Progressing is told of at the top; a stage that was not asked for is no fault.
fn is_bad(condition: &PoolCondition) -> bool {
    match (condition.kind.as_str(), condition.reason.as_str()) {
        ("Progressing", _) | (_, "StagePoolingOnly" | "StageNotMirror") => false,
        ("Stalled", _) => condition.status != ConditionStatus::False,
        _ => condition.status != ConditionStatus::True,
    }
}

fn condition<'a>(status: &'a PgRoutingPoolStatus, kind: &str) -> Option<&'a PoolCondition> {
    status.conditions.iter().find(|condition| condition.kind == kind)
}

#[cfg(test)]
mod tests;
