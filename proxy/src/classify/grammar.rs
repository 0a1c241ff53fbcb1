//! The second reading of a statement, by `sqlparser`; the only file that knows it.
//!
//! It is not PostgreSQL's grammar: it fails on some of what PostgreSQL takes, and takes some of what PostgreSQL does not.
//! So it only ever takes a proof away, or clears a doubt that the first reading had about a word.

use std::ops::ControlFlow;

use sqlparser::ast::{Query, SetExpr, Statement, UtilityOption, Visit, Visitor};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

/// What the second reading says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opinion {
    /// It only reads.
    Reads,
    /// It writes, locks, or is something else.
    Acts,
    /// It does not read the text.
    None,
}

/// Reads a text of one or more statements that are to be queries, or queries in EXPLAIN or COPY.
#[must_use]
pub fn opinion(sql: &str) -> Opinion {
    let Ok(statements) = Parser::parse_sql(&PostgreSqlDialect {}, sql) else { return Opinion::None };
    let acts = statements.iter().any(|statement| match statement {
        Statement::Query(_) | Statement::Copy { .. } => visits_an_act(statement),
        // What is only planned may be anything.
        Statement::Explain { analyze, options, .. } => {
            let runs = *analyze || options.iter().flatten().any(is_analyze);
            runs && visits_an_act(statement)
        }
        _ => true,
    });
    if acts { Opinion::Acts } else { Opinion::Reads }
}

/// Whether an option of EXPLAIN has the statement run.
fn is_analyze(option: &UtilityOption) -> bool {
    let is_off = option.arg.as_ref().is_some_and(|value| {
        let value = value.to_string().to_ascii_lowercase();
        value == "false" || value == "off"
    });
    option.name.value.eq_ignore_ascii_case("analyze") && !is_off
}

fn visits_an_act(statement: &Statement) -> bool {
    statement.visit(&mut Acts).is_break()
}

/// Stops at whatever is not a read.
struct Acts;

impl Visitor for Acts {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if !query.locks.is_empty() || acts(&query.body) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<()> {
        match statement {
            Statement::Query(_) | Statement::Copy { .. } | Statement::Explain { .. } => {
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        }
    }
}

fn acts(body: &SetExpr) -> bool {
    match body {
        SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => true,
        SetExpr::Select(select) => select.into.is_some(),
        SetExpr::SetOperation { left, right, .. } => acts(left) || acts(right),
        SetExpr::Query(_) | SetExpr::Values(_) | SetExpr::Table(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_anywhere_is_seen() {
        for (sql, expected) in [
            ("SELECT 1", Opinion::Reads),
            ("SELECT update FROM t", Opinion::Reads),
            ("WITH a AS (DELETE FROM t RETURNING 1) SELECT 1", Opinion::Acts),
            ("SELECT (SELECT 1 FROM t FOR UPDATE)", Opinion::Acts),
            ("SELECT 1 INTO t", Opinion::Acts),
            ("SELECT 1; DELETE FROM t", Opinion::Acts),
            ("EXPLAIN DELETE FROM t", Opinion::Reads),
            ("EXPLAIN ANALYZE DELETE FROM t", Opinion::Acts),
            ("EXPLAIN (ANALYZE) DELETE FROM t", Opinion::Acts),
            ("EXPLAIN (ANALYZE off, COSTS) DELETE FROM t", Opinion::Reads),
            ("SELEC 1", Opinion::None),
        ] {
            assert_eq!(opinion(sql), expected, "{sql}");
        }
    }
}
