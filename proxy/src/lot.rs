//! What share of the traffic a session is in.
//!
//! Whoever is in at a lower share is in at a higher one. Another salt turns the lots round, so that another part is in at
//! the same share: what went wrong for some is not tried on the same ones again.

/// Lots there are.
const LOTS: u16 = 10_000;

/// How far one salt is from the next, a number without a common divisor with that of the lots: each has a place of its own.
const TURN: u32 = 3_571;

/// A session's lot, or a transaction's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lot(u16);

impl Lot {
    /// Draws one.
    #[must_use]
    pub fn draw() -> Self {
        Self(rand::random::<u16>() % LOTS)
    }

    /// Whether it is in a share, in percent.
    #[must_use]
    pub fn is_in(self, percent: u8, salt: u32) -> bool {
        let lots = u32::from(LOTS);
        let turned = (u32::from(self.0) + (salt % lots) * TURN) % lots;
        turned < u32::from(percent) * 100
    }

    /// The number, from 0 on.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(percent: u8, salt: u32) -> Vec<u16> {
        (0..LOTS).filter(|lot| Lot(*lot).is_in(percent, salt)).collect()
    }

    #[test]
    fn shares_are_exact_and_nested_whatever_the_salt() {
        for salt in [0, 1, 2, 9_999, u32::MAX] {
            let mut last = Vec::new();
            for percent in 0..=100_u8 {
                let share = share(percent, salt);
                assert_eq!(share.len(), usize::from(percent) * 100);
                assert!(last.iter().all(|lot| share.contains(lot)), "{percent} % with salt {salt}");
                last = share;
            }
        }
    }

    #[test]
    fn next_attempts_are_tried_on_others() {
        for first in 0..10 {
            let one = share(5, first);
            for second in first + 1..first + 3 {
                assert!(share(5, second).iter().all(|lot| !one.contains(lot)), "{first} and {second}");
            }
        }
    }

    #[test]
    fn lots_are_drawn_from_all_over() {
        let drawn: Vec<_> = (0..1000).map(|_| Lot::draw().number()).collect();
        assert!(drawn.iter().all(|lot| *lot < LOTS));
        assert!(drawn.iter().any(|lot| *lot < LOTS / 2) && drawn.iter().any(|lot| *lot >= LOTS / 2));
    }
}
