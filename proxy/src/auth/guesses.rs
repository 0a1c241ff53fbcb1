//! Slows down whoever guesses passwords; the time is passed in.
//!
//! A few wrong passwords cost nothing, since people mistype. After that each further try waits for its turn before anything of
//! it is looked at, so that tries at the same time gain nothing. Tries are counted for a user at an address, and for an
//! address over all users; whoever has got in from there lately is not held up by what others at that address do. All of
//! that goes by the name that is claimed, so that nobody learns which users there are.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// Wrong passwords count for that long after the last one.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// Whoever has got in is known for that long.
const TRUSTED_FOR: Duration = Duration::from_secs(3600);

/// Users, and addresses, that are remembered.
const ENTRIES_MAX: usize = 4096;

/// The rule for one user at one address.
const USER: Rule = Rule { free: 5, distance: Duration::from_secs(1) };

/// The rule for one address.
const ADDRESS: Rule = Rule { free: 50, distance: Duration::from_millis(100) };

/// Whoever would have to wait for longer is turned away.
const WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Rule {
    /// Wrong passwords that cost nothing.
    free: u32,
    /// The time between two tries after that.
    distance: Duration,
}

/// What is remembered.
#[derive(Debug, Default)]
pub struct Guesses {
    users: HashMap<(IpAddr, String), Record>,
    addresses: HashMap<IpAddr, Record>,
    trusted: HashMap<(IpAddr, String), Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    wrong: u32,
    last: Instant,
    /// When the next try may be looked at.
    next: Instant,
}

/// There were too many wrong passwords to look at one more now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany;

impl Guesses {
    /// How long a login has to wait. Its turn is kept for it.
    ///
    /// # Errors
    /// When that would be too long.
    pub fn turn(&mut self, address: IpAddr, user: &str, now: Instant) -> Result<Duration, TooMany> {
        if self.users.is_empty() && self.addresses.is_empty() {
            return Ok(Duration::ZERO);
        }
        let key = (network(address), user.to_owned());
        let is_trusted = self.trusted.get(&key).is_some_and(|at| now.duration_since(*at) < TRUSTED_FOR);
        let mut of_user = self.users.get_mut(&key).and_then(|record| Turn::of(record, &USER, now));
        let mut of_address = self.addresses.get_mut(&key.0).filter(|_| !is_trusted);
        let mut of_address = of_address.as_mut().and_then(|record| Turn::of(record, &ADDRESS, now));
        let turns = [&of_user, &of_address].into_iter().flatten();
        let at = turns.map(|turn| turn.at).max().unwrap_or(now);
        if at - now > WAIT_MAX {
            return Err(TooMany);
        }
        [&mut of_user, &mut of_address].into_iter().flatten().for_each(Turn::keep);
        Ok(at - now)
    }

    /// A password was wrong.
    pub fn failed(&mut self, address: IpAddr, user: &str, now: Instant) {
        let network = network(address);
        note(&mut self.users, (network, user.to_owned()), &USER, now);
        note(&mut self.addresses, network, &ADDRESS, now);
    }

    /// A password was right.
    pub fn succeeded(&mut self, address: IpAddr, user: &str, now: Instant) {
        let network = network(address);
        let key = (network, user.to_owned());
        if !self.trusted.contains_key(&key) {
            make_room(&mut self.trusted, |at| *at);
        }
        self.users.remove(&key);
        self.trusted.insert(key, now);
    }
}

/// When a try may be looked at, by one rule.
struct Turn<'a> {
    record: &'a mut Record,
    rule: &'a Rule,
    at: Instant,
}

impl<'a> Turn<'a> {
    /// None where it may be looked at, at once.
    fn of(record: &'a mut Record, rule: &'a Rule, now: Instant) -> Option<Self> {
        let is_counted = record.wrong > rule.free && now.duration_since(record.last) < REMEMBERED_FOR;
        let at = record.next.max(now);
        is_counted.then_some(Self { record, rule, at })
    }

    /// It will be taken.
    fn keep(&mut self) {
        self.record.next = self.at + self.rule.distance;
    }
}

fn note<K: Eq + Hash + Clone>(known: &mut HashMap<K, Record>, key: K, rule: &Rule, now: Instant) {
    if !known.contains_key(&key) {
        make_room(known, |record| record.last);
    }
    let record = known.entry(key).or_insert(Record { wrong: 0, last: now, next: now });
    if now.duration_since(record.last) >= REMEMBERED_FOR {
        record.wrong = 0;
    }
    record.wrong = record.wrong.saturating_add(1);
    record.last = now;
    record.next = record.next.max(now + rule.distance);
}

/// Forgets what is oldest where there is too much: the older half, so that it is not done each time.
fn make_room<K: Eq + Hash + Clone, V>(known: &mut HashMap<K, V>, at: impl Fn(&V) -> Instant) {
    if known.len() < ENTRIES_MAX {
        return;
    }
    let mut times: Vec<_> = known.values().map(&at).collect();
    times.sort_unstable();
    let Some(middle) = times.get(times.len() / 2).copied() else { return };
    known.retain(|_, value| at(value) > middle);
}

/// Whose address it is: one of IPv6 is as good as any other of the same /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn seconds(wait: Result<Duration, TooMany>) -> Option<u64> {
        wait.ok().map(|wait| wait.as_secs())
    }

    #[test]
    fn a_few_mistakes_cost_nothing_and_many_cost_time() {
        let (mut guesses, now) = (Guesses::default(), Instant::now());
        for _ in 0..=USER.free {
            assert_eq!(guesses.turn(HERE, "app", now), Ok(Duration::ZERO));
            guesses.failed(HERE, "app", now);
        }
        // Tries at the same time stand in line, and the line is short.
        let waits: Vec<_> = (0..7).map(|_| seconds(guesses.turn(HERE, "app", now))).collect();
        assert_eq!(waits, [Some(1), Some(2), Some(3), Some(4), Some(5), None, None]);
        assert_eq!(guesses.turn(THERE, "app", now), Ok(Duration::ZERO), "another address");
        assert_eq!(guesses.turn(HERE, "web", now), Ok(Duration::ZERO), "another user");
        assert_eq!(seconds(guesses.turn(HERE, "app", now + REMEMBERED_FOR)), Some(0), "it is forgotten");
    }

    #[test]
    fn whoever_gets_in_has_a_clean_slate() {
        let (mut guesses, now) = (Guesses::default(), Instant::now());
        (0..10).for_each(|_| guesses.failed(HERE, "app", now));
        assert_eq!(seconds(guesses.turn(HERE, "app", now)), Some(1));
        guesses.succeeded(HERE, "app", now);
        assert_eq!(guesses.turn(HERE, "app", now), Ok(Duration::ZERO));
    }

    #[test]
    fn many_users_from_one_address_are_one_guesser_but_not_those_who_got_in() {
        let (mut guesses, now) = (Guesses::default(), Instant::now());
        guesses.succeeded(HERE, "app", now);
        for number in 0..=ADDRESS.free {
            guesses.failed(HERE, &format!("user-{number}"), now);
        }
        let waits: Vec<_> = (0..3).map(|number| guesses.turn(HERE, &format!("next-{number}"), now)).collect();
        assert_eq!(waits, [100, 200, 300].map(|millis| Ok(Duration::from_millis(millis))));
        assert_eq!(guesses.turn(HERE, "app", now), Ok(Duration::ZERO));
        assert_eq!(guesses.turn(THERE, "user-1", now), Ok(Duration::ZERO));
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let (mut guesses, now) = (Guesses::default(), Instant::now());
        for number in 0..3 * u32::try_from(ENTRIES_MAX).unwrap() {
            let at = now + Duration::from_millis(number.into());
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            guesses.failed(address, "app", at);
            guesses.succeeded(address, &number.to_string(), at);
        }
        for count in [guesses.users.len(), guesses.addresses.len(), guesses.trusted.len()] {
            assert!(count <= ENTRIES_MAX, "{count}");
        }
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let [one, same, other]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"].map(|text| text.parse().unwrap());
        assert_eq!(network(one), network(same));
        assert_ne!(network(one), network(other));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), HERE);
    }
}
