//! Texts that show at a glance that they touch nothing of their session: most of them.

/// Whether a text shows at once, without being taken apart, that it touches nothing: one statement of the most frequent
/// kinds without a call.
#[must_use]
pub fn is_plain(sql: &[u8]) -> bool {
    const KINDS: [&[u8; 6]; 6] = [b"SELECT", b"UPDATE", b"DELETE", b"INSERT", b"COMMIT", b"BEGIN;"];
    let Some((first, rest)) = sql.split_first_chunk::<6>() else { return sql.eq_ignore_ascii_case(b"BEGIN") };
    let rest = rest.strip_suffix(b";").unwrap_or(rest);
    KINDS.iter().any(|kind| first.eq_ignore_ascii_case(*kind)) && !has_call_or_temp(rest)
}

/// Whether there is an opening parenthesis, a semicolon, or `mp` as in TEMP (SELECT INTO may create a temporary table).
/// It looks at every simple query, so sixteen bytes are compared without a branch.
fn has_call_or_temp(text: &[u8]) -> bool {
    const STEP: usize = 16;
    let is_in = |bytes: &[u8; STEP + 1]| {
        let pairs = bytes.iter().zip(bytes.iter().skip(1));
        let found = pairs.fold(0, |found, (&byte, &next)| {
            let is_mp = u8::from(byte | 0x20 == b'm') & u8::from(next | 0x20 == b'p');
            found | u8::from(byte == b'(') | u8::from(byte == b';') | is_mp
        });
        found != 0
    };
    let mut rest = text;
    while let Some(bytes) = rest.first_chunk::<{ STEP + 1 }>() {
        if is_in(bytes) {
            return true;
        }
        rest = rest.get(STEP..).unwrap_or_default();
    }
    let mut last = [0; STEP + 1];
    last.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
    is_in(&last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::touches::touches_of_body;

    #[test]
    fn what_is_plain_is_so_when_it_is_taken_apart() {
        for (sql, plain) in [
            ("SELECT abalance FROM pgbench_accounts WHERE aid = 1;", true),
            ("begin", true),
            ("select m, p from t where b = 'm p'", true),
            ("select 1 from a where temperature = 1", false),
            ("select 12 into teMp t", false),
            ("select 123 into temp t", false),
            ("select 1234 into temP t", false),
            ("select 12345 into temp t", false),
            ("select 123456 into temp t", false),
            ("select 1234567 into TEMP t", false),
            ("select 12345678 into temp t", false),
            ("SELECT 1 INTO TEMP t", false),
            ("SELECT f(1)", false),
            ("SELECT 1; SET x = 1", false),
            ("SET x = 1", false),
            ("", false),
        ] {
            assert_eq!(is_plain(sql.as_bytes()), plain, "{sql}");
            if plain {
                assert!(touches_of_body(sql.as_bytes()).is_nothing(), "{sql}");
            }
        }
    }
}
