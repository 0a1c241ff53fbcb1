//! PostgreSQL's own functions, as far as their volatility does not say where they may run.
//!
//! <https://www.postgresql.org/docs/current/functions.html>. `STABLE` does not mean that a standby runs it
//! (`txid_current`), nor `VOLATILE` that it has an effect (`random`).

use crate::catalog::FunctionClass;

/// Volatile, and without any effect; what they tell does not depend on the server beyond what a replica may.
const SAFE: [&str; 30] = [
    "amvalidate",
    "bernoulli",
    "clock_timestamp",
    "current_query",
    "gen_random_bytes",
    "gen_random_uuid",
    "gen_salt",
    "lo_get",
    "pg_collation_actual_version",
    "pg_database_collation_actual_version",
    "pg_database_size",
    "pg_indexes_size",
    "pg_partition_ancestors",
    "pg_partition_tree",
    "pg_relation_size",
    "pg_sleep",
    "pg_sleep_for",
    "pg_sleep_until",
    "pg_table_size",
    "pg_tablespace_size",
    "pg_total_relation_size",
    "random",
    "random_normal",
    "system",
    "timeofday",
    "uuid_generate_v1",
    "uuid_generate_v1mc",
    "uuid_generate_v4",
    "uuidv4",
    "uuidv7",
];

/// They assign a transaction id, which a standby cannot, though they are `STABLE`.
const EFFECT: [&str; 2] = ["pg_current_xact_id", "txid_current"];

/// They tell of the server or of the session, whatever their volatility.
const SERVER_STATE: [&str; 39] = [
    "currval",
    "inet_client_addr",
    "inet_client_port",
    "inet_server_addr",
    "inet_server_port",
    "lastval",
    "pg_available_extension_versions",
    "pg_available_extensions",
    "pg_backend_pid",
    "pg_blocking_pids",
    "pg_conf_load_time",
    "pg_config",
    "pg_control_checkpoint",
    "pg_control_init",
    "pg_control_recovery",
    "pg_control_system",
    "pg_current_logfile",
    "pg_cursor",
    "pg_extension_update_paths",
    "pg_get_backend_memory_contexts",
    "pg_get_replication_slots",
    "pg_get_shmem_allocations",
    "pg_hba_file_rules",
    "pg_ident_file_mappings",
    "pg_is_in_recovery",
    "pg_jit_available",
    "pg_last_committed_xact",
    "pg_last_wal_receive_lsn",
    "pg_last_wal_replay_lsn",
    "pg_last_xact_replay_timestamp",
    "pg_listening_channels",
    "pg_lock_status",
    "pg_notification_queue_usage",
    "pg_postmaster_start_time",
    "pg_prepared_statement",
    "pg_safe_snapshot_blocking_pids",
    "pg_show_all_file_settings",
    "pg_show_all_settings",
    "pg_tablespace_databases",
];

/// They look names up in texts, or put objects into words; those that take or give a type like `regclass` are known by
/// that.
const RESOLVING: [&str; 17] = [
    "current_schema",
    "current_schemas",
    "database_to_xml",
    "database_to_xml_and_xmlschema",
    "database_to_xmlschema",
    "format_type",
    "pg_describe_object",
    "pg_identify_object",
    "pg_identify_object_as_address",
    "pg_input_error_info",
    "pg_input_is_valid",
    "pg_is_other_temp_schema",
    "pg_my_temp_schema",
    "row_security_active",
    "schema_to_xml",
    "schema_to_xml_and_xmlschema",
    "schema_to_xmlschema",
];

/// Parts of the grammar that look like functions in servers from that version on.
const GRAMMAR: [(u32, &str); 11] = [
    (160_000, "json"),
    (160_000, "json_array"),
    (160_000, "json_arrayagg"),
    (160_000, "json_object"),
    (160_000, "json_objectagg"),
    (160_000, "json_scalar"),
    (160_000, "json_serialize"),
    (170_000, "json_exists"),
    (170_000, "json_query"),
    (170_000, "json_table"),
    (170_000, "json_value"),
];

/// What a function that comes with PostgreSQL does; `is_volatile` as the catalog says.
#[must_use]
pub fn builtin(name: &str, is_volatile: bool) -> FunctionClass {
    if name == "current_setting" {
        FunctionClass::Setting
    } else if SERVER_STATE.binary_search(&name).is_ok() || name.starts_with("pg_stat_get_") {
        FunctionClass::ServerState
    } else if EFFECT.contains(&name) || (is_volatile && !is_harmless(name)) {
        FunctionClass::Volatile
    } else {
        FunctionClass::Safe
    }
}

/// Whether what a function that comes with PostgreSQL gives depends on what names stand for in its session.
#[must_use]
pub fn resolves(name: &str) -> bool {
    let is_one_of_many = name.starts_with("pg_get_")
        || name.starts_with("to_reg")
        || name.starts_with("has_") && name.ends_with("_privilege")
        || name.ends_with("_is_visible");
    is_one_of_many || RESOLVING.binary_search(&name).is_ok()
}

/// Whether a volatile function of PostgreSQL, or of an extension that many have, has no effect.
#[must_use]
pub fn is_harmless(name: &str) -> bool {
    SAFE.binary_search(&name).is_ok()
}

/// What looks like a function, and is none, in a server of that version.
pub fn grammar(version: u32) -> impl Iterator<Item = &'static str> {
    GRAMMAR.iter().filter(move |(since, _)| version >= *since).map(|(_, name)| *name)
}

/// Whether a setting tells of the server instead of the session.
#[must_use]
pub fn is_server_setting(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(
        name.as_str(),
        "transaction_read_only" | "in_hot_standby" | "primary_conninfo" | "primary_slot_name"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_say_what_volatility_does_not() {
        assert!(SAFE.is_sorted() && SERVER_STATE.is_sorted() && RESOLVING.is_sorted());
        for (name, is_volatile, class) in [
            ("lower", false, FunctionClass::Safe),
            ("random", true, FunctionClass::Safe),
            ("nextval", true, FunctionClass::Volatile),
            ("txid_current", false, FunctionClass::Volatile),
            ("pg_backend_pid", false, FunctionClass::ServerState),
            ("pg_stat_get_numscans", false, FunctionClass::ServerState),
            ("pg_stat_reset", true, FunctionClass::Volatile),
            ("a_function_of_a_newer_version", true, FunctionClass::Volatile),
        ] {
            assert_eq!(builtin(name, is_volatile), class, "{name}");
        }
    }
}
