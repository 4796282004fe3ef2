//! The engine from outside: requests in, events out.

mod control;
mod fake;
mod generate;
mod harness;
