//! What the document says of TLS, and what stays while something is missing or broken.

use pgrouting_contract::config::ProxyConfig;
use pgrouting_crds::spec::PgRoutingPool;

use super::*;
use crate::certificates::AdminCertificates;
use crate::desired::{DesiredObjects, desired};
use crate::fixtures::{SMALL, at, pool, refs, validated};
use crate::resolve::files::referenced_files;

const BOTH: &str = "tls: {client: Require, certificateSecret: shop-tls, clientCa: {name: clients}, server: VerifyFull, \
                    serverCa: {kind: ConfigMap, name: pg-ca, key: root.crt}, serverClientCertificateSecret: proxy-tls}";
const MIRROR: &str = "mirror: {target: {host: m}, tls: {server: VerifyCa, serverCa: {name: mirror-ca}}}";

fn spec(tls: &str) -> PgRoutingPool {
    pool(&format!("{SMALL}{tls}\n{MIRROR}\n"))
}

/// What is found when every object is there: one certificate for all.
fn whole(pool: &PgRoutingPool) -> ResolvedRefs {
    let made = AdminCertificates::keep_or_make(None, at(0)).unwrap();
    let content = |file: &FileReference| match file.key.as_str() {
        "tls.crt" => made.server.certificate.clone(),
        "tls.key" => made.server.key.clone(),
        _ => made.ca.certificate.clone(),
    };
    let files = referenced_files(&pool.spec).into_iter().flatten();
    let files = files.map(|file| (file.clone(), Ok(content(&file).into_bytes()))).collect();
    ResolvedRefs { files, ..refs(pool) }
}

fn built(pool: &PgRoutingPool, refs: &ResolvedRefs) -> (ProxyConfig, DesiredObjects) {
    let objects = desired(&validated(pool, refs), refs, 0, at(0)).unwrap();
    (objects.document.config.clone(), objects)
}

fn later(refs: &ResolvedRefs, before: &DesiredObjects) -> ResolvedRefs {
    ResolvedRefs {
        previous: Some(before.document.config.clone()),
        users: Some(before.users.clone()),
        ..refs.clone()
    }
}

/// The content of a file that a document names.
fn read(path: Option<&String>, objects: &DesiredObjects) -> Vec<u8> {
    let key = path.unwrap().strip_prefix("/etc/pgrouting/users/").unwrap();
    objects.users.data.as_ref().unwrap()[key].0.clone()
}

#[test]
fn document_names_the_files_and_the_users_secret_has_them() {
    let pool = spec(BOTH);
    let refs = whole(&pool);
    let (config, objects) = built(&pool, &refs);
    let tls = config.tls.unwrap();
    let (client, server, mirror) =
        (tls.client.unwrap(), tls.server.unwrap(), config.mirror.unwrap().tls.unwrap());
    assert_eq!(
        (client.mode, server.mode, mirror.mode),
        (ClientTlsMode::Require, ServerTlsMode::VerifyFull, ServerTlsMode::VerifyCa)
    );
    for path in [
        &client.certificate_file,
        &client.client_ca_file,
        &server.ca_file,
        &server.certificate_file,
        &mirror.ca_file,
    ] {
        assert!(read(path.as_ref(), &objects).starts_with(b"-----BEGIN CERTIFICATE"), "{path:?}");
    }
    assert!(read(client.key_file.as_ref(), &objects).starts_with(b"-----BEGIN PRIVATE KEY"));
    assert_eq!(client.client_certificate, None);
    assert_eq!(mirror.certificate_file, None);
    let made = validated(&pool, &refs).tls;
    assert_eq!(made.faults, []);
    assert!(made.ends.iter().any(|end| end.object == "ConfigMap pg-ca"), "{:?}", made.ends);
    assert!(!format!("{made:?}").contains("PRIVATE"), "{made:?}");
}

#[test]
fn pool_that_says_nothing_encrypts_where_servers_can() {
    let pool = spec("");
    let tls = built(&pool, &whole(&pool)).0.tls.unwrap();
    assert_eq!((tls.client, tls.server.unwrap().mode), (None, ServerTlsMode::Prefer));
    let pool = spec("tls: {server: Disabled}");
    assert_eq!(built(&pool, &whole(&pool)).0.tls, None);
}

#[test]
fn pod_template_does_not_change_with_tls() {
    let template = |tls| {
        let pool = spec(tls);
        serde_json::to_vec(&built(&pool, &whole(&pool)).1.deployment.spec.unwrap().template).unwrap()
    };
    assert_eq!(template(BOTH), template(""));
}

#[test]
fn object_that_goes_or_breaks_leaves_its_last_good_content() {
    let pool = spec(BOTH);
    let refs = whole(&pool);
    let before = built(&pool, &refs).1;
    let [certificate, key] = FileReference::pair("shop-tls");
    let other = AdminCertificates::keep_or_make(None, at(0)).unwrap().client.key.into_bytes();
    for (file, found, says) in [
        (
            &certificate,
            Err(CredentialsFault::SecretNotFound("shop-tls".into())),
            "Secret shop-tls does not exist",
        ),
        (&certificate, Ok(b"no certificate".to_vec()), "Secret shop-tls: tls.crt has no certificate"),
        (&key, Ok(b"no key".to_vec()), "Secret shop-tls: tls.key has no private key"),
        (&key, Ok(other), "the key in tls.key is not that of the certificate in tls.crt"),
    ] {
        let mut refs = later(&refs, &before);
        refs.files.insert(file.clone(), found);
        let now = validated(&pool, &refs);
        assert_eq!(now.credential_faults.len(), 1);
        assert!(now.credential_faults[0].to_string().contains(says), "{}", now.credential_faults[0]);
        let (config, objects) = built(&pool, &refs);
        assert_eq!(objects.users.data, before.users.data);
        assert_eq!(config, before.document.config);
    }
}

#[test]
fn renewed_certificate_takes_the_place_of_the_old_one_under_the_same_name() {
    let pool = spec(BOTH);
    let before = built(&pool, &whole(&pool)).1;
    let renewed = later(&whole(&pool), &before);
    let (config, objects) = built(&pool, &renewed);
    assert_eq!(config, before.document.config);
    assert_ne!(objects.users.data, before.users.data);
}

#[test]
fn object_that_nobody_has_seen_leaves_tls_as_it_was() {
    let pool = spec(BOTH);
    let before = built(&pool, &whole(&pool)).1;
    let other = spec(&BOTH.replace("shop-tls", "typo").replace("VerifyFull", "VerifyCa"));
    let mut refs = later(&whole(&other), &before);
    for file in FileReference::pair("typo") {
        refs.files.insert(file, Err(CredentialsFault::SecretNotFound("typo".into())));
    }
    let (config, objects) = built(&other, &refs);
    assert_eq!(config, before.document.config, "nothing of it: half of an edit may be worse than none");
    let client = config.tls.unwrap().client.unwrap();
    assert!(read(client.key_file.as_ref(), &objects).starts_with(b"-----BEGIN PRIVATE KEY"));
    assert_eq!(validated(&other, &refs).credential_faults, [CredentialsFault::SecretNotFound("typo".into())]);
}

#[test]
fn mirror_whose_ca_nobody_has_seen_stays_as_it_was_and_the_pool_does_not() {
    let before = built(&spec(""), &whole(&spec(""))).1;
    let pool = pool(&format!("{SMALL}{BOTH}\n{}\n", MIRROR.replace("mirror-ca", "typo")));
    let mut refs = later(&whole(&pool), &before);
    let typo = CaReference { kind: Default::default(), name: "typo".into(), key: "ca.crt".into() };
    refs.files.insert(FileReference::ca(&typo), Err(CredentialsFault::SecretNotFound("typo".into())));
    let (config, _) = built(&pool, &refs);
    assert_eq!(config.mirror, before.document.config.mirror);
    assert_eq!(config.tls.unwrap().client.unwrap().mode, ClientTlsMode::Require);
}

#[test]
fn new_pool_waits_for_its_certificate_rather_than_serve_without() {
    let pool = spec(BOTH);
    let mut refs = whole(&pool);
    for file in FileReference::pair("shop-tls") {
        refs.files.insert(file, Err(CredentialsFault::SecretNotFound("shop-tls".into())));
    }
    let (config, objects) = built(&pool, &refs);
    let client = config.tls.unwrap().client.unwrap();
    assert_eq!(client.mode, ClientTlsMode::Require);
    let key = client.key_file.unwrap();
    let key = key.strip_prefix("/etc/pgrouting/users/").unwrap();
    assert!(!objects.users.data.unwrap().contains_key(key));
}
