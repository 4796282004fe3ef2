//! A conversation in; events out.
