//! The metadata that every object of a pool carries.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::names::{LABEL_MANAGED_BY, LABEL_PART_OF, MANAGED_BY, PART_OF, PoolNames};
use crate::validate::ValidatedPool;

/// The labels of a pool's objects. The version is not among them, or every new operator would restart the pods.
#[must_use]
pub fn labels(pool: &ValidatedPool) -> BTreeMap<String, String> {
    let mut labels = PoolNames(&pool.name).selector();
    labels.insert(LABEL_PART_OF.to_owned(), PART_OF.to_owned());
    labels.insert(LABEL_MANAGED_BY.to_owned(), MANAGED_BY.to_owned());
    labels
}

/// Name, namespace, labels and owner of an object.
#[must_use]
pub fn metadata(pool: &ValidatedPool, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(pool.namespace.clone()),
        labels: Some(labels(pool)),
        owner_references: Some(vec![pool.owner.clone()]),
        ..ObjectMeta::default()
    }
}
