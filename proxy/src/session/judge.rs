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
use crate::session::request::{BATCH_COLLECTED_MAX, client_header};
use crate::wire::codec::split_cstr;
use crate::wire::frame::{HEADER_LEN, Header};
use crate::wire::frontend::{
    BIND, DESCRIBE, EXECUTE, FLUSH, FUNCTION_CALL, PARSE, QUERY, SYNC, TERMINATE, Target, bind_names, parse,
    target,
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
    /// A request of which nothing is known.
    pub const UNREAD: Self = Self {
        verdict: Verdict::Primary(Reason::TooLong),
        hint: None,
        length: 0,
        runs: true,
        is_open: false,
        defines: false,
        is_learned: false,
        is_unread: true,
    };
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
        let mut rest = request;
        while let Ok(Some(header)) = client_header(rest, usize::MAX) {
            let Some((message, after)) = rest.split_at_checked(header.total) else { break };
            let body = message.get(HEADER_LEN..).unwrap_or_default();
            match header.kind {
                QUERY => self.verdicts.learn(body.strip_suffix(b"\0").unwrap_or(body)),
                PARSE => {
                    if let Some((sql, _)) = parse(message).and_then(|parsed| split_cstr(parsed.definition)) {
                        self.verdicts.learn(sql);
                    }
                }
                BIND => {
                    let statement = bind_names(message).and_then(|(_, name)| statements.find(name));
                    statement.iter().for_each(|statement| self.verdicts.learn(statement.text()));
                }
                _ => {}
            }
            rest = after;
        }
    }

    /// What a text is, how that was found, and where in it.
    #[must_use]
    pub fn explain(&self, sql: &[u8]) -> (Segment, &'static str, Option<(usize, String)>) {
        let mut segment = Segment { verdict: Verdict::Read, is_unread: false, ..Segment::UNREAD };
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
        let mut segment = Segment {
            verdict: Verdict::Read,
            hint: None,
            length: 0,
            runs: false,
            is_open: false,
            defines: false,
            is_learned: false,
            is_unread: false,
        };
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
                let sql = message.get(HEADER_LEN..).unwrap_or_default();
                self.note(segment, sql.strip_suffix(b"\0").unwrap_or(sql));
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
                match parse(message).and_then(|parsed| split_cstr(parsed.definition)) {
                    Some((sql, _)) => self.note(segment, sql),
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
    let mut rest = request;
    while let Ok(Some(header)) = client_header(rest, usize::MAX) {
        let Some((message, after)) = rest.split_at_checked(header.total) else { break };
        rest = after;
        let body = message.get(HEADER_LEN..).unwrap_or_default();
        let text = match header.kind {
            QUERY => Some(body.strip_suffix(b"\0").unwrap_or(body)),
            PARSE => parse(message).and_then(|parsed| split_cstr(parsed.definition)).map(|(sql, _)| sql),
            BIND => {
                is_bound = true;
                let names = bind_names(message);
                shape.is_movable &= names.is_some_and(|(portal, _)| portal.is_empty());
                names.and_then(|(_, name)| statements.find(name)).map(|statement| statement.text())
            }
            EXECUTE => {
                shape.uses_open_portal |= !is_bound;
                // A limit may leave the portal open.
                shape.is_movable &= body.ends_with(&[0; 4]);
                None
            }
            _ => None,
        };
        if let Some(sql) = text {
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
pub fn first_text(request: &[u8], statements: &ClientStatements) -> Option<Vec<u8>> {
    let mut rest = request;
    while let Ok(Some(header)) = client_header(rest, usize::MAX) {
        let (message, after) = rest.split_at_checked(header.total)?;
        match header.kind {
            QUERY => {
                let body = message.get(HEADER_LEN..)?;
                return Some(body.strip_suffix(b"\0").unwrap_or(body).to_vec());
            }
            PARSE => return Some(split_cstr(parse(message)?.definition)?.0.to_vec()),
            BIND => return Some(statements.find(bind_names(message)?.1)?.text().to_vec()),
            _ => rest = after,
        }
    }
    None
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
