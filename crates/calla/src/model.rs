//! From flags to a model that runs.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use calla_chat::{ChatError, Model, ModelText, SamplingOverrides};
use calla_engine::{
    Engine, EngineConfig,
    backend::{Backend, select},
    checkpoint::{Checkpoint, Source},
    model::Shape,
};
use calla_text::Tokenizer;

use crate::{
    args::{BackendArgs, ModelArgs},
    error::Error,
    fit::{Demand, Fit, Grant},
    hub::{Cache, RepoName},
    machine::Memory,
    output,
};

macro_rules! embedded {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../models/seedling/", $name)) as &[u8])
    };
}
/// The model that is there without any file: models/seedling of this repository.
pub(crate) static EMBEDDED: &[(&str, &[u8])] = &[
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
    /// What the memory has room for.
    pub(crate) grant: Grant,
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

/// The name on the hub, unless there is a folder of that name, or a link that leads nowhere.
fn pulled_name(model: &Path) -> Option<RepoName> {
    if model.symlink_metadata().is_ok() { None } else { model.to_str()?.parse().ok() }
}

/// A checkpoint that fits, on no device yet.
pub(crate) struct Opened {
    checkpoint: Checkpoint,
    grant: Grant,
    start: Instant,
}

/// Opens the checkpoint and puts it on the device, if it fits.
pub(crate) fn load(model: &ModelArgs, backend: &BackendArgs, verbose: u8) -> Result<Loaded, Error> {
    load_for(model, backend, verbose, |_| Ok(Demand { tokens: None, sequences: 1, cache_bytes: 0 }))
}

/// The same, if what `demand` asks for fits too.
pub(crate) fn load_for(
    model: &ModelArgs,
    backend: &BackendArgs,
    verbose: u8,
    demand: impl FnOnce(&Shape) -> Result<Demand, Error>,
) -> Result<Loaded, Error> {
    open_for(model, backend, verbose, demand)?.load(model, backend, verbose)
}

fn open_for(
    model: &ModelArgs,
    backend: &BackendArgs,
    verbose: u8,
    demand: impl FnOnce(&Shape) -> Result<Demand, Error>,
) -> Result<Opened, Error> {
    let start = Instant::now();
    let checkpoint = Checkpoint::open(&model.source()?)?;
    let demand = demand(&checkpoint.shape)?;
    let grant = check_memory(&checkpoint, backend, verbose, demand)?;
    Ok(Opened { checkpoint, grant, start })
}

/// What [`Opened`] is to [`Loaded`], with the text side.
pub(crate) struct OpenedChat {
    opened: Opened,
    text: ModelText,
}

/// The first part of [`load_chat`]: takes little time, and finds nearly all that can be wrong.
/// `sampling` is what requests get that do not say.
pub(crate) fn open_chat(
    model: &ModelArgs,
    backend: &BackendArgs,
    engine: &EngineConfig,
    sampling: SamplingOverrides,
    verbose: u8,
) -> Result<OpenedChat, Error> {
    let opened = open_for(model, backend, verbose, |shape| {
        check_context(engine, shape.context_max).map(|()| Demand::of(engine))
    })?;
    let text = text(&model.source()?, &opened.checkpoint.shape, sampling)?;
    Ok(OpenedChat { opened, text })
}

/// The text side of a checkpoint; an error says whose.
pub(crate) fn text(
    source: &Source,
    shape: &Shape,
    sampling: SamplingOverrides,
) -> Result<ModelText, Error> {
    ModelText::load(source, shape, sampling).map_err(|error| match error {
        // It has the whole path.
        ChatError::Engine(error) => error.into(),
        ChatError::Request { .. } => error.into(),
        error => Error::File { path: source.path(), problem: error.to_string() },
    })
}

impl Opened {
    fn load(self, model: &ModelArgs, backend: &BackendArgs, verbose: u8) -> Result<Loaded, Error> {
        let Self { checkpoint, grant, start } = self;
        let BackendArgs { device, .. } = backend;
        let (name, options) = (device.backend.as_deref(), device.options());
        let backend = select::select(name, &checkpoint.shape, &checkpoint.weights, &options)?;
        let load = start.elapsed();
        let line = format!(
            "{} on {}, ready in {:.2} s",
            model.name(),
            backend.description(),
            load.as_secs_f64()
        );
        output::note(verbose, &line);
        Ok(Loaded { checkpoint, backend, grant, load })
    }
}

impl OpenedChat {
    /// The second part of [`load_chat`].
    pub(crate) fn load(
        self,
        model: &ModelArgs,
        backend: &BackendArgs,
        mut engine: EngineConfig,
        verbose: u8,
    ) -> Result<Model, Error> {
        let Self { opened, text } = self;
        let demand = Demand::of(&engine);
        let Loaded { checkpoint, backend, grant, .. } = opened.load(model, backend, verbose)?;
        let context_max = checkpoint.shape.context_max;
        if engine.context_tokens.is_none() && grant.context < context_max {
            output::warn(&format!(
                "memory has room for {} of the {context_max} tokens that the model can hold",
                grant.context
            ));
        }
        if grant.cache_bytes < demand.cache_bytes {
            tracing::info!(
                bytes = grant.cache_bytes,
                "memory leaves less to the cache than it may take"
            );
        }
        engine.context_tokens = engine.context_tokens.or(Some(grant.context));
        engine.cache_bytes = grant.cache_bytes as usize;
        Ok(Model::new(model.name(), text, Engine::start(backend, engine)?))
    }
}

/// What the memory has room for; the preview is told with -v.
fn check_memory(
    checkpoint: &Checkpoint,
    backend: &BackendArgs,
    verbose: u8,
    demand: Demand,
) -> Result<Grant, Error> {
    let fit = Fit::new(checkpoint, &backend.device)?;
    let room = fit.room_bytes(&Memory::here());
    let grant = fit.grant(room.filter(|_| !backend.no_memory_check), demand)?;
    if verbose > 0 {
        let need = fit.need(grant.context);
        let room = room.map_or("an unknown part".into(), output::size);
        let line = format!(
            "memory for {} tokens: {need}, together {}; a model may take {room} of what is free",
            grant.context,
            output::size(need.total_bytes()),
        );
        output::note(verbose, &line);
    }
    Ok(grant)
}

/// The same as [`load`], ready to talk. `sampling` is what requests get that do not say.
pub(crate) fn load_chat(
    model: &ModelArgs,
    backend: &BackendArgs,
    engine: EngineConfig,
    sampling: SamplingOverrides,
    verbose: u8,
) -> Result<Model, Error> {
    let opened = open_chat(model, backend, &engine, sampling, verbose)?;
    opened.load(model, backend, engine, verbose)
}

/// Refuses a context that the model cannot hold, or that holds no answer.
fn check_context(engine: &EngineConfig, context_max: usize) -> Result<(), Error> {
    match engine.context_tokens {
        Some(tokens) if !(2..=context_max).contains(&tokens) => Err(Error::Flag {
            flag: "max-context",
            problem: format!("{tokens} tokens, expected 2 to the model's {context_max}"),
        }),
        _ => Ok(()),
    }
}

/// The checkpoint's tokenizer alone, for what needs no template.
pub(crate) fn tokenizer(source: &Source) -> Result<Tokenizer, Error> {
    const FILE: &str = "tokenizer.json";
    let file = |problem: String| Error::File { path: source.path().join(FILE), problem };
    let bytes = source
        .read_optional(FILE)?
        .ok_or_else(|| file("not found: the folder holds a model without its text side".into()))?;
    Tokenizer::from_bytes(&bytes).map_err(|error| file(error.to_string()))
}
