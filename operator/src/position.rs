//! Where a pool stands on the way from PoolingOnly to the end of Mirror, and what an edit of its spec changes at once.
//!
//! Pure: takes the spec, the rollout as it was last decided, and the time. What needs figures first, a step forward, is
//! decided in `rollout`; here is what needs none: going back, a lowered limit, mode Immediate, a new attempt.

use std::time::Duration;

use jiff::Timestamp;
use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::stage;
use pgrouting_crds::duration::PoolDuration;
use pgrouting_crds::spec::PgRoutingPoolSpec;
use pgrouting_crds::spec::gates::GATES;
use pgrouting_crds::spec::pooling::PoolMode;
use pgrouting_crds::spec::rollout::{RolloutMode, Step};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::{Move, RolloutStatus};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::time::whole_seconds;

/// Moves that are kept.
const HISTORY: usize = 10;

/// What a proxy is told of the rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The stage.
    pub stage: Stage,
    /// The share that is split, in percent.
    pub split_percent: u8,
    /// The share that is copied, in percent.
    pub mirror_percent: u8,
    /// Which part of the sessions a share is: another one with each attempt.
    pub salt: u32,
}

impl Position {
    /// Where a rollout stands.
    #[must_use]
    pub fn of(rollout: &RolloutStatus) -> Self {
        let percent = |percent: i32| u8::try_from(percent.clamp(0, 100)).unwrap_or(0);
        Self {
            stage: rollout.stage,
            split_percent: percent(rollout.split_percent),
            mirror_percent: percent(rollout.mirror_percent),
            // The first attempt has none, which proxies of before know of nothing else.
            salt: u32::try_from(rollout.attempt.saturating_sub(1)).unwrap_or(0),
        }
    }

    /// What a document says.
    #[must_use]
    pub fn of_document(config: &ProxyConfig) -> Self {
        let stage = stage_of(config);
        let split_percent = if stage == Stage::PoolingOnly { 0 } else { config.split.percent };
        let mirror = config.mirror.as_ref().filter(|_| stage == Stage::Mirror);
        let mirror_percent = mirror.map_or(0, |mirror| mirror.percent);
        Self { stage, split_percent, mirror_percent, salt: config.split.salt }
    }

    /// The share of its own stage.
    #[must_use]
    pub const fn percent(&self) -> u8 {
        match self.stage {
            Stage::PoolingOnly => 0,
            Stage::Split => self.split_percent,
            Stage::Mirror => self.mirror_percent,
        }
    }

    /// The salt of a share: nobody is left out of none or of all.
    #[must_use]
    pub const fn salt_of(&self, percent: u8) -> u32 {
        if percent > 0 && percent < 100 { self.salt } else { 0 }
    }

    /// In words, as `Split 5 %`.
    #[must_use]
    pub fn text(&self) -> String {
        match self.stage {
            Stage::PoolingOnly => self.stage.as_str().to_owned(),
            Stage::Split | Stage::Mirror => format!("{} {} %", self.stage.as_str(), self.percent()),
        }
    }
}

/// The stage of a document, in the words of the API.
#[must_use]
pub const fn stage_of(config: &ProxyConfig) -> Stage {
    match config.stage {
        stage::Stage::PoolingOnly => Stage::PoolingOnly,
        stage::Stage::Split => Stage::Split,
        stage::Stage::Mirror => Stage::Mirror,
    }
}

/// One rung of the ladder: a place to stand on, and for how long before the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rung {
    /// The place.
    pub position: Position,
    /// How long it has to go well there.
    pub soak: Duration,
}

/// All places of a pool, from PoolingOnly to the end of its last stage. The number of a rung is that of its step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder(Vec<Rung>);

/// Where on the ladder a position is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The rung that it is on, or the last one below it where its share is none of the steps any more.
    pub at: usize,
    /// The next one.
    pub next: usize,
}

impl Ladder {
    /// The ladder of a spec.
    #[must_use]
    pub fn of(spec: &PgRoutingPoolSpec) -> Self {
        let mut rungs = vec![Rung { position: Position::default(), soak: Duration::ZERO }];
        // A session that keeps its connection is never split.
        let is_split = spec.pooling.mode == PoolMode::Transaction;
        let split_max = if is_split { spec.split.max_percent } else { 0 };
        for step in capped(&spec.rollout.split_steps, split_max) {
            let position =
                Position { stage: Stage::Split, split_percent: step.percent, ..Position::default() };
            rungs.push(Rung { position, soak: step.soak.get() });
        }
        let split_percent = rungs.last().map_or(0, |rung| rung.position.split_percent);
        if let Some(mirror) = &spec.mirror {
            for step in capped(&spec.rollout.mirror_steps, mirror.max_percent) {
                let mirror_percent = step.percent;
                let position = Position { stage: Stage::Mirror, split_percent, mirror_percent, salt: 0 };
                rungs.push(Rung { position, soak: step.soak.get() });
            }
        }
        Self(rungs)
    }

    /// One of them; the last where there are fewer.
    #[must_use]
    pub fn rung(&self, number: usize) -> Rung {
        let nothing = Rung { position: Position::default(), soak: Duration::ZERO };
        self.0.get(number).or_else(|| self.0.last()).copied().unwrap_or(nothing)
    }

    /// The last rung of a stage, or of the last stage before it that there is.
    #[must_use]
    pub fn end_of(&self, stage: Stage) -> usize {
        self.0.iter().rposition(|rung| rung.position.stage <= stage).unwrap_or(0)
    }

    /// Where a position is. One whose share is no step is between two: what comes next is the first step of a larger share.
    #[must_use]
    pub fn place(&self, position: &Position) -> Place {
        let key = |position: &Position| (position.stage, position.percent());
        let next = self.0.iter().position(|rung| key(&rung.position) > key(position));
        let next = next.unwrap_or(self.0.len());
        Place { at: next.saturating_sub(1), next }
    }

    /// Which steps there are, as the first digits of a hash.
    #[must_use]
    pub fn hash(&self) -> String {
        let text: Vec<_> =
            self.0.iter().map(|rung| format!("{}/{:?}", rung.position.text(), rung.soak)).collect();
        short_hash(&text)
    }
}

/// The steps up to a limit, the last one at it where there are larger ones.
fn capped(steps: &[Step], max_percent: u8) -> Vec<Step> {
    let mut capped: Vec<Step> = Vec::new();
    for step in steps {
        let step = Step { percent: step.percent.min(max_percent), soak: step.soak };
        match capped.last_mut() {
            Some(last) if last.percent == step.percent => *last = step,
            Some(_) | None => capped.push(step),
        }
    }
    if max_percent == 0 {
        // There is nothing to wait for.
        capped.iter_mut().for_each(|step| step.soak = PoolDuration::from_secs(0));
    }
    capped
}

/// The first eight digits of a hash.
fn short_hash<T: Serialize>(of: &T) -> String {
    let text = serde_json::to_string(of).unwrap_or_default();
    Sha256::digest(text.as_bytes()).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// The rollout as the spec changes it at once. `previous` is the document of before, which says where a pool stands that
/// has no rollout yet.
#[must_use]
pub fn enter(
    before: Option<&RolloutStatus>,
    previous: Option<&ProxyConfig>,
    spec: &PgRoutingPoolSpec,
    now: Timestamp,
) -> RolloutStatus {
    let ladder = Ladder::of(spec);
    let wanted = &spec.rollout;
    let mut rollout = before.cloned().unwrap_or_else(|| begun(previous, spec, &ladder));
    if rollout.steps_hash.is_empty() {
        // An operator of before knew neither steps nor attempts.
        rollout.target_stage = wanted.stage;
        rollout.observed_attempt = wanted.attempt;
    }
    let policy = short_hash(&wanted.gates);
    if rollout.gate_policy_hash != policy {
        // What was judged by other limits says nothing.
        rollout.gates.clear();
        rollout.gate_policy_hash = policy;
    }
    let was_under_way = rollout.moving_to.is_some();
    rollout.steps_hash = ladder.hash();
    let is_asked = (rollout.target_stage, rollout.observed_attempt) != (wanted.stage, wanted.attempt);
    rollout.target_stage = wanted.stage;
    rollout.observed_attempt = wanted.attempt;
    go_back(&mut rollout, &ladder, now);
    if is_asked {
        rollout.hold = None;
        begin_attempt(&mut rollout, &ladder, now);
    }
    let end = ladder.end_of(wanted.stage);
    if wanted.mode == RolloutMode::Immediate {
        let place = ladder.place(&Position::of(&rollout));
        if place.at < end || rollout.hold.is_some() {
            rollout.hold = None;
            stand_at(&mut rollout, ladder.rung(end).position, "Immediate", "spec edit", now);
        }
        (rollout.soak_until, rollout.soak_left) = (None, None);
    }
    number(&mut rollout, &ladder);
    // Those of an operator that kept no list had these.
    if is_asked || !was_under_way || rollout.known_gates.is_empty() {
        rollout.known_gates = GATES.map(str::to_owned).to_vec();
    }
    rollout
}

/// A pool without a rollout stands where its document says, and else at the beginning.
fn begun(previous: Option<&ProxyConfig>, spec: &PgRoutingPoolSpec, ladder: &Ladder) -> RolloutStatus {
    let position = previous.map(Position::of_document).unwrap_or_default();
    let mut rollout = RolloutStatus {
        stage: position.stage,
        split_percent: i32::from(position.split_percent),
        mirror_percent: i32::from(position.mirror_percent),
        target_stage: spec.rollout.stage,
        observed_attempt: spec.rollout.attempt,
        steps_hash: ladder.hash(),
        ..RolloutStatus::default()
    };
    if ladder.place(&position).at < ladder.end_of(spec.rollout.stage) {
        rollout.attempt = 1;
    }
    rollout
}

/// Somebody says: try again, or go elsewhere.
fn begin_attempt(rollout: &mut RolloutStatus, ladder: &Ladder, now: Timestamp) {
    let place = ladder.place(&Position::of(rollout));
    let is_under_way = rollout.is_under_way();
    if place.at >= ladder.end_of(rollout.target_stage) && !is_under_way {
        return;
    }
    rollout.attempt = rollout.attempt.saturating_add(1);
    rollout.gates.clear();
    // A stage that is not over is gone on with from the beginning of its step, even where only an approval was waited for.
    let is_amid = place.at > 0 && ladder.rung(place.at + 1).position.stage == rollout.stage;
    if is_under_way || is_amid {
        begin_step(rollout, ladder.rung(place.at).soak, now);
    }
}

/// Whatever is less than before takes effect at once.
fn go_back(rollout: &mut RolloutStatus, ladder: &Ladder, now: Timestamp) {
    let position = Position::of(rollout);
    let mut lower = position;
    let last_of = |stage| ladder.rung(ladder.end_of(stage)).position;
    if lower.stage > rollout.target_stage {
        lower.stage = rollout.target_stage;
    }
    let has_stage = last_of(lower.stage).stage;
    lower.stage = lower.stage.min(has_stage);
    lower.split_percent = match lower.stage {
        Stage::PoolingOnly => 0,
        Stage::Split | Stage::Mirror => lower.split_percent.min(last_of(Stage::Split).split_percent),
    };
    lower.mirror_percent = match lower.stage {
        Stage::PoolingOnly | Stage::Split => 0,
        Stage::Mirror => lower.mirror_percent.min(last_of(Stage::Mirror).mirror_percent),
    };
    if lower == position {
        return;
    }
    stand_at(rollout, lower, "SpecEdit", "spec edit", now);
    if lower.stage != position.stage {
        rollout.hold = None;
    }
}

/// Moves to a place, with nothing to wait for there.
pub fn stand_at(rollout: &mut RolloutStatus, to: Position, reason: &str, actor: &str, now: Timestamp) {
    let from = Position::of(rollout);
    rollout.stage = to.stage;
    rollout.split_percent = i32::from(to.split_percent);
    rollout.mirror_percent = i32::from(to.mirror_percent);
    rollout.gates.clear();
    (rollout.soak_until, rollout.soak_left) = (None, None);
    rollout.step_started_at = Some(whole_seconds(now));
    let made = Move {
        time: whole_seconds(now),
        from: from.text(),
        to: to.text(),
        reason: reason.to_owned(),
        actor: actor.to_owned(),
    };
    rollout.history.insert(0, made);
    rollout.history.truncate(HISTORY);
}

/// Begins to wait at a place, from the beginning.
pub fn begin_step(rollout: &mut RolloutStatus, soak: Duration, now: Timestamp) {
    rollout.soak_until = None;
    rollout.soak_left = Some(PoolDuration::from_millis(u64::try_from(soak.as_millis()).unwrap_or(u64::MAX)));
    rollout.step_started_at = Some(whole_seconds(now));
}

/// Numbers the steps for those who look.
pub fn number(rollout: &mut RolloutStatus, ladder: &Ladder) {
    let figure = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let end = ladder.end_of(rollout.target_stage);
    let at = ladder.place(&Position::of(rollout)).at.min(end);
    rollout.step = figure(at);
    rollout.step_count = figure(end);
    rollout.step_summary = format!("{at}/{end}");
    rollout.moving_to = if rollout.is_under_way() {
        Some(rollout.stage)
    } else {
        (at < end).then(|| ladder.rung(at + 1).position.stage)
    };
}

#[cfg(test)]
mod tests;
