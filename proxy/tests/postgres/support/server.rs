//! PostgreSQL servers for the tests: one primary for the whole run, one standby once a test asks for it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::client::{Client, Login};
use super::{free_port, poll};

const BINARIES: &str = "/usr/lib/postgresql/15/bin";
const SCRIPT: &str = include_str!("cluster.sh");

/// Roles that every test may use. The password of each is its name and " secret", and so is that of `postgres`. `probe` may read `pg_authid`.
pub const ROLES: [&str; 4] = ["app", "app_b", "other", "probe"];

/// A running server; it ends with the test process.
#[derive(Debug)]
pub struct Server {
    /// Where it listens on 127.0.0.1.
    pub port: u16,
    /// Its directory, with its Unix socket.
    directory: String,
    /// Keeps it running, and does what it is told.
    watchdog: Child,
    answers: BufReader<ChildStdout>,
}

/// The primary of this run.
pub fn primary() -> &'static Server {
    static PRIMARY: OnceLock<Server> = OnceLock::new();
    PRIMARY.get_or_init(own_primary)
}

/// A primary of one test.
pub fn own_primary() -> Server {
    let server = start(None);
    let mut admin = Client::connect(&server.login()).unwrap();
    for role in ROLES {
        admin.run(&format!("CREATE ROLE {role} LOGIN PASSWORD '{}'", password_of(role)));
    }
    admin.run("GRANT SELECT ON pg_catalog.pg_authid TO probe; GRANT pg_monitor TO probe");
    server
}

/// The standby of this run, which follows the primary.
pub fn standby() -> &'static Server {
    static STANDBY: OnceLock<Server> = OnceLock::new();
    STANDBY.get_or_init(|| start(Some(primary())))
}

/// A standby of one test, which its clients must keep.
pub fn own_standby() -> Server {
    start(Some(primary()))
}

/// Waits until the standby shows what the primary has now; both are sessions of a superuser.
pub fn catch_up(primary: &mut Client, standby: &mut Client) {
    // A commit brings to disk what is only in the primary's memory, and so to the standby.
    primary.run("SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'tests', 'now')");
    let position = primary.value("SELECT pg_current_wal_flush_lsn()").unwrap();
    poll("the standby to catch up", || {
        standby
            .value(&format!("SELECT pg_last_wal_replay_lsn() >= '{position}'"))
            .filter(|value| value == "t")
    });
}

/// The password of one of [`ROLES`] or of `postgres`.
pub fn password_of(role: &str) -> String {
    format!("{role} secret")
}

impl Server {
    /// A login as superuser.
    pub fn login(&self) -> Login {
        Login::new(self.port, "postgres", "postgres")
    }

    /// A standby of it.
    pub fn own_standby(&self) -> Self {
        start(Some(self))
    }

    /// Has its watchdog do something, and waits until it is done.
    fn tell(&mut self, command: &str) {
        writeln!(self.watchdog.stdin.as_mut().unwrap(), "{command}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n", "{command}");
    }

    /// Ends the server as `pg_ctl stop -m fast` does.
    pub fn stop(&mut self) {
        self.tell("stop INT");
    }

    /// Ends the server as `pg_ctl stop -m immediate` does, which loses no more than a crash.
    pub fn crash(&mut self) {
        self.tell("stop QUIT");
    }

    /// Starts it again.
    pub fn start(&mut self) {
        self.tell("start");
    }

    /// Makes it a standby of another one, when it is started.
    pub fn follow(&mut self, primary: &Self) {
        let command = format!("follow {} {}", primary.directory, primary.port);
        self.tell(&command);
    }

    /// Puts a copy of another one in its place, which follows that one; it must not run.
    pub fn copy(&mut self, primary: &Self) {
        let command = format!("copy {} {}", primary.directory, primary.port);
        self.tell(&command);
    }

    /// Stops all its processes where they are, as a machine that is lost does, or lets them go on.
    pub fn freeze(&mut self, is_frozen: bool) {
        self.tell(if is_frozen { "freeze STOP" } else { "freeze CONT" });
    }

    /// Makes it the primary, and waits until it is.
    pub fn promote(&self) {
        self.admin("postgres").run("SELECT pg_promote()");
    }

    /// A connection as superuser to a database.
    pub fn admin(&self, database: &str) -> Client {
        Client::connect(&Login::new(self.port, "postgres", database)).unwrap()
    }
}

/// A database of one test, owned by `app`; dropped with the test.
#[derive(Debug)]
pub struct Database {
    /// Its name.
    pub name: String,
}

impl Database {
    /// A new, empty one.
    pub fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        primary().admin("postgres").run(&format!("CREATE DATABASE {name} OWNER app"));
        Self { name }
    }

    /// A superuser's connection to it, past the proxy.
    pub fn admin(&self) -> Client {
        primary().admin(&self.name)
    }

    /// A connection of `app` to it, past the proxy.
    pub fn direct(&self) -> Client {
        Client::connect(&self.direct_login()).unwrap()
    }

    /// The login of such a connection.
    pub fn direct_login(&self) -> Login {
        Login::new(primary().port, "app", &self.name)
    }

    /// Server processes of clients, those of superusers' connections past the proxy left out.
    pub fn backends(&self) -> Vec<String> {
        self.admin().column(
            "SELECT pid::text FROM pg_stat_activity WHERE datname = current_database() \
             AND backend_type = 'client backend' AND usename <> 'postgres' AND application_name <> 'pgrouting-catalog' ORDER BY pid",
        )
    }

    /// Waits until so many clients of it run `pg_sleep`.
    pub fn await_sleeping(&self, count: &str) {
        self.await_value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'",
            count,
        );
    }

    /// Waits until a query has this one value.
    pub fn await_value(&self, sql: &str, expected: &str) {
        let mut admin = self.admin();
        poll(&format!("{sql} to be {expected}"), || admin.value(sql).filter(|value| value == expected));
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Ok(mut admin) = Client::connect(&primary().login()) {
            admin.try_query(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        }
    }
}

fn start(primary: Option<&Server>) -> Server {
    assert!(Path::new(BINARIES).is_dir(), "PostgreSQL 15 is needed in {BINARIES}");
    let port = free_port();
    // PostgreSQL refuses to run as root.
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut command = if is_root {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--", "sh"]);
        command
    } else {
        Command::new("sh")
    };
    command.args(["-c", SCRIPT, "cluster.sh", BINARIES, &port.to_string()]);
    if let Some(primary) = primary {
        command.args([&primary.directory, &primary.port.to_string()]);
    }
    let mut watchdog = command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut answers = BufReader::new(watchdog.stdout.take().unwrap());
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    let directory = line.trim_end().to_owned();
    assert!(directory.starts_with('/'), "{directory}");
    Server { port, directory, watchdog, answers }
}
