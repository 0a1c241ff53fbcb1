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

use WordClass::{ColumnName, FunctionName, Reserved};

/// Every word that is not just a name, sorted.
const WORDS: [(&str, WordClass); 151] = [
    ("all", Reserved),
    ("analyse", Reserved),
    ("analyze", Reserved),
    ("and", Reserved),
    ("any", Reserved),
    ("array", Reserved),
    ("as", Reserved),
    ("asc", Reserved),
    ("asymmetric", Reserved),
    ("authorization", FunctionName),
    ("between", ColumnName),
    ("bigint", ColumnName),
    ("binary", FunctionName),
    ("bit", ColumnName),
    ("boolean", ColumnName),
    ("both", Reserved),
    ("case", Reserved),
    ("cast", Reserved),
    ("char", ColumnName),
    ("character", ColumnName),
    ("check", Reserved),
    ("coalesce", ColumnName),
    ("collate", Reserved),
    ("collation", FunctionName),
    ("column", Reserved),
    ("concurrently", FunctionName),
    ("constraint", Reserved),
    ("create", Reserved),
    ("cross", FunctionName),
    ("current_catalog", Reserved),
    ("current_date", Reserved),
    ("current_role", Reserved),
    ("current_schema", FunctionName),
    ("current_time", Reserved),
    ("current_timestamp", Reserved),
    ("current_user", Reserved),
    ("dec", ColumnName),
    ("decimal", ColumnName),
    ("default", Reserved),
    ("deferrable", Reserved),
    ("desc", Reserved),
    ("distinct", Reserved),
    ("do", Reserved),
    ("else", Reserved),
    ("end", Reserved),
    ("except", Reserved),
    ("exists", ColumnName),
    ("extract", ColumnName),
    ("false", Reserved),
    ("fetch", Reserved),
    ("float", ColumnName),
    ("for", Reserved),
    ("foreign", Reserved),
    ("freeze", FunctionName),
    ("from", Reserved),
    ("full", FunctionName),
    ("grant", Reserved),
    ("greatest", ColumnName),
    ("group", Reserved),
    ("grouping", ColumnName),
    ("having", Reserved),
    ("ilike", FunctionName),
    ("in", Reserved),
    ("initially", Reserved),
    ("inner", FunctionName),
    ("inout", ColumnName),
    ("int", ColumnName),
    ("integer", ColumnName),
    ("intersect", Reserved),
    ("interval", ColumnName),
    ("into", Reserved),
    ("is", FunctionName),
    ("isnull", FunctionName),
    ("join", FunctionName),
    ("lateral", Reserved),
    ("leading", Reserved),
    ("least", ColumnName),
    ("left", FunctionName),
    ("like", FunctionName),
    ("limit", Reserved),
    ("localtime", Reserved),
    ("localtimestamp", Reserved),
    ("national", ColumnName),
    ("natural", FunctionName),
    ("nchar", ColumnName),
    ("none", ColumnName),
    ("normalize", ColumnName),
    ("not", Reserved),
    ("notnull", FunctionName),
    ("null", Reserved),
    ("nullif", ColumnName),
    ("numeric", ColumnName),
    ("offset", Reserved),
    ("on", Reserved),
    ("only", Reserved),
    ("or", Reserved),
    ("order", Reserved),
    ("out", ColumnName),
    ("outer", FunctionName),
    ("overlaps", FunctionName),
    ("overlay", ColumnName),
    ("placing", Reserved),
    ("position", ColumnName),
    ("precision", ColumnName),
    ("primary", Reserved),
    ("real", ColumnName),
    ("references", Reserved),
    ("returning", Reserved),
    ("right", FunctionName),
    ("row", ColumnName),
    ("select", Reserved),
    ("session_user", Reserved),
    ("setof", ColumnName),
    ("similar", FunctionName),
    ("smallint", ColumnName),
    ("some", Reserved),
    ("substring", ColumnName),
    ("symmetric", Reserved),
    ("table", Reserved),
    ("tablesample", FunctionName),
    ("then", Reserved),
    ("time", ColumnName),
    ("timestamp", ColumnName),
    ("to", Reserved),
    ("trailing", Reserved),
    ("treat", ColumnName),
    ("trim", ColumnName),
    ("true", Reserved),
    ("union", Reserved),
    ("unique", Reserved),
    ("user", Reserved),
    ("using", Reserved),
    ("values", ColumnName),
    ("varchar", ColumnName),
    ("variadic", Reserved),
    ("verbose", FunctionName),
    ("when", Reserved),
    ("where", Reserved),
    ("window", Reserved),
    ("with", Reserved),
    ("xmlattributes", ColumnName),
    ("xmlconcat", ColumnName),
    ("xmlelement", ColumnName),
    ("xmlexists", ColumnName),
    ("xmlforest", ColumnName),
    ("xmlnamespaces", ColumnName),
    ("xmlparse", ColumnName),
    ("xmlpi", ColumnName),
    ("xmlroot", ColumnName),
    ("xmlserialize", ColumnName),
    ("xmltable", ColumnName),
];

/// Words that stand before an expression, or a parenthesis, though they are names elsewhere.
const SOFT: [&str; 28] = [
    "by",
    "columns",
    "conflict",
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
    "second",
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
    let found = WORDS.binary_search_by(|(known, _)| known.as_bytes().cmp(word.as_bytes()));
    found.ok().and_then(|index| WORDS.get(index)).map_or(WordClass::Name, |(_, class)| *class)
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
        assert!(WORDS.is_sorted_by_key(|(word, _)| *word) && SOFT.is_sorted());
        assert_eq!(class_of("select"), Reserved);
        assert_eq!(class_of("substring"), ColumnName);
        assert_eq!(class_of("left"), FunctionName);
        assert_eq!(class_of("update"), WordClass::Name);
    }
}
