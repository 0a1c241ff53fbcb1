//! The order of a group, and who is passed over.

use super::*;
use crate::fixtures::{at, pool};
use crate::position::enter;

fn of(name: &str, order: Option<i32>, qps: Option<i64>, errand: Errand) -> Member {
    Member { name: name.to_owned(), order, frozen_qps: qps, errand }
}

fn whose(me: &str, members: &[Member]) -> Turn {
    let qps = members.iter().find(|member| member.name == me).and_then(|member| member.frozen_qps);
    turn("g", me, qps.unwrap_or(0), qps.is_some(), members).0
}

#[test]
fn smallest_goes_first_and_the_others_name_whom_they_wait_for() {
    let mut members = vec![
        of("busy", None, Some(900), Errand::Pending),
        of("quiet", None, Some(3), Errand::Pending),
        of("middle", None, Some(90), Errand::Pending),
    ];
    let after = |name: &str| Turn::After(name.to_owned());
    assert_eq!(
        (whose("quiet", &members), whose("middle", &members), whose("busy", &members)),
        (Turn::Mine, after("quiet"), after("quiet"))
    );
    let (_, status) = turn("g", "busy", 900, true, &members);
    assert_eq!((status.rank, status.of, status.waiting_for.as_deref()), (3, 3, Some("quiet")));
    // A place that a person gave comes before all traffic.
    members[0].order = Some(1);
    assert_eq!((whose("busy", &members), whose("quiet", &members)), (Turn::Mine, after("busy")));
    // Whoever moves goes on, even if a smaller one has come.
    members[2].errand = Errand::Moving;
    assert_eq!((whose("middle", &members), whose("busy", &members)), (Turn::Mine, after("middle")));
    // And is done.
    members[2].errand = Errand::None;
    assert_eq!(whose("busy", &members), Turn::Mine);
}

#[test]
fn whoever_cannot_move_is_passed_over_and_whoever_failed_halts_the_others() {
    let mut members = vec![
        of("a", None, Some(1), Errand::Waiting),
        of("b", None, Some(2), Errand::Pending),
        of("c", None, Some(3), Errand::Pending),
    ];
    assert_eq!((whose("b", &members), whose("c", &members)), (Turn::Mine, Turn::After("b".into())));
    members[0].errand = Errand::Failed;
    assert_eq!(whose("b", &members), Turn::Halted("a".into()));
    assert_eq!(whose("c", &members), Turn::Halted("a".into()));
    // What moves already is no reason to stop.
    members[1].errand = Errand::Moving;
    assert_eq!(whose("b", &members), Turn::Mine);
}

#[test]
fn nobody_begins_before_all_have_told_of_their_traffic() {
    let members = [of("a", None, None, Errand::Pending), of("b", None, Some(5), Errand::Pending)];
    assert_eq!(whose("a", &members), Turn::After("b".into()));
    assert_eq!(whose("b", &members), Turn::After("a".into()));
    assert_eq!(whose("a", &members[..1]), Turn::Mine);
    let told = [of("a", None, Some(9), Errand::Pending), of("b", None, Some(5), Errand::Pending)];
    assert_eq!((whose("a", &told), whose("b", &told)), (Turn::After("b".into()), Turn::Mine));
}

#[test]
fn pools_are_seen_as_their_specs_and_statuses_are() {
    let backends = "backends: {type: Static, static: {servers: [{name: a, host: a}]}}\n";
    let of_spec = |rollout: &str| pool(&format!("{backends}rollout: {{wave: {{group: g}}, {rollout}}}\n"));
    let errand_of = |rollout: &str| {
        let pool = of_spec(rollout);
        let entered = enter(None, None, &pool.spec, at(0));
        member(&pool, Some(&entered)).unwrap().1.errand
    };
    assert_eq!(errand_of("stage: PoolingOnly"), Errand::None);
    assert_eq!(errand_of("stage: Split"), Errand::Pending);
    assert_eq!(errand_of("stage: Split, mode: Paused"), Errand::Waiting);
    assert_eq!(errand_of("stage: Split, mode: StepApproval, approvedStep: 0"), Errand::Waiting);
    assert_eq!(errand_of("stage: Split, mode: StepApproval, approvedStep: 1"), Errand::Pending);
    assert_eq!(errand_of("stage: Split, mode: Immediate"), Errand::None);
    let walking = of_spec("stage: Split");
    let on_the_way = RolloutStatus {
        stage: pgrouting_crds::stage::Stage::Split,
        split_percent: 5,
        ..enter(None, None, &walking.spec, at(0))
    };
    assert_eq!(member(&walking, Some(&on_the_way)).unwrap().1.errand, Errand::Moving);
    assert!(member(&pool(backends), None).is_none());
}
