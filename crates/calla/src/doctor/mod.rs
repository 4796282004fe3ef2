//! `calla doctor`: what the machine has, and whether models run on it as they should.

mod text;

use calla_chat::SamplingOverrides;
use calla_engine::{
    backend::{KernelCheck, select},
    checkpoint::Checkpoint,
};
use serde::Serialize;

use crate::{
    args::{DeviceArgs, DoctorArgs, ModelArgs},
    error::Error,
    fit::{Fit, Need},
    machine::{self, Gpu, HugePages, Memory, Processors},
    model,
    output::{self, size},
    version,
};

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Error> {
    let mut report = Report::new(&args.device);
    report.examine_kernels(&args.device);
    let examined = report.examine_model(&args.model, &args.device);
    let concerns_files = examined.as_ref().is_err_and(Error::concerns_files);
    report.problems.extend(examined.err().map(|error| error.to_string()));
    report.measure();
    report.ok = report.problems.is_empty();
    match args.output.json {
        true => output::json(&report)?,
        false => output::text(&report.to_string())?,
    }
    match report.ok {
        true => Ok(()),
        false => Err(Error::Unwell { problems: report.problems.join("; "), concerns_files }),
    }
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    /// What is not as it should be, with the way out.
    problems: Vec<String>,
    version: &'static str,
    system: String,
    processors: Processors,
    instruction_sets: Vec<InstructionSet>,
    memory: Memory,
    huge_pages: HugePages,
    gpus: Vec<Gpu>,
    /// What this build knows, the best first.
    backends: Vec<Backend>,
    /// Read bandwidth of the memory; `None` where too little is free to measure it.
    read_gb_s: Option<f64>,
    /// Threads that it was measured with.
    read_threads: usize,
    kernels: Vec<Kernel>,
    model: Option<ModelReport>,
}

/// A backend of this build.
#[derive(Debug, Serialize)]
struct Backend {
    name: &'static str,
    /// What keeps it from being used here.
    problem: Option<String>,
}

/// An instruction set that this build has kernels for.
#[derive(Debug, Serialize)]
struct InstructionSet {
    name: &'static str,
    /// Whether the processor has it.
    available: bool,
    /// Whether its kernels are the ones that compute.
    used: bool,
}

/// A kernel against the reference; an error that is not finite is `null`.
#[derive(Debug, Serialize)]
struct Kernel {
    path: &'static str,
    kernel: &'static str,
    error: f64,
    tolerance: f64,
    ok: bool,
}

/// The model that was asked about, else the embedded one.
#[derive(Debug, Serialize)]
struct ModelReport {
    name: String,
    /// The backend that is taken for it.
    backend: &'static str,
    /// What it says of itself once it runs; `None` when it does not.
    description: Option<String>,
    /// Why better ones were not taken.
    passed_over: Vec<String>,
    context_max: usize,
    /// The longest sequence that memory has room for; `None` when the model does not fit, or the
    /// system does not tell its memory.
    context_fits: Option<usize>,
    /// What it needs before its first token.
    need: Need,
}

/// Memory that must be free for the bandwidth to be measured: its buffer, and as much again.
const MEASURE_BYTES: u64 = 2 * machine::READ_BUFFER_BYTES as u64;

impl Report {
    fn new(device: &DeviceArgs) -> Self {
        let mut problems = Vec::new();
        let used = select::instruction_set()
            .inspect_err(|error| problems.push(error.to_string()))
            .unwrap_or_default();
        let sets = select::instruction_sets().map(|(name, available)| InstructionSet {
            name,
            available,
            used: name == used,
        });
        let processors = Processors::here();
        Report {
            ok: false,
            problems,
            version: version::SHORT,
            system: machine::system(),
            instruction_sets: sets.collect(),
            memory: Memory::here(),
            huge_pages: HugePages::here(),
            gpus: machine::gpus(),
            backends: select::availability()
                .map(|(name, usable)| Backend {
                    name,
                    problem: usable.err().map(|error| error.to_string()),
                })
                .collect(),
            read_gb_s: None,
            read_threads: device.options().threads.unwrap_or(processors.cores),
            processors,
            kernels: Vec::new(),
            model: None,
        }
    }

    fn examine_kernels(&mut self, device: &DeviceArgs) {
        for tested in select::self_test(device.backend.as_deref(), &device.options()) {
            match tested {
                Ok(checks) => self.kernels.extend(checks.into_iter().map(Kernel::of)),
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        for of_path in self.kernels.chunk_by(|a, b| a.path == b.path) {
            let bad: Vec<&str> =
                of_path.iter().filter(|kernel| !kernel.ok).map(|kernel| kernel.kernel).collect();
            let path = of_path[0].path;
            let advice = match self.instruction_sets.iter().any(|set| set.name == path) {
                true => {
                    "this processor or this build is broken; CALLA_SIMD=NAME takes another \
                     instruction set"
                }
                false => {
                    "this device, its driver or this build is broken; --backend cpu leaves it alone"
                }
            };
            if !bad.is_empty() {
                self.problems.push(format!(
                    "{} kernels of {path} do not agree with the reference ({}): {advice}",
                    bad.len(),
                    bad.join(", ")
                ));
            }
        }
    }

    fn examine_model(&mut self, model: &ModelArgs, device: &DeviceArgs) -> Result<(), Error> {
        let source = model.source()?;
        let checkpoint = Checkpoint::open(&source)?;
        // A checkpoint without words runs, but for `chat` and `serve`.
        let text = match source.read_optional("tokenizer.json") {
            Ok(None) => Ok(()),
            _ => model::text(&source, &checkpoint.shape, SamplingOverrides::default()).map(drop),
        };
        let fit = Fit::new(&checkpoint, device)?;
        let passed_over: Vec<String> =
            fit.choice.passed_over.iter().map(ToString::to_string).collect();
        for problem in &passed_over {
            // An instruction set that cannot be had was told already.
            if !self.problems.contains(problem) {
                self.problems.push(problem.clone());
            }
        }
        let room = fit.room_bytes(&self.memory);
        let context_fits = room.and_then(|room| fit.longest(room));
        let report = self.model.insert(ModelReport {
            name: model.name(),
            backend: fit.choice.name(),
            description: None,
            passed_over,
            context_max: checkpoint.shape.context_max,
            context_fits,
            need: fit.need(1),
        });
        if let (Some(room), None) = (room, context_fits) {
            self.problems.push(format!(
                "{} does not fit: it needs {} ({}), and a model may take {} of the memory that is \
                 free",
                report.name,
                size(report.need.total_bytes()),
                report.need,
                size(room)
            ));
            return text;
        }
        let Checkpoint { shape, weights, .. } = &checkpoint;
        let backend = select::select(device.backend.as_deref(), shape, weights, &device.options())?;
        report.description = Some(backend.description());
        text
    }

    fn measure(&mut self) {
        if self.memory.free_bytes().is_none_or(|free| free >= MEASURE_BYTES) {
            self.read_gb_s = Some(machine::read_bytes_s(self.read_threads) / 1e9);
        }
    }
}

impl Kernel {
    fn of(check: KernelCheck) -> Self {
        let KernelCheck { path, kernel, error, tolerance } = check;
        Kernel { path, kernel, error, tolerance, ok: check.ok() }
    }
}
