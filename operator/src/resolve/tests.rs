//! Endpoints of Services become servers; Secrets become credentials.

use serde_json::json;

use super::*;
use crate::fixtures::secret_reference;

fn service(port: i32) -> Service {
    serde_json::from_value(json!({
        "metadata": {"name": "pg-rw"},
        "spec": {"ports": [{"name": "metrics", "port": 9187}, {"name": "pg", "port": port, "targetPort": 5433}]},
    }))
    .unwrap()
}

fn slice(endpoints: serde_json::Value) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"name": "pg-rw-x", "labels": {"kubernetes.io/service-name": "pg-rw"}},
        "addressType": "IPv4",
        "ports": [{"name": "metrics", "port": 9187}, {"name": "pg", "port": 5433}],
        "endpoints": endpoints,
    }))
    .unwrap()
}

fn backend() -> BackendService {
    BackendService { name: "pg-rw".into(), port: 5432 }
}

#[test]
fn port_of_the_service_leads_to_the_port_of_the_endpoint() {
    let slice = slice(json!([{
        "addresses": ["10.0.0.5"],
        "targetRef": {"kind": "Pod", "name": "pg-0"},
        "zone": "a",
    }]));
    let servers = endpoints_of(&backend(), Some(&service(5432)), [&slice].into_iter()).unwrap();
    assert_eq!(
        servers,
        [EndpointServer {
            name: "pg-0".into(),
            address: "10.0.0.5".into(),
            port: 5433,
            zone: Some("a".into()),
            is_ready: true
        }]
    );
}

#[test]
fn what_is_wrong_with_a_service_says_what_to_do() {
    let none = || std::iter::empty::<&EndpointSlice>();
    let missing = endpoints_of(&backend(), None, none()).unwrap_err();
    assert!(missing.contains("Service pg-rw does not exist: create it"), "{missing}");
    let other_port = endpoints_of(&backend(), Some(&service(6432)), none()).unwrap_err();
    assert!(other_port.contains("has no port 5432, it has 9187, 6432"), "{other_port}");
    let empty = endpoints_of(&backend(), Some(&service(5432)), none()).unwrap_err();
    assert!(empty.contains("has no endpoints"), "{empty}");
}

#[test]
fn terminating_endpoint_is_left_out_and_unready_one_is_marked() {
    let slice = slice(json!([
        {"addresses": ["10.0.0.5"], "conditions": {"ready": false, "terminating": true}},
        {"addresses": ["10.0.0.6"], "conditions": {"ready": false}},
    ]));
    let servers = endpoints_of(&backend(), Some(&service(5432)), [&slice].into_iter()).unwrap();
    let seen: Vec<_> = servers.iter().map(|server| (server.name.as_str(), server.is_ready)).collect();
    assert_eq!(seen, [("10-0-0-6", false)]);
}

#[test]
fn address_behind_two_services_is_one_server_and_no_name_is_used_twice() {
    let server = |name: &str, address: &str, is_ready| EndpointServer {
        name: name.into(),
        address: address.into(),
        port: 5432,
        zone: None,
        is_ready,
    };
    let servers = each_address_once(vec![
        server("pg-1", "10.0.0.6", false),
        server("pg-0", "10.0.0.5", true),
        server("pg-1", "10.0.0.6", true),
        server("pg-1", "10.0.0.7", true),
    ]);
    let seen: Vec<_> = servers.iter().map(|s| (s.name.as_str(), s.address.as_str(), s.is_ready)).collect();
    assert_eq!(
        seen,
        [("pg-0", "10.0.0.5", true), ("pg-1", "10.0.0.6", true), ("pg-1-10-0-0-7-5432", "10.0.0.7", true)]
    );
}

#[test]
fn every_text_gives_a_name_that_the_document_takes() {
    for (text, name) in [
        ("pg-0", "pg-0"),
        ("10.1.2.3", "10-1-2-3"),
        ("fd00::1", "fd00--1"),
        ("Pg_0.", "pg-0"),
        ("...", "server"),
    ] {
        assert_eq!(server_name(text), name, "{text}");
    }
    assert!(server_name(&"x".repeat(100)).len() <= 63);
}

#[test]
fn missing_or_empty_key_is_named() {
    let secret: Secret = serde_json::from_value(json!({
        "data": {"username": "YXBw", "password": ""},
    }))
    .unwrap();
    let fault = credentials_of(&secret_reference("app"), &secret).unwrap_err();
    assert_eq!(fault, CredentialsFault::KeyMissing { secret: "app".into(), key: "password".into() });
    assert!(fault.to_string().contains("Secret app has no password"));
}

#[test]
fn credentials_are_never_in_a_log_line() {
    let credentials = crate::fixtures::credentials("app", "hunter2");
    let text = format!("{credentials:?}");
    assert!(!text.contains("hunter2") && !text.contains(&format!("{:?}", b"hunter2")));
}

#[tokio::test]
async fn addresses_of_names_become_servers_and_a_name_without_one_is_a_fault() {
    let backends: DnsBackends = serde_json::from_value(json!({
        "primary": {"host": "127.0.0.1"}, "replicas": {"host": "no-such-host.invalid", "port": 6432},
    }))
    .unwrap();
    let resolved = resolve_names(&Dns::default(), &backends).await;
    let servers: Vec<_> =
        resolved.servers.iter().map(|s| (s.name.as_str(), s.address.as_str(), s.port)).collect();
    assert_eq!(servers, [("127-0-0-1", "127.0.0.1", 5432)]);
    assert_eq!(resolved.faults.len(), 1);
    assert!(resolved.faults[0].starts_with("host name no-such-host.invalid cannot be looked up: "));
}
