//! What a client's request is, as far as routing goes: judged by its statements together.

use std::sync::Arc;

use crate::catalog::{Catalog, CatalogCell};
use crate::classify::blocks::{Boundary, boundary, tells_transaction};
use crate::classify::cache::{Found, Verdicts};
use crate::classify::decide::judge;
use crate::classify::hints::{Hint, hint};
use crate::classify::verdict::{Reason, Verdict};
use crate::route::ServerRole;
use crate::server::prepared::Statement;
use crate::session::prepared::ClientStatements;
use crate::session::request::{BATCH_COLLECTED_MAX, client_header, messages};
use crate::wire::frame::{HEADER_LEN, Header};
use crate::wire::frontend::{
    BIND, DESCRIBE, EXECUTE, FLUSH, FUNCTION_CALL, PARSE, QUERY, SYNC, TERMINATE, Target, bind_names, parse,
    query_text, target,
};

/// Judges texts by the catalog of one database.
#[derive(Debug, Clone)]
pub struct Judge {
    cell: Arc<CatalogCell>,
    catalog: Option<Arc<Catalog>>,
    verdicts: Arc<Verdicts>,
    /// The memory for verdicts, in bytes.
    pub cache_bytes: u64,
}

/// A request, or the part of it up to a Flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// What all its statements together are.
    pub verdict: Verdict,
    /// What a comment in one of them asks for.
    pub hint: Option<ServerRole>,
    /// Its length, in bytes.
    pub length: usize,
    /// It binds or executes something.
    pub runs: bool,
    /// It ends with a Flush, so that more of the same transaction may follow.
    pub is_open: bool,
    /// It defines or closes prepared statements.
    pub defines: bool,
    /// A replica has refused the like of one of its statements lately.
    pub is_learned: bool,
    /// It is not whole, or too large to be looked at.
    pub is_unread: bool,
}

impl Segment {
    /// A request with nothing in it.
    const EMPTY: Self = Self {
        verdict: Verdict::Read,
        hint: None,
        length: 0,
        runs: false,
        is_open: false,
        defines: false,
        is_learned: false,
        is_unread: false,
    };

    /// A request of which nothing is known.
    pub const UNREAD: Self =
        Self { verdict: Verdict::Primary(Reason::TooLong), runs: true, is_unread: true, ..Self::EMPTY };
}

impl Judge {
    /// Judges for a database.
    #[must_use]
    pub const fn new(cell: Arc<CatalogCell>, verdicts: Arc<Verdicts>) -> Self {
        Self { cell, catalog: None, verdicts, cache_bytes: 0 }
    }

    /// Takes the snapshot of this moment.
    pub fn refresh(&mut self) {
        let held = self.catalog.as_ref().map_or(0, |catalog| catalog.epoch);
        let epoch = self.cell.epoch();
        if held != epoch {
            self.catalog = self.cell.current();
        }
        if epoch == 0 && !self.cell.is_wanted() {
            self.cell.want();
        }
    }

    /// The snapshot that it judges by.
    #[must_use]
    pub const fn catalog(&self) -> Option<&Arc<Catalog>> {
        self.catalog.as_ref()
    }

    /// The database's catalog.
    #[must_use]
    pub const fn cell(&self) -> &Arc<CatalogCell> {
        &self.cell
    }

    /// The verdict on a text, and how it was found.
    #[must_use]
    pub fn text(&self, sql: &[u8]) -> (Verdict, Found) {
        match &self.catalog {
            Some(catalog) => self.verdicts.verdict(sql, catalog, self.cache_bytes),
            None => {
                // What writes can be told without a catalog, and what begins a transaction too.
                let (verdict, found) = self.verdicts.verdict(sql, &Catalog::default(), self.cache_bytes);
                let verdict = match verdict {
                    Verdict::Read
                    | Verdict::Primary(
                        Reason::UnknownFunction | Reason::ServerState | Reason::VolatileFunction,
                    ) => Verdict::Primary(Reason::NoCatalog),
                    known => known,
                };
                (verdict, found)
            }
        }
    }

    /// A replica has refused a request: remembers the shapes of its texts.
    pub fn learn_request(&self, request: &[u8], statements: &ClientStatements) {
        for sql in messages(request).filter_map(|(header, message)| text_of(header.kind, message, statements))
        {
            self.verdicts.learn(sql);
        }
    }

    /// What a text is, how that was found, and where in it.
    #[must_use]
    pub fn explain(&self, sql: &[u8]) -> (Segment, &'static str, Option<(usize, String)>) {
        let mut segment = Segment { runs: true, ..Segment::EMPTY };
        let (verdict, found) = self.text(sql);
        segment.add(verdict, role_of(hint(sql)), self.verdicts.has_refused(sql));
        let found = match found {
            Found::Text => "by its text",
            Found::Shape => "by its text without constants",
            Found::Judged => "judged now",
        };
        let place = match (&self.catalog, verdict) {
            (Some(catalog), Verdict::Primary(_)) => {
                let at = judge(sql, catalog).at;
                let near = String::from_utf8_lossy(sql.get(at..).unwrap_or_default());
                Some((at + 1, near.chars().take(40).collect()))
            }
            _ => None,
        };
        (segment, found, place)
    }

    fn note(&self, segment: &mut Segment, sql: &[u8]) {
        let (verdict, _) = self.text(sql);
        segment.add(verdict, role_of(hint(sql)), self.verdicts.has_refused(sql));
    }

    fn note_statement(&self, segment: &mut Segment, statement: &Statement) {
        let epoch = self.catalog.as_ref().map_or(0, |catalog| catalog.epoch);
        let code = statement.judged(epoch, |sql| {
            let hint = match hint(sql) {
                None => 0,
                Some(Hint::Primary) => 1,
                Some(Hint::Replica) => 2,
            };
            u16::from(self.text(sql).0.code()) | hint << 8
        });
        let [verdict, hint] = code.to_le_bytes();
        let hint = match hint {
            1 => Some(ServerRole::Primary),
            2 => Some(ServerRole::Replica),
            _ => None,
        };
        segment.add(Verdict::from_code(verdict), hint, self.verdicts.has_refused(statement.text()));
    }

    /// Judges the request at the front of some bytes; `None` where more bytes are needed.
    #[must_use]
    pub fn segment(&self, bytes: &[u8], statements: &ClientStatements) -> Option<Segment> {
        let mut segment = Segment::EMPTY;
        let mut is_first = true;
        loop {
            let rest = bytes.get(segment.length..).unwrap_or_default();
            // What no client may send is told to it when it is forwarded.
            let Ok(header) = client_header(rest, usize::MAX) else { return Some(segment.unread()) };
            let header = header?;
            if rest.len() < header.total {
                let is_large = header.total > BATCH_COLLECTED_MAX || segment.length >= BATCH_COLLECTED_MAX;
                return if is_large { Some(segment.unread()) } else { None };
            }
            let message = rest.get(..header.total)?;
            if matches!(header.kind, TERMINATE) && !is_first {
                return Some(segment);
            }
            segment.length += header.total;
            if self.take(&mut segment, message, header, statements, is_first) {
                return Some(segment);
            }
            is_first = false;
            if segment.length >= BATCH_COLLECTED_MAX {
                return Some(segment.unread());
            }
        }
    }

    /// Adds a message; tells whether it ends the request.
    fn take(
        &self,
        segment: &mut Segment,
        message: &[u8],
        header: Header,
        statements: &ClientStatements,
        is_first: bool,
    ) -> bool {
        let unknown = Verdict::Primary(Reason::Prepared);
        match header.kind {
            QUERY => {
                self.note(segment, query_text(message));
                segment.runs = true;
                // In the middle of a batch it is a thing of its own, which nobody does.
                segment.is_unread |= !is_first;
                true
            }
            FUNCTION_CALL => {
                segment.add(Verdict::Primary(Reason::Procedure), None, false);
                true
            }
            SYNC => true,
            FLUSH => {
                segment.is_open = true;
                true
            }
            PARSE => {
                segment.defines = true;
                match parse(message).and_then(|parsed| parsed.text()) {
                    Some(sql) => self.note(segment, sql),
                    None => segment.add(unknown, None, false),
                }
                false
            }
            BIND => {
                segment.runs = true;
                match bind_names(message) {
                    Some((_, name)) => self.note_named(segment, name, statements),
                    None => segment.add(unknown, None, false),
                }
                false
            }
            DESCRIBE => {
                if let Some(Target::Statement(name)) = target(message) {
                    self.note_named(segment, name, statements);
                }
                false
            }
            EXECUTE => {
                segment.runs = true;
                false
            }
            // Close; what else there is means nothing here.
            _ => {
                segment.defines = true;
                false
            }
        }
    }

    /// A statement that the client has prepared. What this request defines has been noted by its text already.
    fn note_named(&self, segment: &mut Segment, name: &[u8], statements: &ClientStatements) {
        match statements.find(name) {
            Some(statement) => self.note_statement(segment, statement),
            None if segment.defines => {}
            None => segment.add(Verdict::Primary(Reason::Prepared), None, false),
        }
    }
}

/// What a request does to its transaction, beside what its statements do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// It is COMMIT or ROLLBACK and nothing else.
    pub is_end: bool,
    /// It runs a portal that it does not bind itself.
    pub uses_open_portal: bool,
    /// It leaves nothing behind and tells nothing of its transaction, so that what follows may run in another one.
    pub is_movable: bool,
}

/// Looks at a whole request.
#[must_use]
pub fn shape(request: &[u8], statements: &ClientStatements) -> Shape {
    let mut shape = Shape { is_end: false, uses_open_portal: false, is_movable: true };
    let mut texts = 0;
    let mut is_bound = false;
    for (header, message) in messages(request) {
        if header.kind == BIND {
            is_bound = true;
            shape.is_movable &= bind_names(message).is_some_and(|(portal, _)| portal.is_empty());
        } else if header.kind == EXECUTE {
            shape.uses_open_portal |= !is_bound;
            // A limit may leave the portal open.
            shape.is_movable &= message.get(HEADER_LEN..).is_some_and(|body| body.ends_with(&[0; 4]));
        }
        if let Some(sql) = text_of(header.kind, message, statements) {
            texts += 1;
            shape.is_movable &= !tells_transaction(sql);
            let ends = matches!(boundary(sql), Some(Boundary::Commit | Boundary::Rollback));
            shape.is_end = ends && (texts == 1 || shape.is_end);
        }
    }
    shape
}

/// The first text of a request: the one that it brings, or that of a statement it runs.
#[must_use]
pub fn first_text<'a>(request: &'a [u8], statements: &'a ClientStatements) -> Option<&'a [u8]> {
    let (header, message) =
        messages(request).find(|(header, _)| matches!(header.kind, QUERY | PARSE | BIND))?;
    text_of(header.kind, message, statements)
}

/// The statement's text that a message brings, or names.
pub fn text_of<'a>(kind: u8, message: &'a [u8], statements: &'a ClientStatements) -> Option<&'a [u8]> {
    match kind {
        QUERY => Some(query_text(message)),
        PARSE => parse(message)?.text(),
        BIND => Some(statements.find(bind_names(message)?.1)?.text()),
        _ => None,
    }
}

const fn role_of(hint: Option<Hint>) -> Option<ServerRole> {
    match hint {
        Some(Hint::Primary) => Some(ServerRole::Primary),
        Some(Hint::Replica) => Some(ServerRole::Replica),
        None => None,
    }
}

impl Segment {
    const fn unread(mut self) -> Self {
        self.is_unread = true;
        self
    }

    fn add(&mut self, verdict: Verdict, hint: Option<ServerRole>, is_learned: bool) {
        self.is_learned |= is_learned;
        self.hint = match (self.hint, hint) {
            (Some(ServerRole::Primary), _) | (_, Some(ServerRole::Primary)) => Some(ServerRole::Primary),
            (before, now) => before.or(now),
        };
        self.verdict = match (self.verdict, verdict) {
            (Verdict::Primary(reason), _) | (_, Verdict::Primary(reason)) => Verdict::Primary(reason),
            (Verdict::Read, Verdict::ReadOnlyBlock) if self.runs => Verdict::ReadOnlyBlock,
            (Verdict::Read, now) => now,
            (Verdict::ReadOnlyBlock, _) => Verdict::ReadOnlyBlock,
        };
    }
}
