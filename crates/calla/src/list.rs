//! `calla list`: what is in the cache, and whether it runs.

use std::path::PathBuf;

use calla_engine::checkpoint::{Checkpoint, Source};
use serde::Serialize;

use crate::{
    args::ListArgs,
    error::Error,
    hub::{Cache, CachedRepo, Snapshot},
    output,
};

pub(crate) fn run(args: &ListArgs, verbose: u8) -> Result<(), Error> {
    let cache = Cache::from_environment()?;
    let mut rows = Vec::new();
    for repo in cache.repos()? {
        rows.extend(rows_of(&repo)?);
    }
    if args.output.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        let line = format!("{} holds no model: `calla pull` downloads one", cache.root().display());
        output::note(verbose, &line);
        return Ok(());
    }
    output::text(&table(&rows))
}

/// A model's revision in the cache.
#[derive(Debug, Serialize)]
struct Row {
    model: String,
    /// Branches and tags that mean it.
    revisions: Vec<String>,
    /// Absent while nothing but parts are there.
    commit: Option<String>,
    path: Option<PathBuf>,
    size_bytes: u64,
    runs: bool,
    /// Why it does not run.
    problem: Option<String>,
}

fn rows_of(repo: &CachedRepo) -> Result<Vec<Row>, Error> {
    let snapshots = repo.snapshots()?;
    if snapshots.is_empty() {
        let problem = format!("only parts of it are here: `calla pull {}` goes on", repo.name);
        return Ok(vec![Row {
            model: repo.name.clone(),
            revisions: Vec::new(),
            commit: None,
            path: None,
            size_bytes: repo.blob_bytes()?,
            runs: false,
            problem: Some(problem),
        }]);
    }
    snapshots.into_iter().map(row_of).collect()
}

fn row_of(snapshot: Snapshot) -> Result<Row, Error> {
    let problem = problem(&snapshot);
    Ok(Row {
        size_bytes: snapshot.size_bytes()?,
        model: snapshot.repo,
        revisions: snapshot.refs,
        commit: Some(snapshot.commit),
        path: Some(snapshot.folder),
        runs: problem.is_none(),
        problem,
    })
}

/// Why a snapshot does not run here; `None` when it does.
fn problem(snapshot: &Snapshot) -> Option<String> {
    let error = Checkpoint::open(&Source::folder(&snapshot.folder)).err()?;
    let is_foreign = matches!(error, calla_engine::Error::Config { .. });
    match snapshot.missing() {
        Ok(Some(file)) if !is_foreign => {
            Some(format!("{file} is missing: `calla pull {}` downloads it", snapshot.repo))
        }
        // The folder's long name is told by --json.
        _ => Some(error.to_string().replace(&format!("{}/", snapshot.folder.display()), "")),
    }
}

fn table(rows: &[Row]) -> String {
    let lines: Vec<[String; 4]> = rows.iter().map(Row::cells).collect();
    let width = |column: usize| {
        lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or_default()
    };
    let (model, revision, size) = (width(0), width(1), width(2));
    let line = |cells: &[String; 4]| {
        let [a, b, c, d] = cells;
        format!("{a:<model$}  {b:<revision$}  {c:>size$}  {d}\n")
    };
    lines.iter().map(line).collect()
}

impl Row {
    fn cells(&self) -> [String; 4] {
        let commit = self.commit.as_ref().map_or("-", |commit| &commit[..12]);
        let revision = match self.revisions.is_empty() {
            true => commit.to_owned(),
            false => format!("{} {commit}", self.revisions.join(" ")),
        };
        let runs = self.problem.as_ref().map_or("runs".into(), |problem| format!("no: {problem}"));
        [self.model.clone(), revision, output::size(self.size_bytes), runs]
    }
}
