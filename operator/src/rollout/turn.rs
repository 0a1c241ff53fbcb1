//! Whose turn it is among the pools that move one at a time, from the least traffic to the most.
//!
//! Pure, and the same for every pool of the group: each comes to the same order from what all of them have in their
//! statuses. What moves already goes on; what cannot move now (paused, waiting for a person) is passed over.

use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::spec::rollout::RolloutMode;
use pgrouting_crds::status::rollout::{RolloutStatus, WaveStatus};

use crate::position::{Ladder, Position};
use crate::rollout::sight::Turn;

/// One pool of a group, as far as the others care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its place as a person gave it.
    pub order: Option<i32>,
    /// Its traffic, as it was when its move was asked for; absent until it has said so.
    pub frozen_qps: Option<i64>,
    /// What it is about.
    pub errand: Errand,
}

/// What a pool is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// Nothing: it is where it should be.
    None,
    /// It is to move, and has not begun.
    Pending,
    /// It moves.
    Moving,
    /// It is to move, and a person has to say so first.
    Waiting,
    /// It was rolled back, or is held.
    Failed,
}

/// A pool as the others see it; `None` where it is of no group.
#[must_use]
pub fn member(pool: &PgRoutingPool, rollout: Option<&RolloutStatus>) -> Option<(String, Member)> {
    let wave = pool.spec.rollout.wave.as_ref()?;
    let frozen = rollout.and_then(|rollout| rollout.wave.as_ref()).filter(|known| known.group == wave.group);
    let member = Member {
        name: pool.metadata.name.clone().unwrap_or_default(),
        order: wave.order,
        frozen_qps: frozen.map(|wave| wave.frozen_qps),
        errand: errand(pool, rollout),
    };
    Some((wave.group.clone(), member))
}

fn errand(pool: &PgRoutingPool, rollout: Option<&RolloutStatus>) -> Errand {
    let spec = &pool.spec;
    let ladder = Ladder::of(spec);
    let nothing = RolloutStatus::default();
    let rollout = rollout.unwrap_or(&nothing);
    let place = ladder.place(&Position::of(rollout));
    let end = ladder.end_of(spec.rollout.stage);
    let is_under_way = rollout.is_under_way();
    if rollout.hold.as_ref().is_some_and(|hold| {
        (hold.target_stage, hold.observed_attempt) == (spec.rollout.stage, spec.rollout.attempt)
    }) {
        return Errand::Failed;
    }
    if place.at >= end && !is_under_way {
        return Errand::None;
    }
    match spec.rollout.mode {
        RolloutMode::Paused => Errand::Waiting,
        RolloutMode::StepApproval
            if !is_under_way
                && i32::try_from(place.next)
                    .is_ok_and(|next| spec.rollout.approved_step.unwrap_or(0) < next) =>
        {
            Errand::Waiting
        }
        RolloutMode::Automatic | RolloutMode::StepApproval | RolloutMode::Immediate => {
            // Between two stages it has arrived at one and not begun the next.
            let stage = |number: usize| ladder.rung(number).position.stage;
            let has_begun = stage(place.at) == stage(place.next);
            if is_under_way || has_begun { Errand::Moving } else { Errand::Pending }
        }
    }
}

/// Whose turn it is, and the pool's own place. `me` is in `members` too; before it has told the others of its traffic it
/// does not begin while there are any.
#[must_use]
pub fn turn(group: &str, me: &str, my_qps: i64, has_told: bool, members: &[Member]) -> (Turn, WaveStatus) {
    let mut moving: Vec<&Member> =
        members.iter().filter(|member| matches!(member.errand, Errand::Pending | Errand::Moving)).collect();
    let key = |member: &&Member| {
        let qps = if member.name == me { Some(my_qps) } else { member.frozen_qps };
        (
            member.errand != Errand::Moving,
            member.order.is_none(),
            member.order,
            qps.is_none(),
            qps,
            member.name.clone(),
        )
    };
    moving.sort_by_key(key);
    let rank = moving.iter().position(|member| member.name == me).map_or(0, |rank| rank + 1);
    let figure = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let is_moving = moving.iter().any(|member| member.name == me && member.errand == Errand::Moving);
    let failed = members.iter().find(|member| member.name != me && member.errand == Errand::Failed);
    // One that has not said what its traffic is might come first.
    let unknown = moving.iter().find(|member| member.name != me && member.frozen_qps.is_none());
    let first = moving.first().filter(|first| first.name != me);
    let turn = match (failed, first, unknown) {
        _ if is_moving && first.is_none() => Turn::Mine,
        (Some(failed), _, _) if !is_moving => Turn::Halted(failed.name.clone()),
        (_, Some(first), _) => Turn::After(first.name.clone()),
        (_, None, Some(unknown)) => Turn::After(unknown.name.clone()),
        (_, None, None) => match moving.iter().find(|member| member.name != me) {
            Some(other) if !has_told => Turn::After(other.name.clone()),
            Some(_) | None => Turn::Mine,
        },
    };
    let waiting_for = match &turn {
        Turn::Mine => None,
        Turn::After(pool) | Turn::Halted(pool) => Some(pool.clone()),
    };
    let status = WaveStatus {
        group: group.to_owned(),
        rank: figure(rank),
        of: figure(moving.len()),
        frozen_qps: my_qps,
        waiting_for,
    };
    (turn, status)
}

#[cfg(test)]
mod tests;
