//! How reads are told from writes, and where they go, from stage `Split` on.

use serde::{Deserialize, Serialize};

use crate::duration::DurationText;

/// The read/write split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SplitConfig {
    /// The share of sessions (or transactions, see `cohort`) whose reads go to replicas, 0 to 100. Whoever is in at a
    /// lower share is in at a higher one.
    pub percent: u8,
    /// Another number has another part of the sessions in at the same share, where that is below 100.
    #[serde(skip_serializing_if = "is_zero")]
    pub salt: u32,
    /// What the share is counted in.
    pub cohort: Cohort,
    /// What a session may read after it has written.
    pub consistency: Consistency,
    /// The age of what a read may be missing, with consistency `Bounded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_staleness: Option<DurationText>,
    // What came later is left out where it says what is usual, so that proxies of before take the document.
    /// A replica that lags more takes no reads, until it lags less than half of it.
    #[serde(skip_serializing_if = "is_usual_eject_lag")]
    pub eject_lag: DurationText,
    /// How long a replica that comes into rotation takes to get all of its share.
    #[serde(skip_serializing_if = "is_usual_slow_start")]
    pub slow_start: DurationText,
    /// A replica in the proxy's own zone comes before others.
    #[serde(skip_serializing_if = "is_true")]
    pub prefer_zone: bool,
    /// Where explicit transactions begin that are not READ ONLY.
    pub transactions: Transactions,
    /// Where reads go while no replica can take them.
    pub when_no_replica: WhenNoReplica,
    /// Reads may also go to the primary, as if it were one of the replicas. Clients change it for themselves with
    /// `SET PRIMARY READS`.
    pub primary_reads: bool,
    /// A statement that a replica refuses, because it belongs on the primary or conflicts with recovery, is run on the
    /// primary, where nothing of its answer has reached the client and no transaction is open.
    pub rescue: bool,
    /// Users whose statements all run on the primary.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub primary_users: Vec<String>,
    /// Tables and views, by name without schema, that are read on the primary only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub primary_tables: Vec<String>,
    /// Functions, by name without schema, that run on the primary only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub primary_functions: Vec<String>,
    /// Functions, by name without schema, that only read, whatever they are declared as.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_functions: Vec<String>,
    /// How often to look for definitions that did not pass through this proxy.
    pub catalog_interval: DurationText,
    /// The memory for verdicts on texts, in bytes.
    pub verdict_cache_bytes: u64,
}

/// What a share of the traffic is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Cohort {
    /// Sessions: one is in or out as a whole.
    #[default]
    Session,
    /// Transactions: each is in or out by lot.
    Transaction,
}

/// What a session may read after it has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Consistency {
    /// Whatever a replica has.
    Eventual,
    /// At least what the session itself has written.
    #[default]
    Session,
    /// That, and whatever was committed longer ago than `maxStaleness`.
    Bounded,
}

/// Where explicit transactions begin that are not READ ONLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Transactions {
    /// On the primary.
    #[default]
    Primary,
    /// Nowhere before their first statement; on a replica where that is a read, from where they move to the primary
    /// before their first statement that is none. In READ COMMITTED only.
    ReadOnlyPrefix,
}

/// Where reads go while no replica can take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum WhenNoReplica {
    /// To the primary.
    #[default]
    UsePrimary,
    /// Nowhere: they wait for a replica up to the checkout time-out.
    Fail,
}

const EJECT_LAG: DurationText = DurationText::from_secs(30);
const SLOW_START: DurationText = DurationText::from_secs(10);

fn is_usual_eject_lag(lag: &DurationText) -> bool {
    *lag == EJECT_LAG
}

fn is_usual_slow_start(slow_start: &DurationText) -> bool {
    *slow_start == SLOW_START
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
pub(crate) const fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
const fn is_true(value: &bool) -> bool {
    *value
}

impl Default for SplitConfig {
    fn default() -> Self {
        Self {
            percent: 100,
            salt: 0,
            cohort: Cohort::Session,
            consistency: Consistency::Session,
            max_staleness: None,
            eject_lag: EJECT_LAG,
            slow_start: SLOW_START,
            prefer_zone: true,
            transactions: Transactions::Primary,
            when_no_replica: WhenNoReplica::UsePrimary,
            primary_reads: false,
            rescue: true,
            primary_users: Vec::new(),
            primary_tables: Vec::new(),
            primary_functions: Vec::new(),
            read_functions: Vec::new(),
            catalog_interval: DurationText::from_secs(15),
            verdict_cache_bytes: 16 * 1024 * 1024,
        }
    }
}

impl SplitConfig {
    pub(crate) fn faults(&self, faults: &mut Vec<String>) {
        if self.percent > 100 {
            faults.push(format!("split.percent: {} is over 100", self.percent));
        }
        match (self.consistency, self.max_staleness) {
            (Consistency::Bounded, None) => {
                faults.push("split.maxStaleness: consistency Bounded needs it".to_owned());
            }
            (_, Some(staleness)) if staleness.get().as_millis() < 50 => {
                faults.push("split.maxStaleness: must be at least 50ms".to_owned());
            }
            _ => {}
        }
        if self.eject_lag.get().as_millis() < 100 {
            faults.push("split.ejectLag: must be at least 100ms".to_owned());
        }
        if self.catalog_interval.get().as_millis() < 100 {
            faults.push("split.catalogInterval: must be at least 100ms".to_owned());
        }
        if self.verdict_cache_bytes > 1 << 30 {
            faults.push("split.verdictCacheBytes: more than 1 GiB".to_owned());
        }
        for (path, names) in [
            ("primaryUsers", &self.primary_users),
            ("primaryTables", &self.primary_tables),
            ("primaryFunctions", &self.primary_functions),
            ("readFunctions", &self.read_functions),
        ] {
            if names.len() > 1000 || names.iter().any(|name| name.is_empty() || name.len() > 63) {
                faults.push(format!("split.{path}: at most 1000 names of 1 to 63 bytes"));
            }
        }
        if let Some(name) = self.primary_functions.iter().find(|name| self.read_functions.contains(name)) {
            faults.push(format!("split.readFunctions: {name:?} is in split.primaryFunctions too"));
        }
    }
}
