//! Tokens in, tokens out.
