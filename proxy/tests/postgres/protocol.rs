//! Protocol 3.2 and its long cancel keys, beside 3.0.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use pgrouting_proxy::wire::backend::{BACKEND_KEY_DATA, backend_key, put_backend_key};
use pgrouting_proxy::wire::frame::header;
use pgrouting_proxy::wire::startup::{CancelKey, FirstPacket, packet_len, put_cancel, read};

use super::support::client::Client;
use super::support::message::query;
use super::support::proxy::{Proxy, pool_of, server};
use super::support::server::{Database, primary};

const PROTOCOL_3_0: i32 = 196_608;
const PROTOCOL_3_1: i32 = 196_609;
const PROTOCOL_3_2: i32 = 196_610;
const PROTOCOL_3_3: i32 = 196_611;
/// The version that PostgreSQL's own tests ask for to see whether a server negotiates.
const PROTOCOL_3_9999: i32 = 206_607;

#[test]
fn a_client_of_3_2_gets_a_long_key_and_others_a_short_one() {
    let (database, proxy) = pool();
    for (protocol, length) in [(PROTOCOL_3_0, 4), (PROTOCOL_3_1, 4), (PROTOCOL_3_2, 32)] {
        let mut client = Client::open(proxy.port);
        client.send(&startup(protocol, &database, &[]));
        client.log_in("app secret").unwrap();
        assert_eq!(client.negotiated, None, "{protocol} is spoken as it is");
        assert_eq!(client.key.secret.len(), length, "{protocol}");
        assert_eq!(client.column("SELECT 1"), ["1"]);
    }
}

#[test]
fn a_client_of_a_newer_version_is_told_3_2_and_gets_a_long_key() {
    let (database, proxy) = pool();
    for protocol in [PROTOCOL_3_3, PROTOCOL_3_9999] {
        let mut client = Client::open(proxy.port);
        client.send(&startup(protocol, &database, &[]));
        client.log_in("app secret").unwrap();
        assert_eq!(client.negotiated.take().unwrap().body(), b"\0\x03\0\x02\0\0\0\0", "{protocol}");
        assert_eq!(client.key.secret.len(), 32);
        assert_eq!(client.column("SELECT 1"), ["1"]);
    }
}

#[test]
fn case_109_unknown_protocol_options_are_named_in_the_answer() {
    let (database, proxy) = pool();
    for (protocol, spoken) in [(PROTOCOL_3_0, 0), (PROTOCOL_3_1, 1), (PROTOCOL_3_2, 2), (PROTOCOL_3_9999, 2)]
    {
        let mut client = Client::open(proxy.port);
        client.send(&startup(protocol, &database, &[("_pq_.test_protocol_negotiation", "")]));
        client.log_in("app secret").unwrap();
        let expected = [&[0, 3, 0, spoken], &b"\0\0\0\x01_pq_.test_protocol_negotiation\0"[..]].concat();
        assert_eq!(client.negotiated.take().unwrap().body(), expected, "{protocol}");
        assert_eq!(client.column("SELECT 1"), ["1"]);
    }
}

#[test]
fn a_long_key_cancels_its_query_and_a_part_of_it_does_not() {
    let (database, proxy) = pool();
    let mut client = Client::open(proxy.port);
    client.send(&startup(PROTOCOL_3_2, &database, &[]));
    client.log_in("app secret").unwrap();
    client.send(&query("SELECT pg_sleep(60)"));
    database.await_sleeping("1");
    let process_id = client.key.process_id;
    client.cancel_with(&CancelKey { process_id, secret: client.key.secret[..4].to_vec() });
    client.cancel_with(&CancelKey { process_id, secret: [&client.key.secret[..], b"\0"].concat() });
    let mut last_bit_wrong = client.key.clone();
    last_bit_wrong.secret[31] ^= 1;
    client.cancel_with(&last_bit_wrong);
    // The three were taken and did nothing: the query is still there for the fourth.
    database.await_sleeping("1");
    client.cancel();
    assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
    assert_eq!(client.column("SELECT 42"), ["42"]);
}

#[test]
fn a_servers_long_key_is_used_as_it_came() {
    let database = Database::create();
    let long_keys = LongKeys::start(256);
    let mut config = pool_of(1);
    config.servers = vec![server("one", long_keys.port)];
    let proxy = Proxy::start(config);
    let mut client = proxy.client(&database);
    assert_eq!(client.key.secret.len(), 4, "what the client is given does not depend on the server");
    client.send(&query("SELECT pg_sleep(60)"));
    database.await_sleeping("1");
    client.cancel();
    assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
    assert_eq!(long_keys.cancels.load(Ordering::Relaxed), 1);
}

fn pool() -> (Database, Proxy) {
    (Database::create(), Proxy::start(pool_of(1)))
}

/// A startup message of `app` with this protocol and these parameters.
fn startup(protocol: i32, database: &Database, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = protocol.to_be_bytes().to_vec();
    for (name, value) in [&[("user", "app"), ("database", database.name.as_str())], parameters].concat() {
        body.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
    }
    body.push(0);
    [&u32::try_from(body.len() + 4).unwrap().to_be_bytes()[..], &body].concat()
}

/// The primary, seen as a server whose cancel keys are long. It ends with the test process.
struct LongKeys {
    port: u16,
    cancels: Arc<AtomicU32>,
}

impl LongKeys {
    fn start(secret_len: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let cancels = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&cancels);
        std::thread::spawn(move || {
            let real_keys = Arc::new(Mutex::new(Vec::new()));
            for client in listener.incoming() {
                let (real_keys, cancels) = (Arc::clone(&real_keys), Arc::clone(&counted));
                // A connection that breaks is the proxy's to notice.
                std::thread::spawn(move || relay(client?, secret_len, &real_keys, &cancels));
            }
        });
        Self { port, cancels }
    }
}

/// Pairs of what the proxy was given and what the primary knows.
type RealKeys = Mutex<Vec<(CancelKey, CancelKey)>>;

fn relay(
    mut client: TcpStream,
    secret_len: usize,
    real_keys: &RealKeys,
    cancels: &AtomicU32,
) -> std::io::Result<()> {
    let mut first = Vec::new();
    while packet_len(&first).unwrap().is_none_or(|length| first.len() < length) {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        first.push(byte[0]);
    }
    let mut server = TcpStream::connect(("127.0.0.1", primary().port))?;
    if let FirstPacket::Cancel(key) = read(&first).unwrap() {
        let known = real_keys.lock().unwrap().iter().find(|(long, _)| *long == key).cloned();
        let (_, real) = known.expect("the proxy sends back the key that it was given");
        cancels.fetch_add(1, Ordering::Relaxed);
        first.clear();
        put_cancel(&mut first, &real);
        server.write_all(&first)?;
        server.read_to_end(&mut first)?;
        return Ok(());
    }
    server.write_all(&first)?;
    let (mut requests, mut onward) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut requests, &mut onward);
        let _ = onward.shutdown(Shutdown::Write);
    });
    let mut inbox = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let count = server.read(&mut chunk)?;
        if count == 0 {
            return client.shutdown(Shutdown::Write);
        }
        inbox.extend_from_slice(&chunk[..count]);
        while let Some(header) = header(&inbox, 0x7fff_ffff).unwrap()
            && inbox.len() >= header.total
        {
            let mut message: Vec<u8> = inbox.drain(..header.total).collect();
            if message[0] == BACKEND_KEY_DATA {
                let real = backend_key(&message).unwrap();
                let long = CancelKey { process_id: real.process_id, secret: vec![0xa5; secret_len] };
                message.clear();
                put_backend_key(&mut message, &long);
                real_keys.lock().unwrap().push((long, real));
            }
            client.write_all(&message)?;
        }
    }
}
