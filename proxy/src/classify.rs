//! What a statement is, from its text alone; pure.

pub mod bodies;
pub mod databases;
pub mod fold;
pub mod kinds;
pub mod lexer;
pub mod plain;
pub mod tags;
pub mod touches;
