//! Whether a server takes part, from what its monitor knows of it; pure.

use std::collections::VecDeque;
use std::time::Duration;

use pgrouting_contract::report::{Health, Role, Rotation};
use tokio::time::Instant;

use crate::positions::Lag;
use crate::topology::ServerState;

/// How far back a server's going down counts against it.
const DOWN_COUNTS_FOR: Duration = Duration::from_secs(60);

/// The most answers in a row that a server has to give before it takes part again.
const ANSWERS_MAX: usize = 5;

/// How often a server went down lately, and how often it has answered since.
#[derive(Debug, Default)]
pub struct Steadiness {
    downs: VecDeque<Instant>,
    is_down: bool,
    answers: usize,
}

impl Steadiness {
    /// Takes the outcome of a probe.
    pub fn note(&mut self, health: Health, now: Instant) {
        match health {
            Health::Down if !self.is_down => {
                self.is_down = true;
                self.answers = 0;
                self.downs.push_back(now);
                while self.downs.len() > ANSWERS_MAX {
                    self.downs.pop_front();
                }
            }
            Health::Up => {
                self.is_down = false;
                self.answers = self.answers.saturating_add(1);
            }
            Health::Down | Health::Unknown => {}
        }
        while self.downs.front().is_some_and(|at| now.saturating_duration_since(*at) > DOWN_COUNTS_FOR) {
            self.downs.pop_front();
        }
    }

    /// Whether it has answered as often as it has to.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        self.answers >= (self.downs.len() + 1).min(ANSWERS_MAX)
    }
}

/// What decides about a server's part.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The server.
    pub server: &'a ServerState,
    /// It says that it is a primary, and another one is.
    pub is_fenced: bool,
    /// It belongs to another database cluster.
    pub is_foreign: bool,
    /// It has answered often enough since it was down.
    pub is_steady: bool,
    /// A primary is there to be compared with, and its timeline, if that is known.
    pub primary: Option<Option<u32>>,
    /// It has replayed more than the primary had later.
    pub is_ahead: bool,
    /// How far it is behind, where known.
    pub lag: Option<Lag>,
    /// Beyond which lag it takes no reads.
    pub eject_lag: Duration,
}

/// Whether a server takes part, and why not, for a person.
#[must_use]
pub fn rotation(facts: &Facts<'_>) -> (Rotation, String) {
    let server = facts.server;
    if server.health != Health::Up {
        return (Rotation::Down, String::new());
    }
    if facts.is_foreign {
        return (Rotation::Diverged, "it belongs to another database cluster".to_owned());
    }
    if facts.is_fenced {
        return (Rotation::Fenced, "it says that it is the primary, and another server is".to_owned());
    }
    match server.role {
        Role::Unknown => return (Rotation::Unmeasured, String::new()),
        Role::Primary => return (Rotation::In, String::new()),
        Role::Replica => {}
    }
    if !facts.is_steady {
        return (Rotation::Settling, "it was down lately".to_owned());
    }
    let Some(timeline) = facts.primary else {
        // What was known stands; with nobody to be behind it is as good as it can be known to be.
        let stays = matches!(server.rotation, Rotation::Lagging | Rotation::Diverged);
        return if stays { (server.rotation, server.reason.clone()) } else { (Rotation::In, String::new()) };
    };
    if let (Some(followed), Some(timeline)) = (server.follows, timeline)
        && followed < timeline
    {
        return (
            Rotation::Diverged,
            format!("it follows timeline {followed}, and the primary is on {timeline}"),
        );
    }
    if facts.is_ahead {
        return (Rotation::Diverged, "it has replayed more than the primary has".to_owned());
    }
    let Some(lag) = facts.lag else {
        return (Rotation::Unmeasured, "its lag is not known".to_owned());
    };
    let limit = if server.rotation == Rotation::Lagging { facts.eject_lag / 2 } else { facts.eject_lag };
    if lag.time > limit {
        return (Rotation::Lagging, format!("it lags more than {limit:?}"));
    }
    (Rotation::In, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(rotation: Rotation) -> ServerState {
        ServerState {
            role: Role::Replica,
            health: Health::Up,
            rotation,
            ..ServerState::unknown("r".to_owned(), 100)
        }
    }

    fn facts(server: &ServerState) -> Facts<'_> {
        Facts {
            server,
            is_fenced: false,
            is_foreign: false,
            is_steady: true,
            primary: Some(Some(2)),
            is_ahead: false,
            lag: Some(Lag { time: Duration::from_secs(1), bytes: 10 }),
            eject_lag: Duration::from_secs(10),
        }
    }

    fn part(facts: Facts<'_>) -> Rotation {
        rotation(&facts).0
    }

    #[test]
    fn a_replica_takes_reads_when_all_is_known_and_well() {
        let server = replica(Rotation::Unmeasured);
        let usual = facts(&server);
        let lag = |secs| Some(Lag { time: Duration::from_secs(secs), bytes: 0 });
        for (facts, expected) in [
            (usual, Rotation::In),
            (Facts { lag: None, ..usual }, Rotation::Unmeasured),
            (Facts { lag: lag(10), ..usual }, Rotation::In),
            (Facts { lag: lag(11), ..usual }, Rotation::Lagging),
            (Facts { is_steady: false, ..usual }, Rotation::Settling),
            (Facts { is_ahead: true, ..usual }, Rotation::Diverged),
            (Facts { is_foreign: true, ..usual }, Rotation::Diverged),
            (Facts { primary: None, lag: None, ..usual }, Rotation::In),
        ] {
            assert_eq!(part(facts), expected, "{facts:?}");
        }
        let behind = ServerState { follows: Some(1), ..replica(Rotation::In) };
        assert_eq!(part(facts(&behind)), Rotation::Diverged);
        assert_eq!(part(Facts { primary: Some(None), ..facts(&behind) }), Rotation::In);
        assert_eq!(part(facts(&ServerState { follows: Some(2), ..behind })), Rotation::In);
    }

    #[test]
    fn what_lags_comes_back_at_half_of_the_limit_and_stands_without_a_primary() {
        let server = replica(Rotation::Lagging);
        let lag = |secs| Some(Lag { time: Duration::from_secs(secs), bytes: 0 });
        assert_eq!(part(Facts { lag: lag(6), ..facts(&server) }), Rotation::Lagging);
        assert_eq!(part(Facts { lag: lag(5), ..facts(&server) }), Rotation::In);
        assert_eq!(part(Facts { lag: lag(0), primary: None, ..facts(&server) }), Rotation::Lagging);
    }

    #[test]
    fn a_primary_takes_part_unless_it_is_fenced() {
        let server = ServerState { role: Role::Primary, ..replica(Rotation::In) };
        assert_eq!(part(Facts { lag: None, is_steady: false, ..facts(&server) }), Rotation::In);
        assert_eq!(part(Facts { is_fenced: true, ..facts(&server) }), Rotation::Fenced);
        let down = ServerState { health: Health::Down, ..server };
        assert_eq!(part(facts(&down)), Rotation::Down);
    }

    #[test]
    fn who_goes_down_often_has_to_answer_more_often() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut steadiness = Steadiness::default();
        steadiness.note(Health::Up, at(0));
        assert!(steadiness.is_steady(), "at first");
        for second in [1, 2] {
            steadiness.note(Health::Down, at(second));
        }
        steadiness.note(Health::Up, at(3));
        assert!(!steadiness.is_steady());
        steadiness.note(Health::Up, at(4));
        assert!(steadiness.is_steady(), "down for two probes counts once");
        for second in 0..20 {
            steadiness.note(if second % 2 == 0 { Health::Down } else { Health::Up }, at(5 + second));
        }
        for second in 25..28 {
            steadiness.note(Health::Up, at(second));
            assert!(!steadiness.is_steady());
        }
        steadiness.note(Health::Up, at(28));
        assert!(steadiness.is_steady(), "never more than five");
        steadiness.note(Health::Down, at(100));
        steadiness.note(Health::Up, at(101));
        steadiness.note(Health::Up, at(102));
        assert!(steadiness.is_steady(), "what is long ago is forgotten");
    }
}
