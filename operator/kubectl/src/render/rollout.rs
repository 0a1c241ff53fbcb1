//! How far a pool has come, what its gates say, and what keeps it.

use jiff::Timestamp;
use pgrouting_crds::spec::PgRoutingPoolSpec;
use pgrouting_crds::spec::rollout::RolloutMode;
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::PoolCondition;
use pgrouting_crds::status::rollout::{
    Baseline, Forecast, GateStatus, GateVerdict, Hold, Rollback, RolloutStatus,
};

use crate::render::facts::Facts;
use crate::table::{Cell, Paint, Table, Tone};
use crate::text::{micros_text, span_text, time_text, until};

/// The longest value that stands in a column; a longer one is a line of its own.
const VALUE_WIDTH: usize = 44;

/// Stage, step, time, and what keeps the pool.
pub fn facts(
    facts: &mut Facts,
    spec: &PgRoutingPoolSpec,
    rollout: &RolloutStatus,
    progressing: Option<&PoolCondition>,
    now: Timestamp,
) {
    facts.add("Stage", stage(spec, rollout));
    facts.add("Step", step(spec, rollout));
    if let Some(text) = soak(rollout, now) {
        facts.add("Soak", text);
    }
    if let Some(progressing) = progressing {
        facts.add("Rollout", format!("{}: {}", progressing.reason, progressing.message));
    }
    if let Some(wave) = &rollout.wave {
        let waits = match &wave.waiting_for {
            Some(pool) => format!(", waits for {pool}"),
            None => String::new(),
        };
        facts.add("Wave", format!("{}, place {} of {}{waits}", wave.group, wave.rank, wave.of));
    }
    // One message may be a part of another, and is then said once.
    let mut said = progressing.map_or("", |progressing| progressing.message.as_str());
    if let Some(held) = &rollout.hold {
        hold(facts, held, said);
        said = &held.message;
    }
    if let Some(rolled) = &rollout.last_rollback {
        rollback(facts, rolled, said);
    }
}

fn stage(spec: &PgRoutingPoolSpec, rollout: &RolloutStatus) -> String {
    let here = match rollout.stage {
        Stage::PoolingOnly => "PoolingOnly".to_owned(),
        Stage::Split => format!("Split {} %", rollout.split_percent),
        Stage::Mirror => format!("Mirror {} % (split {} %)", rollout.mirror_percent, rollout.split_percent),
    };
    format!("{here}, {} is asked for", spec.rollout.stage.as_str())
}

fn step(spec: &PgRoutingPoolSpec, rollout: &RolloutStatus) -> String {
    let mode = match spec.rollout.mode {
        RolloutMode::Automatic => "Automatic".to_owned(),
        RolloutMode::StepApproval => {
            format!("StepApproval, approved up to step {}", spec.rollout.approved_step.unwrap_or(0))
        }
        RolloutMode::Paused => "Paused".to_owned(),
        RolloutMode::Immediate => "Immediate".to_owned(),
    };
    let since = rollout.step_started_at.as_ref().map(|time| format!(" since {}", time_text(time.0)));
    format!(
        "{}/{}{}, attempt {}, mode {mode}",
        rollout.step,
        rollout.step_count,
        since.unwrap_or_default(),
        rollout.attempt
    )
}

fn soak(rollout: &RolloutStatus, now: Timestamp) -> Option<String> {
    if let Some(time) = &rollout.soak_until {
        let left = until(now, time.0);
        let left = if left.is_zero() { "over".to_owned() } else { format!("{} left", span_text(left)) };
        return Some(format!("until {}, {left}", time_text(time.0)));
    }
    let left = rollout.soak_left?;
    Some(format!("stands still with {} to go", span_text(left.get())))
}

fn hold(facts: &mut Facts, hold: &Hold, said: &str) {
    let Hold { gate, target_stage, observed_attempt: _, rolled_back, since, message } = hold;
    let how = if *rolled_back { "rolled back" } else { "stays" };
    facts.add(
        "Held",
        format!(
            "since {}, on the way to {}: {how} by gate {gate}",
            time_text(since.0),
            target_stage.as_str()
        ),
    );
    if !said.contains(message) {
        facts.more(message);
    }
    facts.more("when what failed is put right, `kubectl pgrp promote POOL --retry` tries again");
}

fn rollback(facts: &mut Facts, rollback: &Rollback, said: &str) {
    let Rollback { time, from, to, gate, attempt, message, remedy } = rollback;
    facts.add(
        "Rolled back",
        format!("{}, from {from} to {to} by gate {gate} (attempt {attempt})", time_text(time.0)),
    );
    if !said.contains(message) {
        facts.more(message);
    }
    if !remedy.is_empty() {
        facts.more(format!("what to do: {remedy}"));
    }
}

/// The gates.
#[must_use]
pub fn gates(rollout: &RolloutStatus, paint: Paint) -> String {
    let mut table = Table::new(&["GATE", "VERDICT", "VALUE", "LIMIT", "SAMPLES", "FAILURES"]);
    for gate in &rollout.gates {
        let GateStatus {
            name,
            verdict,
            value,
            limit,
            samples,
            consecutive_failures,
            last_transition_time: _,
        } = gate;
        let tone = match verdict {
            GateVerdict::Pass => Tone::Good,
            GateVerdict::Fail => Tone::Bad,
            GateVerdict::NoData | GateVerdict::Error | GateVerdict::DryRunFail => Tone::Warning,
        };
        let is_long = value.chars().count() > VALUE_WIDTH;
        table.row(vec![
            name.as_str().into(),
            Cell::toned(verdict.as_str(), tone),
            if is_long { "(below)" } else { value.as_str() }.into(),
            limit.as_str().into(),
            samples.to_string().into(),
            consecutive_failures.to_string().into(),
        ]);
        if is_long {
            table.line(value);
        }
    }
    if table.is_empty() { String::new() } else { table.text(paint) }
}

/// The forecast, and what steps are compared to.
#[must_use]
pub fn comparisons(rollout: &RolloutStatus) -> String {
    let mut facts = Facts::default();
    if let Some(forecast) = &rollout.forecast {
        add_forecast(&mut facts, forecast);
    }
    for (name, baseline) in [("Baseline", &rollout.baseline), ("Mirror base", &rollout.mirror_baseline)] {
        if let Some(baseline) = baseline {
            facts.add(name, baseline_text(baseline));
        }
    }
    facts.text()
}

fn add_forecast(facts: &mut Facts, forecast: &Forecast) {
    let Forecast {
        read_share_percent,
        unknown_share_percent,
        stale_share_percent,
        top_reasons,
        samples,
        taken_at,
    } = forecast;
    facts.add(
        "Forecast",
        format!(
            "{read_share_percent} % of {samples} transactions would go to replicas ({})",
            time_text(taken_at.0)
        ),
    );
    facts.more(format!(
        "{unknown_share_percent} % are unknown; {stale_share_percent} % of the reads would stay on the primary after \
         a write of their session"
    ));
    if !top_reasons.is_empty() {
        facts.more(format!("the others stay there for: {}", top_reasons.join(", ")));
    }
}

fn baseline_text(baseline: &Baseline) -> String {
    let Baseline { captured_at, errors_per_million, latency_p99_micros, queries_per_second } = baseline;
    format!(
        "{errors_per_million} errors in a million, 99 of 100 within {}, {queries_per_second} transactions a second ({})",
        micros_text(*latency_p99_micros),
        time_text(captured_at.0)
    )
}
