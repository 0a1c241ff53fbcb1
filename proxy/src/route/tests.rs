use pgrouting_contract::report::{Health, Role};

use super::*;
use crate::topology::ServerState;

fn topology(roles: &[Role]) -> Topology {
    let server = |role: &Role| ServerState {
        role: *role,
        health: Health::Up,
        ..ServerState::unknown("s".to_owned(), 100)
    };
    Topology { servers: roles.iter().map(server).collect() }
}

const READ: Aim = Aim { side: Side::Replica, falls_back: true, counts_primary: false, floor: 0, avoided: 0 };

fn to(topology: &Topology, aim: Aim, random: u64) -> Route {
    route(topology, &aim, |_| 0, |server| server as u64 * 100, || random)
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
    let with = |random: u64| route(&topology, &READ, busy, |_| 0, || random);
    // The halves of the random number pick both.
    assert_eq!(with(1 << 32), Route::Server(2));
    assert_eq!(with(1), Route::Server(2));
    assert_eq!(with(0), Route::Server(1), "both halves pick the same");
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
