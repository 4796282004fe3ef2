//! What `--version` tells.

use std::sync::LazyLock;

/// The version alone.
pub(crate) const SHORT: &str = env!("CARGO_PKG_VERSION");

/// Version, target, build kind and backends, one a line.
pub(crate) fn long() -> &'static str {
    static LONG: LazyLock<String> = LazyLock::new(|| {
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        let backends: Vec<&str> = calla_engine::backend::select::names().collect();
        format!(
            "{SHORT}\ntarget: {}-{}\nbuild: {build}\nbackends: {}",
            std::env::consts::ARCH,
            std::env::consts::OS,
            backends.join(", "),
        )
    });
    &LONG
}
