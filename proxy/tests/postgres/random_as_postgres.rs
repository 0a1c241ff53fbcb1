//! Random pipelines of the extended protocol are answered as PostgreSQL answers them.

use super::support::client::Client;
use super::support::message::{Message, bind, close, describe, execute, flush, parse, query, sync};
use super::support::same::{Stage, compare, intrude};

/// The pipelines are always the same: a failure names its seed and number.
const SEED: u64 = 0x5eed_0001;
const PIPELINES: u32 = 300;
/// Pipelines that one client sends; what it has prepared is there for the next.
const PER_CLIENT: u32 = 15;

const STATEMENTS: [&str; 16] = [
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
];

const QUERIES: [&str; 12] = [
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
];

const NAMES: [&str; 4] = ["", "a", "b", "c"];
const PORTALS: [&str; 2] = ["", "p"];
const PARAMETERS: [&[Option<&str>]; 4] = [&[], &[Some("3")], &[Some("1"), Some("2")], &[Some("x")]];

#[test]
fn random_pipelines_are_answered_as_by_postgres() {
    let mut stage = Stage::new();
    let mut random = Random(SEED);
    let mut number = 0;
    while number < PIPELINES {
        let mut direct = stage.database().direct();
        let mut clients = stage.logins().map(|login| login.connect());
        let mut stranger = stage.logins()[2].connect();
        for _ in 0..PER_CLIENT {
            number += 1;
            let pipeline = Pipeline::make(&mut random, number);
            let expected = pipeline.play(&mut stage, &mut direct);
            for (way, client) in
                ["transaction mode", "session mode", "one connection"].iter().zip(&mut clients)
            {
                let answers = pipeline.play(&mut stage, client);
                compare(&pipeline.title(), way, &expected, &answers);
            }
            intrude(&mut stranger);
        }
    }
}

/// A sequence of numbers that looks random and is the same each time (xorshift).
struct Random(u64);

impl Random {
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
    number: u32,
    messages: Vec<(String, Vec<u8>)>,
    /// Where the bytes are cut into writes.
    writes: Vec<usize>,
}

impl Pipeline {
    fn make(random: &mut Random, number: u32) -> Self {
        let mut messages: Vec<_> = (0..random.below(16) + 3).map(|_| message(random)).collect();
        messages.push(("Sync".to_owned(), sync()));
        let length: usize = messages.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut writes: Vec<_> = (0..random.below(4)).map(|_| random.below(length)).collect();
        writes.extend([0, length]);
        writes.sort_unstable();
        Self { number, messages, writes }
    }

    fn title(&self) -> String {
        let words: Vec<_> = self.messages.iter().map(|(words, _)| words.as_str()).collect();
        format!(
            "pipeline {} of seed {SEED:#x}, cut at {:?}:\n    {}",
            self.number,
            self.writes,
            words.join("\n    ")
        )
    }

    /// Sends it, and then what always ends with a known answer, and reads to there.
    fn play(&self, stage: &mut Stage, client: &mut Client) -> Vec<Message> {
        if self.messages.iter().any(|(words, _)| words.contains("INSERT") || words.contains("UPDATE")) {
            stage.refill();
        }
        let bytes: Vec<u8> = self.messages.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        for cut in self.writes.windows(2) {
            client.send(&bytes[cut[0]..cut[1]]);
        }
        // An error of syntax comes in every state of a transaction.
        let end = format!("end_of_{}", self.number);
        client.send(&query(&end));
        let mut is_over = false;
        let mut messages = Vec::new();
        while let Ok(Some(message)) = client.try_next() {
            is_over |= message.kind() == 'E' && message.field('M').is_some_and(|text| text.contains(&end));
            let is_last = is_over && message.kind() == 'Z';
            messages.push(without_alias(message.without_place()));
            if is_last {
                break;
            }
        }
        client.run("ROLLBACK");
        messages
    }
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
        76..87 => ("Sync".to_owned(), sync()),
        87..90 => ("Flush".to_owned(), flush()),
        _ => {
            let text = random.pick(&QUERIES);
            (format!("Query {text:?}"), query(text))
        }
    }
}
