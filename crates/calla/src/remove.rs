//! `calla remove`: a model out of the cache.

use std::io::{self, IsTerminal as _, Write as _};

use serde_json::json;

use crate::{
    args::RemoveArgs,
    error::Error,
    hub::{Cache, Removal},
    output,
};

pub(crate) fn run(args: &RemoveArgs) -> Result<(), Error> {
    let name = &args.model;
    let cache = Cache::from_environment()?;
    let removal = Removal::plan(cache.repo(name), name.explicit_revision())?;
    let removal = removal.ok_or_else(|| Error::Hub {
        subject: name.to_string(),
        problem: format!("not in {}: `calla list` shows what is", cache.root().display()),
    })?;
    let commits: Vec<String> = removal.commits().map(str::to_owned).collect();
    let freed_bytes = removal.freed_bytes()?;
    let what = format!("{name}, {} on the disk", output::size(freed_bytes));
    if !args.yes && !confirmed(&what)? {
        return Ok(());
    }
    removal.carry_out()?;
    if args.output.json {
        let removed = json!({"model": name.repo(), "commits": commits, "freed_bytes": freed_bytes});
        return output::json(&removed);
    }
    output::text(&format!("removed {what}\n"))
}

/// Asks on the terminal; where there is none nobody can say yes.
fn confirmed(what: &str) -> Result<bool, Error> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let problem = "needed where nobody can be asked".into();
        return Err(Error::Flag { flag: "yes", problem });
    }
    write!(io::stderr(), "Remove {what}? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
