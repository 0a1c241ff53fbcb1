//! Cancel requests at random moments end a request of their own client, or nothing.
//!
//! What a cancel hits cannot be foretold, so each answer is the right one or 57014; that of a second client on the
//! same server connections is the right one. A cancel may also come while the proxy asks or tells the server something
//! of its own between two requests, which must lose no setting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::support::client::{Client, Login};
use super::support::message::{
    Answer, bind, close, copy_data, copy_done, describe, execute, parse, query, sync, unnamed,
};
use super::support::proxy::{Proxy, pool_of, session_pool_of};
use super::support::random::{Random, number_in};
use super::support::server::Database;

/// To search on, set `PGROUTING_TEST_SEED` and `PGROUTING_TEST_REQUESTS`.
const SEED: u64 = 1;
const REQUESTS: u64 = 150;
/// The longest time between two cancel requests.
const PAUSE_MICROSECONDS_MAX: usize = 4_000;
const CANCELLED: Option<&str> = Some("57014");

#[test]
fn cancels_at_random_moments_end_what_is_their_clients_own_or_nothing() {
    let database = Database::create();
    database.direct().run("CREATE TABLE ledger(n int)");
    let seed = number_in("PGROUTING_TEST_SEED", SEED);
    let requests = number_in("PGROUTING_TEST_REQUESTS", REQUESTS);
    for config in [pool_of(1), pool_of(2), session_pool_of(3)] {
        let proxy = Proxy::start(config);
        database.direct().run("TRUNCATE ledger");
        let mut victim = Victim::new(proxy.login(&database));
        let mut random = Random::seeded(seed);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let bystander = proxy.client(&database);
            scope.spawn(|| stand_by(bystander, &is_over));
            let (port, key) = (proxy.port, victim.client.key.clone());
            let is_over = &is_over;
            scope.spawn(move || {
                let mut random = Random::seeded(seed + 1);
                while !is_over.load(Ordering::Relaxed) {
                    Client::cancel_at(port, &key);
                    let pause = u64::try_from(random.below(PAUSE_MICROSECONDS_MAX)).unwrap();
                    std::thread::sleep(Duration::from_micros(pause));
                }
            });
            // A failure must end the other two as well.
            let _over = OnDrop(is_over);
            for number in 0..requests {
                victim.ask(&mut random, number);
            }
        });
        victim.check_ledger();
    }
}

/// Says that it is over, however it ends.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Uses the same connections, with other settings, and is never hit.
fn stand_by(mut client: Client, is_over: &AtomicBool) {
    let _over = OnDrop(is_over);
    client.run("SET work_mem = '9999kB'");
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        number += 1;
        let sql = format!("SELECT current_setting('work_mem') || ' {number}' FROM pg_sleep(0.0005)");
        let answer = match number % 3 {
            0 => client.try_query(&sql),
            1 => client.ask(&[unnamed(&sql), sync()].concat()),
            _ => client.ask(
                &[close('S', "s"), parse("s", &sql), bind("", "s", &[]), execute("", 0), sync()].concat(),
            ),
        };
        assert_eq!(answer.column(), [format!("9999kB {number}")], "the bystander sees {answer:?}");
    }
}

/// The client whose requests are cancelled, and what it knows that it has.
struct Victim {
    client: Client,
    work_mem: String,
    /// What was written for certain.
    written: Vec<String>,
}

impl Victim {
    fn new(login: Login) -> Self {
        let mut client = login.connect();
        client.run("SET work_mem = '1000kB'");
        client.ask(&[parse("kept", "SELECT $1::text FROM pg_sleep(0.001)"), sync()].concat());
        Self { client, work_mem: "1000kB".to_owned(), written: Vec::new() }
    }

    fn ask(&mut self, random: &mut Random, number: u64) {
        let value = number.to_string();
        let sleeping = format!("SELECT '{value}' FROM pg_sleep(0.00{})", random.below(4));
        match random.below(9) {
            0 => self.expect(&query(&sleeping), &[&value]),
            1 => {
                self.expect(&[bind("", "kept", &[Some(&value)]), execute("", 0), sync()].concat(), &[&value])
            }
            2 => self.expect(&[parse("", &sleeping), describe('S', ""), sync()].concat(), &[]),
            3 => {
                let sql = format!("COPY (SELECT '{value}' FROM generate_series(1, 2000)) TO STDOUT");
                self.expect(&query(&sql), &[]);
            }
            4 => self.expect(&query("SHOW work_mem"), &[&self.work_mem.clone()]),
            5 => self.set(number),
            6 => self.write(&value),
            7 => self.several_at_once(&value),
            _ => self.in_a_transaction(&sleeping, &value),
        }
    }

    fn expect(&mut self, request: &[u8], right: &[&str]) {
        let answer = self.client.ask(request);
        assert!(is_right(&answer, right), "{} is not {right:?}: {answer:?}", request.escape_ascii());
        assert_eq!(answer.status(), 'I', "{answer:?}");
    }

    /// A setting is the new one where the answer says so, else the old or the new one.
    fn set(&mut self, number: u64) {
        // An odd number is told as it is, and not in MB.
        let new = format!("{}kB", 1001 + 2 * number);
        let answer = self.client.try_query(&format!("SET work_mem = '{new}'"));
        assert!(is_right(&answer, &[]), "{answer:?}");
        if answer.sqlstate().is_none() {
            self.work_mem = new;
            return;
        }
        let now = loop {
            let answer = self.client.try_query("SHOW work_mem");
            match answer.sqlstate() {
                None => break answer.column().swap_remove(0),
                code => assert_eq!(code.as_deref(), CANCELLED),
            }
        };
        assert!(now == new || now == self.work_mem, "{now} is neither {new} nor {}", self.work_mem);
        self.work_mem = now;
    }

    /// By INSERT or COPY, either for certain or not.
    fn write(&mut self, value: &str) {
        let request = if self.written.len().is_multiple_of(2) {
            query(&format!("INSERT INTO ledger VALUES ({value})"))
        } else {
            [query("COPY ledger FROM STDIN"), copy_data(format!("{value}\n").as_bytes()), copy_done()]
                .concat()
        };
        let answer = self.client.ask(&request);
        assert!(is_right(&answer, &[]), "{answer:?}");
        if answer.sqlstate().is_none() {
            self.written.push(value.to_owned());
        }
    }

    /// One that is cancelled does not take the next with it.
    fn several_at_once(&mut self, value: &str) {
        let sql = format!("SELECT '{value}' FROM pg_sleep(0.001)");
        let bound = [bind("", "kept", &[Some(value)]), execute("", 0), sync()].concat();
        self.client.send(&[unnamed(&sql), sync(), bound, query(&sql)].concat());
        for _ in 0..3 {
            let answer = self.client.ready();
            assert!(is_right(&answer, &[value]), "{answer:?}");
            assert_eq!(answer.status(), 'I', "{answer:?}");
        }
    }

    /// What was cancelled fails the transaction, and a setting goes with it.
    fn in_a_transaction(&mut self, sleeping: &str, value: &str) {
        let mut is_failed = false;
        for (sql, right) in [
            ("BEGIN", [].as_slice()),
            ("SET work_mem = '8888kB'", &[]),
            (sleeping, &[value]),
            ("SHOW work_mem", &["8888kB"]),
        ] {
            let answer = self.client.try_query(sql);
            match answer.sqlstate().as_deref() {
                // Without its BEGIN there is no transaction.
                CANCELLED if sql == "BEGIN" && answer.status() == 'I' => return,
                CANCELLED => is_failed = true,
                Some("25P02") => assert!(is_failed, "{answer:?}"),
                other => {
                    assert!(other.is_none() && !is_failed && answer.column() == right, "{sql}: {answer:?}")
                }
            }
            assert_eq!(answer.status(), if is_failed { 'E' } else { 'T' }, "{sql}: {answer:?}");
        }
        while self.client.try_query("ROLLBACK").status() != 'I' {}
    }

    /// What was said to be written is there, and nothing is there twice.
    fn check_ledger(mut self) {
        // Cancel requests that are under way may still hit this one.
        let found = loop {
            let answer = self.client.try_query("SELECT n FROM ledger ORDER BY n");
            if answer.sqlstate().is_none() {
                break answer.column();
            }
        };
        assert!(found.windows(2).all(|two| two[0] != two[1]), "{found:?}");
        assert!(
            self.written.iter().all(|value| found.contains(value)),
            "{found:?} misses some of {:?}",
            self.written
        );
    }
}

/// Whether a request had its right answer or was cancelled.
fn is_right(answer: &Answer, right: &[&str]) -> bool {
    match answer.sqlstate().as_deref() {
        None => answer.column() == right,
        code => code == CANCELLED,
    }
}
