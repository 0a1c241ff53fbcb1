//! Random statements, made of what has misled routers: none that goes to the standby is refused there for what it is, and
//! all of them get PostgreSQL's own answer.

use super::split::{CRATE, Split};
use super::support::message::{batch, query};
use super::support::random::{Random, number_in};

/// Statements of one run; `PGROUTING_TEST_STATEMENTS` plays more, `PGROUTING_TEST_SEED` others.
const USUAL: u64 = 300;

#[test]
fn no_random_statement_is_refused_by_a_replica() {
    let mut setup = CRATE.to_vec();
    setup.extend([
        "CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS 'UPDATE crate SET qty = qty WHERE false; SELECT 1'",
        "CREATE FUNCTION reads() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM crate'",
        "CREATE OPERATOR +!+ (LEFTARG = int, RIGHTARG = int, FUNCTION = acts)",
        "CREATE VIEW counting AS SELECT nextval('ticket_no') AS n",
        "CREATE UNLOGGED TABLE scratch(id int, note text, qty int)",
    ]);
    setup.insert(
        5,
        "CREATE FUNCTION acts(int, int) RETURNS int LANGUAGE sql AS 'UPDATE crate SET qty = qty WHERE false; SELECT 1'",
    );
    let split = Split::of(&setup, |config| config.split.rescue = false);
    let seed = number_in("PGROUTING_TEST_SEED", u64::from(std::process::id()));
    let mut random = Random::seeded(seed);
    let mut client = split.client();
    let mut on_replica = 0;
    for number in 0..number_in("PGROUTING_TEST_STATEMENTS", USUAL) {
        let sql = spaced(&statement(&mut random, 0), &mut random);
        let form = if random.below(2) == 0 { query(&sql) } else { batch(&sql) };
        let answer = client.ask(&form);
        let code = answer.sqlstate().unwrap_or_default();
        let is_refusal = code == "25006" || answer.error().contains("recovery");
        assert!(!is_refusal, "seed {seed}, statement {number}: {sql}: {}", answer.error());
        on_replica += u64::from(client.run("SHOW ROUTE LAST").rows()[0][0].as_deref() == Some("two"));
    }
    assert!(on_replica > 0, "seed {seed}");
}

fn statement(random: &mut Random, depth: usize) -> String {
    let e = |random: &mut Random| expression(random, depth);
    let inner =
        |random: &mut Random| if depth < 3 { statement(random, depth + 1) } else { "SELECT 1".to_owned() };
    match random.below(14) {
        0 => format!("VALUES ( {} )", e(random)),
        1 => "TABLE crate".to_owned(),
        2 => format!("WITH x AS ( {} ) SELECT * FROM x", inner(random)),
        3 => format!(
            "WITH x AS MATERIALIZED ( DELETE FROM crate WHERE false RETURNING id ) SELECT {}",
            e(random)
        ),
        4 => format!(
            "WITH x AS ( SELECT 1 ) UPDATE crate SET qty = {} WHERE false",
            random.pick(&["1", "qty"])
        ),
        5 => format!("EXPLAIN {}", inner(random)),
        6 => format!(
            "EXPLAIN ( ANALYZE {} , COSTS off ) {}",
            random.pick(&["", "off", "1", "true"]),
            inner(random)
        ),
        7 => format!("COPY ( {} ) TO STDOUT", inner(random)),
        8 => format!("SELECT * FROM ( {} ) AS y", inner(random)),
        9 if depth == 0 => format!("{} ; {}", inner(random), inner(random)),
        _ => {
            let from = random.pick(&[
                "crate",
                "crate",
                "counting",
                "scratch",
                "crate AS nextval",
                "reads ( ) AS g ( id )",
            ]);
            let end = random.pick(&[
                "",
                "",
                "",
                "FOR UPDATE",
                "FOR KEY SHARE SKIP LOCKED",
                "ORDER BY 1 LIMIT 2",
                "FOR READ ONLY",
            ]);
            format!("SELECT {} AS update , {} FROM {from} {end}", e(random), e(random))
        }
    }
}

fn expression(random: &mut Random, depth: usize) -> String {
    const SIMPLE: [&str; 22] = [
        "1",
        "'it''s'",
        r"E'\''",
        r"'\'",
        "$$ ; DELETE FROM crate $$",
        "$a$ nextval('x') $a$",
        r"U&'\0061'",
        "lower ( 'X' )",
        "nextval ( 'ticket_no' )",
        "\"nextval\" ( 'ticket_no' )",
        "pg_catalog . nextval ( 'ticket_no' )",
        r#"U&"n\0065xtval" ( 'ticket_no' )"#,
        "NEXTVAL ( 'ticket_no' )",
        "random ( )",
        "reads ( )",
        "writes ( )",
        "1 +!+ 2",
        "txid_current ( )",
        "current_setting ( 'search_path' )",
        "( 'ticket_no'::regclass ) . nextval",
        "pg_advisory_xact_lock ( 1 )",
        "array_agg ( 1 )",
    ];
    match random.below(8) {
        0 if depth < 3 => format!("( SELECT {} LIMIT 1 )", expression(random, depth + 1)),
        1 if depth < 3 => {
            format!("CASE WHEN true THEN {} ELSE NULL END", expression(random, depth + 1))
        }
        2 if depth < 3 => format!("COALESCE ( NULL , {} )", expression(random, depth + 1)),
        _ => random.pick(&SIMPLE).to_owned(),
    }
}

/// Puts comments and line ends where blanks stand.
fn spaced(sql: &str, random: &mut Random) -> String {
    let mut out = String::new();
    let mut quote = None;
    for c in sql.chars() {
        if quote.is_none() && matches!(c, '\'' | '"' | '$') {
            quote = Some(c);
        } else if quote == Some(c) {
            quote = None;
        }
        if c == ' ' && quote.is_none() {
            out.push_str(random.pick(&[" ", " ", " ", "\n", "/**/", "/* /* x */ ' */", "-- it's\n", "\t"]));
        } else {
            out.push(c);
        }
    }
    out
}
