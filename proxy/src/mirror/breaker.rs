//! Stops sending to a mirror that fails, and tries it again after a pause that grows; pure.

use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row after which nothing is sent for a while.
const FAILURES_MAX: u32 = 3;

/// The first pause; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Whether transactions are sent.
#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    pauses: u32,
    closed_from: Option<Instant>,
}

impl Breaker {
    /// Whether transactions may be sent: after a pause one failure is enough for the next.
    #[must_use]
    pub fn admits(&self, now: Instant) -> bool {
        self.closed_from.is_none_or(|at| now >= at)
    }

    /// Whether nothing has been run to its end since a pause began.
    #[must_use]
    pub const fn is_tripped(&self) -> bool {
        self.pauses > 0
    }

    /// One was run to its end.
    pub const fn succeed(&mut self) {
        (self.failures, self.pauses, self.closed_from) = (0, 0, None);
    }

    /// One could not be run for what the mirror did. Tells whether a pause begins.
    pub fn fail(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES_MAX || !self.admits(now) {
            return false;
        }
        let pause = PAUSE_MIN.saturating_mul(1_u32 << self.pauses.min(10)).min(PAUSE_MAX);
        self.pauses += 1;
        self.closed_from = Some(now + pause);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_pauses_longer_each_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut breaker = Breaker::default();
        breaker.fail(start);
        breaker.fail(start);
        breaker.succeed();
        assert!(!breaker.fail(start) && !breaker.fail(start) && breaker.admits(start));
        assert!(!breaker.is_tripped() && breaker.fail(start) && !breaker.admits(start), "the third in a row");
        assert!(!breaker.fail(start), "what was under way does not count again");
        assert!(breaker.admits(at(1)) && breaker.is_tripped(), "it is tried, and not known to work");
        assert!(breaker.fail(at(1)) && !breaker.admits(at(2)) && breaker.admits(at(3)));
        for _ in 0..20 {
            breaker.fail(at(1000));
        }
        assert!(!breaker.admits(at(1003)) && breaker.admits(at(1030)));
        breaker.succeed();
        assert!(breaker.admits(at(1000)) && !breaker.is_tripped() && !breaker.fail(at(1000)));
    }
}
