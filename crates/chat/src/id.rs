use std::hash::{BuildHasher, RandomState};

/// `prefix` and 128 random bits: a name that no other answer or call has.
pub fn random_id(prefix: &str) -> String {
    // The standard library's hash keys come from the system and differ at every call.
    let bits = || RandomState::new().hash_one(prefix);
    format!("{prefix}{:016x}{:016x}", bits(), bits())
}
