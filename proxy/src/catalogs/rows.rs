//! The questions about a database's objects, and their answers.
//!
//! <https://www.postgresql.org/docs/current/catalogs.html>. Whoever may connect may ask; nothing is read of the tables.

use pgrouting_contract::split::SplitConfig;

use crate::catalog::RelationClass;
use crate::classify::learn::{Definition, Findings, Function, Object, Relation};

/// Rows of a question.
type Rows = Vec<Vec<Option<String>>>;

/// Changes whenever something is defined; cheap, and blind to nothing but what a crafted sum could hide.
pub const FINGERPRINT: &str = "SELECT pg_catalog.concat_ws(',', \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_proc), \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_class WHERE relpersistence <> 't'), \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_type WHERE typtype <> 'c'), \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_operator), \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_aggregate), \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_cast), \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_amproc), \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_rewrite), \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_policy), \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_inherits), \
     (SELECT pg_catalog.concat(count(*), '/', sum(xmin::text::int8)) FROM pg_catalog.pg_constraint WHERE contypid <> 0))";

/// Objects that PostgreSQL makes itself have lower numbers.
const FIRST_USER_OID: u32 = 16_384;

/// Types whose values are names, or have names in them: `regclass`, `regtype`, `regprocedure`, `regoperator`.
const NAMING_TYPES: &str = "2205, 2206, 2202, 2204";

/// What is asked of the objects that come with PostgreSQL, once for each version; as [`findings`] reads it.
#[must_use]
pub fn builtin_queries() -> [String; 2] {
    let relations = format!(
        "SELECT c.relname, c.relkind, c.relpersistence, pg_catalog.pg_get_viewdef(c.oid), NULL \
         FROM pg_catalog.pg_class c WHERE c.relkind = 'v' AND c.oid < {FIRST_USER_OID}"
    );
    // A type's name before one value in parentheses is a cast.
    let types = format!(
        " UNION ALL SELECT t.typname, true, false, false, 'internal', '', t.oid IN ({NAMING_TYPES}) FROM pg_catalog.pg_type t \
         WHERE t.oid < {FIRST_USER_OID} AND t.typtype IN ('b', 'r', 'm')"
    );
    [functions(&format!("p.oid < {FIRST_USER_OID}"), "''") + &types, relations]
}

/// What is asked of all others, in the order in which [`findings`] reads it. Views are asked about by what their stored
/// trees refer to: to put one into words, PostgreSQL locks its tables, and would wait for whoever alters one.
#[must_use]
pub fn queries(major_version: u32) -> [String; 4] {
    let body = if major_version >= 14 {
        "coalesce(pg_catalog.pg_get_function_sqlbody(p.oid), p.prosrc)"
    } else {
        "p.prosrc"
    };
    let body = format!("CASE WHEN l.lanname IN ('sql', 'plpgsql', 'internal') THEN {body} ELSE '' END");
    let relations = format!(
        "SELECT c.relname, c.relkind::text, c.relpersistence::text, NULL, NULL FROM pg_catalog.pg_class c \
         WHERE c.oid >= {FIRST_USER_OID} AND c.relpersistence <> 't' AND (c.relkind IN ('f', 'S') \
         OR (c.relpersistence = 'u' AND c.relkind IN ('r', 'p', 'm'))) \
         UNION ALL \
         SELECT c.relname, 'v', CASE WHEN r.ev_action::text ~ ':(hasForUpdate|hasModifyingCTE) true' THEN 'u' ELSE 'p' END, \
         NULL, NULL FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class \
         WHERE c.relkind = 'v' AND r.ev_type = '1' AND c.oid >= {FIRST_USER_OID} AND c.relpersistence <> 't' \
         UNION ALL \
         SELECT c.relname, 'r', 'p', NULL, pg_catalog.string_agg('(' || pg_catalog.pg_get_expr(p.polqual, p.polrelid) || ')', ' AND ') \
         FROM pg_catalog.pg_policy p JOIN pg_catalog.pg_class c ON c.oid = p.polrelid \
         WHERE p.polqual IS NOT NULL AND c.relrowsecurity GROUP BY c.oid, c.relname"
    );
    let checks = "SELECT t.typname, pg_catalog.pg_get_constraintdef(c.oid) FROM pg_catalog.pg_constraint c \
         JOIN pg_catalog.pg_type t ON t.oid = c.contypid WHERE c.contype = 'c' AND c.oid >= 16384"
        .to_owned();
    [functions(&format!("p.oid >= {FIRST_USER_OID}"), &body), relations, checks, uses()]
}

fn functions(which: &str, body: &str) -> String {
    format!(
        "SELECT p.proname, p.oid < {FIRST_USER_OID}, p.provolatile = 'v', \
         p.pronargs - p.pronargdefaults <= 1 AND (p.pronargs >= 1 OR p.provariadic <> 0), l.lanname, {body}, \
         ARRAY[{NAMING_TYPES}]::oid[] OPERATOR(pg_catalog.&&) (p.proargtypes::oid[] || p.prorettype) \
         FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang \
         WHERE {which} AND p.prokind <> 'p' AND p.prorettype NOT IN ('pg_catalog.trigger'::pg_catalog.regtype, \
         'pg_catalog.event_trigger'::pg_catalog.regtype)"
    )
}

/// What the stored trees of views refer to.
fn uses_of_views() -> [String; 4] {
    let of = |fields: &str, kind: &str, name: &str, table: &str, condition: &str| {
        format!(
            "SELECT 'r', c.relname, '{kind}', q.{name} FROM pg_catalog.pg_rewrite r \
             JOIN pg_catalog.pg_class c ON c.oid = r.ev_class \
             CROSS JOIN LATERAL pg_catalog.regexp_matches(r.ev_action::text, ':(?:{fields}) ([0-9]+)', 'g') m \
             JOIN pg_catalog.{table} q ON q.oid = m[1]::oid \
             WHERE c.relkind = 'v' AND r.ev_type = '1' AND c.oid >= {FIRST_USER_OID} AND c.relpersistence <> 't' {condition}"
        )
    };
    [
        of("funcid|opfuncid|aggfnoid|winfnoid|tsmhandler", "f", "proname", "pg_proc", ""),
        of("relid", "r", "relname", "pg_class", ""),
        of("opno|eqop|sortop", "o", "oprname", "pg_operator", "AND q.oid >= 16384"),
        of(
            "resulttype|funcresulttype|consttype|vartype|aggtype",
            "t",
            "typname",
            "pg_type",
            &format!("AND (q.oid >= {FIRST_USER_OID} OR q.oid IN ({NAMING_TYPES}))"),
        ),
    ]
}

/// Who uses whom: kinds f, r, t, o for functions, relations, types, operators.
fn uses() -> String {
    let user = FIRST_USER_OID;
    let own_type = "typtype IN ('b', 'd', 'r', 'm')";
    [
        // Aggregates.
        format!(
            "SELECT 'f', p.proname, 'f', q.proname FROM pg_catalog.pg_aggregate a \
             JOIN pg_catalog.pg_proc p ON p.oid = a.aggfnoid \
             CROSS JOIN LATERAL pg_catalog.unnest(ARRAY[a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn, \
             a.aggdeserialfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]::oid[]) f(oid) \
             JOIN pg_catalog.pg_proc q ON q.oid = f.oid WHERE a.aggfnoid::oid >= {user}"
        ),
        format!(
            "SELECT 'o', o.oprname, 'f', q.proname FROM pg_catalog.pg_operator o \
             JOIN pg_catalog.pg_proc q ON q.oid = o.oprcode WHERE o.oid >= {user}"
        ),
        // Input, output and their kin.
        format!(
            "SELECT 't', t.typname, 'f', q.proname FROM pg_catalog.pg_type t \
             CROSS JOIN LATERAL pg_catalog.unnest(ARRAY[t.typinput, t.typoutput, t.typreceive, t.typsend, t.typmodin, \
             t.typmodout]::oid[]) f(oid) JOIN pg_catalog.pg_proc q ON q.oid = f.oid AND q.oid >= {user} WHERE t.oid >= {user}"
        ),
        format!(
            "SELECT 't', t.typname, 'f', q.proname FROM pg_catalog.pg_range r JOIN pg_catalog.pg_type t ON t.oid = r.rngtypid \
             JOIN pg_catalog.pg_proc q ON q.oid IN (r.rngcanonical, r.rngsubdiff) WHERE q.oid >= {user}"
        ),
        format!(
            "SELECT 't', t.typname, 'f', q.proname FROM pg_catalog.pg_cast c JOIN pg_catalog.pg_proc q ON q.oid = c.castfunc \
             JOIN pg_catalog.pg_type t ON t.oid IN (c.castsource, c.casttarget) \
             WHERE q.oid >= {user} AND (t.oid >= {user} OR c.castsource < {user} AND c.casttarget < {user})"
        ),
        format!(
            "SELECT 't', t.typname, 'f', q.proname FROM pg_catalog.pg_amproc a JOIN pg_catalog.pg_proc q ON q.oid = a.amproc \
             JOIN pg_catalog.pg_type t ON t.oid = a.amproclefttype WHERE q.oid >= {user}"
        ),
        // What types are made of.
        format!(
            "SELECT 't', t.typname, 't', b.typname FROM pg_catalog.pg_type t \
             JOIN pg_catalog.pg_type b ON b.oid IN (t.typbasetype, t.typelem) \
             WHERE t.oid >= {user} AND (b.oid >= {user} OR b.oid IN ({NAMING_TYPES}))"
        ),
        format!(
            "SELECT k.kind, c.relname, 't', t.typname FROM pg_catalog.pg_attribute a \
             JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
             CROSS JOIN (VALUES ('r'), ('t')) k(kind) \
             WHERE (t.oid >= {user} AND t.typtype IN ('b', 'd', 'r', 'm', 'c') OR t.oid IN ({NAMING_TYPES})) \
             AND c.oid >= {user} AND a.attnum > 0 AND c.relpersistence <> 't'"
        ),
        format!(
            "SELECT 'f', p.proname, 't', t.typname FROM pg_catalog.pg_proc p \
             CROSS JOIN LATERAL pg_catalog.unnest(p.proargtypes::oid[] || p.prorettype) a(oid) \
             JOIN pg_catalog.pg_type t ON t.oid = a.oid AND t.{own_type} WHERE p.oid >= {user} AND t.oid >= {user}"
        ),
        // Partitions and children.
        "SELECT 'r', p.relname, 'r', c.relname FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class p ON p.oid = i.inhparent \
         JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid WHERE p.relkind IN ('r', 'p')"
            .to_owned(),
    ]
    .into_iter()
    .chain(uses_of_views())
    .collect::<Vec<_>>()
    .join(" UNION ")
}

/// Reads the answers to [`queries`]; what the pool says of functions and tables counts more.
#[must_use]
pub fn findings(version: u32, answers: Vec<Rows>, split: &SplitConfig) -> Findings {
    let mut answers = answers.into_iter();
    let mut next = || answers.next().unwrap_or_default();
    let mut findings = Findings {
        version,
        functions: next().into_iter().filter_map(function).collect(),
        relations: next().into_iter().filter_map(relation).collect(),
        checks: next().into_iter().filter_map(|row| Some((text(&row, 0)?, text(&row, 1)?))).collect(),
        uses: next()
            .into_iter()
            .filter_map(|row| {
                Some((object(&text(&row, 0)?, text(&row, 1)?)?, object(&text(&row, 2)?, text(&row, 3)?)?))
            })
            .collect(),
        trusted: split.read_functions.clone(),
        distrusted: split.primary_functions.clone(),
    };
    findings.relations.extend(split.primary_tables.iter().map(|name| Relation {
        name: name.clone(),
        class: Some(RelationClass::Unlogged),
        definition: None,
    }));
    findings
}

fn text(row: &[Option<String>], index: usize) -> Option<String> {
    row.get(index)?.clone()
}

fn function(row: Vec<Option<String>>) -> Option<Function> {
    let is = |index| text(&row, index).is_some_and(|value| value == "t");
    Some(Function {
        name: text(&row, 0)?,
        is_builtin: is(1),
        is_volatile: is(2),
        takes_one: is(3),
        language: text(&row, 4)?,
        body: text(&row, 5).unwrap_or_default(),
        resolves: is(6),
    })
}

fn relation(row: Vec<Option<String>>) -> Option<Relation> {
    let (kind, persistence) = (text(&row, 1)?, text(&row, 2)?);
    let class = match kind.as_str() {
        "f" => Some(RelationClass::Foreign),
        "S" => Some(RelationClass::Sequence),
        // It locks or writes.
        "v" if persistence == "u" => Some(RelationClass::View),
        _ if persistence == "u" => Some(RelationClass::Unlogged),
        _ => None,
    };
    let definition =
        text(&row, 3).map(Definition::Query).or_else(|| text(&row, 4).map(Definition::Expression));
    Some(Relation { name: text(&row, 0)?, class, definition })
}

fn object(kind: &str, name: String) -> Option<Object> {
    Some(match kind {
        "f" => Object::Function(name),
        "r" => Object::Relation(name),
        "t" => Object::Type(name),
        "o" => Object::Operator(name),
        _ => return None,
    })
}
