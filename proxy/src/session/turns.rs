//! Whoever is always busy lets others have their turn.

use std::task::{Context, Poll};

/// Rounds of one poll, each of which reads or writes something.
const ROUNDS_MAX: u32 = 64;

/// The rounds that a poll has left. The runtime's own count would be looked up and put back in each round.
#[derive(Debug)]
pub struct Turns(u32);

impl Turns {
    /// At the beginning of a poll.
    #[must_use]
    pub const fn of_a_poll() -> Self {
        Self(ROUNDS_MAX)
    }

    /// Ready for another round; else the task is polled again after the others.
    pub fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.0 -= 1;
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_ends_at_some_time() {
        let mut turns = Turns::of_a_poll();
        let cx = Context::from_waker(std::task::Waker::noop());
        let rounds = (0..1000).take_while(|_| turns.poll(&cx).is_ready()).count();
        assert_eq!(u32::try_from(rounds), Ok(ROUNDS_MAX));
    }
}
