//! What `EXPLAIN ROUTE` and the admin API tell of a statement: where it would go now, and why.

use crate::classify::verdict::Verdict;
use crate::fleet::View;
use crate::route::{Access, Aim, Side, Why};
use crate::session::routing::Routing;

/// Where a statement would go, and why.
#[derive(Debug)]
pub struct Explanation {
    /// The kind of server.
    pub target: &'static str,
    /// Why.
    pub why: Why,
    /// What the statement is.
    pub verdict: Verdict,
    /// Where that was decided: the byte, from 1 on, and the text there.
    pub place: Option<(usize, String)>,
    /// The catalog that it was judged by.
    pub catalog: String,
    /// How the verdict was found.
    pub found: &'static str,
    /// Each server, and what speaks for or against it.
    pub candidates: Vec<(String, String)>,
}

impl Routing {
    /// Where a statement would go now, and why. Nothing is decided by it.
    pub fn explain(&mut self, sql: &str, view: &View) -> Explanation {
        self.judge.refresh();
        let (segment, found, place) = self.judge.explain(sql.as_bytes());
        let mut decision = self.weigh(view, Access::Routed, &segment, false);
        if let Some(tie) = self.tie.as_ref().filter(|_| decision.aim.side != Side::Primary) {
            let catalog = self.judge.catalog().map(|catalog| &**catalog);
            decision.tie(segment.verdict == Verdict::Read && tie.lets_go(sql.as_bytes(), catalog), view);
        }
        let server = |index: usize| view.topology.servers.get(index);
        let candidates = (0..view.topology.servers.len()).filter_map(|index| {
            Some((server(index)?.name.clone(), self.candidate(view, index, &decision.aim)))
        });
        Explanation {
            target: if decision.aim.side == Side::Replica && decision.why != Why::NoReplica {
                "replica"
            } else {
                "primary"
            },
            why: decision.why,
            verdict: decision.verdict,
            place,
            catalog: self.judge.catalog().map_or_else(
                || "not known".to_owned(),
                |catalog| format!("snapshot {}, {} names", catalog.epoch, catalog.names.len()),
            ),
            found,
            candidates: candidates.collect(),
        }
    }

    /// What speaks for or against a server.
    fn candidate(&self, view: &View, index: usize, aim: &Aim) -> String {
        let Some(server) = view.topology.servers.get(index) else { return String::new() };
        let is_primary = view.topology.primary == Some(index);
        if aim.side != Side::Replica {
            return if is_primary { "taken" } else { "dropped: not the primary" }.to_owned();
        }
        if is_primary {
            return if aim.counts_primary { "candidate" } else { "dropped: the primary" }.to_owned();
        }
        if let Some(why) = server.absence() {
            return format!("dropped: {why}");
        }
        let replayed = view.positions.get(index).map_or(0, |position| position.lsn());
        if aim.floor > replayed {
            return format!("dropped: replayed {replayed} of {}", aim.floor);
        }
        "candidate".to_owned()
    }
}
