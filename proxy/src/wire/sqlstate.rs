//! The SQLSTATE codes that the proxy sends or acts on.
//!
//! From <https://www.postgresql.org/docs/current/errcodes-appendix.html>.

/// A five-character error code.
pub type SqlState = &'static str;

/// `protocol_violation`
pub const PROTOCOL_VIOLATION: SqlState = "08P01";
/// `connection_failure`
pub const CONNECTION_FAILURE: SqlState = "08006";
/// `sqlclient_unable_to_establish_sqlconnection`
pub const CANNOT_CONNECT: SqlState = "08001";
/// `feature_not_supported`
pub const FEATURE_NOT_SUPPORTED: SqlState = "0A000";
/// `invalid_authorization_specification`
pub const INVALID_AUTHORIZATION: SqlState = "28000";
/// `invalid_parameter_value`
pub const INVALID_PARAMETER_VALUE: SqlState = "22023";
/// `invalid_sql_statement_name`
pub const INVALID_SQL_STATEMENT_NAME: SqlState = "26000";
/// `invalid_password`
pub const INVALID_PASSWORD: SqlState = "28P01";
/// `invalid_catalog_name`
pub const INVALID_CATALOG_NAME: SqlState = "3D000";
/// `insufficient_privilege`
pub const INSUFFICIENT_PRIVILEGE: SqlState = "42501";
/// `syntax_error`
pub const SYNTAX_ERROR: SqlState = "42601";
/// `undefined_object`
pub const UNDEFINED_OBJECT: SqlState = "42704";
/// `too_many_connections`
pub const TOO_MANY_CONNECTIONS: SqlState = "53300";
/// `configuration_limit_exceeded`
pub const CONFIGURATION_LIMIT_EXCEEDED: SqlState = "53400";
/// `program_limit_exceeded`
pub const PROGRAM_LIMIT_EXCEEDED: SqlState = "54000";
/// `read_only_sql_transaction`
pub const READ_ONLY: SqlState = "25006";
/// `object_not_in_prerequisite_state`
pub const NOT_IN_PREREQUISITE_STATE: SqlState = "55000";
/// `admin_shutdown`
pub const ADMIN_SHUTDOWN: SqlState = "57P01";
/// `cannot_connect_now`
pub const CANNOT_CONNECT_NOW: SqlState = "57P03";
/// `idle_session_timeout` and login time-outs use the class of operator intervention.
pub const QUERY_CANCELED: SqlState = "57014";
/// Class 57: a client asked for nothing for too long.
pub const IDLE_SESSION_TIMEOUT: SqlState = "57P05";
/// Class 25: nothing happened in a transaction for too long.
pub const IDLE_IN_TRANSACTION_TIMEOUT: SqlState = "25P03";
/// Class 25: a transaction was open for too long.
pub const TRANSACTION_TIMEOUT: SqlState = "25P04";
/// `config_file_error`
pub const CONFIG_FILE: SqlState = "F0000";
/// `internal_error`
pub const INTERNAL_ERROR: SqlState = "XX000";
