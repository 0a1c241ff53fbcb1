//! Follows host names that pools take their servers from: all their addresses, looked up again and again.
//!
//! The system's resolver is asked, which keeps to the records' times to live; nothing is kept here longer. An address counts
//! from the first answer that has it, and is gone when several in a row do not: some servers give only a part of many
//! records at a time.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// The grain of looking up again.
const TICK: Duration = Duration::from_millis(100);

/// The longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers in a row that an address has to be missing from.
const MISSING_MAX: u8 = 3;

/// How long a name is followed that no pass has asked for.
const FOLLOWED_FOR: Duration = Duration::from_secs(120);

/// Names that are looked up at the same time.
const LOOKUPS_AT_ONCE: usize = 16;

/// The names that are followed.
#[derive(Debug, Clone, Default)]
pub struct Dns {
    names: Arc<Mutex<HashMap<String, Followed>>>,
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Followed {
    /// Each address, and how many answers in a row did not have it.
    addresses: BTreeMap<IpAddr, u8>,
    /// What went wrong the last time.
    fault: Option<String>,
    refresh: Duration,
    asked_at: Instant,
    used_at: Instant,
}

impl Dns {
    /// The addresses of a name as they are known, which is followed from now on; what went wrong the last time, if
    /// something did.
    pub async fn addresses(&self, host: &str, refresh: Duration) -> (Vec<IpAddr>, Option<String>) {
        if let Some(followed) = self.lock().get_mut(host) {
            followed.used_at = Instant::now();
            followed.refresh = refresh;
            return followed.known();
        }
        let asked_at = Instant::now();
        let answer = lookup(host).await;
        let mut names = self.lock();
        let followed = names.entry(host.to_owned()).or_insert_with(|| Followed {
            addresses: BTreeMap::new(),
            fault: None,
            refresh,
            asked_at,
            used_at: asked_at,
        });
        followed.take(answer, asked_at);
        followed.known()
    }

    /// Tells when an answer is another one than before.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Looks up what is due, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(TICK)).await.is_some() {
            self.look_up_due(lookup).await;
        }
    }

    async fn look_up_due<F>(&self, lookup: impl Fn(String) -> F)
    where
        F: Future<Output = Result<Vec<IpAddr>, String>>,
    {
        let now = Instant::now();
        let due: Vec<String> = {
            let mut names = self.lock();
            names.retain(|_, followed| followed.used_at.elapsed() < FOLLOWED_FOR);
            let is_due =
                |followed: &Followed| now.saturating_duration_since(followed.asked_at) >= followed.refresh;
            names.iter().filter(|(_, followed)| is_due(followed)).map(|(name, _)| name.clone()).collect()
        };
        let lookup = &lookup;
        let answers = futures::stream::iter(due).map(|name| async move {
            let answer = lookup(name.clone()).await;
            (name, answer)
        });
        let mut answers = answers.buffer_unordered(LOOKUPS_AT_ONCE);
        while let Some((name, answer)) = answers.next().await {
            let is_new = self.lock().get_mut(&name).is_some_and(|followed| followed.take(answer, now));
            if is_new {
                self.changes.send_modify(|count| *count = count.wrapping_add(1));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Followed>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Followed {
    /// Takes an answer; tells whether what is known is another thing now.
    fn take(&mut self, answer: Result<Vec<IpAddr>, String>, asked_at: Instant) -> bool {
        self.asked_at = asked_at;
        let before = self.known();
        match answer {
            Ok(addresses) => {
                self.fault = None;
                for (address, missing) in &mut self.addresses {
                    *missing = if addresses.contains(address) { 0 } else { *missing + 1 };
                }
                self.addresses.retain(|_, missing| *missing < MISSING_MAX);
                for address in addresses {
                    self.addresses.entry(address).or_default();
                }
            }
            Err(fault) => self.fault = Some(fault),
        }
        self.known() != before
    }

    fn known(&self) -> (Vec<IpAddr>, Option<String>) {
        (self.addresses.keys().copied().collect(), self.fault.clone())
    }
}

/// All addresses of a name.
async fn lookup(host: impl AsRef<str>) -> Result<Vec<IpAddr>, String> {
    let host = host.as_ref();
    match timeout(ANSWER_TIMEOUT, tokio::net::lookup_host((host, 0))).await {
        Ok(Ok(found)) => {
            let addresses: Vec<_> = found.map(|address| address.ip()).collect();
            if addresses.is_empty() { Err("it has no address".to_owned()) } else { Ok(addresses) }
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer in {ANSWER_TIMEOUT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn followed() -> Followed {
        let now = Instant::now();
        Followed { addresses: BTreeMap::new(), fault: None, refresh: TICK, asked_at: now, used_at: now }
    }

    #[test]
    fn an_address_comes_at_once_and_goes_when_it_stays_away() {
        let mut followed = followed();
        let mut take = |answer| followed.take(answer, Instant::now());
        assert!(take(Ok(vec![ip(1), ip(2)])));
        assert!(!take(Ok(vec![ip(2), ip(1)])), "in another order");
        assert!(!take(Ok(vec![ip(1)])) && !take(Ok(vec![ip(1)])));
        assert!(!take(Ok(vec![ip(2), ip(1)])), "it is back");
        assert!(!take(Ok(vec![ip(1)])) && !take(Ok(vec![ip(1)])));
        assert!(take(Ok(vec![ip(1)])), "the third time in a row");
        assert!(take(Err("no".to_owned())) && !take(Err("no".to_owned())));
        assert_eq!(followed.known(), (vec![ip(1)], Some("no".to_owned())), "what is known stays");
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_when_it_is_due_and_changes_are_told() {
        let dns = Dns::default();
        let mut changes = dns.changes();
        dns.lock().insert("pg.test".to_owned(), followed());
        dns.look_up_due(|_| async { panic!("it is not due") }).await;
        tokio::time::advance(TICK).await;
        dns.look_up_due(|_| async { Ok(vec![ip(1)]) }).await;
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        tokio::time::advance(TICK).await;
        dns.look_up_due(|_| async { Ok(vec![ip(1)]) }).await;
        assert!(!changes.has_changed().unwrap());
        assert_eq!(dns.addresses("pg.test", TICK).await, (vec![ip(1)], None));
        tokio::time::advance(FOLLOWED_FOR).await;
        dns.look_up_due(|_| async { panic!("nobody asks for it any more") }).await;
        assert!(dns.lock().is_empty());
    }

    #[tokio::test]
    async fn the_system_is_asked() {
        assert_eq!(
            Dns::default().addresses("127.0.0.1", TICK).await,
            (vec![IpAddr::from([127, 0, 0, 1])], None)
        );
        let (addresses, fault) = Dns::default().addresses("no-such-host.invalid", TICK).await;
        assert!(addresses.is_empty() && fault.is_some());
    }
}
