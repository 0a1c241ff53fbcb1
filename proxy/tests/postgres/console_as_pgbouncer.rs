//! The console as PgBouncer's: columns and types, beside a real one, and read by its exporter.

use std::process::{Child, Command, Stdio};

use super::support::client::Login;
use super::support::console::{CONSOLE, columns, console, document_with_console};
use super::support::proxy::{Proxy, new_directory};
use super::support::server::{Database, primary};
use super::support::{free_port, poll};

const TEXT: i32 = 25;
const INT4: i32 = 23;
const INT8: i32 = 20;
const NUMERIC: i32 = 1700;

/// What PgBouncer 1.25 shows, in its order: a table, and columns of each type. Those of one connection are the same for
/// clients and servers.
fn tables() -> Vec<(&'static str, Vec<(String, i32)>)> {
    let list = |kinds: &[(i32, &str)]| -> Vec<(String, i32)> {
        kinds
            .iter()
            .flat_map(|(oid, names)| names.split_whitespace().map(|name| (name.to_owned(), *oid)))
            .collect()
    };
    let stats = "server_assignment_count xact_count query_count";
    let parses = "client_parse_count server_parse_count bind_count client_login_count";
    let prefixed = |prefix: &str, names: &str| {
        names.split_whitespace().map(|name| format!("{prefix}{name} ")).collect::<String>()
    };
    let connection = [
        (TEXT, "type user database replication state addr"),
        (INT4, "port"),
        (TEXT, "local_addr"),
        (INT4, "local_port"),
        (TEXT, "connect_time request_time"),
        (INT4, "wait wait_us close_needed"),
        (TEXT, "ptr link"),
        (INT4, "remote_pid"),
        (TEXT, "tls application_name"),
        (INT4, "prepared_statements id"),
    ];
    let buffers = (INT4, "recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail");
    let sockets: Vec<_> = connection.iter().copied().chain([buffers]).collect();
    let times = "xact_time query_time wait_time";
    let all_stats = [
        prefixed("total_", stats),
        prefixed("total_", "received sent"),
        prefixed("total_", times),
        prefixed("total_", parses),
        prefixed("avg_", stats),
        prefixed("avg_", "recv sent"),
        prefixed("avg_", times),
        prefixed("avg_", parses),
    ]
    .concat();
    let totals = [stats, " bytes_received bytes_sent ", times, " ", parses].concat();
    let averages = [stats, " bytes_received bytes_sent ", times, " ", &prefixed("avg_", parses)].concat();
    vec![
        ("STATS", list(&[(TEXT, "database"), (NUMERIC, &all_stats)])),
        ("STATS_TOTALS", list(&[(TEXT, "database"), (NUMERIC, &totals)])),
        ("STATS_AVERAGES", list(&[(TEXT, "database"), (NUMERIC, &averages)])),
        ("TOTALS", list(&[(TEXT, "name"), (NUMERIC, "value")])),
        (
            "POOLS",
            list(&[
                (TEXT, "database user"),
                (
                    INT4,
                    "cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active \
                     sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us",
                ),
                (TEXT, "pool_mode load_balance_hosts"),
            ]),
        ),
        (
            "DATABASES",
            list(&[
                (TEXT, "name host"),
                (INT4, "port"),
                (TEXT, "database force_user"),
                (INT4, "pool_size min_pool_size reserve_pool_size server_lifetime"),
                (TEXT, "pool_mode load_balance_hosts"),
                (
                    INT4,
                    "max_connections current_connections max_client_connections \
                     current_client_connections paused disabled",
                ),
            ]),
        ),
        ("CLIENTS", list(&connection)),
        ("SERVERS", list(&connection)),
        ("SOCKETS", list(&sockets)),
        ("ACTIVE_SOCKETS", list(&sockets)),
        (
            "USERS",
            list(&[
                (TEXT, "name pool_size reserve_pool_size pool_mode"),
                (
                    INT4,
                    "max_user_connections current_connections max_user_client_connections \
                     current_client_connections",
                ),
            ]),
        ),
        ("LISTS", list(&[(TEXT, "list"), (INT4, "items")])),
        ("CONFIG", list(&[(TEXT, "key value default changeable")])),
        ("MEM", list(&[(TEXT, "name"), (INT4, "size used free memtotal")])),
        ("PEERS", list(&[(INT4, "peer_id"), (TEXT, "host"), (INT4, "port pool_size")])),
        (
            "PEER_POOLS",
            list(&[(INT4, "peer_id cl_active_cancel_req cl_waiting_cancel_req sv_active_cancel sv_login")]),
        ),
        ("DNS_HOSTS", list(&[(TEXT, "hostname"), (INT8, "ttl"), (TEXT, "addrs")])),
        ("DNS_ZONES", list(&[(TEXT, "zonename"), (INT8, "serial"), (INT4, "count")])),
        ("STATE", list(&[(TEXT, "key value")])),
        ("VERSION", list(&[(TEXT, "version")])),
    ]
}

#[test]
fn tables_have_the_columns_and_types_of_pgbouncer_in_its_order() {
    let database = Database::create();
    let proxy = Proxy::start(document_with_console());
    let _client = proxy.client(&database);
    let mut admin = console(&proxy);
    for (name, expected) in tables() {
        let answer = admin.run(&format!("SHOW {name}"));
        assert_eq!(columns(&answer), expected, "SHOW {name}");
        assert_eq!(answer.tags(), ["SHOW"]);
        let widths = answer.rows().into_iter().map(|row| row.len());
        assert!(widths.into_iter().all(|width| width == expected.len()), "SHOW {name}");
    }
}

/// The real one, where it is installed.
struct PgBouncer {
    process: Child,
    port: u16,
    directory: std::path::PathBuf,
}

impl PgBouncer {
    /// Of the version that Debian has, which `e2e/cluster/install.sh` installs.
    fn start() -> Self {
        const PROGRAM: &str = "/usr/sbin/pgbouncer";
        let (directory, port) = (new_directory(), free_port());
        let file = directory.join("pgbouncer.ini");
        let pid = directory.join("pid");
        let config = format!(
            "[databases]\nshop = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = any\nadmin_users = app\nunix_socket_dir =\npidfile = {}\n",
            primary().port,
            pid.display()
        );
        std::fs::write(&file, config).unwrap();
        // It refuses to run as root.
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let process = Command::new(PROGRAM)
            .args(["-q", "-u", "nobody"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let port = poll("PgBouncer to listen", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok().map(|_| port)
        });
        Self { process, port, directory }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Of whatever version it is: every column that both have has one type, and they come in
/// the same order.
#[test]
fn what_a_real_pgbouncer_shows_is_shown_in_the_same_order_and_types() {
    let real = PgBouncer::start();
    let proxy = Proxy::start(document_with_console());
    let (mut theirs, mut ours) = (Login::new(real.port, "app", CONSOLE).connect(), console(&proxy));
    let mut compared = 0;
    for (name, _) in tables() {
        let answer = theirs.try_query(&format!("SHOW {name}"));
        if answer.sqlstate().is_some() {
            continue;
        }
        let (theirs, ours) = (columns(&answer), columns(&ours.run(&format!("SHOW {name}"))));
        let shared = |of: &[(String, i32)], other: &[(String, i32)]| -> Vec<(String, i32)> {
            of.iter().filter(|(name, _)| other.iter().any(|(known, _)| known == name)).cloned().collect()
        };
        assert_eq!(shared(&ours, &theirs), shared(&theirs, &ours), "SHOW {name}");
        // What was called otherwise once.
        let gone: Vec<_> = theirs
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| !ours.iter().any(|(known, _)| known == name))
            .filter(|name| *name != "reserve_pool")
            .collect();
        assert!(gone.is_empty(), "SHOW {name} lacks {gone:?}");
        compared += 1;
    }
    assert!(compared > 14, "{compared}");
}

/// The exporter of prometheus-community, unmodified. Where `make` has not said where it is, the script that builds it
/// does.
struct Exporter {
    process: Child,
    port: u16,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Exporter {
    fn start(proxy: &Proxy, log: &std::path::Path) -> Self {
        let program =
            std::env::var("PGBOUNCER_EXPORTER").ok().filter(|path| !path.is_empty()).unwrap_or_else(|| {
                let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../e2e/cluster/pgbouncer-exporter.sh");
                let built = Command::new(script).stderr(Stdio::inherit()).output().unwrap();
                assert!(built.status.success(), "{script}");
                String::from_utf8(built.stdout).unwrap()
            });
        let port = free_port();
        let target =
            format!("postgres://other:other%20secret@127.0.0.1:{}/{CONSOLE}?sslmode=disable", proxy.port);
        let process = Command::new(program.trim())
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg(format!("--pgBouncer.connectionString={target}"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(log).unwrap())
            .spawn()
            .unwrap();
        Self { process, port }
    }

    /// The metrics of one scrape.
    fn scrape(&self) -> String {
        poll("the exporter to answer", || {
            let response = super::support::http::request(self.port, "GET", "/metrics", &[], b"")?;
            (response.status == 200).then(|| without_chunks(&response.body))
        })
    }
}

/// A body that came in chunks, each behind its length in hexadecimal digits.
fn without_chunks(body: &str) -> String {
    let mut whole = String::new();
    let mut rest = body;
    while let Some((length, after)) = rest.split_once("\r\n") {
        let (chunk, after) = after.split_at(usize::from_str_radix(length, 16).unwrap());
        whole += chunk;
        rest = after.strip_prefix("\r\n").unwrap_or(after);
    }
    whole
}

#[test]
fn the_exporter_of_pgbouncer_reads_it_without_an_error() {
    let database = Database::create();
    let proxy = Proxy::start(document_with_console());
    let mut client = proxy.login(&database).with("application_name", "shop").connect();
    for _ in 0..7 {
        client.run("SELECT 1");
    }
    client.run("BEGIN");
    console(&proxy).run(&format!("DISABLE {}", database.name));
    let log = proxy.directory.join("exporter.log");
    let exporter = Exporter::start(&proxy, &log);
    let text = exporter.scrape();
    let name = &database.name;
    let port = primary().port;
    let of_database = format!(
        "{{database=\"{name}\",force_user=\"\",host=\"127.0.0.1\",name=\"{name}\",pool_mode=\"transaction\",port=\"{port}\"}}"
    );
    for (line, value) in [
        ("pgbouncer_up".to_owned(), "1"),
        (format!("pgbouncer_stats_totals_queries_pooled_total{{database=\"{name}\"}}"), "7"),
        (format!("pgbouncer_stats_totals_sql_transactions_pooled_total{{database=\"{name}\"}}"), "7"),
        (format!("pgbouncer_stats_totals_server_assignments_total{{database=\"{name}\"}}"), "8"),
        (format!("pgbouncer_pools_client_active_connections{{database=\"{name}\",user=\"app\"}}"), "1"),
        (format!("pgbouncer_pools_server_active_connections{{database=\"{name}\",user=\"app\"}}"), "1"),
        (format!("pgbouncer_pools_client_maxwait_seconds{{database=\"{name}\",user=\"app\"}}"), "0"),
        (format!("pgbouncer_databases_disabled{of_database}"), "1"),
        (format!("pgbouncer_databases_paused{of_database}"), "0"),
        (format!("pgbouncer_databases_pool_size{of_database}"), "4"),
        (format!("pgbouncer_databases_current_connections{of_database}"), "1"),
        (
            format!(
                "pgbouncer_client_connections{{application_name=\"shop\",database=\"{name}\",state=\"active\",user=\"app\"}}"
            ),
            "1",
        ),
        ("pgbouncer_config_max_client_connections".to_owned(), "10000"),
        ("pgbouncer_databases".to_owned(), "2"),
        ("pgbouncer_users".to_owned(), "3"),
    ] {
        let found = text.lines().find_map(|shown| shown.strip_prefix(&*line)?.strip_prefix(' '));
        assert_eq!(found, Some(value), "{line} in\n{text}");
    }
    assert!(text.contains("pgbouncer_version_info{version=\"PgBouncer 1."));
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(!log.contains("err="), "{log}");
}
