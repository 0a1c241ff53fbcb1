//! How reads are told from writes, and where they go, from the stage Split on.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::PoolDuration;

/// How reads are told from writes, and where they go, from the stage Split on.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[x_kube(validation = Rule::new(
    "!has(self.primaryFunctions) || !has(self.readFunctions) || \
     !self.readFunctions.exists(name, name in self.primaryFunctions)"
).message("a function is named in primaryFunctions too: leave it in one of the two").field_path(".readFunctions"))]
#[x_kube(validation = Rule::new("duration(self.catalogInterval) >= duration('100ms')")
    .message("catalogInterval must be at least 100ms").field_path(".catalogInterval"))]
#[x_kube(validation = Rule::new("self.consistency != 'Bounded' || has(self.maxStaleness)")
    .message("consistency Bounded needs maxStaleness").field_path(".maxStaleness"))]
#[x_kube(validation = Rule::new("!has(self.maxStaleness) || duration(self.maxStaleness) >= duration('50ms')")
    .message("maxStaleness must be at least 50ms").field_path(".maxStaleness"))]
#[x_kube(validation = Rule::new("duration(self.ejectLag) >= duration('100ms')")
    .message("ejectLag must be at least 100ms").field_path(".ejectLag"))]
#[serde(rename_all = "camelCase")]
pub struct Split {
    /// The largest share of sessions (or transactions, see cohort) whose reads go to replicas, in percent. With 0 no
    /// read does.
    #[serde(default = "default_max_percent")]
    #[schemars(with = "i32", range(min = 0, max = 100))]
    pub max_percent: u8,
    /// What the share is counted in.
    #[serde(default)]
    pub cohort: Cohort,
    /// What a session may read after it has written.
    #[serde(default)]
    pub consistency: Consistency,
    /// With consistency Bounded: how long ago something may have been committed that a read does not see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_staleness: Option<PoolDuration>,
    /// A replica that lags more takes no reads, until it lags less than half of it.
    #[serde(default = "default_eject_lag")]
    pub eject_lag: PoolDuration,
    /// How long a replica that begins to take reads is given less than its share.
    #[serde(default = "default_slow_start")]
    pub slow_start: PoolDuration,
    /// Whether a replica in a proxy's own zone comes before others.
    #[serde(default = "default_prefer_zone")]
    pub prefer_zone: bool,
    /// Where explicit transactions begin that are not READ ONLY.
    #[serde(default)]
    pub transactions: Transactions,
    /// Where reads go while no replica can take them.
    #[serde(default)]
    pub when_no_replica: WhenNoReplica,
    /// Whether reads go to the primary too, as if it were one of the replicas.
    #[serde(default)]
    pub primary_reads: bool,
    /// Whether a statement that a replica refuses is run on the primary, where its client has seen nothing of it yet.
    #[serde(default = "default_rescue")]
    pub rescue: bool,
    /// Users whose statements all run on the primary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub primary_users: Vec<String>,
    /// Tables and views, by name without schema, that are read on the primary only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub primary_tables: Vec<String>,
    /// Functions, by name without schema, that run on the primary only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub primary_functions: Vec<String>,
    /// Functions, by name without schema, that only read, whatever they are declared as.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub read_functions: Vec<String>,
    /// How often the proxies look for tables, views and functions that were defined past them.
    #[serde(default = "default_catalog_interval")]
    pub catalog_interval: PoolDuration,
}

/// What a share of the traffic is counted in.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cohort {
    /// Sessions: one is in or out as a whole.
    #[default]
    Session,
    /// Transactions: each is in or out by lot.
    Transaction,
}

/// What a session may read after it has written.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// Whatever a replica has.
    Eventual,
    /// At least what the session itself has written.
    #[default]
    Session,
    /// That, and whatever was committed longer ago than maxStaleness.
    Bounded,
}

/// Where explicit transactions begin that are not READ ONLY.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transactions {
    /// On the primary.
    #[default]
    Primary,
    /// On a replica where the first statement is a read; they move to the primary before their first statement that is
    /// none. In READ COMMITTED only.
    ReadOnlyPrefix,
}

/// Where reads go while no replica can take them.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenNoReplica {
    /// To the primary.
    #[default]
    UsePrimary,
    /// Nowhere: they wait for a replica up to pooling.checkoutTimeout.
    Fail,
}

impl Default for Split {
    fn default() -> Self {
        Self {
            max_percent: default_max_percent(),
            cohort: Cohort::Session,
            consistency: Consistency::Session,
            max_staleness: None,
            eject_lag: default_eject_lag(),
            slow_start: default_slow_start(),
            prefer_zone: default_prefer_zone(),
            transactions: Transactions::Primary,
            when_no_replica: WhenNoReplica::UsePrimary,
            primary_reads: false,
            rescue: default_rescue(),
            primary_users: Vec::new(),
            primary_tables: Vec::new(),
            primary_functions: Vec::new(),
            read_functions: Vec::new(),
            catalog_interval: default_catalog_interval(),
        }
    }
}

const fn default_max_percent() -> u8 {
    100
}

const fn default_eject_lag() -> PoolDuration {
    PoolDuration::from_secs(30)
}

const fn default_slow_start() -> PoolDuration {
    PoolDuration::from_secs(10)
}

const fn default_prefer_zone() -> bool {
    true
}

const fn default_rescue() -> bool {
    true
}

const fn default_catalog_interval() -> PoolDuration {
    PoolDuration::from_secs(15)
}
