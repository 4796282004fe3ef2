//! The bodies of the API: what clients send becomes a request of `calla_chat`, field by field, and
//! that crate's results become the objects that clients read.

pub(crate) mod chat;
pub(crate) mod chat_answer;
pub(crate) mod completion;
pub(crate) mod generation;
pub(crate) mod message;
pub(crate) mod refused;
pub(crate) mod thinking;
pub(crate) mod usage;

use std::time::{SystemTime, UNIX_EPOCH};

/// What names the program in each answer.
pub(crate) const SYSTEM_FINGERPRINT: &str = concat!("calla-", env!("CARGO_PKG_VERSION"));

/// Seconds since 1970.
pub(crate) fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
