//! A proxy process of one test, with a document, ports and a log of its own.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use pgrouting_contract::config::{
    AuthConfig, Generation, PoolMode, PoolingConfig, ProbeConfig, ProcessConfig, ProxyConfig, ServerConfig,
    UserConfig,
};
use pgrouting_contract::duration::DurationText;
use pgrouting_contract::report::ProxyReport;
use pgrouting_contract::split::SplitConfig;

use super::client::{Client, Login};
use super::http::{Response, request};
use super::server::{Database, password_of, primary};
use super::{free_port, keeper, poll};

/// Lines of the log that are shown when a test fails.
const SHOWN_LINES: usize = 150;

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    /// The document that it was started with.
    pub config: ProxyConfig,
    /// Where clients connect.
    pub port: u16,
    /// Where the admin API listens.
    pub admin_port: u16,
    /// Where health and metrics are served.
    pub probe_port: u16,
    /// Its directory: document, log, and what the test puts there.
    pub directory: PathBuf,
    process: Child,
}

/// The users of most documents; each has to be known by its own keys, which takes time in a debug build.
const USERS: [&str; 2] = ["app", "app_b"];

/// The document of most tests: the primary, users `app` and `app_b`, transaction mode.
pub fn document() -> ProxyConfig {
    let (listen, admin_listen, probe_listen) = (local(free_port()), local(free_port()), local(free_port()));
    ProxyConfig {
        version: 1,
        generation: Generation(1),
        pool: "tests".to_owned(),
        stage: pgrouting_contract::stage::Stage::default(),
        process: ProcessConfig { listen, admin_listen, probe_listen, workers: 2, ..ProcessConfig::default() },
        servers: vec![server("one", primary().port)],
        probe: ProbeConfig::default(),
        auth: AuthConfig::UserList {
            users: USERS.iter().map(|name| user(name, &password_of(name))).collect(),
        },
        split: SplitConfig::default(),
        pooling: PoolingConfig { max_server_connections: 4, ..PoolingConfig::default() },
        mirror: None,
        peers: None,
        tls: None,
        console: None,
        drain_timeout: DurationText::from_secs(20),
    }
}

/// The same with this many server connections in transaction mode.
pub fn pool_of(connections: u32) -> ProxyConfig {
    let mut document = document();
    document.pooling.max_server_connections = connections;
    document
}

/// The same in session mode.
pub fn session_pool_of(connections: u32) -> ProxyConfig {
    let mut document = pool_of(connections);
    document.pooling.mode = PoolMode::Session;
    document
}

/// A server on 127.0.0.1.
pub fn server(name: &str, port: u16) -> ServerConfig {
    ServerConfig { name: name.to_owned(), host: "127.0.0.1".to_owned(), port, weight: 100, zone: None }
}

/// A user with a password in place.
pub fn user(name: &str, password: &str) -> UserConfig {
    UserConfig {
        name: Some(name.to_owned()),
        name_file: None,
        password: Some(password.to_owned()),
        password_file: None,
    }
}

/// An address for the document.
pub fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

impl Proxy {
    /// Starts one and waits until it is ready.
    pub fn start(config: ProxyConfig) -> Self {
        let mut proxy = Self::spawn(config);
        proxy.await_ready();
        proxy
    }

    /// Waits until it is ready.
    pub fn await_ready(&mut self) {
        poll("the proxy to be ready", || {
            assert!(self.process.try_wait().unwrap().is_none(), "the proxy has ended");
            (self.get("/readyz")?.status == 200).then_some(())
        });
    }

    /// Starts one without waiting for anything.
    pub fn spawn(config: ProxyConfig) -> Self {
        let directory = new_directory();
        std::fs::write(directory.join("proxy.yaml"), config.canonical_bytes()).unwrap();
        Self::spawn_in(directory, config)
    }

    /// Starts one on the document that is in the directory.
    pub fn spawn_in(directory: PathBuf, config: ProxyConfig) -> Self {
        let process =
            command(&directory).stderr(File::create(directory.join("log")).unwrap()).spawn().unwrap();
        keeper::keep(&process, &directory);
        let port_of = |address: &str| address.rsplit_once(':').unwrap().1.parse().unwrap();
        Self {
            port: port_of(&config.process.listen),
            admin_port: port_of(&config.process.admin_listen),
            probe_port: port_of(&config.process.probe_listen),
            config,
            directory,
            process,
        }
    }

    /// A login of `app` to the database through it.
    pub fn login(&self, database: &Database) -> Login {
        Login::new(self.port, "app", &database.name)
    }

    /// A client of it.
    pub fn client(&self, database: &Database) -> Client {
        self.login(database).connect()
    }

    /// Asks where no credential is needed.
    pub fn get(&self, path: &str) -> Option<Response> {
        request(self.probe_port, "GET", path, &[], b"")
    }

    /// The report.
    pub fn report(&self) -> ProxyReport {
        let response = request(self.admin_port, "GET", "/report", &[], b"").unwrap();
        assert_eq!(response.status, 200);
        serde_json::from_str(&response.body).unwrap()
    }

    /// Pushes a document.
    pub fn put(&self, config: &ProxyConfig, epoch: u64) -> Response {
        let epoch = epoch.to_string();
        let headers = [("x-pgrouting-epoch", epoch.as_str())];
        request(self.admin_port, "PUT", "/config", &headers, &config.canonical_bytes()).unwrap()
    }

    /// Posts a document to the admin API.
    pub fn post_json(&self, path: &str, body: &str) -> Response {
        let headers = [("content-type", "application/json")];
        request(self.admin_port, "POST", path, &headers, body.as_bytes()).unwrap()
    }

    /// Pushes the running document with a change and a higher generation, which must be taken.
    pub fn change(&mut self, change: impl FnOnce(&mut ProxyConfig)) {
        change(&mut self.config);
        self.config.generation.0 += 1;
        let response = self.put(&self.config, 0);
        assert_eq!(response.status, 200, "{}", response.body);
    }

    /// The value of a metric, given as it is shown, labels and all.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").unwrap().body;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Waits until a metric has a value.
    pub fn await_metric(&self, name: &str, expected: u64) {
        poll(&format!("{name} to be {expected}"), || (self.metric(name) == expected).then_some(()));
    }

    /// Waits until so many clients stand in line for a server connection.
    pub fn await_waiting(&self, count: u64) {
        self.await_metric("pgrouting_proxy_clients{state=\"waiting\"}", count);
    }

    /// Its memory in KiB, without the pages of files: a binary for tests is large and comes in as it is used.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Sends it a signal, by name.
    pub fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Tells it to stop, and then not to wait for load balancers to notice.
    pub fn stop(&self) {
        self.signal("TERM");
        poll("the proxy to be draining", || (self.get("/readyz")?.status == 503).then_some(()));
        self.signal("TERM");
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        poll("the proxy to end", || self.process.try_wait().unwrap())
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        keeper::let_go(&self.process);
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("--- the proxy's log, its end ---");
            lines.iter().skip(lines.len().saturating_sub(SHOWN_LINES)).for_each(|line| eprintln!("{line}"));
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The command that starts the proxy on the document in a directory.
pub fn command(directory: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgrouting-proxy"));
    // With huge pages its memory would be counted in steps of 2 MiB.
    command.env("MIMALLOC_ALLOW_THP", "0");
    command
        .arg("--config")
        .arg(directory.join("proxy.yaml"))
        .env("RUST_LOG", "debug")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// An empty directory for one proxy.
pub fn new_directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("pgrouting-proxy-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}
