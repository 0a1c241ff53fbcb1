//! The document in effect as a list of settings: SHOW CONFIG.

use std::collections::BTreeMap;

use pgrouting_contract::config::{PoolMode, ProxyConfig};
use pgrouting_contract::duration::DurationText;
use serde_json::Value as Json;

use crate::console::history::PERIOD;
use crate::console::rows::{Column, Type, Value};
use crate::console::sources::Sources;

/// SHOW CONFIG
pub const CONFIG: [Column; 4] =
    [("key", Type::Text), ("value", Type::Text), ("default", Type::Text), ("changeable", Type::Text)];

/// What no reader of this may learn.
const SECRETS: [&str; 1] = ["password"];

/// SHOW CONFIG: what tools know by PgBouncer's names, then every field of the document by its path. A document that is
/// taken later may change all of them but those of `process`.
#[must_use]
pub fn config(sources: &Sources) -> Vec<Vec<Value>> {
    let view = sources.view();
    let config = &view.active.config;
    let mut rows: Vec<_> = familiar(config, sources)
        .into_iter()
        .map(|(key, value)| vec![key.into(), value.into(), Value::Null, "yes".into()])
        .collect();
    let defaults = defaults(config);
    for (key, value) in flat(&json(config)) {
        let changeable = if key.starts_with("process.") { "no" } else { "yes" };
        let default = defaults.get(&key).map_or(Value::Null, |default| default.clone().into());
        rows.push(vec![key.into(), value.into(), default, changeable.into()]);
    }
    rows
}

/// PgBouncer's names of what there is here too. Times are in seconds.
fn familiar(config: &ProxyConfig, sources: &Sources) -> Vec<(&'static str, String)> {
    let pooling = &config.pooling;
    let console = sources.config();
    let (address, port) = config.process.listen.rsplit_once(':').unwrap_or_default();
    let mode = match pooling.mode {
        PoolMode::Transaction => "transaction",
        PoolMode::Session => "session",
    };
    let number = |limit: Option<u32>| limit.unwrap_or_default().to_string();
    let seconds = |time: DurationText| time.get().as_secs_f64().to_string();
    vec![
        ("admin_users", console.admin_users.join(",")),
        ("client_idle_timeout", seconds(pooling.client_idle_timeout)),
        ("client_login_timeout", pooling.client_login_timeout.get().as_secs().to_string()),
        ("default_pool_size", pooling.max_server_connections.to_string()),
        ("idle_transaction_timeout", seconds(pooling.idle_transaction_timeout)),
        ("listen_addr", address.to_owned()),
        ("listen_port", port.to_owned()),
        ("max_client_conn", pooling.max_client_connections.to_string()),
        ("max_db_client_connections", number(pooling.max_client_connections_per_database)),
        ("max_db_connections", "0".to_owned()),
        ("max_user_client_connections", number(pooling.max_client_connections_per_user)),
        ("max_user_connections", number(pooling.max_server_connections_per_user)),
        ("pool_mode", mode.to_owned()),
        ("query_timeout", seconds(pooling.query_timeout)),
        ("query_wait_timeout", console.pause_timeout.get().as_secs().to_string()),
        ("server_connect_timeout", pooling.connect_timeout.get().as_secs().to_string()),
        ("server_idle_timeout", pooling.server_idle_timeout.get().as_secs().to_string()),
        ("server_lifetime", pooling.server_lifetime.get().as_secs().to_string()),
        ("stats_period", PERIOD.as_secs().to_string()),
        ("stats_users", console.stats_users.join(",")),
        ("transaction_timeout", seconds(pooling.transaction_timeout)),
    ]
}

/// What fields would be if the document did not say so.
fn defaults(config: &ProxyConfig) -> BTreeMap<String, String> {
    let bare = ProxyConfig {
        stage: Default::default(),
        process: Default::default(),
        probe: Default::default(),
        pooling: Default::default(),
        split: Default::default(),
        console: Some(Default::default()),
        ..config.clone()
    };
    let is_given = |key: &str| {
        ["auth", "drainTimeout", "generation", "mirror", "peers", "pool", "servers", "version"]
            .iter()
            .any(|given| key.split(['.', '[']).next() == Some(given))
    };
    flat(&json(&bare)).into_iter().filter(|(key, _)| !is_given(key)).collect()
}

fn json(config: &ProxyConfig) -> Json {
    serde_json::from_slice(&config.canonical_bytes()).unwrap_or_default()
}

/// Every text and number in it, by its path.
fn flat(value: &Json) -> Vec<(String, String)> {
    let mut found = Vec::new();
    flatten(String::new(), value, &mut found);
    found
}

fn flatten(path: String, value: &Json, found: &mut Vec<(String, String)>) {
    match value {
        Json::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                if SECRETS.contains(&name.as_str()) {
                    found.push((path, "****".to_owned()));
                } else {
                    flatten(path, value, found);
                }
            }
        }
        Json::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                flatten(format!("{path}[{index}]"), value, found);
            }
        }
        Json::Null => found.push((path, String::new())),
        Json::String(text) => found.push((path, text.clone())),
        Json::Bool(_) | Json::Number(_) => found.push((path, value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_by_its_path_and_no_password_is_shown() {
        let document = r"{version: 1, generation: 7, pool: p, servers: [{name: a, host: h}],
            auth: {type: UserList, users: [{name: u, password: geheim}]}}";
        let config = ProxyConfig::parse(document.as_bytes()).unwrap();
        let found: BTreeMap<_, _> = flat(&json(&config)).into_iter().collect();
        assert_eq!(found["servers[0].host"], "h");
        assert_eq!(found["generation"], "7");
        assert_eq!(found["auth.users[0].password"], "****");
        assert!(found.values().all(|value| !value.contains("geheim")));
        let defaults = defaults(&config);
        assert_eq!(defaults["pooling.maxServerConnections"], "20");
        assert!(!defaults.contains_key("servers[0].host"));
    }
}
