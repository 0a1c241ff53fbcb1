//! Plays statements with a hot standby's verdict on each through the proxy, onto a real primary with a hot standby, and
//! counts where they went: `make oracle ORACLE=file.jsonl.gz`.
//!
//! A file has one JSON object a line: `file` (a session), `stmt`, `kind` (what a standby says: `readonly-ok`, `refused`,
//! `same-error`, `diverged`, ...), `txn` (`I`, `T` or `E`: the transaction's state before it), and optionally `pre`
//! (statements that the standby's session needs first). The safety net is off. Each statement that went to the replica is
//! also run on the primary, in a session of its own, to see whether it leaves anything: a record in the write-ahead log
//! that is not housekeeping, a lock, a setting, a prepared statement, a cursor, a listener. Such a statement is then sent
//! again in the extended protocol, in a text with others, and in a pipeline.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a tool stops at what it cannot do"
)]
#![expect(unreachable_pub, reason = "modules of a test are private to it")]
#![expect(clippy::disallowed_methods, reason = "clients here are threads, and they may block")]
#![allow(dead_code, reason = "the support of the tests has more than is used here")]

mod support;

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use pgrouting_contract::split::{Consistency, SplitConfig};
use pgrouting_contract::stage::Stage;
use serde_json::Value;
use support::client::{Client, Login};
use support::message::{Answer, bind, copy_done, describe, execute, parse, query, sync};
use support::poll;
use support::proxy::{Proxy, document, server, user};
use support::server::{catch_up, password_of, primary, standby};

/// The longest that a statement may take.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() {
    let Some(path) = std::env::var_os("ORACLE") else {
        println!("ORACLE=FILE says which statements to play; see proxy/tests/postgres/oracle.rs");
        return;
    };
    let only = std::env::var("ORACLE_FILES").unwrap_or_default();
    let lines = read(std::path::Path::new(&path));
    let mut play = Play::start();
    for line in &lines {
        let file = line["file"].as_str().unwrap_or_default();
        if only.is_empty() || only.split(',').any(|one| one == file) {
            play.take(line);
        }
    }
    play.report();
}

fn read(path: &std::path::Path) -> Vec<Value> {
    let mut unpacked = Command::new("gzip").args(["-dcf"]).arg(path).stdout(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(unpacked.stdout.take().unwrap()).lines();
    let lines = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert!(unpacked.wait().unwrap().success(), "{} cannot be read", path.display());
    lines
}

/// What is counted.
#[derive(Default)]
struct Counts {
    statements: u64,
    outside: u64,
    to_replica: u64,
    refused_there: Vec<String>,
    against_oracle: Vec<String>,
    effects: Vec<String>,
    reads: u64,
    reads_on_replica: u64,
    stayed: BTreeMap<String, u64>,
    stayed_texts: Vec<String>,
    forms: BTreeMap<&'static str, (u64, u64)>,
    forms_refused: Vec<String>,
}

struct Play {
    proxy: Proxy,
    file: String,
    client: Option<Client>,
    /// The primary, past the proxy: a session that does what the client's does with its settings, and one that looks.
    side: Option<Client>,
    looker: Client,
    standby: Client,
    walinspect: Client,
    counts: Counts,
}

const DATABASE: &str = "regression";

impl Play {
    fn start() -> Self {
        let mut admin = primary().admin("postgres");
        admin.run("CREATE EXTENSION IF NOT EXISTS pg_walinspect");
        admin.run(&format!("CREATE DATABASE {DATABASE} TEMPLATE template0"));
        for change in ["lc_messages", "lc_monetary", "lc_numeric", "lc_time"] {
            admin.run(&format!("ALTER DATABASE {DATABASE} SET {change} TO 'C'"));
        }
        let mut config = document();
        config.stage = Stage::Split;
        config.servers = vec![server("one", primary().port), server("two", standby().port)];
        config.auth = pgrouting_contract::config::AuthConfig::UserList {
            users: vec![user("postgres", &password_of("postgres"))],
        };
        config.split = SplitConfig {
            consistency: Consistency::Eventual,
            rescue: false,
            catalog_interval: pgrouting_contract::duration::DurationText::from_secs(3600),
            ..SplitConfig::default()
        };
        let proxy = Proxy::start(config);
        poll("the replica", || {
            let report = proxy.report();
            report
                .servers
                .iter()
                .any(|server| server.role == pgrouting_contract::report::Role::Replica)
                .then_some(())
        });
        Self {
            proxy,
            file: String::new(),
            client: None,
            side: None,
            looker: primary().admin(DATABASE),
            standby: standby().admin("postgres"),
            walinspect: admin,
            counts: Counts::default(),
        }
    }

    fn login(port: u16) -> Login {
        Login::new(port, "postgres", DATABASE)
            .with("application_name", "oracle")
            .with("datestyle", "Postgres, MDY")
            .with("timezone", "PST8PDT")
            .with("options", "-c intervalstyle=postgres_verbose")
    }

    fn begin_file(&mut self, file: &str) {
        if self.file != file {
            file.clone_into(&mut self.file);
            self.client = None;
            self.side = None;
        }
    }

    fn client(&mut self) -> &mut Client {
        let port = self.proxy.port;
        self.client.get_or_insert_with(|| {
            let client = Client::connect(&Self::login(port)).unwrap();
            client.set_patience(PATIENCE);
            client
        })
    }

    fn side(&mut self) -> &mut Client {
        self.side.get_or_insert_with(|| {
            let client = Client::connect(&Self::login(primary().port)).unwrap();
            client.set_patience(PATIENCE);
            client
        })
    }

    fn take(&mut self, line: &Value) {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        self.begin_file(&text("file"));
        let (sql, kind) = (text("stmt"), text("kind"));
        self.counts.statements += 1;
        let is_outside = text("txn") == "I";
        let before = self.position();
        let Some(answer) = self.ask(&sql) else { return };
        let (server, why) = self.last_route();
        let is_on_replica = server == "two";
        let wrote = self.wrote_since(&before).is_some();
        if is_session_statement(&sql) && is_outside {
            let _ = ask(self.side(), &query(&sql));
        }
        if !is_on_replica {
            self.settle(&sql);
        }
        if !is_outside {
            return;
        }
        self.counts.outside += 1;
        let label = format!("{}: {}", self.file, shorten(&sql));
        if is_on_replica {
            self.counts.to_replica += 1;
            if let Some(refusal) = refusal(&answer) {
                self.counts.refused_there.push(format!("{refusal} | {label}"));
            }
            if kind == "refused" {
                self.counts.against_oracle.push(format!("{} | {label}", text("sqlstate")));
            }
            if let Some(effect) = self.effect(&sql, line) {
                self.counts.effects.push(format!("{effect} | {label}"));
            }
            self.other_forms(&sql, &label);
        }
        if kind == "readonly-ok" && begins_as_read(&sql) {
            let has_effect = !is_on_replica && (wrote || may_keep_state(&sql));
            if !has_effect {
                self.counts.reads += 1;
                self.counts.reads_on_replica += u64::from(is_on_replica);
                if !is_on_replica {
                    *self.counts.stayed.entry(why.clone()).or_default() += 1;
                    self.counts.stayed_texts.push(format!("{why} | {label}"));
                }
            }
        }
    }

    /// Sends a statement; a session that ends is begun again.
    fn ask(&mut self, sql: &str) -> Option<Answer> {
        let answer = ask(self.client(), &query(sql));
        if answer.is_none() {
            self.client = None;
        }
        answer
    }

    /// The server that the last transaction went to, and why.
    fn last_route(&mut self) -> (String, String) {
        let answer = ask(self.client(), &query("SHOW ROUTE LAST"));
        let row = answer.and_then(|answer| answer.rows().into_iter().next()).unwrap_or_default();
        let field = |index: usize| row.get(index).cloned().flatten().unwrap_or_default();
        (field(0), field(1))
    }

    fn position(&mut self) -> String {
        self.looker.value("SELECT pg_current_wal_insert_lsn()").unwrap()
    }

    /// Whether the log has records since then that are not housekeeping.
    fn wrote_since(&mut self, before: &str) -> Option<String> {
        let after = self.position();
        if after == before {
            return None;
        }
        let sql = format!(
            "SELECT string_agg(DISTINCT resource_manager || ' ' || record_type, ', ') FROM pg_get_wal_records_info_till_end_of_wal('{before}') \
             WHERE start_lsn >= '{before}' AND NOT (resource_manager IN ('Standby', 'XLOG', 'CLOG', 'LogicalMessage') \
             OR record_type IN ('COMMIT', 'PRUNE', 'VISIBLE', 'FREEZE_PAGE', 'VACUUM'))"
        );
        // The reader takes only what is on disk; this commit brings it there, and is not counted itself.
        self.walinspect
            .run("SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'oracle', 'mark')");
        let answer = self.walinspect.try_query(&sql);
        if answer.sqlstate().is_some() {
            return Some(format!("something unknown: {}", answer.error()));
        }
        answer.rows().into_iter().next()?.into_iter().next()?
    }

    /// Waits until the standby shows what the primary has, and the proxy knows the catalog.
    fn settle(&mut self, sql: &str) {
        catch_up(&mut self.walinspect, &mut self.standby);
        let word = first_word(sql);
        if matches!(word.as_str(), "do" | "call" | "execute" | "select" | "drop" | "alter" | "create") {
            let proxy = &self.proxy;
            if matches!(word.as_str(), "do" | "call" | "execute") {
                std::thread::sleep(Duration::from_millis(300));
            }
            poll("the catalog", || {
                proxy.report().split.catalogs.get(DATABASE).copied().unwrap_or_default().then_some(())
            });
        }
    }

    /// What a statement that went to the replica leaves behind, if anything.
    fn effect(&mut self, sql: &str, line: &Value) -> Option<String> {
        for pre in line["pre"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let _ = ask(self.side(), &query(pre));
        }
        const STATE: &str = "SELECT concat_ws(',', (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), \
             (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors), \
             (SELECT count(*) FROM pg_listening_channels()), \
             (SELECT md5(string_agg(concat(name, setting), ',' ORDER BY name)) FROM pg_settings \
             WHERE name NOT LIKE 'plpgsql.%'))";
        let state = self.side().try_query(STATE).column();
        let before = self.position();
        let Some(_) = ask(self.side(), &query(sql)) else {
            self.side = None;
            return None;
        };
        let after = self.side().try_query(STATE).column();
        if let Some(records) = self.wrote_since(&before) {
            return Some(format!("it writes {records}"));
        }
        (state != after).then(|| format!("state {state:?} became {after:?}"))
    }

    /// The same statement in the extended protocol, in a text with others, and in a pipeline.
    fn other_forms(&mut self, sql: &str, label: &str) {
        let run = |sql: &str| [parse("", sql), bind("", "", &[]), describe('P', ""), execute("", 0)].concat();
        let forms: [(&'static str, Vec<u8>, usize); 3] = [
            ("extended", [run(sql), sync()].concat(), 1),
            ("several", query(&format!("SELECT 1; {sql}")), 1),
            ("pipeline", [run("SELECT 1"), sync(), run(sql), sync(), run("SELECT 2"), sync()].concat(), 3),
        ];
        for (form, bytes, count) in forms {
            let client = self.client();
            client.send(&bytes);
            let Some(answer) = until_ready(client, count) else {
                self.client = None;
                return;
            };
            let (server, why) = self.last_route();
            let counted = self.counts.forms.entry(form).or_default();
            counted.0 += 1;
            counted.1 += u64::from(server == "two");
            if server == "two"
                && let Some(refusal) = refusal(&answer)
            {
                self.counts.forms_refused.push(format!("{form}: {refusal} | {label}"));
            } else if server != "two" {
                self.counts.stayed_texts.push(format!("{form}: {why} | {label}"));
            }
        }
    }

    fn report(&self) {
        let counts = &self.counts;
        if let Some(path) = std::env::var_os("ORACLE_DETAILS") {
            let all = [&counts.refused_there, &counts.against_oracle, &counts.effects, &counts.forms_refused];
            let names = ["refused", "against the oracle", "effect", "refused in another form"];
            let mut lines: Vec<String> = names
                .iter()
                .zip(all)
                .flat_map(|(name, texts)| texts.iter().map(move |text| format!("{name}: {text}")))
                .collect();
            lines.extend(counts.stayed_texts.iter().map(|text| format!("stayed: {text}")));
            std::fs::write(path, lines.join("\n") + "\n").unwrap();
        }
        let mut out = Vec::new();
        self.write_figures(&mut out);
        let figures = out.join("\n");
        println!("{figures}");
        if let Some(path) = std::env::var_os("ORACLE_DOC") {
            const MARKS: [&str; 2] = ["<!-- oracle -->\n", "<!-- /oracle -->"];
            let text = std::fs::read_to_string(&path).unwrap();
            let (before, rest) = text.split_once(MARKS[0]).unwrap();
            let (_, after) = rest.split_once(MARKS[1]).unwrap();
            let [begin, end] = MARKS;
            std::fs::write(path, format!("{before}{begin}```text\n{figures}\n```\n{end}{after}")).unwrap();
        }
    }

    fn write_figures(&self, out: &mut Vec<String>) {
        let counts = &self.counts;
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        out.push(format!(
            "statements played: {}, outside transactions: {}",
            counts.statements, counts.outside
        ));
        out.push(format!("went to the replica: {}", counts.to_replica));
        out.push(format!("  refused there: {}", counts.refused_there.len()));
        out.push(format!("  that the oracle calls refused: {}", counts.against_oracle.len()));
        out.push(format!("  with an effect: {}", counts.effects.len()));
        out.push(format!(
            "reads that a standby accepts: {}, on the replica: {} ({:.2} %)",
            counts.reads,
            counts.reads_on_replica,
            share(counts.reads_on_replica, counts.reads)
        ));
        for (why, count) in &counts.stayed {
            out.push(format!("  stayed on the primary: {why}: {count}"));
        }
        for (form, (all, on_replica)) in &counts.forms {
            out.push(format!(
                "{form}: {all}, on the replica: {on_replica} ({:.2} %)",
                share(*on_replica, *all)
            ));
        }
        out.push(format!("  refused there in one of these forms: {}", counts.forms_refused.len()));
    }
}

/// What a standby says to what it cannot do.
fn refusal(answer: &Answer) -> Option<String> {
    let code = answer.sqlstate()?;
    let text = answer.error();
    let is_one = code == "25006"
        || (matches!(code.as_str(), "0A000" | "55000" | "XX000") && text.contains("recovery"));
    is_one.then(|| format!("{code} {text}"))
}

fn ask(client: &mut Client, bytes: &[u8]) -> Option<Answer> {
    client.send(bytes);
    until_ready(client, 1)
}

/// Reads so many answers; COPY FROM gets no data. `None` when the session ends or takes too long.
fn until_ready(client: &mut Client, count: usize) -> Option<Answer> {
    let mut answer = Answer { messages: Vec::new() };
    let mut left = count;
    while left > 0 {
        let message = client.try_next().ok()??;
        match message.kind() {
            'G' => client.send(&copy_done()),
            'Z' => left -= 1,
            _ => {}
        }
        answer.messages.push(message);
    }
    Some(answer)
}

fn first_word(sql: &str) -> String {
    let mut rest = sql.trim_start();
    loop {
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.split_once('\n').map_or("", |(_, after)| after).trim_start();
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after).trim_start();
        } else {
            break;
        }
    }
    let rest = rest.trim_start_matches(['(', ' ']);
    rest.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default().to_ascii_lowercase()
}

fn begins_as_read(sql: &str) -> bool {
    let is_copy_out = first_word(sql) == "copy" && sql.to_ascii_lowercase().contains("stdout");
    is_copy_out
        || matches!(first_word(sql).as_str(), "select" | "with" | "values" | "table" | "explain" | "show")
}

/// Whether a statement's text shows that it keeps or tells something of its session or server, so that a replica would
/// not do.
fn may_keep_state(sql: &str) -> bool {
    const SIGNS: [&str; 14] = [
        "advisory",
        "set_config",
        "pg_notify",
        "setseed",
        "currval",
        "lastval",
        "pg_stat",
        "pg_backend_pid",
        "pg_cursors",
        "pg_prepared",
        "pg_locks",
        "pg_listening",
        "pg_settings",
        "pg_is_in_recovery",
    ];
    let lower = sql.to_ascii_lowercase();
    SIGNS.iter().any(|sign| lower.contains(sign)) || first_word(sql) == "show"
}

fn is_session_statement(sql: &str) -> bool {
    matches!(first_word(sql).as_str(), "set" | "reset")
}

fn shorten(sql: &str) -> String {
    let line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(300).collect()
}
