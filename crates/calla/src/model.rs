//! From flags to a model that runs.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use calla_chat::{Model, ModelOptions, SamplingOverrides};
use calla_engine::{
    Engine, EngineConfig,
    backend::{Backend, select},
    checkpoint::{Checkpoint, Source},
};

use crate::{
    args::{BackendArgs, ModelArgs},
    error::Error,
    hub::{Cache, RepoName},
    output,
};

macro_rules! embedded {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../models/seedling/", $name)) as &[u8])
    };
}
/// The model that is there without any file: models/seedling of this repository.
static EMBEDDED: &[(&str, &[u8])] = &[
    embedded!("config.json"),
    embedded!("model.safetensors"),
    embedded!("tokenizer.json"),
    embedded!("tokenizer_config.json"),
    embedded!("chat_template.jinja"),
    embedded!("generation_config.json"),
];

/// Its held-out exam; training/make_exam.py writes it.
pub(crate) static EMBEDDED_EXAM: &str = include_str!("../../../models/seedling/exam.jsonl");

/// A model on a device.
pub(crate) struct Loaded {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) backend: Box<dyn Backend>,
    /// From nothing to ready for the first token.
    pub(crate) load: Duration,
}

impl ModelArgs {
    pub(crate) fn source(&self) -> Result<Source, Error> {
        match &self.model {
            Some(model) => Ok(Source::folder(folder(model)?)),
            None => Ok(Source::embedded(EMBEDDED)),
        }
    }

    /// What the model is called: its name on the hub, or its folder's name.
    pub(crate) fn name(&self) -> String {
        let Some(folder) = &self.model else { return "seedling".into() };
        if let Some(name) = pulled_name(folder) {
            return name.repo();
        }
        // `.` and `..` have no name before they are resolved.
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.clone());
        folder.file_name().map_or("/".into(), |name| name.to_string_lossy().into_owned())
    }
}

/// The folder that is meant: this one, or that of a pulled model.
pub(crate) fn folder(model: &Path) -> Result<PathBuf, Error> {
    let Some(name) = pulled_name(model) else { return Ok(model.to_owned()) };
    let snapshot = Cache::from_environment()?.repo(&name).snapshot(name.revision())?;
    let missing = |what: String| Error::Hub {
        subject: name.to_string(),
        problem: format!("{what}: `calla pull {name}` downloads it"),
    };
    let snapshot = snapshot.ok_or_else(|| missing("no folder here, and not pulled yet".into()))?;
    match snapshot.missing()? {
        Some(file) => Err(missing(format!("its {file} is missing from the cache"))),
        None => Ok(snapshot.folder),
    }
}

/// The name on the hub, unless there is a folder of that name.
fn pulled_name(model: &Path) -> Option<RepoName> {
    if model.exists() { None } else { model.to_str()?.parse().ok() }
}

/// Opens the checkpoint and puts it on the device.
pub(crate) fn load(model: &ModelArgs, backend: &BackendArgs, verbose: u8) -> Result<Loaded, Error> {
    let start = Instant::now();
    let checkpoint = Checkpoint::open(&model.source()?)?;
    let name = backend.backend.as_deref();
    let backend = select::select(name, &checkpoint.shape, &checkpoint.weights, &backend.options())?;
    let load = start.elapsed();
    let line = format!(
        "{} on {}, ready in {:.2} s",
        model.name(),
        backend.description(),
        load.as_secs_f64()
    );
    output::note(verbose, &line);
    Ok(Loaded { checkpoint, backend, load })
}

/// The same, ready to talk. `sampling` is what requests get that do not say.
pub(crate) fn load_chat(
    model: &ModelArgs,
    backend: &BackendArgs,
    engine: EngineConfig,
    sampling: SamplingOverrides,
    verbose: u8,
) -> Result<Model, Error> {
    let Loaded { checkpoint, backend, .. } = load(model, backend, verbose)?;
    let engine = Engine::start(backend, engine)?;
    let options = ModelOptions { name: model.name(), sampling };
    Ok(Model::load(&model.source()?, &checkpoint.shape, engine, options)?)
}
