use super::*;

const MINIMAL: &str = "
version: 1
generation: 3
pool: shop
servers: [{name: a, host: 127.0.0.1}]
auth: {type: UserList, users: [{name: app, password: secret}]}
";

fn reasons(document: &str) -> Vec<String> {
    ProxyConfig::parse(document.as_bytes()).unwrap_err().reasons
}

#[test]
fn a_minimal_document_has_the_documented_defaults() {
    let config = ProxyConfig::parse(MINIMAL.as_bytes()).unwrap();
    assert_eq!(config.stage, Stage::PoolingOnly);
    assert_eq!(config.servers[0].port, 5432);
    assert_eq!(config.pooling, PoolingConfig::default());
    assert_eq!(config.process, ProcessConfig::default());
    assert_eq!(config.drain_timeout, DurationText::from_secs(60));
}

#[test]
fn the_hash_depends_on_the_content_and_not_on_the_layout() {
    let config = ProxyConfig::parse(MINIMAL.as_bytes()).unwrap();
    let reread = ProxyConfig::parse(&config.canonical_bytes()).unwrap();
    assert_eq!(reread, config);
    assert_eq!(reread.hash(), config.hash());
    let other = ProxyConfig::parse(MINIMAL.replace("127.0.0.1", "127.0.0.2").as_bytes()).unwrap();
    assert_ne!(other.hash(), config.hash());
}

#[test]
fn the_golden_document_keeps_its_hash() {
    // A change here means that operators and proxies of two versions disagree about a document's identity.
    let config = ProxyConfig::parse(include_bytes!("../../testdata/full.yaml")).unwrap();
    let golden = include_str!("../../testdata/full.sha256").trim();
    assert_eq!(config.hash().as_str(), golden);
    assert_eq!(config.hash().short(), &golden[..8]);
}

#[test]
fn the_golden_document_with_tls_keeps_its_hash() {
    let config = ProxyConfig::parse(include_bytes!("../../testdata/tls.yaml")).unwrap();
    assert_eq!(config.hash().as_str(), include_str!("../../testdata/tls.sha256").trim());
    let golden = include_bytes!("../../testdata/full.yaml");
    let without = ProxyConfig { tls: None, mirror: None, ..config };
    assert_eq!(without, ProxyConfig::parse(golden).unwrap(), "TLS is all that is new");
}

#[test]
fn the_example_of_the_page_on_tls_is_good() {
    let page = include_str!("../../../../docs/tls.md");
    let example = page.lines().skip_while(|line| *line != "    tls:").take_while(|line| !line.is_empty());
    let example: Vec<_> = example.filter_map(|line| line.strip_prefix("    ")).collect();
    let config = ProxyConfig::parse(format!("{MINIMAL}{}", example.join("\n")).as_bytes()).unwrap();
    let tls = config.tls.unwrap();
    assert!(tls.client.is_some() && tls.server.is_some() && config.mirror.unwrap().tls.is_some());
}

#[test]
fn every_reason_is_given_at_once() {
    let reasons = reasons(
        "
version: 2
generation: 3
pool: shop
servers: [{name: A, host: x}, {name: b, host: X}, {name: b, host: y, port: 0, weight: 1001}]
auth: {type: UserList, users: []}
pooling: {maxServerConnections: 0, checkoutTimeout: 0s, parameters: {'a b': x, options: y}}
peers: {host: p, addresses: ['10.0.0.1:0'], secretFile: ''}
tls: {client: {mode: Require}, server: {mode: VerifyFull}}
",
    );
    for needle in [
        "version: 2",
        "servers[0].name",
        "servers[1]: X:5432 is there twice",
        "\"b\" is there twice",
        "servers[2].port",
        "servers[2].weight",
        "auth.users: 0 given",
        "pooling.maxServerConnections",
        "pooling.checkoutTimeout",
        "\"a b\" is not the name of a setting",
        "options is not a setting",
        "peers: give either host or addresses",
        "peers: a port must be",
        "peers.secretFile",
        "tls.client: mode Require needs certificateFile",
        "tls.server.caFile: mode VerifyFull needs it",
    ] {
        assert!(reasons.iter().any(|r| r.contains(needle)), "{needle} is not among {reasons:#?}");
    }
}

#[test]
fn query_for_users_has_a_default_and_needs_the_name() {
    let of = |auth: &str| {
        let text = MINIMAL.lines().filter(|line| !line.starts_with("auth:")).collect::<Vec<_>>().join("\n");
        ProxyConfig::parse(format!("{text}\nauth: {auth}\n").as_bytes())
    };
    let plain = of("{type: Query, user: {name: a, password: b}}").unwrap().auth;
    assert!(matches!(plain, AuthConfig::Query { sql, .. } if sql == AUTH_QUERY));
    let wrong = of("{type: Query, user: {name: a}, sql: SELECT 1}").unwrap_err().to_string();
    for needle in
        ["auth.user: give either password or passwordFile", "auth.sql: must have the user's name as $1"]
    {
        assert!(wrong.contains(needle), "{wrong}");
    }
}

#[test]
fn peers_are_found_by_name_or_by_addresses() {
    let of = |peers: &str| ProxyConfig::parse(format!("{MINIMAL}peers: {peers}\n").as_bytes());
    let named = of("{host: shop-peers.acme.svc, secretFile: /secret}").unwrap().peers.unwrap();
    assert_eq!((named.host.as_deref(), named.port), (Some("shop-peers.acme.svc"), 9128));
    let listed = of("{addresses: ['10.0.0.1:1', '[::1]:2'], secretFile: /secret}").unwrap().peers.unwrap();
    assert_eq!(listed.addresses.len(), 2);
    assert!(of("{secretFile: /secret}").is_err());
    assert!(of("{addresses: [shop:1], secretFile: /secret}").is_err(), "a name is not an address");
}

#[test]
fn an_unknown_field_is_refused_with_its_name_and_generation() {
    let error = ProxyConfig::parse(format!("{MINIMAL}colour: red\n").as_bytes()).unwrap_err();
    assert!(error.reasons[0].contains("colour"), "{error}");
    assert_eq!(error.generation, Some(Generation(3)));
}

#[test]
fn passthrough_needs_a_probe_user() {
    let document =
        MINIMAL.replace("{type: UserList, users: [{name: app, password: secret}]}", "{type: Passthrough}");
    assert!(reasons(&document)[0].starts_with("probe.user"));
    let with_probe = format!("{document}probe: {{user: {{name: m, passwordFile: /p}}}}\n");
    assert!(ProxyConfig::parse(with_probe.as_bytes()).is_ok());
}

#[test]
fn a_user_needs_one_name_and_one_password() {
    let document = MINIMAL.replace("name: app, password: secret", "name: app, nameFile: /n");
    let reasons = reasons(&document);
    assert!(reasons.iter().any(|r| r.contains("either name or nameFile")));
    assert!(reasons.iter().any(|r| r.contains("either password or passwordFile")));
}

#[test]
fn a_debug_print_shows_no_password() {
    let config = ProxyConfig::parse(MINIMAL.as_bytes()).unwrap();
    assert!(!format!("{config:?}").contains("secret"));
}

#[test]
fn an_oversized_document_is_refused_unread() {
    let document = vec![b' '; DOCUMENT_BYTES_MAX + 1];
    assert!(ProxyConfig::parse(&document).unwrap_err().reasons[0].contains("bytes"));
}

#[test]
fn a_mirror_has_the_documented_defaults_and_its_stage_needs_it() {
    let with = |more: &str| format!("{MINIMAL}{more}");
    let config = ProxyConfig::parse(with("stage: Mirror\nmirror: {host: next}\n").as_bytes()).unwrap();
    assert_eq!(config.mirror, Some(MirrorConfig::at("next".to_owned(), 5432)));
    assert_eq!(reasons(&with("stage: Mirror\n")), ["stage: Mirror needs mirror"]);
    let wrong = "mirror: {host: '', port: 0, database: '', percent: 101, queueBytes: 2, budgetBytes: 1, \
                 maxConnections: 0, transactionTimeout: 1ms, user: {name: a}, parameters: {options: x}, tls: {mode: VerifyCa}}\n";
    let reasons = reasons(&with(wrong));
    for needle in [
        "mirror.host",
        "mirror.port",
        "mirror.database",
        "mirror.percent",
        "mirror.queueBytes",
        "mirror.maxConnections",
        "mirror.transactionTimeout",
        "mirror.user: give either password",
        "mirror.parameters: options is not a setting",
        "mirror.tls.caFile",
    ] {
        assert!(reasons.iter().any(|reason| reason.contains(needle)), "{needle} is not in {reasons:?}");
    }
}
