//! The copy of the traffic: whole transactions, run on another database when the client has its answer, and compared.
//!
//! A session records what it sends and digests what it is answered ([`recorder`]); when the transaction is over it offers
//! the record ([`hub`]), which is taken or dropped at once. Another thread runs it ([`replay`]) and compares
//! ([`compare`]); [`ledger`] keeps the results.

pub mod answer;
pub mod breaker;
pub mod compare;
pub mod hub;
pub mod ledger;
pub mod loss;
pub mod recorder;
pub mod replay;
pub mod rewrite;
pub mod service;
pub mod tables;
pub mod unit;
