//! What was counted: SHOW STATS and its parts, with one row a database, and SHOW TOTALS.

use crate::console::history::Span;
use crate::console::rows::{Column, Type, Value, joined};
use crate::console::sources::Sources;
use crate::metrics::pools::PoolTotals;

/// SHOW STATS
pub const STATS: [Column; 25] = [
    ("database", Type::Text),
    ("total_server_assignment_count", Type::Numeric),
    ("total_xact_count", Type::Numeric),
    ("total_query_count", Type::Numeric),
    ("total_received", Type::Numeric),
    ("total_sent", Type::Numeric),
    ("total_xact_time", Type::Numeric),
    ("total_query_time", Type::Numeric),
    ("total_wait_time", Type::Numeric),
    ("total_client_parse_count", Type::Numeric),
    ("total_server_parse_count", Type::Numeric),
    ("total_bind_count", Type::Numeric),
    ("total_client_login_count", Type::Numeric),
    ("avg_server_assignment_count", Type::Numeric),
    ("avg_xact_count", Type::Numeric),
    ("avg_query_count", Type::Numeric),
    ("avg_recv", Type::Numeric),
    ("avg_sent", Type::Numeric),
    ("avg_xact_time", Type::Numeric),
    ("avg_query_time", Type::Numeric),
    ("avg_wait_time", Type::Numeric),
    ("avg_client_parse_count", Type::Numeric),
    ("avg_server_parse_count", Type::Numeric),
    ("avg_bind_count", Type::Numeric),
    ("avg_client_login_count", Type::Numeric),
];

/// SHOW STATS_TOTALS
pub const TOTALS_BY_DATABASE: [Column; 13] = joined(
    &BY_DATABASE,
    &[
        ("client_parse_count", Type::Numeric),
        ("server_parse_count", Type::Numeric),
        ("bind_count", Type::Numeric),
        ("client_login_count", Type::Numeric),
    ],
);

/// SHOW STATS_AVERAGES
pub const AVERAGES_BY_DATABASE: [Column; 13] = joined(
    &BY_DATABASE,
    &[
        ("avg_client_parse_count", Type::Numeric),
        ("avg_server_parse_count", Type::Numeric),
        ("avg_bind_count", Type::Numeric),
        ("avg_client_login_count", Type::Numeric),
    ],
);

/// What both begin with.
const BY_DATABASE: [Column; 9] = [
    ("database", Type::Text),
    ("server_assignment_count", Type::Numeric),
    ("xact_count", Type::Numeric),
    ("query_count", Type::Numeric),
    ("bytes_received", Type::Numeric),
    ("bytes_sent", Type::Numeric),
    ("xact_time", Type::Numeric),
    ("query_time", Type::Numeric),
    ("wait_time", Type::Numeric),
];

/// SHOW TOTALS
pub const TOTALS: [Column; 2] = [("name", Type::Text), ("value", Type::Numeric)];

/// What [`figures`] gives, as SHOW TOTALS calls it.
const NAMES: [&str; 12] = [
    "server_assignment_count",
    "xact_count",
    "query_count",
    "client_bytes",
    "server_bytes",
    "xact_time",
    "query_time",
    "wait_time",
    "client_parse_count",
    "server_parse_count",
    "bind_count",
    "client_login_count",
];

/// SHOW STATS
#[must_use]
pub fn stats(sources: &Sources) -> Vec<Vec<Value>> {
    by_database(sources, |totals, span| figures(totals).into_iter().chain(averages(span)).collect())
}

/// SHOW STATS_TOTALS
#[must_use]
pub fn totals_by_database(sources: &Sources) -> Vec<Vec<Value>> {
    by_database(sources, |totals, _| figures(totals).to_vec())
}

/// SHOW STATS_AVERAGES
#[must_use]
pub fn averages_by_database(sources: &Sources) -> Vec<Vec<Value>> {
    by_database(sources, |_, span| averages(span).to_vec())
}

/// SHOW TOTALS
#[must_use]
pub fn totals(sources: &Sources) -> Vec<Vec<Value>> {
    let by_database = sources.pools.by(|counts| counts.database.clone());
    let mut sums = [[0_u64; 12]; 2];
    for (database, totals) in &by_database {
        let span = sources.history.last(database, totals);
        for (sums, figures) in sums.iter_mut().zip([figures(totals), averages(&span)]) {
            sums.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
        }
    }
    let named = |prefix: &str, sums: [u64; 12]| {
        let rows =
            NAMES.iter().zip(sums).map(|(name, sum)| vec![format!("{prefix}{name}").into(), sum.into()]);
        rows.collect::<Vec<_>>()
    };
    let [totals, averages] = sums;
    [named("total_", totals), named("avg_", averages)].concat()
}

fn by_database(sources: &Sources, numbers: impl Fn(&PoolTotals, &Span) -> Vec<u64>) -> Vec<Vec<Value>> {
    let by_database = sources.pools.by(|counts| counts.database.clone());
    let row = |(database, totals): (String, PoolTotals)| {
        let span = sources.history.last(&database, &totals);
        let numbers = numbers(&totals, &span).into_iter().map(Value::from);
        std::iter::once(database.into()).chain(numbers).collect()
    };
    by_database.into_iter().map(row).collect()
}

/// What was counted since the start. Times are in microseconds.
const fn figures(totals: &PoolTotals) -> [u64; 12] {
    [
        totals.assignments,
        totals.transactions,
        totals.queries,
        totals.received,
        totals.sent,
        totals.busy_micros,
        // The time of a request within its transaction is not known apart.
        totals.busy_micros,
        totals.wait_micros,
        totals.client_parses,
        totals.server_parses,
        totals.binds,
        totals.logins,
    ]
}

/// The same for each second, and times for each transaction, request or assignment.
fn averages(span: &Span) -> [u64; 12] {
    [
        span.per_second(|totals| totals.assignments),
        span.per_second(|totals| totals.transactions),
        span.per_second(|totals| totals.queries),
        span.per_second(|totals| totals.received),
        span.per_second(|totals| totals.sent),
        span.per(|totals| totals.busy_micros, |totals| totals.transactions),
        span.per(|totals| totals.busy_micros, |totals| totals.queries),
        span.per(|totals| totals.wait_micros, |totals| totals.assignments),
        span.per_second(|totals| totals.client_parses),
        span.per_second(|totals| totals.server_parses),
        span.per_second(|totals| totals.binds),
        span.per_second(|totals| totals.logins),
    ]
}
