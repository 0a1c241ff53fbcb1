//! What a mirror may be, and what stays while its Secret is not there.

use super::*;
use crate::desired::DesiredObjects;
use crate::fixtures::{IMAGE, SMALL, at, at_target, built, pool, refs, secret_reference, validated};
use crate::resolve::CredentialsFault;
use crate::validate::{ValidatedPool, validate};

const MIRROR: &str = "mirror: {target: {host: pg-new.pg}, credentialsSecret: {name: mirror}}";

/// A pool of which nobody has ever seen this Secret, after what was built before.
fn without(spec: &str, secret: &str, before: Option<&DesiredObjects>) -> ValidatedPool {
    let pool = pool(spec);
    let mut refs = refs(&pool);
    let missing = Err(CredentialsFault::SecretNotFound(secret.into()));
    refs.credentials.insert(secret_reference(secret), missing);
    refs.previous = before.map(|before| before.document.config.clone());
    refs.users = before.map(|before| before.users.clone());
    let now = validated(&pool, &refs);
    assert_eq!(now.credential_faults, [CredentialsFault::SecretNotFound(secret.into())]);
    crate::desired::desired(&now, &refs, 0, at(0)).unwrap();
    now
}

#[test]
fn mirror_that_makes_no_sense_is_refused_with_path_and_remedy() {
    for (change, reason) in [
        ("rollout: {stage: Mirror}", Some("spec.mirror: stage Mirror needs it")),
        (
            "mirror: {target: {host: PG-1.pg}}",
            Some("spec.mirror.target: PG-1.pg:5432 is the server pg-1 of the pool"),
        ),
        ("mirror: {target: {host: pg-1.pg, port: 5433}}", None),
        ("mirror: {target: {host: pg-1.pg, database: copy}}", None),
    ] {
        let pool = pool(&format!("{SMALL}{change}"));
        let invalid = validate(&pool, &refs(&pool), &at_target(&pool), IMAGE).err();
        match reason {
            Some(reason) => assert!(invalid.unwrap().to_string().contains(reason), "{change}"),
            None => assert_eq!(invalid, None, "{change}"),
        }
    }
}

#[test]
fn limit_of_the_mirror_is_divided_by_the_pods_and_never_zero() {
    for (limit, replicas, live, each) in [(20, 2, 2, 10), (20, 2, 3, 6), (1, 3, 3, 1)] {
        let spec = format!(
            "{SMALL}proxy: {{replicas: {replicas}}}\nmirror: {{target: {{host: m}}, maxConnections: {limit}}}"
        );
        let pool = pool(&spec);
        let mut refs = refs(&pool);
        refs.live_pods = live;
        assert_eq!(validated(&pool, &refs).mirror.unwrap().max_connections, each, "{limit} over {live}");
    }
}

#[test]
fn secret_that_nobody_has_seen_leaves_the_mirror_of_before_as_a_whole() {
    let before = built(&format!("{SMALL}rollout: {{stage: Mirror}}\n{MIRROR}"));
    let elsewhere = "mirror: {target: {host: pg-other.pg}, credentialsSecret: {name: typo}}";
    let now = without(&format!("{SMALL}rollout: {{stage: Mirror}}\n{elsewhere}"), "typo", Some(&before));
    assert_eq!(now.mirror, before.document.config.mirror);
    assert_eq!(now.position.stage, Stage::Mirror);
    // The files that it reads stay too.
    assert_eq!(now.user_files.len(), 2);
}

#[test]
fn without_a_mirror_of_before_the_stage_stays_as_it_was_until_the_secret_is_there() {
    let at_split = built(&format!("{SMALL}rollout: {{stage: Split}}"));
    let spec = format!("{SMALL}rollout: {{stage: Mirror}}\n{MIRROR}");
    for (before, stage) in [(None, Stage::PoolingOnly), (Some(&at_split), Stage::Split)] {
        let now = without(&spec, "mirror", before);
        assert_eq!((now.mirror, now.position.stage), (None, stage));
    }
    assert_eq!(validated(&pool(&spec), &refs(&pool(&spec))).position.stage, Stage::Mirror);
}

#[test]
fn missing_secret_of_the_mirror_keeps_no_user_out() {
    let before = built(SMALL);
    let spec = SMALL.replace("[{name: app}]", "[{name: app}, {name: report}]");
    let now = without(&format!("{spec}{MIRROR}"), "mirror", Some(&before));
    let crate::validate::ValidatedAuth::UserList(users) = now.auth else { panic!("a list of users") };
    assert_eq!(users.len(), 2);
}

#[test]
fn going_back_needs_no_secret() {
    let before = built(&format!("{SMALL}rollout: {{stage: Mirror}}\n{MIRROR}"));
    let elsewhere = "mirror: {target: {host: pg-other.pg}, credentialsSecret: {name: typo}}";
    let now = without(&format!("{SMALL}rollout: {{stage: Split}}\n{elsewhere}"), "typo", Some(&before));
    assert_eq!(now.position.stage, Stage::Split);
}
