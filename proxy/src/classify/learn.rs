//! Makes a catalog out of what a server says of its objects: who may have an effect, by itself or by what it uses.
//!
//! An object is what its volatility and kind say, and no better than anything that its body, definition, functions or
//! columns use. Bodies in SQL and PL/pgSQL are read, so that a volatile function that only reads counts as that, and a
//! stable one that calls `nextval` does not. What cannot be read is what its declaration says.

use std::collections::HashMap;

use crate::catalog::{Catalog, FunctionClass, Named, RelationClass};
use crate::classify::decide::statements;
use crate::classify::functions::{builtin, grammar, is_harmless, is_server_setting, resolves};
use crate::classify::pieces::{Item, Piece, pieces};
use crate::classify::plpgsql::only_reads;
use crate::classify::reading::{Mention, prove, prove_expression};
use crate::classify::verdict::Reason;

/// What a server says of a database.
#[derive(Debug, Default)]
pub struct Findings {
    /// `server_version_num`.
    pub version: u32,
    /// Functions, aggregates and window functions.
    pub functions: Vec<Function>,
    /// Relations that are not plain tables, and tables with row security.
    pub relations: Vec<Relation>,
    /// What uses what, by name.
    pub uses: Vec<(Object, Object)>,
    /// Types with a check: the expression.
    pub checks: Vec<(String, String)>,
    /// Functions that only read, whatever they are declared as.
    pub trusted: Vec<String>,
    /// Functions that may have an effect, whatever they are declared as.
    pub distrusted: Vec<String>,
}

/// One function.
#[derive(Debug, Default)]
pub struct Function {
    /// Its name without its schema.
    pub name: String,
    /// It comes with PostgreSQL.
    pub is_builtin: bool,
    /// `VOLATILE`.
    pub is_volatile: bool,
    /// It can be called with one argument.
    pub takes_one: bool,
    /// Its language.
    pub language: String,
    /// Its body, for languages that can be read.
    pub body: String,
    /// It takes or gives values that are names.
    pub resolves: bool,
}

/// One relation.
#[derive(Debug)]
pub struct Relation {
    /// Its name without its schema.
    pub name: String,
    /// What there is against it by itself.
    pub class: Option<RelationClass>,
    /// A view's query, or the expressions of policies.
    pub definition: Option<Definition>,
}

/// A text that a relation stands for.
#[derive(Debug)]
pub enum Definition {
    /// A query.
    Query(String),
    /// An expression.
    Expression(String),
}

/// Something that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Object {
    /// A function.
    Function(String),
    /// A relation.
    Relation(String),
    /// A type.
    Type(String),
    /// An operator.
    Operator(String),
}

/// Why something is not safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stain {
    Volatile,
    ServerState,
    Relation(RelationClass),
}

/// All objects, by number, and who would stain whom. An object has one before anything is read, so that of all the names
/// in all the texts only those are kept that stand for something.
#[derive(Default)]
struct Web {
    numbers: HashMap<Object, usize, foldhash::fast::RandomState>,
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    stain: Option<Stain>,
    /// What it gives depends on what names stand for.
    resolves: bool,
    users: Vec<usize>,
}

/// Makes the catalog, on top of one that was made of other objects before.
#[must_use]
pub fn learn(findings: &Findings, base: Option<&Catalog>, epoch: u64) -> Catalog {
    let mut web = Web::default();
    let mut attributes: Vec<&str> = Vec::new();
    for (name, named) in base.iter().flat_map(|base| &base.names) {
        web.know_again(name, named);
        if named.is_attribute {
            attributes.push(name);
        }
    }
    for function in &findings.functions {
        web.know(Object::Function(function.name.clone()), None);
        if function.takes_one {
            attributes.push(&function.name);
        }
    }
    for relation in &findings.relations {
        web.know(Object::Relation(relation.name.clone()), relation.class.map(Stain::Relation));
    }
    for (name, _) in &findings.checks {
        web.know(Object::Type(name.clone()), None);
    }
    for (user, _) in &findings.uses {
        web.know(user.clone(), None);
    }
    web.read_all(findings);
    web.spread();
    let mut catalog = Catalog { epoch, ..Catalog::default() };
    for name in grammar(findings.version) {
        named(&mut catalog, name).function = Some(FunctionClass::Safe);
    }
    for (object, number) in &web.numbers {
        let Some(node) = web.nodes.get(*number) else { continue };
        put(&mut catalog, object, node.stain);
        if node.resolves {
            put_resolving(&mut catalog, object);
        }
    }
    for name in attributes {
        let entry = named(&mut catalog, name);
        entry.is_attribute = !matches!(entry.function, Some(FunctionClass::Safe) | None);
    }
    catalog
}

fn named<'c>(catalog: &'c mut Catalog, name: &str) -> &'c mut Named {
    catalog.names.entry(name.into()).or_default()
}

fn put(catalog: &mut Catalog, object: &Object, stain: Option<Stain>) {
    match (object, stain) {
        (Object::Function(name), stain) => {
            let class = match stain {
                None if name == "current_setting" => FunctionClass::Setting,
                None => FunctionClass::Safe,
                Some(Stain::ServerState) => FunctionClass::ServerState,
                Some(_) => FunctionClass::Volatile,
            };
            named(catalog, name).function = Some(class);
        }
        (Object::Relation(name), Some(stain)) => {
            let class = match stain {
                Stain::Relation(class) => class,
                Stain::Volatile | Stain::ServerState => RelationClass::View,
            };
            named(catalog, name).relation = Some(class);
        }
        (Object::Type(name), Some(_)) => named(catalog, name).is_unsafe_type = true,
        (Object::Operator(name), Some(_)) => catalog.operators.push(name.as_str().into()),
        _ => {}
    }
}

fn put_resolving(catalog: &mut Catalog, object: &Object) {
    match object {
        Object::Function(name) | Object::Relation(name) | Object::Type(name) => {
            named(catalog, name).resolves = true;
        }
        Object::Operator(name) => catalog.resolving_operators.push(name.as_str().into()),
    }
}

impl Web {
    fn know(&mut self, object: Object, stain: Option<Stain>) {
        let next = self.nodes.len();
        let number = *self.numbers.entry(object).or_insert(next);
        if number == next {
            self.nodes.push(Node::default());
        }
        if let Some(node) = self.nodes.get_mut(number) {
            node.stain = node.stain.or(stain);
        }
    }

    /// Knows what a catalog knows.
    fn know_again(&mut self, name: &str, named: &Named) {
        if let Some(class) = named.function {
            let stain = match class {
                FunctionClass::Safe | FunctionClass::Setting => None,
                FunctionClass::Volatile => Some(Stain::Volatile),
                FunctionClass::ServerState => Some(Stain::ServerState),
            };
            self.know(Object::Function(name.to_owned()), stain);
        }
        if let Some(class) = named.relation {
            self.know(Object::Relation(name.to_owned()), Some(Stain::Relation(class)));
        }
        if named.is_unsafe_type {
            self.know(Object::Type(name.to_owned()), Some(Stain::Volatile));
        }
        if named.resolves {
            for object in [Object::Function, Object::Relation, Object::Type] {
                self.know_resolving(object(name.to_owned()));
            }
        }
    }

    fn know_resolving(&mut self, object: Object) {
        self.know(object.clone(), None);
        let node = self.numbers.get(&object).and_then(|number| self.nodes.get_mut(*number));
        if let Some(node) = node {
            node.resolves = true;
        }
    }

    fn use_of(&mut self, user: &Object, used: &Object) {
        let (Some(user), Some(used)) = (self.numbers.get(user), self.numbers.get(used)) else { return };
        if user != used
            && let Some(node) = self.nodes.get_mut(*used)
            && node.users.last() != Some(user)
        {
            node.users.push(*user);
        }
    }

    /// Reads all texts: whatever they use is noted, and what they do by themselves.
    fn read_all(&mut self, findings: &Findings) {
        for function in &findings.functions {
            let object = Object::Function(function.name.clone());
            let stain = if findings.trusted.contains(&function.name) {
                None
            } else if findings.distrusted.contains(&function.name) {
                Some(Stain::Volatile)
            } else {
                stain_of(function, &object, self)
            };
            self.know(object.clone(), stain);
            // A body's names are looked up when it runs; a body in C is not read.
            let has_body = !function.is_builtin && function.language != "internal";
            if has_body || function.resolves || (function.is_builtin && resolves(&function.name)) {
                self.know_resolving(object);
                // The names of PostgreSQL's own types are among its functions.
                if function.is_builtin {
                    self.know_resolving(Object::Type(function.name.clone()));
                }
            }
        }
        for relation in &findings.relations {
            let Some(definition) = &relation.definition else { continue };
            let object = Object::Relation(relation.name.clone());
            let stain = self.read(&object, definition);
            self.know(object, stain);
        }
        for (name, check) in &findings.checks {
            let object = Object::Type(name.clone());
            let stain = self.read(&object, &Definition::Expression(check.clone()));
            self.know(object, stain);
        }
        for (user, used) in &findings.uses {
            self.use_of(user, used);
        }
    }

    /// Takes what is to be said against an object to all who use it.
    fn spread(&mut self) {
        let is_marked = |(_, node): &(usize, &Node)| node.stain.is_some() || node.resolves;
        let mut marked: Vec<usize> =
            self.nodes.iter().enumerate().filter(is_marked).map(|(number, _)| number).collect();
        while let Some(number) = marked.pop() {
            let Some(node) = self.nodes.get_mut(number) else { continue };
            let (stain, resolves, users) = (node.stain, node.resolves, std::mem::take(&mut node.users));
            for user in &users {
                let Some(node) = self.nodes.get_mut(*user) else { continue };
                let before = (node.stain, node.resolves);
                node.stain = node.stain.or(stain);
                node.resolves |= resolves;
                if (node.stain, node.resolves) != before {
                    marked.push(*user);
                }
            }
            // One that is marked in the other way later tells its users again.
            if let Some(node) = self.nodes.get_mut(number) {
                node.users = users;
            }
        }
    }

    /// Notes what a text mentions as used by `user`; gives a stain where the text is no read by itself.
    fn read(&mut self, user: &Object, definition: &Definition) -> Option<Stain> {
        let (text, is_query) = match definition {
            Definition::Query(text) => (text, true),
            Definition::Expression(text) => (text, false),
        };
        let found = pieces(text, false);
        let mut see = |mention: Mention<'_>| self.note(user, mention);
        let mut proved = Ok(());
        for (_, statement) in statements(&found.pieces).filter(|(_, statement)| !statement.is_empty()) {
            let one =
                if is_query { prove(statement, &mut see) } else { prove_expression(statement, &mut see) };
            proved = proved.and(one);
        }
        let is_state =
            |reason| if reason == Reason::ServerState { Stain::ServerState } else { Stain::Volatile };
        proved.err().map(|fault| is_state(fault.reason))
    }

    /// Notes all that a body could call or name, whatever its statements are.
    fn read_loosely(&mut self, user: &Object, pieces: &[Piece<'_>]) {
        for (index, piece) in pieces.iter().enumerate() {
            match &piece.item {
                Item::Word(name) | Item::Name(name) => {
                    if pieces.get(index + 1).is_some_and(|next| next.item == Item::Symbol(b'(')) {
                        self.note(user, Mention::Call(name));
                    }
                    self.note(user, Mention::Name(name));
                }
                Item::Operator(operator) => {
                    self.note(user, Mention::Operator(operator));
                }
                _ => {}
            }
        }
    }

    /// Notes a mention as something used. Names that nobody knows stain nobody: a definition that is in force has none.
    fn note(&mut self, user: &Object, mention: Mention<'_>) -> Option<Reason> {
        match mention {
            Mention::Call(name) | Mention::MaybeCall(name) | Mention::Attribute(name) => {
                self.use_of(user, &Object::Function(name.to_owned()));
            }
            Mention::Name(name) => {
                self.use_of(user, &Object::Relation(name.to_owned()));
                self.use_of(user, &Object::Type(name.to_owned()));
            }
            Mention::Operator(operator) => self.use_of(user, &Object::Operator(operator.to_owned())),
            Mention::Setting(Some(setting)) => {
                let is_of_server = str::from_utf8(setting).is_ok_and(is_server_setting);
                return is_of_server.then_some(Reason::ServerState);
            }
            Mention::Setting(None) => {}
        }
        None
    }
}

/// What there is against a function by itself; what its body uses is noted.
fn stain_of(function: &Function, object: &Object, web: &mut Web) -> Option<Stain> {
    if function.is_builtin {
        return match builtin(&function.name, function.is_volatile) {
            FunctionClass::Safe | FunctionClass::Setting => None,
            FunctionClass::Volatile => Some(Stain::Volatile),
            FunctionClass::ServerState => Some(Stain::ServerState),
        };
    }
    let is_proved = match function.language.as_str() {
        "sql" => {
            let proved = read_sql(function, object, web);
            if !proved {
                web.read_loosely(object, &pieces(&function.body, false).pieces);
            }
            proved
        }
        "plpgsql" => {
            let found = pieces(&function.body, false);
            web.read_loosely(object, &found.pieces);
            only_reads(&found.pieces)
        }
        "internal" => {
            web.use_of(object, &Object::Function(function.body.clone()));
            false
        }
        _ => is_harmless(&function.name),
    };
    (function.is_volatile && !is_proved).then_some(Stain::Volatile)
}

/// Whether a body in SQL is made of reads.
fn read_sql(function: &Function, object: &Object, web: &mut Web) -> bool {
    let body = function.body.trim();
    if let Some(expression) = strip_word(body, "RETURN") {
        return web.read(object, &Definition::Expression(expression.to_owned())).is_none();
    }
    let body = match strip_word(body, "BEGIN ATOMIC") {
        Some(rest) => rest.trim_end().strip_suffix("END").unwrap_or(rest),
        None => body,
    };
    web.read(object, &Definition::Query(body.to_owned())).is_none()
}

fn strip_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (first, rest) = text.split_at_checked(word.len())?;
    (first.eq_ignore_ascii_case(word) && rest.starts_with(char::is_whitespace)).then_some(rest)
}

#[cfg(test)]
mod tests;
