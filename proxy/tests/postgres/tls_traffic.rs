//! What goes through TLS on both sides: more than a record holds, pipelines, COPY, and copies to a mirror.

use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::mirror::{MirrorConfig, MirrorStatements};
use pgrouting_contract::stage::Stage;
use pgrouting_contract::tls::{ClientTlsMode, ServerTlsMode};

use super::large::copy_in_and_out;
use super::support::certificates::{Ca, secure_primary, tls};
use super::support::client::Client;
use super::support::message::{batch, bind, describe, execute, flush, parse, query, run, sync};
use super::support::poll;
use super::support::proxy::{Proxy, pool_of};
use super::support::secure::Secure;
use super::support::server::{Database, primary};

/// More than a socket's buffers hold.
const BYTES: usize = 10 * 1024 * 1024;

struct Both {
    proxy: Proxy,
    database: Database,
    secure: Secure,
    _ca: Ca,
}

impl Both {
    fn start(change: impl FnOnce(&mut ProxyConfig)) -> Self {
        let ca = Ca::new();
        let servers = secure_primary();
        let mut config = pool_of(2);
        config.servers[0].host = "localhost".to_owned();
        config.tls = tls(
            Some(ca.accepting(ClientTlsMode::Require)),
            Some(servers.connecting(ServerTlsMode::VerifyFull)),
        );
        change(&mut config);
        let secure = Secure::new(&ca, None);
        Self { proxy: Proxy::start(config), database: Database::create(), secure, _ca: ca }
    }

    fn client(&self) -> Client {
        self.proxy.login(&self.database).over(&self.secure).connect()
    }
}

#[test]
fn results_of_any_size_come_whole() {
    let both = Both::start(|_| {});
    let mut client = both.client();
    // Around the sizes of records and buffers, and far beyond.
    for size in [0, 1, 8_150, 8_192, 16_340, 16_384, 16_385, 32_768, 36_864, 65_536, 100_000, BYTES] {
        let answer = client.run(&format!("SELECT repeat('x', {size})"));
        assert_eq!(answer.rows()[0][0].as_ref().unwrap().len(), size);
        let sent = "y".repeat(size);
        assert_eq!(client.column(&format!("SELECT length('{sent}')")), [size.to_string()]);
    }
    let rows = client.column("SELECT n FROM generate_series(1, 100000) n");
    assert!(rows.iter().map(|row| row.parse::<usize>().unwrap()).eq(1..=100_000));
}

#[test]
fn a_slow_reader_gets_all_of_it_and_holds_nothing_in_the_proxy() {
    let both = Both::start(|_| {});
    let mut clients: Vec<_> = (0..5).map(|_| both.client()).collect();
    clients.iter_mut().for_each(|client| drop(client.run("SELECT 1")));
    let before = both.proxy.resident_kib();
    clients.truncate(2);
    for client in &mut clients {
        client.send(&query(&format!("SELECT repeat('y', {BYTES})")));
        client.until('T');
    }
    let held = both.proxy.resident_kib().saturating_sub(before);
    assert!(held < 4096, "{held} KiB for two slow readers");
    for client in &mut clients {
        assert_eq!(client.ready().rows().len(), 1);
        assert_eq!(client.column("SELECT 2"), ["2"]);
    }
}

#[test]
fn copy_goes_both_ways() {
    let both = Both::start(|_| {});
    let mut client = both.client();
    client.run("CREATE TABLE wide(line text)");
    copy_in_and_out(&mut client, BYTES);
}

#[test]
fn pipelines_are_answered_in_order() {
    let both = Both::start(|_| {});
    let mut client = both.client();
    let wide = |n: usize| format!("SELECT {n}, repeat('w', {})", n * 700 % 40_000);
    let requests: Vec<u8> = (0..200).flat_map(|n| batch(&wide(n))).collect();
    client.send(&requests);
    let answer = client.ready_times(200);
    assert_eq!(answer.column(), (0..200).map(|n| n.to_string()).collect::<Vec<_>>());
    // Prepared statements, an error in the middle, and a batch that only a Flush ends.
    client.ask(&[parse("s", "SELECT $1::int / $2::int"), sync()].concat());
    let divide =
        |by: &str| [bind("", "s", &[Some("6"), Some(by)]), describe('P', ""), execute("", 0)].concat();
    client.send(&[divide("2"), sync(), divide("0"), sync(), divide("3"), sync()].concat());
    let answer = client.ready_times(3);
    assert_eq!(
        (answer.column(), answer.sqlstate().as_deref()),
        (vec!["3".to_owned(), "2".to_owned()], Some("22012"))
    );
    client.send(&[divide("6"), flush()].concat());
    assert_eq!(client.until('C').column(), ["1"]);
    assert_eq!(client.ask(&sync()).types(), "Z");
    assert_eq!(client.ask(&[parse("p", "SELECT 7"), run("p"), sync()].concat()).column(), ["7"]);
}

#[test]
fn keys_may_be_renewed_at_any_time() {
    let both = Both::start(|_| {});
    let mut client = both.client();
    for round in 0..5 {
        client.renew_keys();
        // Idle, and behind an answer that is still to be read.
        assert_eq!(client.column("SELECT 1"), ["1"]);
        client.send(&query(&format!("SELECT repeat('x', {})", 100_000 * round)));
        client.renew_keys();
        client.send(&query("SELECT 2"));
        assert_eq!(client.ready_times(2).of('D').count(), 2);
    }
}

#[test]
fn many_clients_share_few_connections() {
    let both = Both::start(|_| {});
    let mut clients: Vec<_> = (0..20).map(|_| both.client()).collect();
    for round in 0..5 {
        for (index, client) in clients.iter_mut().enumerate() {
            client.send(&query(&format!("SELECT {}", round * 100 + index)));
        }
        for (index, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.ready().column(), [(round * 100 + index).to_string()]);
        }
    }
    assert!(both.database.backends().len() <= 2);
    clients.into_iter().for_each(Client::leave);
}

#[test]
fn idle_clients_hold_little() {
    let both = Both::start(|config| config.process.workers = 1);
    let mut first = both.client();
    first.run("SELECT repeat('x', 1000000)");
    let mut clients: Vec<_> = (0..20).map(|_| both.client()).collect();
    let use_all = |clients: &mut Vec<Client>| {
        for client in clients.iter_mut() {
            assert_eq!(client.column("SELECT length(repeat('x', 300000))"), ["300000"]);
        }
    };
    use_all(&mut clients);
    let before = both.proxy.resident_kib();
    let more: Vec<_> = (0..200).map(|_| both.client()).collect();
    clients.extend(more);
    use_all(&mut clients);
    let each = both.proxy.resident_kib().saturating_sub(before) / 200;
    assert!(each < 40, "{each} KiB for each client in a debug build");
}

#[test]
fn a_session_that_ends_says_so() {
    let both = Both::start(|_| {});
    // Without close_notify the end would be an error of the test's own TLS.
    let mut client = both.client();
    client.send(&[b'X', 0, 0, 0, 4]);
    assert!(client.next().is_none());
    let mut client = both.client();
    client.send(&[b'?', 0, 0, 0, 4]);
    assert_eq!(client.ended_with(), "08P01");
    let mut client = both.client();
    assert_eq!(client.column("SELECT 1"), ["1"]);
    both.proxy.stop();
    assert_eq!(client.ended_with(), "57P01");
}

#[test]
fn clients_that_break_off_harm_nobody() {
    let both = Both::start(|_| {});
    for _ in 0..3 {
        let mut client = both.client();
        client.send(&query(&format!("SELECT repeat('x', {BYTES})")));
        client.until('T');
        // Closed with the answer half read, and without a word of TLS.
        drop(client);
        let mut client = both.client();
        client.run("BEGIN");
        drop(client);
    }
    let mut client = both.client();
    assert_eq!(client.column("SELECT 1"), ["1"]);
    both.proxy.await_metric("pgrouting_proxy_tls_clients{tls=\"on\"}", 1);
    both.database.await_value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'",
        "0",
    );
}

#[test]
fn copies_go_to_a_mirror_over_tls() {
    let target = Database::create();
    target.direct().run("CREATE TABLE copied(n int)");
    let servers = secure_primary();
    let both = Both::start(|config| {
        config.stage = Stage::Mirror;
        let mut mirror = MirrorConfig::at("localhost".to_owned(), primary().port);
        mirror.database = Some(target.name.clone());
        mirror.statements = MirrorStatements::All;
        mirror.tls = Some(servers.connecting(ServerTlsMode::VerifyFull));
        config.mirror = Some(mirror);
    });
    let mut client = both.client();
    client.run("CREATE TABLE copied(n int)");
    client.run("INSERT INTO copied SELECT generate_series(1, 3)");
    target.await_value("SELECT count(*) FROM copied", "3");
    let handshakes = "pgrouting_proxy_tls_handshakes_total{outcome=\"completed\",side=\"mirror\"}";
    assert!(both.proxy.metric(handshakes) > 0);
    let report = poll("the copies to be compared", || {
        both.proxy.report().mirror.filter(|report| report.mirrored >= 2)
    });
    assert_eq!(report.errors.get("08006"), None, "{report:?}");
}
