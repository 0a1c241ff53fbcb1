//! Random pipelines of the extended protocol are answered as PostgreSQL answers them.

use super::support::client::Client;
use super::support::message::{
    Message, bind, bind_formatted, close, copy_data, copy_done, copy_fail, describe, execute, flush,
    function_call, parse_typed, query, sync, unnamed,
};
use super::support::random::{Random, number_in};
use super::support::same::{Stage, compare, intrude};

/// The pipelines are always the same: a failure names its seed and number. To search on, set `PGROUTING_TEST_SEED` and
/// `PGROUTING_TEST_PIPELINES`.
const SEED: u64 = 1;
const PIPELINES: u64 = 300;
/// Pipelines that one client sends; what it has prepared is there for the next.
const PER_CLIENT: u64 = 15;

/// By either protocol. What changes the session is told of at the end of each pipeline.
const STATEMENTS: [&str; 50] = [
    "",
    "SELECT 1",
    "SELECT id FROM item ORDER BY id",
    "SELECT count(*) FROM item",
    "SELECT warn('w')",
    "SELECT repeat('long ', 20000)",
    "INSERT INTO item VALUES (20, 'twenty') RETURNING id",
    "UPDATE item SET label = 'x' WHERE id < 3",
    "COPY (SELECT id FROM item ORDER BY id) TO STDOUT",
    "COPY (SELECT 12 / (4 - id) FROM item ORDER BY id) TO STDOUT",
    "NOTIFY nobody",
    "VALUES (1), (2), (3), (4)",
    // Errors.
    "SELECT nope",
    "this is no SQL",
    "SELECT 12 / (id - 3) FROM item ORDER BY id",
    "INSERT INTO item VALUES (1, 'twice')",
    "INSERT INTO later VALUES (1), (1)",
    "SELECT 'x'::int",
    "COPY nothing TO STDOUT",
    "DO $$BEGIN RAISE 'own' USING ERRCODE = 'P0042', DETAIL = 'd', HINT = 'h'; END$$",
    "VACUUM nothing",
    // Transactions.
    "BEGIN",
    "BEGIN",
    "COMMIT",
    "COMMIT",
    "ROLLBACK",
    "ROLLBACK",
    "BEGIN READ ONLY",
    "COMMIT AND CHAIN",
    "SAVEPOINT s",
    "ROLLBACK TO s",
    "RELEASE s",
    "DECLARE c CURSOR FOR SELECT id FROM item ORDER BY id",
    "FETCH 2 FROM c",
    "CLOSE c",
    "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET LOCAL work_mem = '3MB'",
    // Settings.
    "SET work_mem = '1MB'",
    "SET work_mem = 'nonsense'",
    "SET DateStyle = 'German'",
    "SET application_name = 'one'",
    "SET extra_float_digits = 0; SET TimeZone = 'Asia/Tokyo'",
    "SELECT set_config('work_mem', '2MB', false)",
    "RESET work_mem",
    "RESET ALL",
    "SHOW work_mem",
    "SET default_transaction_read_only = on",
    // All that a session has.
    "DEALLOCATE ALL",
    "DISCARD ALL",
    "DISCARD PLANS",
];

/// With parameters, by the extended protocol only.
const PARAMETERISED: [&str; 4] = [
    "SELECT id, label FROM item WHERE id = $1",
    "SELECT $1::int + $2::int",
    "SELECT length($1)",
    "SELECT set_config('work_mem', $1 || 'MB', false)",
];

/// By the simple protocol only.
const QUERIES: [&str; 9] = [
    "SELECT 1; SELECT 2",
    "BEGIN; SELECT 1/0",
    "BEGIN; SAVEPOINT s",
    "SELECT 1; SELECT 1/0; SELECT 2",
    "SET work_mem = '5MB'; SELECT 1/0",
    "SET work_mem = '6MB'; SHOW work_mem",
    "BEGIN; SET work_mem = '7MB'; COMMIT; SHOW work_mem",
    "COPY (SELECT 1) TO STDOUT; SELECT 1; COPY (SELECT 2) TO STDOUT",
    "INSERT INTO item VALUES (30, 'thirty'); COMMIT; SELECT 1/0",
];

/// What brings to light which settings a session has.
const SETTINGS: &str = "SELECT name, setting FROM pg_settings WHERE name IN ('work_mem', 'DateStyle', 'TimeZone', \
    'application_name', 'extra_float_digits', 'default_transaction_read_only') ORDER BY name";

const NAMES: [&str; 4] = ["", "a", "b", "c"];
const PORTALS: [&str; 2] = ["", "p"];
const ARGUMENTS: [&[&[u8]]; 2] = [&[&[0, 0, 0, 1], &[0, 0, 0, 2]], &[&[0, 0, 0, 1]]];
const PARAMETERS: [&[Option<&str>]; 4] = [&[], &[Some("3")], &[Some("1"), Some("2")], &[Some("x")]];

#[test]
fn random_pipelines_are_answered_as_by_postgres() {
    let mut stage = Stage::new();
    let seed = number_in("PGROUTING_TEST_SEED", SEED);
    let pipelines = number_in("PGROUTING_TEST_PIPELINES", PIPELINES);
    let mut random = Random::seeded(seed);
    let mut number = 0;
    stage.database().admin().run(
        "CREATE TABLE IF NOT EXISTS later(n int UNIQUE DEFERRABLE INITIALLY DEFERRED); \
         ALTER TABLE later OWNER TO app",
    );
    while number < pipelines {
        let mut direct = stage.database().direct();
        let mut clients = stage.logins().map(|login| login.connect());
        let mut stranger = stage.logins()[2].connect();
        for _ in 0..PER_CLIENT {
            number += 1;
            let pipeline = Pipeline::make(&mut random, seed, number);
            let expected = pipeline.play(&mut stage, &mut direct);
            // PostgreSQL 15 crashes when the portal of a simple query that failed is executed.
            let is_closed = expected.last() == Some(&ended("closed"));
            assert!(!is_closed, "PostgreSQL itself broke off at {}", pipeline.title());
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
                break messages.extend(client.run(SETTINGS).messages);
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
        0..20 => parse_any(random, name),
        20..41 => bind_any(random, portal, name),
        41..49 => {
            let kind = random.pick(&['S', 'P']);
            let name = if kind == 'S' { name } else { portal };
            (format!("Describe {kind} {name:?}"), describe(kind, name))
        }
        49..69 => {
            let rows_max = random.pick(&[0, 0, 2]);
            (format!("Execute {portal:?} {rows_max}"), execute(portal, rows_max))
        }
        69..74 => {
            let kind = random.pick(&['S', 'S', 'P']);
            let name = if kind == 'S' { name } else { portal };
            (format!("Close {kind} {name:?}"), close(kind, name))
        }
        74..83 => ("Sync".to_owned(), sync()),
        83..86 => copy_in(random),
        86..89 => ("Flush".to_owned(), flush()),
        89 => {
            let arguments = ARGUMENTS[random.below(2)];
            // int4pl, which takes two.
            (format!("FunctionCall {arguments:?}"), function_call(177, arguments))
        }
        _ => {
            let text = if random.below(3) == 0 { random.pick(&QUERIES) } else { random.pick(&STATEMENTS) };
            (format!("Query {text:?}"), query(text))
        }
    }
}

fn parse_any(random: &mut Random, name: &str) -> (String, Vec<u8>) {
    let text = if random.below(4) == 0 { random.pick(&PARAMETERISED) } else { random.pick(&STATEMENTS) };
    // int4, or one that there is not.
    let types = random.pick(&[[].as_slice(), &[], &[], &[23], &[1]]);
    (format!("Parse {name:?} {text:?} {types:?}"), parse_typed(name, text, types))
}

fn bind_any(random: &mut Random, portal: &str, name: &str) -> (String, Vec<u8>) {
    let parameters = random.pick(&PARAMETERS);
    match random.below(20) {
        0 => {
            // Longer than what waits for the Sync.
            let long = "7".repeat(100_000);
            (format!("Bind {portal:?} {name:?}, a long parameter"), bind(portal, name, &[Some(&long)]))
        }
        1..4 => {
            let values: Vec<_> = parameters.iter().map(|value| value.map(str::as_bytes)).collect();
            let formats = random.pick(&[[].as_slice(), &[0], &[1], &[0, 1]]);
            let results = random.pick(&[[].as_slice(), &[1], &[0, 1], &[2]]);
            let words = format!("Bind {portal:?} {name:?} {parameters:?}, formats {formats:?}, {results:?}");
            (words, bind_formatted(portal, name, formats, &values, results))
        }
        _ => (format!("Bind {portal:?} {name:?} {parameters:?}"), bind(portal, name, parameters)),
    }
}

/// A COPY with its data, by one protocol or the other, or data alone, which is ignored.
fn copy_in(random: &mut Random) -> (String, Vec<u8>) {
    let sql = random.pick(&["COPY item FROM STDIN", "COPY item FROM STDIN", "COPY nothing FROM STDIN"]);
    let (begin, words) = random.pick(&[
        (unnamed as fn(&str) -> Vec<u8>, "Parse, Bind, Execute"),
        (query, "Query"),
        (|_| Vec::new(), "nothing before"),
    ]);
    let data = random.pick(&["40\tforty\n", "41\tforty-one\n42\t\\N\n", "x\tno number\n", "1\ttwice\n", ""]);
    let (end, end_words) =
        random.pick(&[(copy_done as fn() -> Vec<u8>, "done"), (|| copy_fail("no"), "fail")]);
    let bytes = [begin(sql), copy_data(data.as_bytes()), end()].concat();
    (format!("{sql} by {words}, {data:?}, {end_words}"), bytes)
}
