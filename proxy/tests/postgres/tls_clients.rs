//! TLS with clients: modes, the handshake, bound logins, certificates of clients.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::duration::DurationText;
use pgrouting_contract::tls::{ClientCertificate, ClientTlsConfig, ClientTlsMode};

use super::support::certificates::{Ca, tls};
use super::support::client::{Client, Login};
use super::support::message::query;
use super::support::proxy::{Proxy, pool_of, user};
use super::support::secure::{Proof, SSL_REQUEST, Secure};
use super::support::server::{Database, primary};

const GSSENC_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x30";

fn config(client: ClientTlsConfig) -> ProxyConfig {
    let mut config = pool_of(2);
    config.tls = tls(Some(client), None);
    config
}

fn accepting(mode: ClientTlsMode) -> (Ca, Proxy, Database) {
    let ca = Ca::new();
    let proxy = Proxy::start(config(ca.accepting(mode)));
    (ca, proxy, Database::create())
}

/// The byte that answers a request for encryption.
fn answer(port: u16, request: &[u8]) -> (u8, TcpStream) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = [0; 1];
    stream.read_exact(&mut answer).unwrap();
    (answer[0], stream)
}

#[test]
fn the_mode_says_whether_clients_may_or_must_come_over_tls() {
    for (mode, says, clear) in [
        (ClientTlsMode::Disabled, b'N', None),
        (ClientTlsMode::Allow, b'S', None),
        (ClientTlsMode::Require, b'S', Some("28000")),
    ] {
        let (ca, proxy, database) = accepting(mode);
        assert_eq!(answer(proxy.port, SSL_REQUEST).0, says, "{mode:?}");
        match Client::connect(&proxy.login(&database)) {
            Ok(mut client) => assert_eq!((client.value("SELECT 1").unwrap(), clear), ("1".to_owned(), None)),
            Err(refusal) => {
                assert_eq!(Some(&*refusal.sqlstate()), clear, "{mode:?}");
                assert!(refusal.0.unwrap().field('H').unwrap().contains("sslmode=require"));
            }
        }
        if says == b'S' {
            let login = proxy.login(&database).over(&Secure::new(&ca, None));
            let mut client = login.connect();
            assert_eq!(client.value("SELECT session_user").unwrap(), "app");
            assert_eq!(proxy.metric("pgrouting_proxy_tls_clients{tls=\"on\"}"), 1);
            assert_eq!(login.password("wrong").refused(), "28P01");
            client.leave();
            proxy.await_metric("pgrouting_proxy_tls_clients{tls=\"on\"}", 0);
        }
    }
}

#[test]
fn tls_may_be_asked_for_after_gssapi_was_refused() {
    let (ca, proxy, _database) = accepting(ClientTlsMode::Allow);
    let (says, mut stream) = answer(proxy.port, GSSENC_REQUEST);
    assert_eq!(says, b'N');
    let mut connection = Secure::new(&ca, None).shake(&mut stream).unwrap();
    connection.writer().write_all(b"\0\0\0\x0d\0\x03\0\0user\0").unwrap();
    connection.complete_io(&mut stream).unwrap();
    // A packet whose list does not end: it was read, over TLS.
    let mut text = Vec::new();
    rustls::Stream::new(&mut connection, &mut stream).read_to_end(&mut text).unwrap();
    assert!(String::from_utf8_lossy(&text).contains("08P01"));
}

#[test]
fn direct_tls_needs_the_name_of_the_protocol() {
    let (ca, proxy, database) = accepting(ClientTlsMode::Require);
    let direct = Secure::new(&ca, None).direct();
    assert_eq!(proxy.login(&database).over(&direct).connect().value("SELECT 1").unwrap(), "1");
    // As PostgreSQL 17: closed without a word, or no common protocol.
    assert_eq!(proxy.login(&database).over(&direct.clone().naming(&[])).refused(), "");
    assert!(Client::open_secure(proxy.port, &direct.naming(&["http/1.1"])).is_err());
    // Behind an SSLRequest the name need not be there.
    let unnamed = Secure::new(&ca, None).naming(&[]);
    assert_eq!(proxy.login(&database).over(&unnamed).connect().value("SELECT 1").unwrap(), "1");
    let (_ca, disabled, _database) = accepting(ClientTlsMode::Disabled);
    assert!(Client::open_secure(disabled.port, &direct_of(&ca)).is_err());
}

fn direct_of(ca: &Ca) -> Secure {
    Secure::new(ca, None).direct()
}

#[test]
fn case_179_clear_text_behind_a_request_for_tls_is_refused() {
    let (ca, proxy, database) = accepting(ClientTlsMode::Allow);
    let injecting = Secure::new(&ca, None).injecting(b"\0\0\0\x08abcd");
    let mut client = Client::open_secure(proxy.port, &injecting).unwrap();
    assert_eq!(client.ended_with(), "08P01");
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
}

#[test]
fn a_failed_handshake_is_counted_and_harms_nobody() {
    let (ca, proxy, database) = accepting(ClientTlsMode::Allow);
    assert!(Client::open_secure(proxy.port, &Secure::new(&Ca::new(), None)).is_err());
    let (_, mut stream) = answer(proxy.port, SSL_REQUEST);
    stream.write_all(b"no handshake at all").unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    proxy.await_metric("pgrouting_proxy_tls_handshakes_total{outcome=\"failed\",side=\"client\"}", 2);
    let mut client = proxy.login(&database).over(&Secure::new(&ca, None)).connect();
    assert_eq!(client.column("SELECT 1"), ["1"]);
    assert_eq!(
        proxy.metric("pgrouting_proxy_tls_handshakes_total{outcome=\"completed\",side=\"client\"}"),
        1
    );
}

#[test]
fn a_handshake_that_stalls_ends_with_the_time_for_logins() {
    let ca = Ca::new();
    let mut config = config(ca.accepting(ClientTlsMode::Allow));
    config.pooling.client_login_timeout = DurationText::from_millis(100);
    let proxy = Proxy::start(config);
    for said in [&b""[..], b"\x16\x03\x01", b"\x16\x03\x01\x40\x00"] {
        let (_, mut stream) = answer(proxy.port, SSL_REQUEST);
        stream.write_all(said).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    }
    proxy.await_metric("pgrouting_proxy_tls_handshakes_total{outcome=\"failed\",side=\"client\"}", 3);
}

#[test]
fn a_session_of_tls_is_resumed_and_may_be_bound() {
    let (ca, proxy, database) = accepting(ClientTlsMode::Require);
    let login = proxy.login(&database).over(&Secure::new(&ca, None)).proving(Proof::Bound);
    let mut first = login.connect();
    assert_eq!(first.column("SELECT 1"), ["1"]);
    assert!(!first.is_resumed());
    let mut second = login.connect();
    assert_eq!(second.column("SELECT 2"), ["2"]);
    assert!(second.is_resumed());
}

#[test]
fn case_177_a_login_over_tls_may_be_bound_to_the_proxys_certificate() {
    let (ca, proxy, database) = accepting(ClientTlsMode::Allow);
    let login = proxy.login(&database).over(&Secure::new(&ca, None));
    let mut bound = login.clone().proving(Proof::Bound).connect();
    assert_eq!(bound.mechanisms, ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]);
    assert_eq!(bound.column("SELECT 1"), ["1"]);
    assert_eq!(login.connect().column("SELECT 2"), ["2"]);
    assert_eq!(login.clone().proving(Proof::Bound).password("wrong").refused(), "28P01");
    assert_eq!(login.proving(Proof::Pretended).refused(), "28000", "bound to another certificate");
}

#[test]
fn case_178_a_downgrade_is_noticed() {
    let (ca, proxy, database) = accepting(ClientTlsMode::Allow);
    let clear = proxy.login(&database);
    let secure = clear.clone().over(&Secure::new(&ca, None));
    assert_eq!(secure.proving(Proof::Unoffered).refused(), "28000");
    assert_eq!(clear.connect().mechanisms, ["SCRAM-SHA-256"]);
    assert_eq!(clear.clone().proving(Proof::Pretended).refused(), "08P01");
    assert_eq!(clear.proving(Proof::Unoffered).connect().column("SELECT 1"), ["1"]);
}

#[test]
fn certificates_of_clients_are_asked_for_as_the_document_says() {
    let (ca, clients, strangers) = (Ca::new(), Ca::new(), Ca::new());
    let database = Database::create();
    let (app, other) = (clients.issue("app", &[]), clients.issue("other", &[]));
    let stranger = strangers.issue("app", &[]);
    let over = |shown| Secure::new(&ca, shown);
    for (asks, none, of_another) in [
        (Some(ClientCertificate::Request), None, None),
        (None, Some("28000"), None),
        (Some(ClientCertificate::VerifyCa), Some("28000"), None),
        (Some(ClientCertificate::VerifyFull), Some("28000"), Some("28000")),
    ] {
        let mut accepting = ca.accepting(ClientTlsMode::Allow);
        accepting.client_ca_file = clients.file();
        accepting.client_certificate = asks;
        let proxy = Proxy::start(config(accepting));
        let refusal = |secure: &Secure| match Client::connect(&proxy.login(&database).over(secure)) {
            Ok(mut client) => {
                assert_eq!(client.column("SELECT session_user"), ["app"]);
                None
            }
            Err(refusal) => Some(refusal.sqlstate()),
        };
        assert_eq!(refusal(&over(Some(&app))), None, "{asks:?}");
        assert_eq!(refusal(&over(None)).as_deref(), none, "{asks:?}");
        assert_eq!(refusal(&over(Some(&other))).as_deref(), of_another, "{asks:?}");
        assert_eq!(refusal(&over(Some(&stranger))).as_deref(), Some(""), "the handshake fails");
        assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"], "in clear text nothing is asked for");
    }
}

#[test]
fn psql_comes_over_tls_verifies_and_is_bound() {
    let (ca, proxy, database) = accepting(ClientTlsMode::Require);
    let psql = |settings: &str| {
        let connection = format!(
            "host=localhost hostaddr=127.0.0.1 port={} user=app dbname={} {settings}",
            proxy.port, database.name
        );
        let output = Command::new("psql")
            .args(["-X", "-A", "-t", "-d", &connection, "-c", "SELECT 'in'", "-c", "\\conninfo"])
            .env("PGPASSWORD", "app secret")
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let root = ca.file().unwrap();
    for settings in [
        "sslmode=require".to_owned(),
        "sslmode=prefer".to_owned(),
        format!("sslmode=verify-full sslrootcert={root}"),
        "sslmode=require channel_binding=require".to_owned(),
        "sslmode=require ssl_max_protocol_version=TLSv1.2 channel_binding=require".to_owned(),
    ] {
        let (out, error) = psql(&settings);
        assert!(out.starts_with("in\n") && out.contains("SSL connection"), "{settings}: {out}{error}");
    }
    let other = Ca::new();
    let (out, error) = psql(&format!("sslmode=verify-ca sslrootcert={}", other.file().unwrap()));
    assert!(out.is_empty() && error.contains("certificate verify failed"), "{error}");
    let (out, error) = psql("sslmode=disable");
    assert!(out.is_empty() && error.contains("must not connect without encryption"), "{error}");
}

#[test]
fn a_cancel_request_may_come_over_tls() {
    let (ca, proxy, database) = accepting(ClientTlsMode::Require);
    let secure = Secure::new(&ca, None);
    let mut client = proxy.login(&database).over(&secure).connect();
    for is_secure in [true, false] {
        client.send(&query("SELECT pg_sleep(600)"));
        database.await_sleeping("1");
        let mut other = if is_secure {
            Client::open_secure(proxy.port, &secure).unwrap()
        } else {
            // libpq before version 17 knows no other way.
            Client::open(proxy.port)
        };
        let mut packet = Vec::new();
        pgrouting_proxy::wire::startup::put_cancel(&mut packet, &client.key);
        other.send(&packet);
        assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
    }
}

#[test]
fn clients_of_session_mode_come_over_tls_too() {
    let ca = Ca::new();
    let mut config = config(ca.accepting(ClientTlsMode::Require));
    config.pooling.mode = pgrouting_contract::config::PoolMode::Session;
    let (proxy, database) = (Proxy::start(config), Database::create());
    let mut client = proxy.login(&database).over(&Secure::new(&ca, None)).connect();
    client.run("LISTEN here");
    database.direct().run("NOTIFY here, 'there'");
    // It comes while the client is idle.
    assert_eq!(client.notified(), "here there");
    client.leave();
    database.await_value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'", "0");
}

#[test]
fn a_login_by_pass_through_may_be_bound() {
    let ca = Ca::new();
    let database = Database::create();
    primary().admin("postgres").run("CREATE ROLE bound LOGIN PASSWORD 'first'");
    let mut config = config(ca.accepting(ClientTlsMode::Allow));
    config.auth = pgrouting_contract::config::AuthConfig::Passthrough {};
    config.probe.user = Some(user("probe", "probe secret"));
    let proxy = Proxy::start(config);
    let login = Login::new(proxy.port, "bound", &database.name).password("first").proving(Proof::Bound);
    let login = login.over(&Secure::new(&ca, None));
    assert_eq!(login.connect().column("SELECT session_user"), ["bound"]);
    assert_eq!(login.password("second").refused(), "28P01");
    drop(proxy);
    database.await_value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'bound'", "0");
    primary().admin("postgres").run("DROP ROLE bound");
}
