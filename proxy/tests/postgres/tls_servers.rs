//! TLS with servers: modes, certificates of both, and what a server may answer.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use pgrouting_contract::config::{AuthConfig, ProxyConfig};
use pgrouting_contract::tls::{ServerTlsConfig, ServerTlsMode};

use super::support::certificates::{Ca, secure_primary, tls};
use super::support::client::{Client, Login};
use super::support::message::query;
use super::support::poll;
use super::support::proxy::{Proxy, pool_of, server, user};
use super::support::server::{Database, own_primary, password_of, primary};

const IS_SECURE: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
const HANDSHAKES: &str = "pgrouting_proxy_tls_handshakes_total{outcome=\"completed\",side=\"server\"}";

fn config(host: &str, connecting: ServerTlsConfig) -> ProxyConfig {
    let mut config = pool_of(2);
    config.servers[0].host = host.to_owned();
    config.tls = tls(None, Some(connecting));
    config
}

/// A user who is let in on one condition, beside the usual ones.
fn with_user(mut config: ProxyConfig, name: &str) -> ProxyConfig {
    config.auth =
        AuthConfig::UserList { users: ["app", name].map(|name| user(name, &password_of(name))).into() };
    config
}

/// Waits until the server counts as down for that reason.
fn await_fault(proxy: &Proxy, reason: &str) {
    poll(&format!("the server to be down: {reason}"), || {
        proxy.get("/healthz")?;
        proxy.report().servers[0].message.contains(reason).then_some(())
    });
}

#[test]
fn the_mode_says_whether_a_server_is_spoken_to_over_tls_and_what_is_verified() {
    let ca = secure_primary();
    let database = Database::create();
    // Its certificate is for localhost alone.
    for (mode, host, expected) in [
        (ServerTlsMode::Disabled, "127.0.0.1", "f"),
        (ServerTlsMode::Prefer, "127.0.0.1", "t"),
        (ServerTlsMode::Require, "127.0.0.1", "t"),
        (ServerTlsMode::VerifyCa, "127.0.0.1", "t"),
        (ServerTlsMode::VerifyFull, "localhost", "t"),
    ] {
        let proxy = Proxy::start(config(host, ca.connecting(mode)));
        assert_eq!(proxy.client(&database).column(IS_SECURE), [expected], "{mode:?} {host}");
        assert_eq!(proxy.metric(HANDSHAKES) > 0, expected == "t", "{mode:?}");
    }
}

#[test]
fn a_certificate_of_another_name_or_ca_is_refused() {
    let (ca, other) = (secure_primary(), Ca::new());
    let database = Database::create();
    for (ca, mode, host, reason) in [
        (ca, ServerTlsMode::VerifyFull, "127.0.0.1", "not valid for name"),
        (&other, ServerTlsMode::VerifyCa, "127.0.0.1", "UnknownIssuer"),
        (&other, ServerTlsMode::VerifyFull, "localhost", "UnknownIssuer"),
    ] {
        let mut config = config(host, ca.connecting(mode));
        config.pooling.checkout_timeout = pgrouting_contract::duration::DurationText::from_millis(200);
        let proxy = Proxy::spawn(config);
        await_fault(&proxy, reason);
        assert_eq!(proxy.login(&database).refused(), "57P03", "{mode:?} {host}");
        assert_eq!(proxy.metric(HANDSHAKES), 0);
    }
}

#[test]
fn case_182_a_server_that_wants_tls_is_served_and_never_in_clear_text_where_it_is_verified() {
    let ca = secure_primary();
    let database = Database::create();
    let login = |proxy: &Proxy| Login::new(proxy.port, "only_tls", &database.name);
    for mode in [ServerTlsMode::Prefer, ServerTlsMode::Require, ServerTlsMode::VerifyFull] {
        let proxy = Proxy::start(with_user(config("localhost", ca.connecting(mode)), "only_tls"));
        assert_eq!(login(&proxy).connect().column(IS_SECURE), ["t"]);
    }
    let proxy =
        Proxy::start(with_user(config("localhost", ca.connecting(ServerTlsMode::Disabled)), "only_tls"));
    assert_eq!(login(&proxy).refused(), "28000", "the server's own refusal");
}

#[test]
fn a_server_that_wants_clear_text_gets_it_where_tls_is_only_preferred() {
    let ca = secure_primary();
    let database = Database::create();
    let login = |proxy: &Proxy| Login::new(proxy.port, "only_clear", &database.name);
    let proxy =
        Proxy::start(with_user(config("127.0.0.1", ca.connecting(ServerTlsMode::Prefer)), "only_clear"));
    assert_eq!(login(&proxy).connect().column(IS_SECURE), ["f"]);
    let proxy =
        Proxy::start(with_user(config("127.0.0.1", ca.connecting(ServerTlsMode::Require)), "only_clear"));
    assert_eq!(login(&proxy).refused(), "28000");
}

#[test]
fn a_server_without_tls_is_served_where_it_is_only_preferred() {
    let own = own_primary();
    let ca = Ca::new();
    let of = |mode| {
        let mut config = config("127.0.0.1", ca.connecting(mode));
        config.servers = vec![server("one", own.port)];
        config
    };
    let proxy = Proxy::start(of(ServerTlsMode::Prefer));
    let mut client = Login::new(proxy.port, "app", "postgres").connect();
    assert_eq!(client.column(IS_SECURE), ["f"]);
    for mode in [ServerTlsMode::Require, ServerTlsMode::VerifyCa] {
        await_fault(&Proxy::spawn(of(mode)), "does not take TLS");
    }
}

#[test]
fn a_server_may_ask_for_the_proxys_certificate() {
    let ca = secure_primary();
    let database = Database::create();
    let mut connecting = ca.connecting(ServerTlsMode::VerifyFull);
    let login = |proxy: &Proxy| Login::new(proxy.port, "with_certificate", &database.name);
    let proxy = Proxy::start(with_user(config("localhost", connecting.clone()), "with_certificate"));
    assert_eq!(login(&proxy).refused(), "28000");

    let mine = Ca::new();
    let (certificate, key) = ca.issue("the proxy", &[]).write(&mine.directory, "proxy");
    (connecting.certificate_file, connecting.key_file) = (Some(certificate), Some(key));
    let proxy = Proxy::start(with_user(config("localhost", connecting), "with_certificate"));
    let sql = "SELECT client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(login(&proxy).connect().column(sql), ["/CN=the proxy"]);
    assert!(proxy.metric("pgrouting_proxy_tls_certificate_expires_seconds{side=\"server\"}") > 0);
}

#[test]
fn what_is_no_answer_to_a_request_for_tls_is_refused() {
    let ca = Ca::new();
    for (answer, mode, reason) in [
        (&b"S\0\0\0\x08"[..], ServerTlsMode::Prefer, "clear text came behind"),
        (b"Eno room\n\0", ServerTlsMode::Prefer, "with an error"),
        (b"?", ServerTlsMode::Require, "no answer to it"),
        (b"Snothing of TLS", ServerTlsMode::VerifyCa, "clear text came behind"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut request = [0; 8];
                let _ = stream.read_exact(&mut request).and_then(|()| stream.write_all(answer));
                let _ = stream.read(&mut request);
            }
        });
        let mut config = config("127.0.0.1", ca.connecting(mode));
        config.servers = vec![server("one", port)];
        await_fault(&Proxy::spawn(config), reason);
    }
}

#[test]
fn other_settings_replace_the_connections_that_are_open() {
    let ca = secure_primary();
    let database = Database::create();
    let mut proxy = Proxy::start(config("127.0.0.1", ca.connecting(ServerTlsMode::Disabled)));
    let (mut idle, mut busy) = (proxy.client(&database), proxy.client(&database));
    assert_eq!(idle.column(IS_SECURE), ["f"]);
    busy.run("BEGIN");
    let backend = busy.backend();
    proxy.change(|config| config.tls = tls(None, Some(ca.connecting(ServerTlsMode::VerifyCa))));
    assert_eq!(idle.column(IS_SECURE), ["t"]);
    assert_eq!(busy.backend(), backend, "a transaction stays where it is");
    busy.run("COMMIT");
    assert_eq!(busy.column(IS_SECURE), ["t"]);
}

#[test]
fn pass_through_logs_in_over_tls_with_what_a_proof_reveals() {
    let ca = secure_primary();
    let database = Database::create();
    let mut config = config("localhost", ca.connecting(ServerTlsMode::VerifyFull));
    config.auth = AuthConfig::Passthrough {};
    config.probe.user = Some(user("probe", "probe secret"));
    let proxy = Proxy::start(config);
    let mut client = Client::connect(&proxy.login(&database)).unwrap();
    assert_eq!(client.column(IS_SECURE), ["t"]);
}

#[test]
fn cancel_requests_go_to_servers_over_tls() {
    let ca = secure_primary();
    let database = Database::create();
    let proxy = Proxy::start(config("localhost", ca.connecting(ServerTlsMode::VerifyFull)));
    let mut client = proxy.client(&database);
    client.send(&query("SELECT pg_sleep(600)"));
    database.await_sleeping("1");
    let before = proxy.metric(HANDSHAKES);
    client.cancel();
    assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
    assert!(proxy.metric(HANDSHAKES) > before);
    assert_eq!(primary().admin("postgres").column("SELECT 1"), ["1"]);
}
