//! Asks each server, on a connection of its own, what it is and whether it is up.

use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::report::{Health, Role};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use crate::positions::{COLUMNS, Sample};
use crate::server::connect::ConnectError;
use crate::server::connection::ServerConnection;
use crate::server::endpoint::Endpoint;
use crate::server::own::Own;
use crate::wire::backend::error_field;

/// One answer to "who are you": recovery or not, the timeline, and the identity of the database cluster. A standby
/// tells the timeline of its last restart point, which may lag behind the one that it replays.
const QUERY: &str = "SELECT pg_catalog.pg_is_in_recovery(), \
     CASE WHEN pg_catalog.pg_is_in_recovery() \
     THEN (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint())::pg_catalog.text \
     ELSE ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int4::text \
     END, \
     (SELECT system_identifier FROM pg_catalog.pg_control_system()), \
     (SELECT received_tli FROM pg_catalog.pg_stat_wal_receiver), ";

/// The part of it that every role may ask.
const QUERY_WITHOUT_PRIVILEGES: &str = "SELECT pg_catalog.pg_is_in_recovery(), \
     CASE WHEN NOT pg_catalog.pg_is_in_recovery() \
     THEN ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int4::text \
     END, NULL, NULL, ";

/// What even a server answers whose log is not PostgreSQL's own.
const QUERY_WITHOUT_POSITION: &str = "SELECT pg_catalog.pg_is_in_recovery(), NULL, NULL, NULL";

/// Columns of each before those of the position.
const COLUMNS_BEFORE: usize = 4;

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// The server answered.
    Answered {
        /// What it is.
        role: Role,
        /// Its timeline, where the monitor's role may ask.
        timeline: Option<u32>,
        /// The identity of its database cluster, where the monitor's role may ask.
        system_identifier: Option<u64>,
        /// The timeline that a standby gets from its primary, where the monitor's role may ask.
        follows: Option<u32>,
        /// How far its log has come.
        sample: Option<Sample>,
    },
    /// Nobody could ask it: the monitor's user is not known yet.
    Unasked(String),
    /// It is there, but would not let the monitor in: nothing new is known of it.
    Refused(String),
    /// It did not answer in time: a busy machine does not either.
    Silent(String),
    /// It is not there, not yet, or no more.
    Down(String),
}

/// Probes in a row that a server may leave unanswered before it counts as down. One that refuses a connection or closes
/// it counts at once.
const SILENCES_MAX: u32 = 3;

impl Observation {
    /// The health that it stands for.
    #[must_use]
    pub const fn health(&self) -> Health {
        match self {
            Self::Answered { .. } | Self::Refused(_) => Health::Up,
            Self::Unasked(_) => Health::Unknown,
            Self::Silent(_) | Self::Down(_) => Health::Down,
        }
    }
}

/// What one server's monitor needs.
#[derive(Debug)]
pub struct Monitor {
    /// The server.
    pub endpoint: Endpoint,
    /// As whom and to what it connects.
    pub own: Own,
    /// The time from one probe to the next.
    pub interval: Duration,
    /// Asks for a probe before its time: somebody failed to reach the server.
    pub hurry: Arc<Notify>,
    /// Whether something is to be found out quickly.
    pub urgency: watch::Receiver<bool>,
}

/// The time from one probe to the next while something is to be found out quickly.
const URGENT_INTERVAL: Duration = Duration::from_millis(100);

impl Monitor {
    /// Probes for ever and tells `observe` each result. Ends when it is dropped.
    pub async fn run(mut self, observe: impl Fn(Observation, Instant)) {
        let mut connection = None;
        let mut silences = Silences::default();
        loop {
            let began = Instant::now();
            let mut observation = self.probe(&mut connection).await;
            if matches!(observation, Observation::Down(_)) {
                // The connection may have died of something that the server survived: ask once more on a new one.
                observation = self.probe(&mut connection).await;
            }
            debug!(endpoint = %self.endpoint, ?observation, "probed");
            if let Some(observation) = silences.judge(observation) {
                observe(observation, began);
            }
            self.rest(began).await;
        }
    }

    /// Waits for the next probe's time.
    async fn rest(&mut self, began: Instant) {
        loop {
            let is_urgent = *self.urgency.borrow_and_update();
            let interval = if is_urgent { self.interval.min(URGENT_INTERVAL) } else { self.interval };
            tokio::select! {
                () = sleep_until(began + interval) => return,
                () = self.hurry.notified() => return,
                Ok(()) = self.urgency.changed() => {}
            }
        }
    }

    async fn probe(&self, connection: &mut Option<Box<ServerConnection>>) -> Observation {
        match timeout(self.own.timeout, self.ask(connection)).await {
            Ok(Ok(observation)) => observation,
            Ok(Err(error)) => {
                *connection = None;
                observation_of(&error)
            }
            Err(_) => {
                *connection = None;
                Observation::Silent(format!("no answer in {:?}", self.own.timeout))
            }
        }
    }

    async fn ask(&self, connection: &mut Option<Box<ServerConnection>>) -> Result<Observation, ConnectError> {
        let connection = match connection {
            Some(connection) => connection,
            None => {
                if self.own.credentials.probe().is_none() {
                    return Ok(Observation::Unasked("the monitor's user is not known".to_owned()));
                }
                connection.insert(self.own.connect(&self.endpoint).await?)
            }
        };
        let all = [QUERY, QUERY_WITHOUT_PRIVILEGES].map(|about| format!("{about}{COLUMNS}"));
        for sql in &all {
            match connection.run(sql).await {
                // A right is missing, or a function.
                Err(ConnectError::Refused(message))
                    if matches!(error_field(&message, b'C'), Some(b"42501" | b"0A000" | b"42883")) => {}
                other => return other.map(|rows| observation_from(&rows)),
            }
        }
        connection.run(QUERY_WITHOUT_POSITION).await.map(|rows| observation_from(&rows))
    }
}

/// How many probes in a row were not answered.
#[derive(Debug, Default)]
struct Silences(u32);

impl Silences {
    /// The observation if it says something: a silence does only when it lasts.
    fn judge(&mut self, observation: Observation) -> Option<Observation> {
        if !matches!(observation, Observation::Silent(_)) {
            self.0 = 0;
            return Some(observation);
        }
        self.0 = self.0.saturating_add(1);
        if self.0 >= SILENCES_MAX { Some(observation) } else { None }
    }
}

fn observation_of(error: &ConnectError) -> Observation {
    let text = error.to_string();
    if matches!(error, ConnectError::Timeout(_)) {
        return Observation::Silent(text);
    }
    if error.is_transient() { Observation::Down(text) } else { Observation::Refused(text) }
}

fn observation_from(rows: &[Vec<Option<String>>]) -> Observation {
    let row = rows.first().map(Vec::as_slice).unwrap_or_default();
    let Some((&[Some(ref in_recovery), ref timeline, ref system_identifier, ref follows], position)) =
        row.split_first_chunk::<COLUMNS_BEFORE>()
    else {
        return Observation::Down("the answer to the probe has no row".to_owned());
    };
    Observation::Answered {
        role: if in_recovery == "t" { Role::Replica } else { Role::Primary },
        timeline: timeline.as_ref().and_then(|text| text.parse().ok()),
        system_identifier: system_identifier.as_ref().and_then(|text| text.parse().ok()),
        follows: follows.as_ref().and_then(|text| text.parse().ok()),
        sample: Sample::from_columns(position),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_role_and_identity() {
        let row = |fields: [Option<&str>; 7]| vec![fields.map(|f| f.map(str::to_owned)).to_vec()];
        let identifier = Some("18446744073709551615");
        assert_eq!(
            observation_from(&row([
                Some("t"),
                Some("3"),
                identifier,
                Some("2"),
                Some("10"),
                Some("9"),
                Some("200")
            ])),
            Observation::Answered {
                role: Role::Replica,
                timeline: Some(3),
                system_identifier: Some(u64::MAX),
                follows: Some(2),
                sample: Some(Sample { lsn: 10, flushed: 9, delay: 700_000 }),
            }
        );
        assert_eq!(
            observation_from(&row([Some("f"), None, None, None, None, None, None])),
            Observation::Answered {
                role: Role::Primary,
                timeline: None,
                system_identifier: None,
                follows: None,
                sample: None
            }
        );
        assert_eq!(observation_from(&[]).health(), Health::Down);
    }

    #[test]
    fn a_silence_counts_when_it_lasts_and_an_answer_ends_it() {
        let silent = || Observation::Silent("no answer in 1s".to_owned());
        let refused = || Observation::Refused("no".to_owned());
        let mut silences = Silences::default();
        for (observation, said) in [
            (silent(), None),
            (silent(), None),
            (refused(), Some(refused())),
            (silent(), None),
            (silent(), None),
            (silent(), Some(silent())),
            (silent(), Some(silent())),
        ] {
            assert_eq!(silences.judge(observation), said);
        }
    }

    #[test]
    fn a_server_that_refuses_the_login_is_not_down() {
        let refused = |code| {
            let mut message = Vec::new();
            crate::wire::backend::put_error(&mut message, &[(b'C', code), (b'M', "no")]);
            observation_of(&ConnectError::Refused(message)).health()
        };
        assert_eq!(refused("28P01"), Health::Up);
        assert_eq!(refused("53300"), Health::Up);
        assert_eq!(refused("57P03"), Health::Down);
    }
}
