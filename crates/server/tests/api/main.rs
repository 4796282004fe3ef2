//! The API as clients see it, over real sockets: a real tokenizer, template, engine and server,
//! with a backend that knows its answers by heart.

mod chat;
mod completions;
mod errors;
mod http;
mod lifecycle;
mod stream;
mod support;
mod test_server;
mod tools;
