//! An immutable view of the servers: who they are, what they are, how they are.

use pgrouting_contract::report::{Health, Role};

/// What the monitor knows of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerState {
    /// Its name in the document.
    pub name: String,
    /// Its share of reads among the replicas.
    pub weight: u32,
    /// What it is.
    pub role: Role,
    /// Whether it answers.
    pub health: Health,
    /// Why it is not up, or what could not be found out; for a person.
    pub message: String,
    /// Its timeline.
    pub timeline: Option<u32>,
    /// The identity of its database cluster.
    pub system_identifier: Option<u64>,
}

/// All servers of the pool, in the document's order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// One entry a server.
    pub servers: Vec<ServerState>,
}

impl ServerState {
    /// A server that nobody has asked yet.
    #[must_use]
    pub const fn unknown(name: String, weight: u32) -> Self {
        Self {
            name,
            weight,
            role: Role::Unknown,
            health: Health::Unknown,
            message: String::new(),
            timeline: None,
            system_identifier: None,
        }
    }
}

impl Topology {
    /// The server that takes writes: the one that is up and not in recovery; of two such, the one on the higher
    /// timeline. A pool of one server whose role could not be asked (the monitor's login is refused, say) has that
    /// one, unless it is down: there is nowhere else to go.
    #[must_use]
    pub fn primary(&self) -> Option<usize> {
        let primaries = self
            .servers
            .iter()
            .enumerate()
            .filter(|(_, server)| server.role == Role::Primary && server.health == Health::Up);
        let best = primaries.max_by_key(|(index, server)| (server.timeline, std::cmp::Reverse(*index)));
        if let Some((index, _)) = best {
            return Some(index);
        }
        match &self.servers[..] {
            [only] if only.role == Role::Unknown && only.health == Health::Up => Some(0),
            _ => None,
        }
    }

    /// The servers that may take reads.
    pub fn replicas(&self) -> impl Iterator<Item = usize> {
        self.servers
            .iter()
            .enumerate()
            .filter(|(_, s)| s.role == Role::Replica && s.health == Health::Up && s.weight > 0)
            .map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(role: Role, health: Health, timeline: u32) -> ServerState {
        ServerState { role, health, timeline: Some(timeline), ..ServerState::unknown("s".to_owned(), 100) }
    }

    #[test]
    fn the_primary_is_up_and_on_the_highest_timeline() {
        use Health::{Down, Up};
        use Role::{Primary, Replica, Unknown};
        for (servers, primary) in [
            (vec![], None),
            (vec![server(Replica, Up, 1), server(Primary, Up, 1)], Some(1)),
            (vec![server(Primary, Down, 1), server(Replica, Up, 1)], None),
            (vec![server(Primary, Up, 1), server(Primary, Up, 2)], Some(1)),
            (vec![server(Primary, Up, 2), server(Primary, Up, 2)], Some(0)),
            (vec![server(Unknown, Up, 0)], Some(0)),
            (vec![server(Unknown, Down, 0)], None),
            (vec![server(Replica, Up, 1)], None),
            (vec![server(Unknown, Up, 0), server(Unknown, Up, 0)], None),
        ] {
            let topology = Topology { servers };
            assert_eq!(topology.primary(), primary, "{topology:?}");
        }
    }

    #[test]
    fn a_replica_without_weight_takes_no_reads() {
        let mut idle = server(Role::Replica, Health::Up, 1);
        idle.weight = 0;
        let topology = Topology { servers: vec![idle, server(Role::Replica, Health::Up, 1)] };
        assert_eq!(topology.replicas().collect::<Vec<_>>(), [1]);
    }
}
