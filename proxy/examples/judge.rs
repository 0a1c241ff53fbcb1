//! Measures what a verdict costs: by the text, by the text without constants, and judged anew.
//!
//! `cargo run --release -p pgrouting-proxy --example judge`
#![expect(clippy::print_stdout, reason = "it is run by hand")]
#![allow(clippy::disallowed_types, reason = "it measures real time")]

use std::hint::black_box;
use std::time::Instant;

use pgrouting_proxy::catalog::{Catalog, FunctionClass, Named};
use pgrouting_proxy::classify::cache::Verdicts;

const ROUNDS: u32 = 20_000;

/// 300 bytes, with a join, calls and constants.
fn text(number: u32, column: u32) -> String {
    format!(
        "SELECT o.id, o.total{column}, lower(c.name) AS name, count(*) OVER (PARTITION BY o.customer) AS orders \
         FROM orders o JOIN customers c ON c.id = o.customer LEFT JOIN addresses a ON a.customer = c.id \
         WHERE o.state = 'open' AND o.created > '2026-01-01' AND o.id = {number} AND a.city LIKE 'B%' \
         ORDER BY o.created DESC, o.id LIMIT 20"
    )
}

fn main() {
    let mut catalog = Catalog { epoch: 1, ..Catalog::default() };
    for name in ["lower", "count"] {
        let function = Some(FunctionClass::Safe);
        catalog.names.insert(name.into(), Named { function, ..Named::default() });
    }
    let texts = |make: fn(u32) -> String| (0..ROUNDS).map(make).collect::<Vec<_>>();
    let same = vec![text(1, 1); ROUNDS as usize];
    let measure = |what: &str, verdicts: &Verdicts, texts: &[String]| {
        let began = Instant::now();
        for sql in texts {
            black_box(verdicts.verdict(black_box(sql.as_bytes()), &catalog, 1 << 24));
        }
        let each = began.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS);
        println!("{what}: {each:.2} us for {} bytes", texts.first().map_or(0, String::len));
    };
    let warm = Verdicts::default();
    for sql in same.iter().take(3) {
        let _ = warm.verdict(sql.as_bytes(), &catalog, 1 << 24);
    }
    measure("found by its text", &warm, &same);
    measure("found by its text without constants", &warm, &texts(|number| text(number, 1)));
    measure("judged", &Verdicts::default(), &texts(|number| text(number, number)));
}
