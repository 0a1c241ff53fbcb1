//! How a time stands in the definition.

use schemars::{Schema, SchemaGenerator, json_schema};

/// The schema of a time in RFC 3339.
pub fn time_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}
