//! What makes a spec invalid, and what the pool goes on with when something is missing.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use pgrouting_contract::config::ProxyConfig;

use super::*;
use crate::fixtures::{IMAGE, SMALL, at_target, built, credentials, pool, refs, secret_reference, validated};
use crate::resolve::EndpointServer;

const SERVICES: &str = "
backends: {type: Services, services: {primary: {name: pg-rw}}}
auth: {type: UserList, users: [{name: app}]}
";

fn endpoint(name: &str, address: &str, is_ready: bool) -> EndpointServer {
    EndpointServer { name: name.into(), address: address.into(), port: 5432, zone: None, is_ready }
}

fn previous(hosts: &[(&str, &str)]) -> ProxyConfig {
    let mut config = built(SMALL).document.config;
    let first = config.servers[0].clone();
    config.servers = hosts
        .iter()
        .map(|(name, host)| ServerConfig { name: (*name).into(), host: (*host).into(), ..first.clone() })
        .collect();
    config
}

#[test]
fn what_makes_no_sense_is_refused_with_path_and_remedy() {
    for (change, reason) in [
        ("proxy: {podTemplate: {spec: {containers: x}}}", "spec.proxy.podTemplate: "),
        ("proxy: {resources: {limits: [1]}}", "spec.proxy.resources: "),
        ("proxy: {image: ' '}", "spec.proxy.image: must not be empty"),
        ("auth: {type: Passthrough}", "spec.backends.probe.credentialsSecret: auth type Passthrough needs"),
    ] {
        let spec = format!(
            "{}\n{change}",
            SMALL.lines().filter(|line| !line.starts_with(&change[..4])).collect::<Vec<_>>().join("\n")
        );
        let pool = pool(&spec);
        let invalid = validate(&pool, &refs(&pool), &at_target(&pool), IMAGE).unwrap_err();
        assert_eq!(invalid.fault, SpecFault::Field);
        assert!(invalid.to_string().contains(reason), "{change}: {invalid}");
    }
}

#[test]
fn passthrough_with_a_probe_role_is_fine_and_copies_it() {
    let pool = pool(
        "
backends:
  type: Static
  static: {servers: [{name: pg-0, host: pg-0.pg}]}
  probe: {credentialsSecret: {name: monitor}}
",
    );
    let validated = validated(&pool, &refs(&pool));
    assert_eq!(validated.auth, ValidatedAuth::Passthrough);
    assert_eq!(validated.user_files.len(), 1);
    let probe_file = validated.probe_user.unwrap().password_file.unwrap();
    assert_eq!(probe_file, format!("{USERS_MOUNT}/{}.password", validated.user_files[0].stem));
}

#[test]
fn one_secret_with_two_pairs_of_keys_gives_two_users() {
    let pool = pool(
        "
backends: {type: Static, static: {servers: [{name: pg-0, host: pg-0.pg}]}}
auth: {type: UserList, users: [{name: app}, {name: app, usernameKey: user2, passwordKey: password2}]}
",
    );
    let validated = validated(&pool, &refs(&pool));
    let ValidatedAuth::UserList(users) = validated.auth else { panic!("a list of users") };
    assert_eq!(users.len(), 2);
    assert_ne!(users[0], users[1]);
    let mut passwords: Vec<_> =
        validated.user_files.iter().map(|user| user.credentials.password.clone()).collect();
    passwords.sort();
    assert_eq!(passwords, [b"password".to_vec(), b"password2".to_vec()]);
}

#[test]
fn adding_a_user_renames_no_other() {
    let alone = file_stem(&secret_reference("app"));
    let pool = pool(&SMALL.replace("[{name: app}]", "[{name: aaa}, {name: app}]"));
    let stems: Vec<_> = validated(&pool, &refs(&pool)).user_files.into_iter().map(|user| user.stem).collect();
    assert!(stems.contains(&alone), "{stems:?}");
}

#[test]
fn missing_secret_keeps_what_it_last_held() {
    let pool = pool(SMALL);
    let reference = secret_reference("app");
    let stem = file_stem(&reference);
    let mut refs = refs(&pool);
    refs.credentials.insert(reference, Err(CredentialsFault::SecretNotFound("app".into())));
    refs.users = Some(Secret {
        data: Some(
            [
                (username_key(&stem), ByteString(b"app".to_vec())),
                (password_key(&stem), ByteString(b"old".to_vec())),
            ]
            .into(),
        ),
        ..Secret::default()
    });
    let validated = validated(&pool, &refs);
    assert_eq!(validated.user_files, [UserFiles { stem, credentials: credentials("app", "old") }]);
    assert_eq!(validated.credential_faults, [CredentialsFault::SecretNotFound("app".into())]);
}

#[test]
fn secret_that_nobody_has_seen_leaves_all_logins_as_they_were() {
    let before = built(SMALL);
    let pool = pool(&SMALL.replace("{name: app}", "{name: typo}"));
    let mut refs = refs(&pool);
    let typo = CredentialsFault::SecretNotFound("typo".into());
    refs.credentials.insert(secret_reference("typo"), Err(typo.clone()));
    refs.previous = Some(before.document.config.clone());
    refs.users = Some(before.users.clone());
    let now = validated(&pool, &refs);
    assert_eq!(now.credential_faults, [typo]);
    let objects = crate::desired::desired(&now, &refs, 0, crate::fixtures::at(0)).unwrap();
    assert_eq!(objects.document, before.document);
    assert_eq!(objects.users.data, before.users.data);
}

#[test]
fn new_server_enters_when_ready_and_known_one_stays_while_it_is_there() {
    let pool = pool(SERVICES);
    let mut refs = refs(&pool);
    refs.endpoints.servers = vec![
        endpoint("pg-0", "10.0.0.5", true),
        endpoint("pg-1", "10.0.0.6", false),
        endpoint("pg-2", "10.0.0.7", false),
    ];
    refs.previous = Some(previous(&[("pg-1", "10.0.0.6")]));
    let names: Vec<_> = validated(&pool, &refs).servers.into_iter().map(|server| server.name).collect();
    assert_eq!(names, ["pg-0", "pg-1"]);
}

#[test]
fn services_without_endpoints_leave_the_known_servers_in_use() {
    let pool = pool(SERVICES);
    let mut refs = refs(&pool);
    refs.endpoints.faults = vec!["Service pg-rw has no endpoints".into()];
    refs.previous = Some(previous(&[("pg-1", "10.0.0.6")]));
    let validated = validated(&pool, &refs);
    assert_eq!(validated.servers[0].name, "pg-1");
    assert_eq!(validated.backend_faults.len(), 2);
}

#[test]
fn empty_primary_service_does_not_take_the_primary_out() {
    let pool = pool(SERVICES);
    let mut refs = refs(&pool);
    refs.endpoints.faults = vec!["Service pg-rw has no endpoints".into()];
    // pg-1 has come back under another address.
    refs.endpoints.servers = vec![endpoint("pg-1", "10.0.0.9", true)];
    refs.previous = Some(previous(&[("pg-0", "10.0.0.5"), ("pg-1", "10.0.0.6")]));
    let servers = validated(&pool, &refs).servers;
    let seen: Vec<_> = servers.iter().map(|server| (server.name.as_str(), server.host.as_str())).collect();
    assert_eq!(seen, [("pg-0", "10.0.0.5"), ("pg-1", "10.0.0.9")]);
}

#[test]
fn services_without_endpoints_and_nothing_known_wait() {
    let pool = pool(SERVICES);
    let mut refs = refs(&pool);
    refs.endpoints.faults = vec!["Service pg-rw has no endpoints".into()];
    let invalid = validate(&pool, &refs, &at_target(&pool), IMAGE).unwrap_err();
    assert_eq!(invalid.fault, SpecFault::NoServers);
}

#[test]
fn limit_of_the_fleet_is_divided_by_its_pods() {
    for (limit, replicas, live, each) in [
        (100, 2, 0, 50),
        (100, 2, 2, 50),
        // A pod more while the Deployment rolls.
        (100, 2, 3, 33),
        // New pods are counted before they are there.
        (100, 4, 2, 25),
        (3, 8, 8, 1),
        (100, 0, 0, 100),
    ] {
        assert_eq!(share(limit, sharing_pods(replicas, live)), each, "{limit} over {replicas} and {live}");
    }
}

#[test]
fn query_for_users_is_asked_by_whom_its_secret_says() {
    let spec = SMALL.replace(
        "auth: {type: UserList, users: [{name: app}]}",
        "auth: {type: Query, query: {credentialsSecret: {name: asker}}}",
    );
    let pool = pool(&spec);
    let config = built(&spec).document.config;
    let AuthConfig::Query { user, sql } = config.auth else { unreachable!("{:?}", config.auth) };
    assert!(user.name_file.is_some_and(|path| path.contains("/asker.")));
    assert_eq!((sql.as_str(), config.probe.user), (AUTH_QUERY, None));
    // A Secret that nobody has seen leaves the logins of before.
    let mut refs = refs(&pool);
    refs.credentials.insert(secret_reference("asker"), Err(CredentialsFault::SecretNotFound("asker".into())));
    refs.previous = Some(built(SMALL).document.config);
    assert!(matches!(validated(&pool, &refs).auth, ValidatedAuth::UserList(_)));
}

/// Case 216: nothing is started that nobody could log in to, and what runs goes on.
#[test]
fn pool_whose_secret_nobody_has_ever_seen_waits_for_it() {
    let pool = pool(SMALL);
    for fault in [
        CredentialsFault::SecretNotFound("app".into()),
        CredentialsFault::KeyMissing { secret: "app".into(), key: "password".into() },
    ] {
        let mut refs = refs(&pool);
        refs.credentials.values_mut().for_each(|found| *found = Err(fault.clone()));
        let refused = validate(&pool, &refs, &at_target(&pool), IMAGE).unwrap_err();
        assert_eq!(refused.fault, SpecFault::NoLogins(vec![fault.clone()]));
        refs.previous = Some(built(SMALL).document.config);
        assert_eq!(validated(&pool, &refs).credential_faults, [fault]);
    }
}
