//! What a statement is: from its text alone, and what it may do by what the catalog knows; pure.

pub mod blocks;
pub mod bodies;
pub mod cache;
pub mod commands;
pub mod comment;
pub mod databases;
pub mod decide;
pub mod definitions;
pub mod fold;
pub mod functions;
pub mod grammar;
pub mod hints;
pub mod kinds;
pub mod learn;
pub mod lexer;
pub mod pieces;
pub mod plain;
pub mod plpgsql;
pub mod reading;
pub mod repeatable;
pub mod shape;
pub mod tags;
pub mod token;
pub mod touches;
pub mod verdict;
pub mod words;
