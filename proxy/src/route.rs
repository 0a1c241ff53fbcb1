//! Which server a transaction runs on, and why; pure.

use crate::topology::Topology;

/// Where a session's statements may run, by the port that its client came in at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// As the stage says.
    Routed,
    /// On the primary only.
    Primary,
    /// On replicas only.
    ReadOnly,
}

/// Where to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// To the server with this index in the topology.
    Server(usize),
    /// Nowhere now: no server is known to be the primary.
    NoPrimary,
    /// Nowhere now: no replica is up.
    NoReplica,
}

/// Chooses the server. Reads are spread by taking the better of two random replicas: `outstanding` tells how many
/// clients a server has in relation to its weight, `random` gives any number.
pub fn route(
    topology: &Topology,
    access: Access,
    outstanding: impl Fn(usize) -> u32,
    random: impl FnOnce() -> u64,
) -> Route {
    match access {
        // At the stage PoolingOnly everything runs on the primary.
        Access::Routed | Access::Primary => topology.primary().map_or(Route::NoPrimary, Route::Server),
        Access::ReadOnly => {
            let random = random();
            let replicas: Vec<_> = topology.replicas().collect();
            let (Some(first), Some(second)) =
                (pick(&replicas, random), pick(&replicas, random.rotate_left(32)))
            else {
                return Route::NoReplica;
            };
            let is_second_better = load(topology, second, &outstanding) < load(topology, first, &outstanding);
            Route::Server(if is_second_better { second } else { first })
        }
    }
}

fn pick(replicas: &[usize], random: u64) -> Option<usize> {
    let count = u64::try_from(replicas.len()).ok()?;
    let index = usize::try_from(random.checked_rem(count)?).ok()?;
    replicas.get(index).copied()
}

/// Clients for each unit of weight, in fixed point.
fn load(topology: &Topology, server: usize, outstanding: &impl Fn(usize) -> u32) -> u64 {
    let weight = topology.servers.get(server).map_or(1, |server| u64::from(server.weight.max(1)));
    u64::from(outstanding(server)) * 1_000_000 / weight
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn routed_and_primary_sessions_go_to_the_primary() {
        let topology = topology(&[Role::Replica, Role::Primary]);
        for access in [Access::Routed, Access::Primary] {
            assert_eq!(route(&topology, access, |_| 0, || 7), Route::Server(1));
        }
    }

    #[test]
    fn without_the_server_that_is_needed_there_is_no_route() {
        assert_eq!(route(&topology(&[Role::Replica]), Access::Routed, |_| 0, || 7), Route::NoPrimary);
        assert_eq!(route(&topology(&[Role::Primary]), Access::ReadOnly, |_| 0, || 7), Route::NoReplica);
    }

    #[test]
    fn of_two_replicas_the_one_with_fewer_clients_is_taken() {
        let topology = topology(&[Role::Primary, Role::Replica, Role::Replica]);
        let busy = |server| if server == 1 { 5 } else { 1 };
        // The halves of the random number pick both.
        assert_eq!(route(&topology, Access::ReadOnly, busy, || 1 << 32), Route::Server(2));
        assert_eq!(route(&topology, Access::ReadOnly, busy, || 1), Route::Server(2));
        assert_eq!(
            route(&topology, Access::ReadOnly, busy, || 0),
            Route::Server(1),
            "both halves pick the same"
        );
    }
}
