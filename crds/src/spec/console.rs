//! Who may use the console of the proxies.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Who may use the console of each proxy, which is PgBouncer's: clients of the database `pgbouncer` come to it. Being named here
/// gives nobody a login.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Console {
    /// Who may use all of its commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub admin_users: Vec<String>,
    /// Who may look.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub stats_users: Vec<String>,
}
