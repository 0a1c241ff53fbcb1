//! One decision, from what is most pressing to what is least.

use std::time::Duration;

use jiff::Timestamp;
use pgrouting_crds::duration::PoolDuration;
use pgrouting_crds::spec::PgRoutingPoolSpec;
use pgrouting_crds::spec::gates::GateMode;
use pgrouting_crds::spec::rollout::{OnFailure, RollbackTo, RolloutMode};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::{GateStatus, GateVerdict, Hold, Rollback, RolloutStatus};

use crate::position::{Ladder, Place, Position, begin_step, stand_at};
use crate::rollout::progress::{Progress, Word};
use crate::rollout::reading::{Outcome, Reading};
use crate::rollout::sight::{Obstacle, Sight, Turn};
use crate::rollout::text::{counted, span_text};
use crate::time::whole_seconds;

/// The decision while it is being made.
pub struct Machine<'a> {
    /// The rollout as it is to be.
    pub rollout: RolloutStatus,
    spec: &'a PgRoutingPoolSpec,
    sight: &'a Sight<'a>,
    ladder: &'a Ladder,
    place: Place,
    position: Position,
    end: usize,
}

impl<'a> Machine<'a> {
    /// Before anything is decided; the gates have been taken in.
    #[must_use]
    pub fn new(
        rollout: RolloutStatus,
        spec: &'a PgRoutingPoolSpec,
        ladder: &'a Ladder,
        sight: &'a Sight<'a>,
    ) -> Self {
        let position = Position::of(&rollout);
        let (place, end) = (ladder.place(&position), ladder.end_of(spec.rollout.stage));
        Self { rollout, spec, sight, ladder, place, position, end }
    }

    /// Decides.
    pub fn step(&mut self) -> Progress {
        let is_there = self.place.at >= self.end;
        if let Some(hold) = self.rollout.hold.clone() {
            self.freeze();
            return Progress::held(&hold);
        }
        if self.mode() == RolloutMode::Immediate {
            return Progress::of(Word::StageReached, self.reached());
        }
        if is_there && self.position.stage == Stage::PoolingOnly {
            return Progress::of(
                Word::StageReached,
                "at PoolingOnly, as asked for: every statement runs on the primary",
            );
        }
        if let Some(reading) = self.failure() {
            return self.fail(&reading);
        }
        let is_done = self.is_done();
        if is_there && is_done {
            return self.watch();
        }
        if let Some(obstacle) = &self.sight.obstacle {
            let progress = self.obstructed(obstacle);
            self.freeze();
            return progress;
        }
        if let Some(progress) = self.unsettled() {
            self.freeze();
            return progress;
        }
        if !is_done && let Some(progress) = self.soak() {
            return progress;
        }
        self.advance()
    }

    fn mode(&self) -> RolloutMode {
        self.spec.rollout.mode
    }

    fn here(&self) -> String {
        if self.position.stage == Stage::PoolingOnly {
            return "PoolingOnly".to_owned();
        }
        let stage = self.position.stage.as_str();
        format!("{stage} step {}/{} ({} %)", self.place.at, self.end, self.position.percent())
    }

    fn reached(&self) -> String {
        format!("at {}, the end of the stage asked for", self.position.text())
    }

    /// The gate that has failed often enough to act, the one that says most where there are several. A pool that has arrived
    /// is only taken back for what is wrong whatever it is compared to.
    fn failure(&self) -> Option<Reading> {
        if self.position.stage == Stage::PoolingOnly {
            return None;
        }
        let has_arrived = self.place.at >= self.end && self.is_done();
        let failed = self.failing().into_iter().filter(|reading| !has_arrived || is_plain_wrong(reading));
        failed.min_by_key(|reading| (reading.threshold, !is_plain_wrong(reading))).cloned()
    }

    /// Enforced gates that have failed often enough to act, or to be told of.
    fn failing(&self) -> Vec<&Reading> {
        let is_failing = |reading: &&Reading| {
            reading.is_enforced()
                && self.gate(reading).is_some_and(|gate| {
                    gate.verdict == GateVerdict::Fail && gate.consecutive_failures >= reading.threshold
                })
        };
        self.sight.readings.iter().filter(is_failing).collect()
    }

    fn gate(&self, reading: &Reading) -> Option<&GateStatus> {
        self.rollout.gates.iter().find(|gate| gate.name == reading.name)
    }

    /// Whether the time of the step is over, or there was none.
    const fn is_done(&self) -> bool {
        !self.rollout.is_under_way()
    }

    fn gate_text(&self, reading: &Reading) -> String {
        let (value, samples) = self.gate(reading).map_or(("", 0), |gate| (gate.value.as_str(), gate.samples));
        format!("{}: {value} (limit {}, {samples} samples)", reading.name, reading.limit)
    }

    /// A gate has failed: back, or no further.
    fn fail(&mut self, reading: &Reading) -> Progress {
        let gates = self.rollout.gates.clone();
        let what = self.gate_text(reading);
        let (now, from) = (self.sight.now, self.position);
        let attempt = self.rollout.attempt;
        let rolls_back = self.spec.rollout.on_failure == OnFailure::Rollback;
        let clock = now.strftime("%H:%MZ").to_string();
        let message = if rolls_back {
            let to = self.rollback_target(reading);
            stand_at(&mut self.rollout, to, &reading.name, "controller", now);
            let text = format!(
                "rolled back from {} to {} at {clock} (attempt {attempt}): {what}",
                from.text(),
                to.text()
            );
            self.rollout.last_rollback = Some(Rollback {
                time: whole_seconds(now),
                from: from.text(),
                to: to.text(),
                gate: reading.name.clone(),
                attempt,
                message: shortened(&text),
                remedy: reading.remedy.clone(),
            });
            text
        } else {
            format!("held at {} since {clock} (attempt {attempt}): {what}", from.text())
        };
        // What failed stays to be seen.
        self.rollout.gates = gates;
        self.freeze();
        let hold = Hold {
            gate: reading.name.clone(),
            target_stage: self.spec.rollout.stage,
            observed_attempt: self.spec.rollout.attempt,
            rolled_back: rolls_back,
            since: whole_seconds(now),
            message: format!("{}; {}", shortened(&message), reading.remedy),
        };
        let progress = Progress::held(&hold);
        self.rollout.hold = Some(hold);
        progress
    }

    /// What is wrong with the mirror leaves the split as it is.
    fn rollback_target(&self, reading: &Reading) -> Position {
        let previous_stage = match self.position.stage {
            Stage::PoolingOnly | Stage::Split => Stage::PoolingOnly,
            Stage::Mirror if reading.is_of_split => Stage::PoolingOnly,
            Stage::Mirror => Stage::Split,
        };
        let to = match self.spec.rollout.rollback_to {
            RollbackTo::PreviousStep if !(self.position.stage == Stage::Mirror && reading.is_of_split) => {
                self.ladder.rung(self.place.at.saturating_sub(1)).position
            }
            RollbackTo::PreviousStep | RollbackTo::PreviousStage => {
                self.ladder.rung(self.ladder.end_of(previous_stage)).position
            }
        };
        // Never more than before.
        Position {
            split_percent: to.split_percent.min(self.position.split_percent),
            mirror_percent: to.mirror_percent.min(self.position.mirror_percent),
            ..to
        }
    }

    /// At the end: gates are told of, and the pool stays.
    fn watch(&self) -> Progress {
        let failing = self.failing();
        match failing.first() {
            Some(reading) => Progress {
                word: Word::StageReached,
                message: format!(
                    "{}, where a gate fails: {}; {}",
                    self.reached(),
                    self.gate_text(reading),
                    reading.remedy
                ),
                failing: Some(reading.name.clone()),
                is_stale: !self.sight.may_refresh,
            },
            None => Progress::of(Word::StageReached, self.reached()),
        }
    }

    fn obstructed(&self, obstacle: &Obstacle) -> Progress {
        let here = self.here();
        match obstacle {
            Obstacle::Deployment(why) => {
                Progress::of(Word::WaitingForDeployment, format!("{here}: no step begins while {why}"))
            }
            Obstacle::PrimaryChanged(why) => Progress::of(
                Word::PrimaryChanged,
                format!("{here}: {why}; the step is looked at anew in a moment"),
            ),
            Obstacle::TrafficPaused(why) => {
                Progress::of(Word::Paused, format!("{here}: {why}; the step is looked at anew after that"))
            }
            Obstacle::Silent => {
                let message = format!(
                    "{here}: no proxy answers, so that nothing can be judged: see condition ConfigApplied"
                );
                Progress::of(Word::MetricsUnavailable, message)
            }
        }
    }

    /// What keeps the time of this step from passing.
    fn unsettled(&self) -> Option<Progress> {
        let here = self.here();
        let enforced = self.sight.readings.iter().filter(|reading| reading.is_enforced());
        // What is waited for, and which gates wait for it.
        let mut waiting: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut word = Word::InsufficientSamples;
        for reading in enforced {
            let gate = self.gate(reading);
            let verdict = gate.map_or(GateVerdict::NoData, |gate| gate.verdict);
            let wait = match verdict {
                GateVerdict::Pass | GateVerdict::DryRunFail => continue,
                GateVerdict::Error => {
                    let why = gate.map(|gate| gate.value.clone()).unwrap_or_default();
                    let message = format!("{here}: gate {} cannot be judged: {why}", reading.name);
                    return Some(Progress::of(Word::MetricsUnavailable, message));
                }
                GateVerdict::Fail => {
                    let failures = gate.map_or(0, |gate| gate.consecutive_failures);
                    let text = self.gate_text(reading);
                    if self.position.stage == Stage::PoolingOnly {
                        let message = format!("{here}: gate {text}; {}", reading.remedy);
                        return Some(Progress::of(Word::Blocked(reading.name.clone()), message));
                    }
                    let message =
                        format!("{here}: gate {text}, {failures} of {} times in a row", reading.threshold);
                    return Some(Progress::of(Word::Evaluating, message));
                }
                GateVerdict::NoData => match &reading.outcome {
                    // Before the first step nothing is at risk that traffic would have to show.
                    Outcome::Open { .. } if self.is_entry_of_traffic(reading) => continue,
                    Outcome::Open { wait, .. } => wait.as_str(),
                    Outcome::NoData { value, .. } => {
                        word = Word::NoData;
                        value.as_str()
                    }
                    Outcome::Error(_) | Outcome::Judged { .. } => "",
                },
            };
            match waiting.iter_mut().find(|(known, _)| *known == wait) {
                Some((_, gates)) => gates.push(&reading.name),
                None => waiting.push((wait, vec![&reading.name])),
            }
        }
        if waiting.is_empty() {
            return None;
        }
        let texts = waiting.iter().map(|(wait, gates)| format!("{wait} ({})", gates.join(", ")));
        let message = format!("{here}: waits for figures: {}", texts.collect::<Vec<_>>().join(", "));
        Some(Progress { is_stale: !self.sight.may_refresh, ..Progress::of(word, message) })
    }

    fn is_entry_of_traffic(&self, reading: &Reading) -> bool {
        self.position.stage == Stage::PoolingOnly && reading.name == "poolWaitP99"
    }

    /// All gates pass: the time of this step passes too. `None` once it is over.
    fn soak(&mut self) -> Option<Progress> {
        let now = self.sight.now;
        if let Some(left) = self.rollout.soak_left.take() {
            let until = now.checked_add(left.get()).unwrap_or(Timestamp::MAX);
            // The next whole second, so that it is never cut short.
            let second = until.as_second().saturating_add(i64::from(until.subsec_nanosecond() > 0));
            self.rollout.soak_until = Some(whole_seconds(Timestamp::from_second(second).unwrap_or(until)));
        }
        let until = self.rollout.soak_until.as_ref()?.0;
        if until <= now && self.sight.were_all_over {
            self.rollout.soak_until = None;
            return None;
        }
        let next = match self.place.next {
            next if next <= self.end => format!(", then {}", self.ladder.rung(next).position.text()),
            _ => ", then the stage is reached".to_owned(),
        };
        let gates = self.sight.readings.iter().filter(|reading| reading.is_enforced()).count();
        let gates = u64::try_from(gates).unwrap_or(u64::MAX);
        let clock = until.strftime("%H:%M:%SZ");
        let message = format!("{}: {} pass; soaks until {clock}{next}", self.here(), counted(gates, "gate"));
        let word = if self.mode() == RolloutMode::Paused { Word::Paused } else { Word::Soaking };
        Some(Progress::of(word, message))
    }

    /// The step is over: on to the next, if it may begin.
    fn advance(&mut self) -> Progress {
        let next = self.place.next;
        let here = self.here();
        if next > self.end {
            return Progress::of(Word::StageReached, self.reached());
        }
        let rung = self.ladder.rung(next);
        let to = rung.position.text();
        match self.mode() {
            RolloutMode::Paused => {
                let message =
                    format!("{here}: spec.rollout.mode is Paused; set it to Automatic to go on to {to}");
                return Progress::of(Word::Paused, message);
            }
            RolloutMode::StepApproval => {
                let approved = self.spec.rollout.approved_step.unwrap_or(0);
                if i32::try_from(next).is_ok_and(|next| approved < next) {
                    let message = format!("{here}: set spec.rollout.approvedStep to {next} to go on to {to}");
                    return Progress::of(Word::AwaitingApproval, message);
                }
            }
            RolloutMode::Automatic | RolloutMode::Immediate => {}
        }
        match &self.sight.turn {
            Turn::Mine => {}
            Turn::After(pool) => {
                return Progress::of(
                    Word::WaitingForWave,
                    format!("{here}: pool {pool} of the group comes first"),
                );
            }
            Turn::Halted(pool) => {
                let message = format!(
                    "{here}: pool {pool} of the group was rolled back: the others wait until it passes or its stage is lowered"
                );
                return Progress::of(Word::WaveHalted, message);
            }
        }
        if !self.sight.were_all_over {
            return Progress::of(Word::Evaluating, format!("{here}: the gates are looked at before {to}"));
        }
        if let Some(progress) = self.keep_baseline(&rung.position) {
            return progress;
        }
        stand_at(&mut self.rollout, rung.position, "StepAdvanced", "controller", self.sight.now);
        begin_step(&mut self.rollout, rung.soak, self.sight.now);
        Progress::of(
            Word::StepAdvanced,
            format!("from {here} to {to}, which soaks for {}", span_text(rung.soak)),
        )
    }

    /// Where no group will be left to compare with, what it is like now is kept. Without that there is no next step.
    fn keep_baseline(&mut self, to: &Position) -> Option<Progress> {
        let gates = &self.spec.rollout.gates;
        let (kept, now, needs, what) = match to.stage {
            Stage::Split if to.split_percent == 100 => (
                &mut self.rollout.baseline,
                &self.sight.baseline,
                gates.latency_p99.mode == GateMode::Enforce || gates.client_errors.mode == GateMode::Enforce,
                "reads",
            ),
            Stage::Mirror if to.mirror_percent == 100 => (
                &mut self.rollout.mirror_baseline,
                &self.sight.mirror_baseline,
                gates.mirror_impact.mode == GateMode::Enforce
                    || gates.client_errors.mode == GateMode::Enforce,
                "transactions",
            ),
            Stage::PoolingOnly | Stage::Split | Stage::Mirror => return None,
        };
        if let Some(now) = now {
            *kept = Some(now.clone());
        } else if needs && self.spec.rollout.min_samples > 0 {
            *kept = None;
            let message = format!(
                "{}: waits for {} {what} to compare with, since there will be none at {}",
                self.here(),
                self.spec.rollout.min_samples,
                to.text()
            );
            return Some(Progress::of(Word::InsufficientSamples, message));
        }
        None
    }

    /// The time of the step stands still.
    fn freeze(&mut self) {
        if let Some(until) = self.rollout.soak_until.take() {
            let left = Duration::try_from(until.0.duration_since(self.sight.now)).unwrap_or_default();
            let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            self.rollout.soak_left = Some(PoolDuration::from_millis(left));
        }
    }
}

/// Whether it is wrong whatever it is compared to.
fn is_plain_wrong(reading: &Reading) -> bool {
    reading.name == "misroutedWrites"
}

fn shortened(text: &str) -> String {
    text.chars().take(900).collect()
}
