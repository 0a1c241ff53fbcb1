//! Who is connected: one seat a client, for whoever wants to see them or to end some.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::cancel::CancelSlot;
use crate::server::connection::Identity;
use crate::socket::stream::Stream;

/// All clients that are logged in.
#[derive(Debug, Default)]
pub struct Roster {
    seats: Mutex<Seats>,
    alarm: Arc<Alarm>,
    admitted: AtomicU64,
}

/// A client that is counted until this is dropped, logged in or not.
#[derive(Debug)]
pub struct Admitted {
    roster: Arc<Roster>,
}

#[derive(Debug, Default)]
struct Seats {
    last: u64,
    all: BTreeMap<u64, Arc<Seat>>,
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

    /// How many clients there are, those that log in among them.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    /// Counts a client, unless there are `max` already.
    #[must_use]
    pub fn admit(self: &Arc<Self>, max: u32) -> Option<Admitted> {
        let before = self.admitted.fetch_add(1, Ordering::Relaxed);
        let admitted = Admitted { roster: Arc::clone(self) };
        (before < u64::from(max)).then_some(admitted)
    }

    /// Gives a client a seat. It has to leave at the latest when `kill` is cancelled.
    pub fn join(
        self: &Arc<Self>,
        identity: Arc<Identity>,
        stream: &Stream,
        slot: Arc<CancelSlot>,
        kill: &CancellationToken,
        application_name: &str,
    ) -> Seated {
        let mut seats = self.lock();
        seats.last += 1;
        let seat = Arc::new(Seat {
            id: seats.last,
            identity,
            addresses: stream.tcp().peer_addr().ok().zip(stream.tcp().local_addr().ok()),
            encryption: stream.encryption(),
            connected_at: jiff::Timestamp::now(),
            slot,
            prepared: AtomicUsize::new(0),
            kill: kill.child_token(),
            state: Mutex::new(SeatState { application_name: application_name.to_owned(), is_told: false }),
            alarm: Arc::clone(&self.alarm),
        });
        seats.all.insert(seat.id, Arc::clone(&seat));
        Seated { roster: Arc::clone(self), seat }
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

impl Drop for Admitted {
    fn drop(&mut self) {
        self.roster.admitted.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.roster.lock().all.remove(&self.seat.id);
        // From now on nobody can tell it to leave.
        if std::mem::replace(&mut self.seat.state().is_told, true) {
            self.seat.alarm.lower();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::server::settings::SettingsRegistry;

    async fn join(roster: &Arc<Roster>, database: &str, all: &CancellationToken) -> Seated {
        let identity = Arc::new(Identity {
            id: 1,
            user: "app".to_owned(),
            database: database.to_owned(),
            settings: SettingsRegistry::default().none(),
            is_exclusive: false,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        roster.join(identity, &Stream::plain(stream), Arc::default(), all, "billing")
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
