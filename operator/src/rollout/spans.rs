//! The spans of time over which gates are judged: they do not overlap, and grow until there are enough figures.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::position::Position;
use crate::rollout::figures::{Figures, Moment, Window};

/// What has to stay for figures to be of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanKey {
    /// Where the pool stands.
    pub position: Position,
    /// Which attempt it is.
    pub attempt: i32,
    /// Which gates with which limits there are.
    pub policy: String,
}

/// When a span is over.
#[derive(Debug, Clone, Copy)]
pub struct SpanRules {
    /// Not before this.
    pub period: Duration,
    /// And not before each group has so many.
    pub min_samples: u64,
}

/// One span, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Span {
    /// What has come in it.
    pub figures: Figures,
    /// The worst moment in it.
    pub worst: Moment,
    /// Whether it is over.
    pub is_over: bool,
    /// How long it has been.
    pub age: Duration,
}

/// All spans of one pool, as they were seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spans {
    /// Of what is true at every moment.
    pub moments: Span,
    /// Of all transactions.
    pub pool: Span,
    /// Of reads that are split and reads that are not.
    pub split: Span,
    /// Of transactions that are copied and transactions that are not.
    pub mirror: Span,
    /// Whether each that matters has been over once since the spans began.
    pub were_all_over: bool,
}

/// Collects figures over spans. Nothing of it survives a restart; the spans then begin anew.
#[derive(Debug, Default)]
pub struct Collector {
    state: Option<State>,
}

#[derive(Debug)]
struct State {
    key: SpanKey,
    windows: [Window; 4],
    were_over: [bool; 4],
}

const MOMENTS: usize = 0;
const POOL: usize = 1;
const SPLIT: usize = 2;
const MIRROR: usize = 3;

impl Collector {
    /// Begins anew the next time.
    pub fn forget(&mut self) {
        self.state = None;
    }

    /// Takes in what the proxies have counted now, and tells what has come.
    pub fn look(
        &mut self,
        key: SpanKey,
        proxies: &BTreeMap<String, Figures>,
        moment: Moment,
        rules: SpanRules,
        now: Timestamp,
    ) -> Spans {
        let state = match &mut self.state {
            Some(state) if state.key == key => state,
            // A span begins with somebody who can say where it begins.
            state if moment.proxies == 0 => {
                *state = None;
                return Spans::default();
            }
            state => {
                let window = || Window::begin(proxies, moment, now);
                let windows = [window(), window(), window(), window()];
                state.insert(State { key: key.clone(), windows, were_over: [false; 4] })
            }
        };
        let mut spans = [Span::default(), Span::default(), Span::default(), Span::default()];
        for (kind, (window, span)) in state.windows.iter_mut().zip(&mut spans).enumerate() {
            window.look(proxies, moment);
            let figures = window.total();
            let age = window.age(now);
            let is_over = age >= rules.period
                && moment.proxies > 0
                && has_enough(kind, &figures, &key.position, rules.min_samples);
            *span = Span { worst: window.worst(), figures, is_over, age };
            if is_over {
                *window = Window::begin(proxies, moment, now);
                if let Some(was) = state.were_over.get_mut(kind) {
                    *was = true;
                }
            }
        }
        let [moments, pool, split, mirror] = spans;
        let were_all_over = [MOMENTS, POOL]
            .into_iter()
            .chain((key.position.split_percent > 0 && key.position.mirror_percent == 0).then_some(SPLIT))
            .chain((key.position.mirror_percent > 0).then_some(MIRROR))
            .all(|kind| state.were_over.get(kind).copied().unwrap_or(false));
        Spans { moments, pool, split, mirror, were_all_over }
    }
}

/// Whether both groups that are compared are large enough. Where everybody is in one, there is no other.
fn has_enough(kind: usize, figures: &Figures, position: &Position, min_samples: u64) -> bool {
    let measures = &figures.measures;
    let (one, other) = match kind {
        MOMENTS => return true,
        POOL => return figures.transactions >= min_samples,
        SPLIT => (
            (position.split_percent > 0).then_some(measures.cohort.transactions),
            (position.split_percent < 100).then_some(measures.control.transactions),
        ),
        _ => (
            (position.mirror_percent > 0)
                .then_some(measures.mirrored.transactions.min(figures.mirror.compared)),
            (position.mirror_percent < 100).then_some(measures.unmirrored.transactions),
        ),
    };
    [one, other].into_iter().flatten().all(|samples| samples >= min_samples)
}

#[cfg(test)]
mod tests;
