//! Step 9 over HTTP: an OpenAI-compatible API in front of a [`calla_chat::Model`].
//!
//! Objects: a [`Server`] is a bound socket; [`Server::run`] loads the model while it already
//! answers (503 until the model is there), serves until it is told to stop, lets running answers
//! finish, and returns. [`serve`] is the whole of it with the signals of the operating system.
//!
//! This crate never sees a tensor or a token's meaning: it reads bodies into requests of
//! `calla_chat` (`wire`), and writes that crate's events as JSON or as server-sent events. The
//! routes are listed in `routes`, statuses stand beside the errors in `error`; docs/contract.md
//! says the same for clients.

mod answer;
mod auth;
mod body;
mod chat_completions;
mod completions;
mod config;
mod error;
mod info;
mod listener;
mod routes;
mod server;
mod sse;
mod state;
mod wire;

pub use config::ServerConfig;
pub use error::Error;
pub use server::{LoadError, Server, Shutdown, serve};
