//! A cancel request that arrives at another proxy than its session's.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pgrouting_contract::config::{AdminTls, PoolMode, ProxyConfig};
use pgrouting_contract::peers::{PROXY_SERVER_NAME, PeersConfig};
use pgrouting_proxy::wire::startup::{CancelKey, put_cancel};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::support::client::Client;
use super::support::http::request;
use super::support::message::query;
use super::support::proxy::{Proxy, new_directory, pool_of};
use super::support::server::Database;

const FORWARDED: &str = "pgrouting_proxy_cancel_requests_total{outcome=\"forwarded\"}";
const KNOWN: &str = "pgrouting_proxy_cancel_requests_total{outcome=\"known\"}";
const UNKNOWN: &str = "pgrouting_proxy_cancel_requests_total{outcome=\"unknown\"}";
const PEERS_ASKED: &str = "pgrouting_proxy_cancel_peers_asked_total";
const PASSED_ON: &str = "pgrouting_proxy_cancels_total";

#[test]
fn a_cancel_request_finds_its_session_at_a_peer() {
    let database = Database::create();
    let files = Files::new();
    for mode in [PoolMode::Transaction, PoolMode::Session] {
        let [here, there] = peers(&files, |config| config.pooling.mode = mode);
        let mut client = here.client(&database);
        for round in 1..=2 {
            client.send(&query("SELECT pg_sleep(60)"));
            database.await_sleeping("1");
            Client::cancel_at(there.port, &client.key);
            assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
            assert_eq!(client.column("SELECT 42"), ["42"]);
            assert_eq!((there.metric(FORWARDED), there.metric(PEERS_ASKED)), (round, round));
            assert_eq!(here.metric(PASSED_ON), round);
        }
        assert_eq!((there.metric(PASSED_ON), there.metric(KNOWN)), (0, 0));
        assert_eq!(
            (here.metric(KNOWN), here.metric(PEERS_ASKED)),
            (0, 0),
            "clients' own requests are counted"
        );
    }
}

#[test]
fn a_key_that_no_proxy_of_the_pool_gave_costs_no_question() {
    let files = Files::new();
    let [here, there] = peers(&files, |_| {});
    for secret_len in [4, 32, 256] {
        Client::cancel_at(there.port, &CancelKey { process_id: 1, secret: vec![7; secret_len] });
    }
    assert_eq!((there.metric(UNKNOWN), there.metric(PEERS_ASKED)), (3, 0));
    assert_eq!(here.metric(UNKNOWN), 0);
}

#[test]
fn a_request_for_a_session_that_has_ended_goes_round_once() {
    let database = Database::create();
    let files = Files::new();
    let [here, there] = peers(&files, |_| {});
    let client = here.client(&database);
    let key = client.key.clone();
    client.leave();
    here.await_metric("pgrouting_proxy_clients{state=\"idle\"}", 0);
    Client::cancel_at(there.port, &key);
    assert_eq!((there.metric(UNKNOWN), there.metric(PEERS_ASKED)), (1, 1), "the other one and not itself");
    assert_eq!((here.metric(UNKNOWN), here.metric(PEERS_ASKED)), (0, 0), "what was handed on stays there");
}

/// A client of one proxy is cancelled by a request that comes in at the other.
fn assert_cancelled_at(database: &Database, here: &Proxy, there: &Proxy) {
    let mut client = here.client(database);
    client.send(&query("SELECT pg_sleep(60)"));
    database.await_sleeping("1");
    Client::cancel_at(there.port, &client.key);
    assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
}

#[test]
fn peers_can_be_named_while_the_proxy_runs() {
    let database = Database::create();
    let files = Files::new();
    let mut proxies = [(); 2].map(|()| Proxy::start(pool_of(1)));
    let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.config.process.admin_listen.clone()).collect();
    for proxy in &mut proxies {
        proxy.change(|config| config.peers = Some(files.peers(&addresses)));
    }
    let [here, there] = &proxies;
    assert_cancelled_at(&database, here, there);
}

#[test]
fn peers_are_found_by_name() {
    let database = Database::create();
    let files = Files::new();
    let mut config = pool_of(1);
    config.peers = Some(files.peers(&[config.process.admin_listen.clone()]));
    let here = Proxy::start(config);
    let mut config = pool_of(1);
    // The name has one address or two, of which one leads nowhere.
    let by_name =
        PeersConfig { host: Some("localhost".to_owned()), port: here.admin_port, ..files.peers(&[]) };
    config.peers = Some(by_name);
    let there = Proxy::start(config);
    assert_cancelled_at(&database, &here, &there);
}

#[test]
fn peers_ask_each_other_over_mutual_tls_and_may_do_nothing_else() {
    let database = Database::create();
    let files = Files::new();
    let tls = files.make_certificates();
    let [here, there] = peers(&files, |config| config.process.admin_tls = Some(tls.clone()));
    assert_cancelled_at(&database, &here, &there);
    assert_eq!(there.metric(FORWARDED), 1);

    let mut packet = Vec::new();
    put_cancel(&mut packet, &CancelKey { process_id: 1, secret: vec![7; 4] });
    let mut config = here.config.clone();
    config.generation.0 += 1;
    let document = config.canonical_bytes();
    for (caller, expected) in [("proxy", [404, 404, 404]), ("operator", [404, 200, 200])] {
        let status = |method, path, body: &[u8]| files.ask_as(caller, here.admin_port, method, path, body);
        let answers = [
            status("POST", "/cancel", &packet),
            status("GET", "/report", b""),
            status("PUT", "/config", &document),
        ];
        assert_eq!(answers, expected, "{caller}");
    }
    assert_eq!(files.ask_as("proxy", here.admin_port, "POST", "/cancel", b"no packet"), 400);
}

#[test]
fn who_does_not_show_the_token_cancels_nothing() {
    let database = Database::create();
    let files = Files::new();
    let token = files.write("token", "admin secret\n");
    let [here, there] = peers(&files, |config| config.process.admin_token_file = Some(token.clone()));
    let mut client = here.client(&database);
    client.send(&query("SELECT pg_sleep(60)"));
    database.await_sleeping("1");
    let mut packet = Vec::new();
    put_cancel(&mut packet, &client.key);
    for headers in [&[][..], &[("Authorization", "Bearer wrong")]] {
        assert_eq!(request(here.admin_port, "POST", "/cancel", headers, &packet).unwrap().status, 401);
    }
    // The two did nothing: the query is still there for the peer, which has the token.
    database.await_sleeping("1");
    Client::cancel_at(there.port, &client.key);
    assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
}

#[test]
fn what_is_no_cancel_request_is_refused() {
    let proxy = Proxy::start(pool_of(1));
    let mut packet = Vec::new();
    put_cancel(&mut packet, &CancelKey { process_id: 1, secret: vec![7; 4] });
    let ssl_request = b"\0\0\0\x08\x04\xd2\x16\x2f".to_vec();
    for (body, status) in [
        (packet.clone(), 404),
        ([&packet[..], b"x"].concat(), 400),
        (packet[..15].to_vec(), 400),
        (ssl_request, 400),
        (Vec::new(), 400),
        (vec![0; 513], 413),
    ] {
        let answer = request(proxy.admin_port, "POST", "/cancel", &[], &body).unwrap();
        assert_eq!(answer.status, status, "{body:?}");
    }
}

/// Two proxies that know each other, with a change to the documents of both.
fn peers(files: &Files, change: impl Fn(&mut ProxyConfig)) -> [Proxy; 2] {
    let mut configs = [(); 2].map(|()| pool_of(1));
    let addresses: Vec<_> = configs.iter().map(|config| config.process.admin_listen.clone()).collect();
    for config in &mut configs {
        config.peers = Some(files.peers(&addresses));
        change(config);
    }
    configs.map(Proxy::start)
}

/// What the proxies of one test share, in a directory of its own.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        let files = Self(new_directory());
        files.write("secret", "what the proxies of this pool share");
        files
    }

    fn write(&self, name: &str, content: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn peers(&self, addresses: &[String]) -> PeersConfig {
        PeersConfig {
            host: None,
            port: 9128,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            secret_file: self.path("secret"),
        }
    }

    /// Certificates of a new CA as the operator makes them: `proxy` for both ends, `operator` for callers.
    fn make_certificates(&self) -> AdminTls {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        self.write("ca.crt", &ca.pem());
        let (server, client) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
        for (file, name, usages) in [
            ("proxy", PROXY_SERVER_NAME, vec![server, client.clone()]),
            ("operator", "pgrouting-operator", vec![client]),
        ] {
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.extended_key_usages = usages;
            let key = KeyPair::generate().unwrap();
            self.write(&format!("{file}.crt"), &params.signed_by(&key, &ca).unwrap().pem());
            self.write(&format!("{file}.key"), &key.serialize_pem());
        }
        AdminTls {
            certificate_file: self.path("proxy.crt"),
            key_file: self.path("proxy.key"),
            client_ca_file: self.path("ca.crt"),
        }
    }

    /// The status of the answer to a request over TLS with one of the certificates.
    fn ask_as(&self, caller: &str, port: u16, method: &str, path: &str, body: &[u8]) -> u16 {
        let pem = |name: &str| Path::new(&self.path(name)).to_owned();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(pem("ca.crt")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_file(pem(&format!("{caller}.crt"))).unwrap()],
                PrivateKeyDer::from_pem_file(pem(&format!("{caller}.key"))).unwrap(),
            )
            .unwrap();
        let name = ServerName::try_from(PROXY_SERVER_NAME).unwrap();
        let tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = rustls::StreamOwned::new(tls, TcpStream::connect(("127.0.0.1", port)).unwrap());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        std::str::from_utf8(&answer[9..]).unwrap().parse().unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
