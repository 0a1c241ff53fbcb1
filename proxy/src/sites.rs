//! Statements that a team has to look at: those that read what their session has just written, before its reads go to
//! replicas or since that keeps them on the primary, and those that replicas refused.

use crate::classify::comment::{comment_tags, cut};
use crate::classify::fold::folded;
use crate::tally::Tally;

/// The longest tags that are kept, in bytes.
const TAGS_MAX: usize = 200;

/// Counts of what was seen.
#[derive(Debug, Default)]
pub struct Sites {
    seen: Tally<Site>,
    refused: Tally<Refused>,
}

/// One statement of one call site.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// The statement's sqlcommenter tags, else the client's `application_name`.
    pub call_site: String,
    /// The statement without its constants.
    pub statement: String,
}

/// One statement that one replica refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Refused {
    /// The replica's name.
    pub server: String,
    /// The statement without its constants; empty where it was not kept.
    pub statement: String,
}

impl Sites {
    /// Counts a read.
    pub fn count(&self, application_name: &str, sql: &[u8]) {
        let call_site = tags(sql).unwrap_or_else(|| application_name.to_owned());
        self.seen.count(Site { call_site, statement: folded(sql) });
    }

    /// Counts a statement that a replica refused because it belongs on the primary.
    pub fn count_refused(&self, server: &str, sql: &[u8]) {
        self.refused.count(Refused { server: server.to_owned(), statement: folded(sql) });
    }

    /// Every statement that replicas refused, the most frequent first.
    #[must_use]
    pub fn refused(&self) -> Vec<(Refused, u64)> {
        self.refused.entries()
    }

    /// Everything that was seen, the most frequent first.
    #[must_use]
    pub fn entries(&self) -> Vec<(Site, u64)> {
        self.seen.entries()
    }
}

/// The tags of a statement, without those that differ from one request to the next.
fn tags(sql: &[u8]) -> Option<String> {
    let kept = comment_tags(sql)?;
    let kept =
        kept.split(',').filter(|pair| !pair.starts_with("traceparent") && !pair.starts_with("tracestate"));
    let tags = cut(kept.collect::<Vec<_>>().join(","), TAGS_MAX);
    (!tags.is_empty()).then_some(tags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::ENTRIES_MAX;

    #[test]
    fn a_site_is_named_by_its_tags_or_its_application() {
        let sites = Sites::default();
        let tagged = b"SELECT 1 /*controller='orders',traceparent='00-1-2-01',action='show'*/;";
        sites.count("app", tagged);
        sites.count("app", tagged);
        sites.count("app", b"SELECT a FROM t WHERE b = 7");
        sites.count("app", b"SELECT '/*a=''b''*/'");
        let entries = sites.entries();
        assert_eq!(entries[0].0.call_site, "controller='orders',action='show'");
        assert_eq!(entries[0].1, 2);
        assert!(entries[1..].iter().all(|(site, _)| site.call_site == "app"));
    }

    #[test]
    fn the_rarest_makes_room() {
        let sites = Sites::default();
        for number in 0..ENTRIES_MAX + 10 {
            sites.count(&number.to_string(), b"SELECT 1");
        }
        assert_eq!(sites.entries().len(), ENTRIES_MAX);
    }
}
