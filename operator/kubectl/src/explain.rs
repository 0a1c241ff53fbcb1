//! A proxy's answer about a statement, for people: where it may run, why, and which byte decided.

use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::stage::Stage;
use serde::{Deserialize, Serialize};

/// The path of the admin API.
pub const PATH: &str = "/route/explain";
/// Lines that are shown before and after the one that decided.
const LINES_AROUND: usize = 2;
/// Characters of a line that are shown before and after the one that decided.
const COLUMNS_AROUND: usize = 60;

/// The question.
#[derive(Debug, Serialize)]
pub struct Question<'a> {
    /// The database whose catalog counts.
    pub database: &'a str,
    /// The statement.
    pub statement: &'a str,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Answer {
    /// Where it may run.
    pub target: Side,
    /// Why, out of the proxy's closed list.
    pub reason: String,
    /// The byte that decided, from 1 on.
    pub position: Option<usize>,
}

/// Where a statement may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// On the primary only.
    Primary,
    /// On a replica too.
    Replica,
}

/// The proxy's reasons in a few words. One that is not here is shown as it is.
const REASONS: [(&str, &str); 26] = [
    ("read", "it is proved to be a read"),
    ("read_only_transaction", "it begins a transaction that is READ ONLY"),
    ("write", "it writes, or a part of it does"),
    ("locking", "it locks rows or tables"),
    ("select_into", "it makes a table"),
    ("ddl", "it defines or maintains something"),
    ("session_state", "it is about the session"),
    ("transaction", "it begins or ends a transaction that may write"),
    ("cursor", "it uses a cursor of the session"),
    ("prepared", "it prepares or executes a statement in SQL"),
    ("procedure", "it is a DO, a CALL or a function call of the protocol"),
    ("copy", "it copies into a table, or uses a file or program of the server"),
    ("explain", "it explains what cannot be judged"),
    ("volatile_function", "it calls a function that may have an effect"),
    ("unknown_function", "it calls a function that the catalog does not know"),
    ("server_state", "it asks about the server or session that answers"),
    ("unlogged_table", "it reads an unlogged table, whose rows only the primary has"),
    ("foreign_table", "it reads a foreign table"),
    ("sequence", "it reads a sequence, whose position a replica does not know"),
    ("view", "it reads a view, or a table with row security, that does something of the kind"),
    ("operator", "it uses an operator whose function may have an effect"),
    ("type", "it uses a type whose functions may have an effect"),
    ("unparsed", "it is not understood"),
    ("too_long", "it is longer than what is looked at"),
    ("not_utf8", "it is not UTF-8"),
    ("no_catalog", "the catalog of its database is not known"),
];

/// The answer as a text.
#[must_use]
pub fn render(answer: &Answer, statement: &str, pool: &PgRoutingPool) -> String {
    let why = REASONS.iter().find(|(word, _)| *word == answer.reason);
    let why = why.map_or_else(|| answer.reason.clone(), |(word, text)| format!("{text} ({word})"));
    match answer.target {
        Side::Replica => format!("replica: {why}\n{}", effect(pool)),
        Side::Primary => match answer.position {
            None => format!("primary: {why}\n"),
            Some(position) => {
                format!("primary: {why}, decided at byte {position}\n\n{}", pointed(statement, position))
            }
        },
    }
}

/// What the stage makes of a statement that may run on a replica.
fn effect(pool: &PgRoutingPool) -> String {
    let Some(rollout) = pool.status.as_ref().and_then(|status| status.rollout.as_ref()) else {
        return String::new();
    };
    match (rollout.stage, rollout.split_percent) {
        (Stage::PoolingOnly, _) => {
            "The pool is at PoolingOnly, where every statement runs on the primary all the same.\n".to_owned()
        }
        (Stage::Split | Stage::Mirror, ..100) => {
            format!("Reads of {} % of the traffic are split now.\n", rollout.split_percent)
        }
        (Stage::Split | Stage::Mirror, _) => String::new(),
    }
}

/// The statement with a mark under the byte at a position, from 1 on.
fn pointed(statement: &str, position: usize) -> String {
    let byte = position.saturating_sub(1).min(statement.len());
    let byte = (0..=byte).rev().find(|at| statement.is_char_boundary(*at)).unwrap_or(0);
    let (before, _) = statement.split_at(byte);
    let line_number = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or(before).chars().count();
    let mut text = String::new();
    let first = line_number.saturating_sub(LINES_AROUND);
    let lines = statement.split('\n').enumerate().skip(first);
    for (number, line) in lines.take(line_number - first + LINES_AROUND + 1) {
        let line = line.trim_end_matches('\r');
        if number == line_number {
            text.push_str(&pointed_line(line, column));
        } else if !line.trim().is_empty() {
            let shown: String = line.chars().take(2 * COLUMNS_AROUND).collect();
            text.push_str(&format!("  {shown}\n"));
        }
    }
    text
}

fn pointed_line(line: &str, column: usize) -> String {
    let skipped = column.saturating_sub(COLUMNS_AROUND);
    let cut = if skipped > 0 { "…" } else { "" };
    let shown: String = line.chars().skip(skipped).take(2 * COLUMNS_AROUND).collect();
    // Tabs stay tabs, so that the mark is under its character whatever their width.
    let blank = |c: char| if c == '\t' { '\t' } else { ' ' };
    let indent: String =
        cut.chars().chain(line.chars().skip(skipped).take(column - skipped)).map(blank).collect();
    format!("  {cut}{shown}\n  {indent}^\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_is_under_the_byte() {
        let long = format!("SELECT {}nextval('s')", "x, ".repeat(40));
        for (statement, position, expected) in [
            ("DELETE FROM t", 1, "  DELETE FROM t\n  ^\n".to_owned()),
            ("SELECT f()", 8, "  SELECT f()\n         ^\n".to_owned()),
            ("SELECT 'ü', f()", 14, "  SELECT 'ü', f()\n              ^\n".to_owned()),
            ("SELECT\n\tf()\nFROM t", 9, "  SELECT\n  \tf()\n  \t^\n  FROM t\n".to_owned()),
            ("BEGIN", 99, "  BEGIN\n       ^\n".to_owned()),
            ("", 1, "  \n  ^\n".to_owned()),
        ] {
            assert_eq!(pointed(statement, position), expected, "{statement}");
        }
        let text = pointed(&long, 128);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("  …") && lines[0].ends_with("nextval('s')"), "{text}");
        let at = lines[1].chars().count() - 1;
        assert_eq!(lines[0].chars().skip(at).collect::<String>(), "nextval('s')");
    }

    #[test]
    fn any_position_of_any_text_is_marked() {
        for statement in ["é\n\n日本\tx\r\n", "\n\n\n", "ab"] {
            for position in 0..statement.len() + 3 {
                assert_eq!(pointed(statement, position).matches('^').count(), 1, "{statement:?} {position}");
            }
        }
    }
}
