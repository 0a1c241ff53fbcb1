//! Small pools and what they point at, for tests.

use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::spec::credentials::CredentialsSecret;

use crate::desired::{DesiredObjects, desired};
use crate::position::{Ladder, Position};
use crate::resolve::{Credentials, ResolvedRefs, referenced_secrets};
use crate::validate::{ValidatedPool, validate};

/// The default image in tests.
pub(crate) const IMAGE: &str = "registry.test/proxy:1";

/// A pool named `ledger` in the namespace `acme`, with this spec in YAML.
pub(crate) fn pool(spec: &str) -> PgRoutingPool {
    let spec: serde_json::Value = serde_yaml::from_str(spec).unwrap();
    serde_json::from_value(serde_json::json!({
        "apiVersion": "pgrouting.dev/v1alpha1",
        "kind": "PgRoutingPool",
        "metadata": {"name": "ledger", "namespace": "acme", "uid": "uid-1", "generation": 1},
        "spec": spec,
    }))
    .unwrap()
}

/// The smallest pool with a list of users.
pub(crate) const SMALL: &str = "
backends: {type: Static, static: {servers: [{name: pg-0, host: pg-0.pg}, {name: pg-1, host: pg-1.pg}]}}
auth: {type: UserList, users: [{name: app}]}
";

/// What a pool points at when every Secret is there.
pub(crate) fn refs(pool: &PgRoutingPool) -> ResolvedRefs {
    let credentials = referenced_secrets(pool)
        .into_iter()
        .map(|reference| {
            let credentials = credentials(&reference.name, &reference.password_key);
            (reference, Ok(credentials))
        })
        .collect();
    ResolvedRefs { credentials, ..ResolvedRefs::default() }
}

/// A user's name and password.
pub(crate) fn credentials(username: &str, password: &str) -> Credentials {
    Credentials { username: username.as_bytes().to_vec(), password: password.as_bytes().to_vec() }
}

/// A reference to a Secret with the usual keys.
pub(crate) fn secret_reference(name: &str) -> CredentialsSecret {
    serde_json::from_value(serde_json::json!({"name": name})).unwrap()
}

/// The end of the stage that a pool asks for.
pub(crate) fn at_target(pool: &PgRoutingPool) -> Position {
    let ladder = Ladder::of(&pool.spec);
    ladder.rung(ladder.end_of(pool.spec.rollout.stage)).position
}

/// A pool that is valid.
pub(crate) fn validated(pool: &PgRoutingPool, refs: &ResolvedRefs) -> ValidatedPool {
    validate(pool, refs, &at_target(pool), IMAGE).unwrap()
}

/// All objects of a pool with this spec.
pub(crate) fn built(spec: &str) -> DesiredObjects {
    let pool = pool(spec);
    let refs = refs(&pool);
    desired(&validated(&pool, &refs), &refs, 0, at(0)).unwrap()
}

/// A time, in seconds after the start of these tests' day.
pub(crate) fn at(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(1_796_000_000 + second).unwrap()
}
