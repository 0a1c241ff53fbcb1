//! Plays a script of messages to PostgreSQL and, in several ways, through the proxy, and compares the answers.
//!
//! PostgreSQL answers a stream of messages the same way however it is cut into writes, so one answer, taken straight
//! from the server, is what every way must give, byte for byte.

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;
use std::time::Duration;

use super::client::{Client, Login};
use super::message::{Message, bind, close, execute, parse, query, sync};
use super::proxy::{Proxy, pool_of, session_pool_of};
use super::server::Database;

/// The longest wait for an answer that may never come because the ways differ.
const PATIENCE: Duration = Duration::from_secs(10);

/// Messages and where to wait for answers.
#[derive(Debug)]
pub struct Script {
    name: &'static str,
    steps: Vec<(Vec<u8>, Until)>,
    is_pinning: bool,
    is_anywhere: bool,
}

#[derive(Debug, Clone, Copy)]
enum Until {
    Ready(usize),
    Kind(char),
    Count(usize),
}

impl Script {
    /// An empty one.
    pub const fn new(name: &'static str) -> Self {
        Self { name, steps: Vec::new(), is_pinning: false, is_anywhere: false }
    }

    /// Sends and waits for `ReadyForQuery`.
    pub fn ask(self, bytes: impl AsRef<[u8]>) -> Self {
        self.step(bytes, Until::Ready(1))
    }

    /// Sends a simple query and waits for `ReadyForQuery`.
    pub fn query(self, sql: &str) -> Self {
        self.ask(query(sql))
    }

    /// Sends the messages and a `Sync`, and waits for `ReadyForQuery`.
    pub fn synced(self, messages: impl AsRef<[u8]>) -> Self {
        self.ask([messages.as_ref(), &sync()].concat())
    }

    /// Sends and waits for so many `ReadyForQuery`.
    pub fn ask_times(self, count: usize, bytes: impl AsRef<[u8]>) -> Self {
        self.step(bytes, Until::Ready(count))
    }

    /// Sends and waits for a message of this type.
    pub fn until(self, kind: char, bytes: impl AsRef<[u8]>) -> Self {
        self.step(bytes, Until::Kind(kind))
    }

    /// Sends and waits for so many messages.
    pub fn count(self, count: usize, bytes: impl AsRef<[u8]>) -> Self {
        self.step(bytes, Until::Count(count))
    }

    /// Sends and waits for nothing.
    pub fn send(self, bytes: impl AsRef<[u8]>) -> Self {
        self.count(0, bytes)
    }

    /// The session keeps its connection, so nobody else can come in between where there is only one.
    pub const fn pinning(mut self) -> Self {
        self.is_pinning = true;
        self
    }

    /// Errors may come from another place in the server's source: a statement that has to be prepared again is refused
    /// when it is parsed instead of when it is bound.
    pub const fn placeless(mut self) -> Self {
        self.is_anywhere = true;
        self
    }

    fn step(mut self, bytes: impl AsRef<[u8]>, until: Until) -> Self {
        self.steps.push((bytes.as_ref().to_vec(), until));
        self
    }

    fn compare(&self, way: &str, expected: &[Message], answers: &[Message]) {
        if self.is_anywhere {
            let placeless =
                |messages: &[Message]| messages.iter().map(Message::without_place).collect::<Vec<_>>();
            compare(self.name, way, &placeless(expected), &placeless(answers));
        } else {
            compare(self.name, way, expected, answers);
        }
    }

    /// All steps, and a query that brings to light whatever was answered too much.
    fn bytes(&self) -> Vec<u8> {
        self.steps.iter().flat_map(|(bytes, _)| bytes.clone()).chain(query(LAST)).collect()
    }
}

const LAST: &str = "SELECT 'the last answer'";

/// A database and the proxies through which scripts are played.
#[derive(Debug)]
pub struct Setting {
    database: Database,
    admin: Client,
    transaction: Proxy,
    session: Proxy,
    narrow: Proxy,
}

/// A setting that one test has to itself. Tests hand settings on, since starting one takes long, so that what an
/// earlier test left on the server connections is there too; one that failed keeps its own, and shows the logs.
#[derive(Debug)]
pub struct Stage(Option<Setting>);

/// Settings that no test has now.
static FREE: Mutex<Vec<Setting>> = Mutex::new(Vec::new());

impl Setting {
    fn start() -> Self {
        let mut proxies = [pool_of(3), session_pool_of(8), pool_of(1)].map(Proxy::spawn);
        let database = Database::create();
        let mut admin = database.admin();
        admin.run(
            "CREATE TABLE item(id int PRIMARY KEY, label text); ALTER TABLE item OWNER TO app; \
             CREATE FUNCTION warn(text) RETURNS text LANGUAGE plpgsql AS \
             $$BEGIN RAISE NOTICE 'note %', $1; RETURN $1; END$$",
        );
        proxies.iter_mut().for_each(Proxy::await_ready);
        let [transaction, session, narrow] = proxies;
        Self { database, admin, transaction, session, narrow }
    }
}

impl Deref for Stage {
    type Target = Setting;

    fn deref(&self) -> &Setting {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for Stage {
    fn deref_mut(&mut self) -> &mut Setting {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            FREE.lock().unwrap().extend(self.0.take());
        }
    }
}

impl Stage {
    /// Takes one that is free, or starts one.
    pub fn new() -> Self {
        let free = FREE.lock().unwrap().pop();
        Self(Some(free.unwrap_or_else(Setting::start)))
    }

    /// Its database, which has the table `item` with ids 1 to 6, filled anew for each way.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Plays a script in every way.
    pub fn check(&mut self, script: &Script) {
        let expected = self.straight(script);
        let flat = expected.concat();
        for (way, login) in [
            ("in transaction mode", self.transaction.login(&self.database)),
            ("in transaction mode, again", self.transaction.login(&self.database)),
            ("in session mode", self.session.login(&self.database)),
        ] {
            self.refill();
            let mut client = login.connect();
            let answers = play(&mut client, script, &expected, || {});
            script.compare(way, &flat, &answers);
            client.leave();
        }
        if !script.is_pinning {
            self.refill();
            let mut client = self.narrow.client(&self.database);
            let mut stranger = self.narrow.client(&self.database);
            let answers = play(&mut client, script, &expected, || intrude(&mut stranger));
            script.compare("with a stranger on the same connection", &flat, &answers);
            client.leave();
            stranger.leave();
        }
        self.check_cuts(script, &flat);
    }

    /// Plays a script that is cut into writes in other ways.
    fn check_cuts(&mut self, script: &Script, expected: &[Message]) {
        let bytes = script.bytes();
        let login = self.transaction.login(&self.database);
        for (way, size) in [("in one write", bytes.len()), ("byte by byte", 1)] {
            self.refill();
            let mut client = login.connect();
            bytes.chunks(size).for_each(|chunk| client.send(chunk));
            let answers = read(&mut client, expected.len());
            script.compare(way, expected, &answers);
            client.leave();
        }
    }

    /// Plays a script that changes nothing, cut in two at every byte.
    pub fn check_every_cut(&mut self, script: &Script) {
        let expected = self.straight(script).concat();
        let bytes = script.bytes();
        for cut in 1..bytes.len() {
            // A new client for each, since the script may not end where it began.
            let mut client = self.transaction.client(&self.database);
            let (first, second) = bytes.split_at(cut);
            client.send(first);
            std::thread::yield_now();
            client.send(second);
            let answers = read(&mut client, expected.len());
            script.compare(&format!("cut after {cut} bytes"), &expected, &answers);
            client.leave();
        }
    }

    /// The logins of the three proxies: transaction mode, session mode, one connection.
    pub fn logins(&self) -> [Login; 3] {
        [&self.transaction, &self.session, &self.narrow].map(|proxy| proxy.login(&self.database))
    }

    /// PostgreSQL's own answers, one list a step and one for the last query.
    fn straight(&mut self, script: &Script) -> Vec<Vec<Message>> {
        self.refill();
        let mut client = self.database.direct();
        let mut answers = Vec::new();
        for (bytes, until) in &script.steps {
            client.send(bytes);
            answers.push(match *until {
                Until::Ready(count) => client.ready_times(count).messages,
                Until::Kind(kind) => client.until(kind).messages,
                Until::Count(count) => read(&mut client, count),
            });
        }
        answers.push(client.ask(&query(LAST)).messages);
        client.leave();
        answers
    }

    /// Fills the table anew.
    pub fn refill(&mut self) {
        self.admin
            .run("TRUNCATE item; INSERT INTO item SELECT n, 'label ' || n FROM generate_series(1, 6) n");
    }
}

/// Plays a script step by step; `between` runs whenever the client is between transactions.
fn play(
    client: &mut Client,
    script: &Script,
    expected: &[Vec<Message>],
    mut between: impl FnMut(),
) -> Vec<Message> {
    let mut answers = Vec::new();
    let last = (query(LAST), Until::Ready(1));
    for ((bytes, _), expected) in script.steps.iter().chain([&last]).zip(expected) {
        client.send(bytes);
        let answer = read(client, expected.len());
        let is_between = answer.last().is_some_and(|message| message.bytes == b"Z\0\0\0\x05I");
        let is_complete = answer.len() == expected.len();
        answers.extend(answer);
        if !is_complete {
            break;
        }
        if is_between {
            between();
        }
    }
    answers
}

/// Reads so many messages, or fewer when no more come.
pub fn read(client: &mut Client, count: usize) -> Vec<Message> {
    client.set_patience(PATIENCE);
    let mut messages = Vec::new();
    while messages.len() < count {
        match client.try_next() {
            Ok(Some(message)) => messages.push(message),
            Ok(None) | Err(_) => break,
        }
    }
    messages
}

/// Another client uses the names that scripts use, for statements of its own.
pub fn intrude(stranger: &mut Client) {
    for name in ["", "a", "b"] {
        let text = format!("SELECT 'a stranger''s {name}'");
        let batch = [close('S', name), parse(name, &text), bind("p", name, &[]), execute("p", 0), sync()];
        let answer = stranger.ask(&batch.concat());
        assert_eq!(answer.column(), [format!("a stranger's {name}")], "the stranger sees {answer:?}");
    }
}

/// Panics at the first message that differs.
pub fn compare(script: &str, way: &str, expected: &[Message], answers: &[Message]) {
    if expected == answers {
        return;
    }
    let same = expected.iter().zip(answers).take_while(|(a, b)| a == b).count();
    panic!(
        "{script}, {way}: after {same} equal messages\n  PostgreSQL: {:?}\n  the proxy:  {:?}\nall of PostgreSQL: \
         {expected:#?}\nall of the proxy: {answers:#?}",
        expected.get(same),
        answers.get(same),
    );
}
