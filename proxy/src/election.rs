//! Which server is the primary, where more than one may say so; pure.

use std::cmp::Reverse;

use pgrouting_contract::report::{Health, Role};

use crate::topology::ServerState;

/// The primary that was known last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its name in the document.
    pub name: String,
    /// The highest timeline that a primary was on.
    pub timeline: Option<u32>,
    /// The identity of the database cluster.
    pub system_identifier: Option<u64>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Elected {
    /// The primary.
    pub primary: Option<usize>,
    /// Those that say that they are it and are not.
    pub fenced: Vec<usize>,
    /// Those of another database cluster.
    pub foreign: Vec<usize>,
}

/// The primary among these servers, given the one that was known last: it stays while it says so, unless another is on a
/// later timeline; on an earlier one than was seen, or of another cluster, none ever becomes it.
#[must_use]
pub fn elect(servers: &[ServerState], leader: Option<&Leader>) -> Elected {
    let leader = leader.filter(|leader| !is_replaced(servers, leader));
    let cluster = leader.and_then(|leader| leader.system_identifier).or_else(|| most_frequent(servers));
    let is_foreign = |server: &ServerState| matches!((server.system_identifier, cluster), (Some(one), Some(other)) if one != other);
    let is_past = |server: &ServerState| {
        leader.is_some_and(|leader| {
            leader.name != server.name && server.timeline.is_some() && server.timeline < leader.timeline
        })
    };
    let claims = || {
        servers
            .iter()
            .enumerate()
            .filter(|(_, server)| server.role == Role::Primary && server.health == Health::Up)
    };
    let best = claims()
        .filter(|(_, server)| !is_foreign(server) && !is_past(server))
        .max_by_key(|(index, server)| {
            let is_leader = leader.is_some_and(|leader| leader.name == server.name);
            // Where its timeline is not known, none is later.
            let timeline = server.timeline.or(if is_leader { Some(u32::MAX) } else { None });
            (timeline, is_leader, Reverse(*index))
        })
        .map(|(index, _)| index);
    let only = match servers {
        // There is nowhere else to go.
        [only] if only.role == Role::Unknown && only.health == Health::Up => Some(0),
        _ => None,
    };
    Elected {
        primary: best.or(only),
        fenced: claims().map(|(index, _)| index).filter(|index| best != Some(*index)).collect(),
        foreign: servers
            .iter()
            .enumerate()
            .filter(|(_, server)| is_foreign(server))
            .map(|(index, _)| index)
            .collect(),
    }
}

/// Whether the cluster that it led is not there any more: its own server belongs to another one, or none of the servers
/// belongs to it.
fn is_replaced(servers: &[ServerState], leader: &Leader) -> bool {
    let Some(cluster) = leader.system_identifier else { return false };
    let is_other = |server: &ServerState| server.system_identifier.is_some_and(|other| other != cluster);
    match servers.iter().find(|server| server.name == leader.name) {
        Some(own) => own.health == Health::Up && is_other(own),
        None => servers.iter().all(is_other),
    }
}

/// The cluster that most servers belong to; of two, the one that comes first.
fn most_frequent(servers: &[ServerState]) -> Option<u64> {
    let known = || servers.iter().filter_map(|server| server.system_identifier);
    known().rev().max_by_key(|identifier| known().filter(|other| other == identifier).count())
}

/// Who leads after this election.
#[must_use]
pub fn leader_after(servers: &[ServerState], elected: &Elected, before: Option<&Leader>) -> Option<Leader> {
    let before = before.filter(|leader| !is_replaced(servers, leader));
    let Some(server) = elected.primary.and_then(|index| servers.get(index)) else { return before.cloned() };
    let is_same = before.is_some_and(|before| before.name == server.name);
    let highest = before.and_then(|before| before.timeline).filter(|_| !is_same);
    Some(Leader {
        name: server.name.clone(),
        timeline: server.timeline.max(highest).or_else(|| before.and_then(|before| before.timeline)),
        system_identifier: server
            .system_identifier
            .or_else(|| before.and_then(|before| before.system_identifier)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, role: Role, health: Health, timeline: u32, cluster: u64) -> ServerState {
        let known = |value| (value != 0).then_some(value);
        ServerState {
            role,
            health,
            timeline: known(u64::from(timeline)).map(|_| timeline),
            system_identifier: known(cluster),
            ..ServerState::unknown(name.to_owned(), 100)
        }
    }

    fn leader(name: &str, timeline: u32, cluster: u64) -> Leader {
        Leader {
            name: name.to_owned(),
            timeline: (timeline != 0).then_some(timeline),
            system_identifier: (cluster != 0).then_some(cluster),
        }
    }

    #[test]
    fn the_primary_is_up_and_on_the_latest_timeline() {
        use Health::{Down, Up};
        use Role::{Primary, Replica, Unknown};
        let a = |role, health, timeline| server("a", role, health, timeline, 7);
        let b = |role, health, timeline| server("b", role, health, timeline, 7);
        let led_by_a = Some(leader("a", 1, 7));
        let led_by_b = Some(leader("b", 2, 7));
        for (servers, before, primary, fenced) in [
            (vec![], None, None, vec![]),
            (vec![a(Replica, Up, 1), b(Primary, Up, 1)], None, Some(1), vec![]),
            (vec![a(Primary, Down, 1), b(Replica, Up, 1)], led_by_a.clone(), None, vec![]),
            // A promotion, with and without the old one gone.
            (vec![a(Primary, Down, 1), b(Primary, Up, 2)], led_by_a.clone(), Some(1), vec![]),
            (vec![a(Primary, Up, 1), b(Primary, Up, 2)], led_by_a.clone(), Some(1), vec![0]),
            // The old one comes back as a rival, even while the new one is down.
            (vec![a(Primary, Up, 1), b(Primary, Up, 2)], led_by_b.clone(), Some(1), vec![0]),
            (vec![a(Primary, Up, 1), b(Primary, Down, 2)], led_by_b.clone(), None, vec![0]),
            // Where it is not clear, the known one stays.
            (vec![a(Primary, Up, 2), b(Primary, Up, 2)], led_by_b.clone(), Some(1), vec![0]),
            (vec![a(Primary, Up, 0), b(Primary, Up, 0)], led_by_b.clone(), Some(1), vec![0]),
            (vec![a(Primary, Up, 3), b(Primary, Up, 0)], led_by_b, Some(1), vec![0]),
            (vec![a(Primary, Up, 2), b(Primary, Up, 2)], None, Some(0), vec![1]),
            // The same server after a restore.
            (vec![a(Primary, Up, 1), b(Replica, Up, 1)], Some(leader("a", 5, 7)), Some(0), vec![]),
            (vec![a(Unknown, Up, 0)], None, Some(0), vec![]),
            (vec![a(Unknown, Down, 0)], None, None, vec![]),
            (vec![a(Unknown, Up, 0), b(Unknown, Up, 0)], None, None, vec![]),
        ] {
            let elected = elect(&servers, before.as_ref());
            assert_eq!((elected.primary, elected.fenced), (primary, fenced), "{servers:?} {before:?}");
        }
    }

    #[test]
    fn a_server_of_another_cluster_is_none_of_ours() {
        use Health::Up;
        use Role::{Primary, Replica};
        let ours = server("a", Replica, Up, 1, 7);
        let other = server("b", Primary, Up, 9, 8);
        let elected = elect(&[ours.clone(), other.clone()], Some(&leader("c", 1, 7)));
        assert_eq!((elected.primary, elected.foreign), (None, vec![1]));
        let elected = elect(&[ours.clone(), server("c", Primary, Up, 1, 7), other.clone()], None);
        assert_eq!((elected.primary, elected.fenced, elected.foreign), (Some(1), vec![2], vec![2]));
        // The whole cluster was replaced.
        for before in [leader("b", 1, 7), leader("gone", 20, 6)] {
            let servers = [other.clone()];
            let elected = elect(&servers, Some(&before));
            assert_eq!(elected.primary, Some(0));
            assert_eq!(leader_after(&servers, &elected, Some(&before)), Some(leader("b", 9, 8)));
        }
    }

    #[test]
    fn the_latest_timeline_is_remembered() {
        use Health::{Down, Up};
        use Role::Primary;
        let servers = [server("a", Primary, Down, 2, 7), server("b", Primary, Up, 0, 0)];
        let elected = elect(&servers, Some(&leader("a", 2, 7)));
        assert_eq!(leader_after(&servers, &elected, Some(&leader("a", 2, 7))), Some(leader("b", 2, 7)));
        let servers = [server("a", Primary, Down, 2, 7)];
        let elected = elect(&servers, Some(&leader("a", 2, 7)));
        assert_eq!(leader_after(&servers, &elected, Some(&leader("a", 2, 7))), Some(leader("a", 2, 7)));
        let restored = [server("a", Primary, Up, 1, 7)];
        let elected = elect(&restored, Some(&leader("a", 5, 7)));
        assert_eq!(leader_after(&restored, &elected, Some(&leader("a", 5, 7))), Some(leader("a", 1, 7)));
    }
}
