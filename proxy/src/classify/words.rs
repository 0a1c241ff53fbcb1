//! PostgreSQL's words that are not names (<https://www.postgresql.org/docs/current/sql-keywords-appendix.html>).

/// What a word without quotes can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordClass {
    /// A name, unless the grammar wants it as a word at that place.
    Name,
    /// Never a name.
    Reserved,
    /// The name of a column or table, never of a function or type.
    ColumnName,
    /// The name of a function or type, never of a column or table.
    FunctionName,
}

/// Never a name without quotes.
const RESERVED: [&str; 77] = [
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "both",
    "case",
    "cast",
    "check",
    "collate",
    "column",
    "constraint",
    "create",
    "current_catalog",
    "current_date",
    "current_role",
    "current_time",
    "current_timestamp",
    "current_user",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "false",
    "fetch",
    "for",
    "foreign",
    "from",
    "grant",
    "group",
    "having",
    "in",
    "initially",
    "intersect",
    "into",
    "lateral",
    "leading",
    "limit",
    "localtime",
    "localtimestamp",
    "not",
    "null",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "placing",
    "primary",
    "references",
    "returning",
    "select",
    "session_user",
    "some",
    "symmetric",
    "table",
    "then",
    "to",
    "trailing",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "variadic",
    "when",
    "where",
    "window",
    "with",
];

/// The name of a column or table, never of a function.
const COLUMN_NAMES: [&str; 51] = [
    "between",
    "bigint",
    "bit",
    "boolean",
    "char",
    "character",
    "coalesce",
    "dec",
    "decimal",
    "exists",
    "extract",
    "float",
    "greatest",
    "grouping",
    "inout",
    "int",
    "integer",
    "interval",
    "least",
    "national",
    "nchar",
    "none",
    "normalize",
    "nullif",
    "numeric",
    "out",
    "overlay",
    "position",
    "precision",
    "real",
    "row",
    "setof",
    "smallint",
    "substring",
    "time",
    "timestamp",
    "treat",
    "trim",
    "values",
    "varchar",
    "xmlattributes",
    "xmlconcat",
    "xmlelement",
    "xmlexists",
    "xmlforest",
    "xmlnamespaces",
    "xmlparse",
    "xmlpi",
    "xmlroot",
    "xmlserialize",
    "xmltable",
];

/// The name of a function, never of a column or table.
const FUNCTION_NAMES: [&str; 23] = [
    "authorization",
    "binary",
    "collation",
    "concurrently",
    "cross",
    "current_schema",
    "freeze",
    "full",
    "ilike",
    "inner",
    "is",
    "isnull",
    "join",
    "left",
    "like",
    "natural",
    "notnull",
    "outer",
    "overlaps",
    "right",
    "similar",
    "tablesample",
    "verbose",
];

/// Words that stand before an expression, or a parenthesis, though they are names elsewhere.
const SOFT: [&str; 26] = [
    "by",
    "columns",
    "cube",
    "escape",
    "exclude",
    "filter",
    "first",
    "following",
    "groups",
    "key",
    "materialized",
    "next",
    "operator",
    "over",
    "preceding",
    "range",
    "recursive",
    "repeatable",
    "rollup",
    "rows",
    "sets",
    "ties",
    "uescape",
    "varying",
    "within",
    "zone",
];

/// What a word, in lower case, can be.
#[must_use]
pub fn class_of(word: &str) -> WordClass {
    if RESERVED.binary_search(&word).is_ok() {
        WordClass::Reserved
    } else if COLUMN_NAMES.binary_search(&word).is_ok() {
        WordClass::ColumnName
    } else if FUNCTION_NAMES.binary_search(&word).is_ok() {
        WordClass::FunctionName
    } else {
        WordClass::Name
    }
}

/// Whether a word, in lower case, may stand before an expression or a parenthesis as a part of the grammar.
#[must_use]
pub fn is_soft(word: &str) -> bool {
    SOFT.binary_search(&word).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_can_be_searched() {
        for table in [&RESERVED[..], &COLUMN_NAMES, &FUNCTION_NAMES, &SOFT] {
            assert!(table.is_sorted());
        }
        assert_eq!(class_of("select"), WordClass::Reserved);
        assert_eq!(class_of("substring"), WordClass::ColumnName);
        assert_eq!(class_of("left"), WordClass::FunctionName);
        assert_eq!(class_of("update"), WordClass::Name);
    }
}
