use std::time::Duration;

use pgrouting_contract::report::{Health, Role, Rotation};
use tokio::time::Instant;

use super::*;
use crate::topology::ServerState;

fn topology(roles: &[Role]) -> Topology {
    let server = |role: &Role| ServerState {
        role: *role,
        health: Health::Up,
        rotation: Rotation::In,
        ..ServerState::unknown("s".to_owned(), 100)
    };
    let primary = roles.iter().position(|role| *role == Role::Primary);
    Topology { servers: roles.iter().map(server).collect(), primary, ..Topology::default() }
}

const READ: Aim = Aim { side: Side::Replica, falls_back: true, counts_primary: false, floor: 0, avoided: 0 };

fn to(topology: &Topology, aim: Aim, random: u64) -> Route {
    route(topology, &aim, None, |_| 0, |server| server as u64 * 100, || random)
}

#[test]
fn without_the_server_that_is_needed_there_is_no_route() {
    let one = topology(&[Role::Primary]);
    assert_eq!(to(&topology(&[Role::Replica]), Aim::PRIMARY, 7), Route::NoPrimary);
    assert_eq!(to(&one, Aim { falls_back: false, ..READ }, 7), Route::NoReplica);
    assert_eq!(to(&one, READ, 7), Route::Server(0), "reads fall back to the primary");
    assert_eq!(to(&topology(&[Role::Unknown, Role::Unknown]), READ, 7), Route::NoPrimary);
}

#[test]
fn of_two_replicas_the_one_with_fewer_clients_is_taken() {
    let topology = topology(&[Role::Primary, Role::Replica, Role::Replica]);
    let busy = |server| if server == 1 { 5 } else { 1 };
    let with = |one: u64, other: u64| route(&topology, &READ, None, busy, |_| 0, || other << 32 | one);
    // The halves of the random number draw one each; a server's share is 100,000.
    assert_eq!(with(0, 100_000), Route::Server(2));
    assert_eq!(with(199_999, 99_999), Route::Server(2));
    assert_eq!(with(0, 99_999), Route::Server(1), "both halves draw the same");
}

#[test]
fn reads_are_spread_by_weight_and_a_newcomer_gets_its_share_by_and_by() {
    let mut topology = topology(&[Role::Primary, Role::Replica, Role::Replica]);
    let share_of_first = |topology: &Topology| {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.rotate_left(29)
        };
        let taken = (0..10_000).filter(|_| to(topology, READ, random()) == Route::Server(1)).count();
        taken / 100
    };
    assert!((48..=52).contains(&share_of_first(&topology)), "{}", share_of_first(&topology));
    topology.servers[1].weight = 300;
    assert!((73..=77).contains(&share_of_first(&topology)), "{}", share_of_first(&topology));
    topology.servers[1].weight = 100;
    topology.slow_start = Duration::from_secs(3600);
    topology.servers[1].rises_since = Some(Instant::now());
    assert!((7..=11).contains(&share_of_first(&topology)), "{}", share_of_first(&topology));
    topology.slow_start = Duration::ZERO;
    assert!((48..=52).contains(&share_of_first(&topology)), "{}", share_of_first(&topology));
}

#[test]
fn a_replica_in_the_same_zone_comes_before_others() {
    let mut topology = topology(&[Role::Primary, Role::Replica, Role::Replica]);
    topology.servers[2].zone = Some("z2".to_owned());
    let near = |zone, floor| {
        let aim = Aim { floor, ..READ };
        route(&topology, &aim, Some(zone), |_| 9, |server| server as u64 * 100, || 0)
    };
    assert_eq!(near("z2", 0), Route::Server(2));
    assert_eq!(near("z3", 0), Route::Server(1), "nobody is near");
    assert_eq!(near("z2", 201), Route::Server(0), "nobody has come so far");
    topology.servers[1].zone = Some("z1".to_owned());
    let near = |floor| {
        route(&topology, &Aim { floor, ..READ }, Some("z1"), |_| 0, |server| server as u64 * 100, || 0)
    };
    assert_eq!(near(150), Route::Server(2), "who is near has not come so far");
}

#[test]
fn a_replica_that_is_behind_or_was_not_reached_is_left_out() {
    let topology = topology(&[Role::Primary, Role::Replica, Role::Replica]);
    for random in [0, 1, 1 << 32] {
        assert_eq!(to(&topology, Aim { floor: 150, ..READ }, random), Route::Server(2));
        assert_eq!(to(&topology, Aim { floor: 250, ..READ }, random), Route::Server(0));
        assert_eq!(to(&topology, Aim { avoided: 0b100, ..READ }, random), Route::Server(1));
        assert_eq!(to(&topology, Aim { side: Side::Any, ..READ }, random), Route::Server(0));
    }
    assert_eq!(to(&topology, Aim { avoided: 0b110, counts_primary: true, ..READ }, 3), Route::Server(0));
}

const QUESTION: Question = Question {
    access: Access::Routed,
    is_split: true,
    is_in_cohort: true,
    is_primary_user: false,
    is_exclusive: false,
    is_serializable: false,
    role: ServerRole::Auto,
    hint: None,
    verdict: Verdict::Read,
    is_learned: false,
    is_rescued: false,
};

#[test]
fn every_rule_has_its_turn() {
    use Side::{Primary, Replica};
    let write = Verdict::Primary(Reason::Write);
    let unknown = Verdict::Primary(Reason::UnknownFunction);
    let read = Why::Verdict(Verdict::Read);
    let q = QUESTION;
    for (question, expected) in [
        (q, (Replica, read)),
        (Question { verdict: Verdict::ReadOnlyBlock, ..q }, (Replica, Why::Verdict(Verdict::ReadOnlyBlock))),
        (Question { verdict: write, ..q }, (Primary, Why::Verdict(write))),
        (Question { access: Access::Primary, ..q }, (Primary, Why::Port)),
        (Question { access: Access::ReadOnly, verdict: write, ..q }, (Replica, Why::Port)),
        (Question { is_split: false, role: ServerRole::Replica, ..q }, (Primary, Why::Stage)),
        (Question { is_exclusive: true, ..q }, (Primary, Why::SessionMode)),
        (Question { is_primary_user: true, hint: Some(ServerRole::Replica), ..q }, (Primary, Why::User)),
        (Question { is_in_cohort: false, ..q }, (Primary, Why::Cohort)),
        (Question { is_in_cohort: false, role: ServerRole::Replica, ..q }, (Replica, Why::Role)),
        (Question { role: ServerRole::Primary, ..q }, (Primary, Why::Role)),
        (Question { role: ServerRole::Primary, hint: Some(ServerRole::Replica), ..q }, (Replica, Why::Hint)),
        (Question { hint: Some(ServerRole::Primary), ..q }, (Primary, Why::Hint)),
        (Question { hint: Some(ServerRole::Replica), verdict: write, ..q }, (Primary, Why::Verdict(write))),
        (Question { hint: Some(ServerRole::Replica), verdict: unknown, ..q }, (Replica, Why::Hint)),
        (Question { role: ServerRole::Any, verdict: unknown, ..q }, (Primary, Why::Verdict(unknown))),
        (Question { is_serializable: true, ..q }, (Primary, Why::Isolation)),
        (Question { is_learned: true, ..q }, (Primary, Why::Learned)),
        (Question { is_rescued: true, ..q }, (Primary, Why::Rescued)),
    ] {
        assert_eq!(side(&question), expected, "{question:?}");
    }
}

#[test]
fn every_reason_has_an_index_and_a_name_of_its_own() {
    let all: Vec<_> = Why::all().collect();
    assert_eq!(all.len(), Why::COUNT);
    for (index, why) in all.iter().enumerate() {
        assert_eq!(why.index(), index);
        assert_eq!(all.iter().filter(|other| other.as_str() == why.as_str()).count(), 1);
    }
}

#[test]
fn only_the_lot_tells_the_groups_apart() {
    let write = Verdict::Primary(Reason::Write);
    let q = QUESTION;
    for question in [
        q,
        Question { verdict: Verdict::ReadOnlyBlock, ..q },
        Question { role: ServerRole::Any, ..q },
        Question { verdict: write, ..q },
        Question { access: Access::Primary, ..q },
        Question { access: Access::ReadOnly, ..q },
        Question { is_exclusive: true, ..q },
        Question { is_primary_user: true, ..q },
        Question { role: ServerRole::Primary, ..q },
        Question { role: ServerRole::Replica, ..q },
        Question { hint: Some(ServerRole::Primary), ..q },
        Question { hint: Some(ServerRole::Replica), ..q },
        Question { is_serializable: true, ..q },
        Question { is_learned: true, ..q },
        Question { is_rescued: true, ..q },
    ] {
        let of = |question: Question| group(&question, side(&question).1);
        let is_compared = of(question).is_some();
        assert_eq!(of(question), is_compared.then_some(Group::Cohort), "{question:?}");
        let other = Question { is_in_cohort: false, ..question };
        assert_eq!(of(other), is_compared.then_some(Group::Control), "{other:?}");
        // What is only forecast is like what the lot keeps.
        let before = Question { is_split: false, ..question };
        assert_eq!(of(before), is_compared.then_some(Group::Control), "{before:?}");
        let is_plain = question.verdict != write
            && question == Question { verdict: question.verdict, role: question.role, ..q }
            && matches!(question.role, ServerRole::Auto | ServerRole::Any);
        assert_eq!(is_compared, is_plain, "{question:?}");
    }
}
