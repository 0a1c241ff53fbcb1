//! Random pipelines of the extended protocol are answered as PostgreSQL answers them.

use super::support::client::Client;
use super::support::message::{
    Message, bind, close, copy_data, copy_done, copy_fail, describe, execute, flush, parse, query, sync,
    unnamed,
};
use super::support::same::{Stage, compare, intrude};

/// The pipelines are always the same: a failure names its seed and number. To search on, set `PGROUTING_TEST_SEED` and
/// `PGROUTING_TEST_PIPELINES`.
const SEED: u64 = 1;
const PIPELINES: u64 = 300;
/// Pipelines that one client sends; what it has prepared is there for the next.
const PER_CLIENT: u64 = 15;

const STATEMENTS: [&str; 17] = [
    "SELECT 1",
    "SELECT id, label FROM item WHERE id = $1",
    "SELECT $1::int + $2::int",
    "SELECT nope",
    "SELECT 12 / (id - 3) FROM item ORDER BY id",
    "INSERT INTO item VALUES (20, 'twenty') RETURNING id",
    "UPDATE item SET label = 'x' WHERE id < 3",
    "",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SELECT id FROM item ORDER BY id",
    "this is no SQL",
    "SELECT warn('w')",
    "SAVEPOINT s",
    "ROLLBACK TO s",
    "COPY (SELECT id FROM item ORDER BY id) TO STDOUT",
];

const QUERIES: [&str; 13] = [
    "SELECT 1",
    "SELECT 1; SELECT 2",
    "",
    "SELECT 1/0",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "BEGIN; SELECT 1/0",
    "INSERT INTO item VALUES (30, 'thirty')",
    "SELECT count(*) FROM item",
    "SELECT warn('w')",
    "BEGIN; SAVEPOINT s",
    "COPY (SELECT 1) TO STDOUT",
];

const NAMES: [&str; 4] = ["", "a", "b", "c"];
const PORTALS: [&str; 2] = ["", "p"];
const PARAMETERS: [&[Option<&str>]; 4] = [&[], &[Some("3")], &[Some("1"), Some("2")], &[Some("x")]];

#[test]
fn random_pipelines_are_answered_as_by_postgres() {
    let mut stage = Stage::new();
    let number_in = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let seed = number_in("PGROUTING_TEST_SEED", SEED);
    let pipelines = number_in("PGROUTING_TEST_PIPELINES", PIPELINES);
    let mut random = Random::seeded(seed);
    let mut number = 0;
    while number < pipelines {
        let mut direct = stage.database().direct();
        let mut clients = stage.logins().map(|login| login.connect());
        let mut stranger = stage.logins()[2].connect();
        for _ in 0..PER_CLIENT {
            number += 1;
            let pipeline = Pipeline::make(&mut random, seed, number);
            let expected = pipeline.play(&mut stage, &mut direct);
            for (way, client) in
                ["transaction mode", "session mode", "one connection"].iter().zip(&mut clients)
            {
                let answers = pipeline.play(&mut stage, client);
                compare(&pipeline.title(), way, &expected, &answers);
            }
            intrude(&mut stranger);
            if expected.last().is_some_and(|message| message.kind() == '!') {
                break;
            }
        }
    }
}

/// A sequence of numbers that looks random and is the same each time (xorshift).
struct Random(u64);

impl Random {
    const fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % limit
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

struct Pipeline {
    seed: u64,
    number: u64,
    messages: Vec<(String, Vec<u8>)>,
    /// Where the bytes are cut into writes.
    writes: Vec<usize>,
}

impl Pipeline {
    fn make(random: &mut Random, seed: u64, number: u64) -> Self {
        let mut messages: Vec<_> = (0..random.below(16) + 3).map(|_| message(random)).collect();
        messages.push(("Sync".to_owned(), sync()));
        let length: usize = messages.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut writes: Vec<_> = (0..random.below(4)).map(|_| random.below(length)).collect();
        writes.extend([0, length]);
        writes.sort_unstable();
        Self { seed, number, messages, writes }
    }

    fn title(&self) -> String {
        let words: Vec<_> = self.messages.iter().map(|(words, _)| words.as_str()).collect();
        let Self { seed, number, writes, .. } = self;
        format!("pipeline {number} of seed {seed}, cut at {writes:?}:\n    {}", words.join("\n    "))
    }

    /// Sends it, and then what always ends with a known answer, and reads to there.
    fn play(&self, stage: &mut Stage, client: &mut Client) -> Vec<Message> {
        stage.refill();
        let bytes: Vec<u8> = self.messages.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        for cut in self.writes.windows(2) {
            client.send(&bytes[cut[0]..cut[1]]);
        }
        // An error of syntax comes in every state of a transaction.
        let end = format!("end_of_{}", self.number);
        client.send(&query(&end));
        let mut is_over = false;
        let mut messages = Vec::new();
        loop {
            let message = match client.try_next() {
                Ok(Some(message)) => message,
                Ok(None) => break messages.push(ended("closed")),
                Err(_) => break messages.push(ended("silent")),
            };
            is_over |= message.kind() == 'E' && message.field('M').is_some_and(|text| text.contains(&end));
            let is_last = is_over && message.kind() == 'Z';
            messages.push(without_alias(message.without_place()));
            if is_last {
                client.run("ROLLBACK");
                break;
            }
        }
        messages
    }
}

/// Stands for the end of what a connection says.
fn ended(how: &str) -> Message {
    Message { bytes: format!("!    {how}").into_bytes() }
}

/// Two names of a client for one text are one statement of the server's, so the error that counts parameters may say
/// the other name.
fn without_alias(message: Message) -> Message {
    let alias = b"but prepared statement \"";
    match message.bytes.windows(alias.len()).position(|window| window == alias) {
        Some(at) if message.kind() == 'E' => {
            let mut bytes = message.bytes;
            let name = &mut bytes[at + alias.len()];
            if *name != b'"' {
                *name = b'?';
            }
            Message { bytes }
        }
        _ => message,
    }
}

fn message(random: &mut Random) -> (String, Vec<u8>) {
    let name = random.pick(&NAMES);
    let portal = random.pick(&PORTALS);
    match random.below(100) {
        0..20 => {
            let text = random.pick(&STATEMENTS);
            (format!("Parse {name:?} {text:?}"), parse(name, text))
        }
        20..42 => {
            let parameters = random.pick(&PARAMETERS);
            (format!("Bind {portal:?} {name:?} {parameters:?}"), bind(portal, name, parameters))
        }
        42..50 => {
            let kind = random.pick(&['S', 'P']);
            let name = if kind == 'S' { name } else { portal };
            (format!("Describe {kind} {name:?}"), describe(kind, name))
        }
        50..70 => {
            let rows_max = random.pick(&[0, 0, 2]);
            (format!("Execute {portal:?} {rows_max}"), execute(portal, rows_max))
        }
        70..76 => {
            let kind = random.pick(&['S', 'S', 'P']);
            let name = if kind == 'S' { name } else { portal };
            (format!("Close {kind} {name:?}"), close(kind, name))
        }
        76..85 => ("Sync".to_owned(), sync()),
        85..87 => copy_in(random),
        87..90 => ("Flush".to_owned(), flush()),
        _ => {
            let text = random.pick(&QUERIES);
            (format!("Query {text:?}"), query(text))
        }
    }
}

/// A COPY with its data, by one protocol or the other, or data alone, which is ignored.
fn copy_in(random: &mut Random) -> (String, Vec<u8>) {
    let sql = "COPY item FROM STDIN";
    let (begin, words) = random.pick(&[
        (unnamed as fn(&str) -> Vec<u8>, "Parse, Bind, Execute"),
        (query, "Query"),
        (|_| Vec::new(), "nothing before"),
    ]);
    let data = random.pick(&["40\tforty\n", "41\tforty-one\n42\t\\N\n", "x\tno number\n", ""]);
    let (end, end_words) =
        random.pick(&[(copy_done as fn() -> Vec<u8>, "done"), (|| copy_fail("no"), "fail")]);
    let bytes = [begin(sql), copy_data(data.as_bytes()), end()].concat();
    (format!("{sql} by {words}, {data:?}, {end_words}"), bytes)
}
