//! Where this user keeps things (the XDG base directories, on every system).

use std::{env, path::PathBuf};

/// For settings: `$XDG_CONFIG_HOME/calla`, else `~/.config/calla`.
pub(crate) fn config() -> Option<PathBuf> {
    of_calla("XDG_CONFIG_HOME", ".config")
}

/// For what a program remembers: `$XDG_STATE_HOME/calla`, else `~/.local/state/calla`.
pub(crate) fn state() -> Option<PathBuf> {
    of_calla("XDG_STATE_HOME", ".local/state")
}

/// For what can be had again, of all programs: `$XDG_CACHE_HOME`, else `~/.cache`.
pub(crate) fn caches() -> Option<PathBuf> {
    base("XDG_CACHE_HOME", ".cache")
}

pub(crate) fn home() -> Option<PathBuf> {
    absolute("HOME")
}

fn of_calla(variable: &str, below_home: &str) -> Option<PathBuf> {
    Some(base(variable, below_home)?.join("calla"))
}

fn base(variable: &str, below_home: &str) -> Option<PathBuf> {
    absolute(variable).or_else(|| Some(home()?.join(below_home)))
}

/// The variable's path; the standard says to ignore one that is not absolute.
fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}
