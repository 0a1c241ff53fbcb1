//! An immutable view of the servers: who they are, what they are, how they are.

use std::time::Duration;

use pgrouting_contract::report::{Health, Role, Rotation};
use tokio::time::Instant;

/// What a replica gets at first of its share, in thousandths.
const LEAST_SHARE: u64 = 100;

/// What the monitor knows of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerState {
    /// Its name in the document.
    pub name: String,
    /// Its share of reads among the replicas.
    pub weight: u32,
    /// Where it is.
    pub zone: Option<String>,
    /// What it is.
    pub role: Role,
    /// Whether it answers.
    pub health: Health,
    /// Why it is not up, or what could not be found out; for a person.
    pub message: String,
    /// Its timeline.
    pub timeline: Option<u32>,
    /// The timeline that a standby gets from its primary.
    pub follows: Option<u32>,
    /// The identity of its database cluster.
    pub system_identifier: Option<u64>,
    /// Whether it takes part.
    pub rotation: Rotation,
    /// Why it does not, for a person.
    pub reason: String,
    /// Since when it takes part, while it has not got all of its share yet.
    pub rises_since: Option<Instant>,
}

/// All servers of the pool, in the document's order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// One entry a server.
    pub servers: Vec<ServerState>,
    /// The server that takes writes.
    pub primary: Option<usize>,
    /// Grows whenever another server, or another timeline, takes writes.
    pub term: u64,
    /// The timeline of the server that takes writes, where known.
    pub timeline: Option<u32>,
    /// Who else says that it is the primary, for a person.
    pub conflict: Option<String>,
    /// How long a replica takes to get all of its share.
    pub slow_start: Duration,
}

impl ServerState {
    /// A server that nobody has asked yet.
    #[must_use]
    pub const fn unknown(name: String, weight: u32) -> Self {
        Self {
            name,
            weight,
            zone: None,
            role: Role::Unknown,
            health: Health::Unknown,
            message: String::new(),
            timeline: None,
            follows: None,
            system_identifier: None,
            rotation: Rotation::Unmeasured,
            reason: String::new(),
            rises_since: None,
        }
    }

    /// Whether it may take reads.
    #[must_use]
    pub fn takes_reads(&self) -> bool {
        self.role == Role::Replica && self.rotation == Rotation::In && self.weight > 0
    }

    /// Why it takes no reads, for a person; `None` where it does.
    #[must_use]
    pub fn absence(&self) -> Option<String> {
        let why = if self.reason.is_empty() { &self.message } else { &self.reason };
        if self.takes_reads() {
            None
        } else if self.rotation != Rotation::In {
            Some(format!("{:?}{}{why}", self.rotation, if why.is_empty() { "" } else { ", " }))
        } else if self.role != Role::Replica {
            Some("not a replica".to_owned())
        } else {
            Some("weight 0".to_owned())
        }
    }
}

impl Topology {
    /// A server's share of the reads, in thousandths of a unit of weight; a tenth of it at first where it has just come into
    /// rotation.
    #[must_use]
    pub fn share(&self, index: usize) -> u64 {
        let Some(server) = self.servers.get(index) else { return 0 };
        let weight = u64::from(server.weight.max(1));
        let Some(since) = server.rises_since else { return weight * 1000 };
        let all = self.slow_start.as_millis().max(1);
        let permille = (since.elapsed().as_millis() * 1000 / all).clamp(u128::from(LEAST_SHARE), 1000);
        weight * u64::try_from(permille).unwrap_or(1000)
    }

    /// The servers that may take reads.
    pub fn replicas(&self) -> impl Iterator<Item = usize> {
        self.servers.iter().enumerate().filter(|(_, server)| server.takes_reads()).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_takes_reads_that_is_in_rotation_and_has_weight() {
        let server = |weight, rotation| ServerState {
            role: Role::Replica,
            health: Health::Up,
            rotation,
            ..ServerState::unknown("s".to_owned(), weight)
        };
        let servers = vec![
            server(0, Rotation::In),
            ServerState { reason: "3 s behind".to_owned(), ..server(100, Rotation::Lagging) },
            server(100, Rotation::In),
            ServerState { role: Role::Primary, ..server(100, Rotation::In) },
        ];
        let topology = Topology { servers, ..Topology::default() };
        assert_eq!(topology.replicas().collect::<Vec<_>>(), [2]);
        let absences: Vec<_> = topology.servers.iter().map(ServerState::absence).collect();
        assert_eq!(
            absences.iter().map(|why| why.as_deref()).collect::<Vec<_>>(),
            [Some("weight 0"), Some("Lagging, 3 s behind"), None, Some("not a replica")]
        );
    }
}
