//! A config.json of any bytes, and the index of shards.
#![no_main]

use std::path::Path;

use calla_engine::checkpoint::{check_config, check_unquantised_config, shard_names};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("config.json");
    let _ = check_config(path, bytes);
    let _ = check_unquantised_config(path, bytes);
    for name in shard_names(path, bytes).into_iter().flatten() {
        assert_eq!(Path::new(&name).components().count(), 1, "{name}");
    }
});
