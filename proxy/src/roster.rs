//! Who is connected: one seat a client, for whoever wants to see them or to end some.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::cancel::CancelSlot;
use crate::pace::{Clock, Pace};
use crate::server::connection::Identity;
use crate::socket::stream::Stream;

/// All clients that are logged in.
#[derive(Debug, Default)]
pub struct Roster {
    seats: Mutex<Seats>,
    alarm: Arc<Alarm>,
    clock: Arc<Clock>,
    admitted: Arc<AtomicU64>,
    entering: Arc<AtomicU64>,
}

/// A client that is counted until this is dropped.
#[derive(Debug)]
pub struct Admitted {
    count: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Seats {
    last: u64,
    all: BTreeMap<u64, Arc<Seat>>,
    /// How many there are of each user, and of each database.
    users: HashMap<String, u32>,
    databases: HashMap<String, u32>,
}

/// Who wants a seat.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// Who it is, and which database it named.
    pub identity: Arc<Identity>,
    /// How it came.
    pub stream: &'a Stream,
    /// What it runs.
    pub slot: Arc<CancelSlot>,
    /// It has to leave at the latest when this is cancelled.
    pub kill: &'a CancellationToken,
    /// What its application calls itself.
    pub application_name: &'a str,
}

/// How many may be there; no limit where there is none.
#[derive(Debug, Clone, Copy, Default)]
pub struct SeatLimits {
    /// Of one user.
    pub per_user: Option<u32>,
    /// Of one database.
    pub per_database: Option<u32>,
}

/// Why there is no seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The user has all that it may have.
    User,
    /// The database has.
    Database,
}

/// Raised while there is a session that has to leave, so that the others need not look.
#[derive(Debug, Default)]
pub struct Alarm(AtomicU32);

/// One client.
#[derive(Debug)]
pub struct Seat {
    /// Unique in the process.
    pub id: u64,
    /// Who it is, and which database it named.
    pub identity: Arc<Identity>,
    /// Where it comes from, and where it came in.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// How it is encrypted; empty where it is not.
    pub encryption: String,
    /// When it logged in.
    pub connected_at: jiff::Timestamp,
    /// What it runs, and whether it waits.
    pub slot: Arc<CancelSlot>,
    /// What it does, and since when.
    pub pace: Arc<Pace>,
    /// How many statements it has prepared, as far as it was looked.
    pub prepared: AtomicUsize,
    /// Cancelled when it has to leave at once.
    kill: CancellationToken,
    state: Mutex<SeatState>,
    alarm: Arc<Alarm>,
}

#[derive(Debug)]
struct SeatState {
    application_name: String,
    /// Whether it was told to leave by itself, or has left.
    is_told: bool,
}

/// A client's seat, which is free again when this is dropped.
#[derive(Debug)]
pub struct Seated {
    roster: Arc<Roster>,
    seat: Arc<Seat>,
}

impl Alarm {
    /// Whether somebody has to leave.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Everybody has to look from now on.
    pub fn raise(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn lower(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Roster {
    /// What sessions look at before they look whether they have to leave.
    #[must_use]
    pub const fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// What sessions tell the time by.
    #[must_use]
    pub const fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }

    /// How many clients there are, those that log in among them.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    /// Counts a client, logged in or about to, unless there are `max` already.
    #[must_use]
    pub fn admit(&self, max: u32) -> Option<Admitted> {
        Admitted::among(&self.admitted, max)
    }

    /// Counts a socket that has just been accepted, unless there are `max` already that have not logged in.
    #[must_use]
    pub fn let_in(&self, max: u32) -> Option<Admitted> {
        Admitted::among(&self.entering, max)
    }

    /// Gives a client a seat.
    ///
    /// # Errors
    /// Where its user or its database has as many as `limits` allow.
    pub fn join(self: &Arc<Self>, arrival: Arrival<'_>, limits: SeatLimits) -> Result<Seated, Taken> {
        let Arrival { identity, stream, slot, kill, application_name } = arrival;
        let mut seats = self.lock();
        let is_full = |counts: &HashMap<String, u32>, name: &str, limit: Option<u32>| {
            limit.is_some_and(|limit| counts.get(name).is_some_and(|count| *count >= limit))
        };
        if is_full(&seats.users, &identity.user, limits.per_user) {
            return Err(Taken::User);
        }
        if is_full(&seats.databases, &identity.database, limits.per_database) {
            return Err(Taken::Database);
        }
        seats.last += 1;
        let seat = Arc::new(Seat {
            id: seats.last,
            identity,
            addresses: stream.tcp().peer_addr().ok().zip(stream.tcp().local_addr().ok()),
            encryption: stream.encryption(),
            connected_at: jiff::Timestamp::now(),
            slot,
            pace: Arc::new(Pace::new(Arc::clone(&self.clock))),
            prepared: AtomicUsize::new(0),
            kill: kill.child_token(),
            state: Mutex::new(SeatState { application_name: application_name.to_owned(), is_told: false }),
            alarm: Arc::clone(&self.alarm),
        });
        seats.all.insert(seat.id, Arc::clone(&seat));
        *seats.users.entry(seat.identity.user.clone()).or_default() += 1;
        *seats.databases.entry(seat.identity.database.clone()).or_default() += 1;
        Ok(Seated { roster: Arc::clone(self), seat })
    }

    /// Everybody, in the order of their logins.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Seat>> {
        self.lock().all.values().cloned().collect()
    }

    /// Makes those leave who are so; tells who that is. They are gone when they are not on the roster any more.
    pub fn kill(&self, is_killed: impl Fn(&Seat) -> bool) -> Vec<Arc<Seat>> {
        let killed: Vec<_> = self.all().into_iter().filter(|seat| is_killed(seat)).collect();
        killed.iter().for_each(|seat| seat.kill());
        killed
    }

    /// Whether a client is still there.
    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        self.lock().all.contains_key(&id)
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    fn kill(&self) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.is_told, true) {
            self.alarm.raise();
            self.kill.cancel();
        }
    }

    /// The name of its application.
    #[must_use]
    pub fn application_name(&self) -> String {
        self.state().application_name.clone()
    }

    /// Its application calls itself so from now on.
    pub fn rename(&self, application_name: &str) {
        let mut state = self.state();
        if state.application_name != application_name {
            application_name.clone_into(&mut state.application_name);
        }
    }

    /// Tells how many statements it has prepared.
    pub fn note_prepared(&self, count: usize) {
        self.prepared.store(count, Ordering::Relaxed);
    }

    /// Ends when it has to leave.
    pub async fn killed(&self) {
        self.kill.cancelled().await;
    }

    /// Whether it has to leave.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.kill.is_cancelled()
    }

    fn state(&self) -> MutexGuard<'_, SeatState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::ops::Deref for Seated {
    type Target = Arc<Seat>;

    fn deref(&self) -> &Arc<Seat> {
        &self.seat
    }
}

impl Admitted {
    fn among(count: &Arc<AtomicU64>, max: u32) -> Option<Self> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        let admitted = Self { count: Arc::clone(count) };
        (before < u64::from(max)).then_some(admitted)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        {
            let mut seats = self.roster.lock();
            seats.all.remove(&self.seat.id);
            take_one(&mut seats.users, &self.seat.identity.user);
            take_one(&mut seats.databases, &self.seat.identity.database);
        }
        // From now on nobody can tell it to leave.
        if std::mem::replace(&mut self.seat.state().is_told, true) {
            self.seat.alarm.lower();
        }
    }
}

/// Counts one less; a name without any is forgotten.
fn take_one(counts: &mut HashMap<String, u32>, name: &str) {
    if let Some(count) = counts.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            counts.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::server::settings::SettingsRegistry;

    async fn arrive(
        roster: &Arc<Roster>,
        [user, database]: [&str; 2],
        all: &CancellationToken,
        limits: SeatLimits,
    ) -> Result<Seated, Taken> {
        let identity = Arc::new(Identity {
            id: 1,
            user: user.to_owned(),
            database: database.to_owned(),
            settings: SettingsRegistry::default().none(),
            is_exclusive: false,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let arrival = Arrival {
            identity,
            stream: &Stream::plain(stream),
            slot: Arc::default(),
            kill: all,
            application_name: "billing",
        };
        roster.join(arrival, limits)
    }

    async fn join(roster: &Arc<Roster>, database: &str, all: &CancellationToken) -> Seated {
        arrive(roster, ["app", database], all, SeatLimits::default()).await.unwrap()
    }

    #[tokio::test]
    async fn each_user_and_each_database_has_seats_of_its_own() {
        let (roster, all) = (Arc::new(Roster::default()), CancellationToken::new());
        let limits = SeatLimits { per_user: Some(2), per_database: Some(3) };
        let mut seats = Vec::new();
        for who in [["app", "shop"], ["app", "depot"], ["web", "shop"], ["etl", "shop"]] {
            seats.push(arrive(&roster, who, &all, limits).await.unwrap());
        }
        assert_eq!(arrive(&roster, ["app", "depot"], &all, limits).await.err(), Some(Taken::User));
        assert_eq!(arrive(&roster, ["new", "shop"], &all, limits).await.err(), Some(Taken::Database));
        // Whoever leaves makes room.
        drop(seats.swap_remove(0));
        seats.push(arrive(&roster, ["new", "shop"], &all, limits).await.unwrap());
        seats.push(arrive(&roster, ["app", "depot"], &all, limits).await.unwrap());
        drop(seats);
        let left = roster.lock();
        assert!(left.users.is_empty() && left.databases.is_empty());
    }

    #[tokio::test]
    async fn the_alarm_is_raised_until_the_last_one_has_left() {
        let (roster, all) = (Arc::new(Roster::default()), CancellationToken::new());
        let (shop, depot) = (join(&roster, "shop", &all).await, join(&roster, "depot", &all).await);
        let (id, other) = (shop.id, depot.id);
        assert_eq!(roster.kill(|seat| seat.identity.database == "shop").len(), 1);
        // A second time makes no difference.
        roster.kill(|seat| seat.identity.database == "shop");
        assert!(shop.is_killed() && !depot.is_killed());
        assert!(roster.alarm().is_raised() && roster.has(id));
        drop(shop);
        assert!(!roster.alarm().is_raised() && !roster.has(id) && roster.has(other));
        // Where all have to leave, the alarm stays raised.
        roster.alarm().raise();
        all.cancel();
        assert!(depot.is_killed());
        drop(depot);
        assert!(roster.alarm().is_raised());
    }
}
