//! The engine from outside: requests in, events out.

mod cached;
mod control;
mod fake;
mod generate;
mod harness;
mod models;
mod soak;
