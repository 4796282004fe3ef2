//! Which device runs the model: the only place that names devices.

use super::{
    Backend, BackendOptions, Footprint, KernelCheck,
    cpu::{self, Cpu, kernels},
    cuda::{self, Cuda},
    reference::{self, Reference},
};
use crate::{
    Error,
    model::{Shape, Weights},
};

/// Sets a device up and puts the model on it.
type Start = fn(Shape, Weights, &BackendOptions) -> Result<Box<dyn Backend>, Error>;

/// A device that this build knows.
#[derive(Debug)]
struct Device {
    /// What `--backend` calls it.
    name: &'static str,
    /// Whether the machine seems to have one: if not, nobody wants to hear that it was passed over.
    present: fn() -> bool,
    /// Whether it can run any model here.
    probe: fn() -> Result<(), Error>,
    /// Whether it can run the model here; what can be known without setting it up.
    check: fn(&Shape, &Weights) -> Result<(), Error>,
    /// Memory that it would take with one sequence of so many tokens.
    footprint: fn(&Shape, &BackendOptions, usize) -> Footprint,
    /// Free bytes of its own memory; nothing when it shares the machine's.
    room: fn() -> Option<usize>,
    start: Start,
    /// Compares its kernels with the reference, where it has any of its own.
    self_test: SelfTest,
}

type SelfTest = fn(&BackendOptions) -> Result<Vec<KernelCheck>, Error>;

/// The processor, which every device needs.
const CPU: &str = "cpu";

/// Best first. The last one runs anywhere.
const DEVICES: &[Device] = &[
    Device {
        name: "cuda",
        present: cuda::present,
        probe: cuda::probe,
        check: cuda::check,
        footprint: cuda::footprint,
        room: cuda::room,
        start: |shape, weights, options| Ok(Box::new(Cuda::new(shape, &weights, options)?)),
        self_test: cuda::self_test,
    },
    Device {
        name: CPU,
        present: || true,
        probe: || kernels::Kernels::detect().map(drop),
        check: cpu::check,
        footprint: cpu::footprint,
        room: || None,
        start: |shape, weights, options| Ok(Box::new(Cpu::new(shape, weights, options)?)),
        self_test: |_| Ok(kernels::self_test()),
    },
    Device {
        name: "reference",
        present: || true,
        probe: || Ok(()),
        check: |_, _| Ok(()),
        footprint: |shape, _, tokens| reference::footprint(shape, tokens),
        room: || None,
        start: |shape, weights, _| Ok(Box::new(Reference::new(shape, weights))),
        self_test: |_| Ok(Vec::new()),
    },
];

/// Names that [`select`] takes, the one it would rather have first.
pub fn names() -> impl Iterator<Item = &'static str> {
    DEVICES.iter().map(|device| device.name)
}

/// The same names, with what keeps each from being used here.
pub fn availability() -> impl Iterator<Item = (&'static str, Result<(), Error>)> {
    DEVICES.iter().map(|device| (device.name, (device.probe)()))
}

/// The device that [`select`] takes for a model, known before it is set up.
#[derive(Debug)]
pub struct Choice {
    device: &'static Device,
    /// Why better devices of this build cannot run the model, the best first.
    pub passed_over: Vec<Error>,
}

impl Choice {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.device.name
    }

    /// Memory that the model will take on it with one sequence of `tokens` tokens.
    pub fn footprint(&self, shape: &Shape, options: &BackendOptions, tokens: usize) -> Footprint {
        (self.device.footprint)(shape, options, tokens)
    }

    /// Free bytes of the device's own memory; nothing when it shares the machine's.
    pub fn room(&self) -> Option<usize> {
        (self.device.room)()
    }
}

/// Says which device [`select`] will take, as far as it can be known without setting one up.
///
/// # Errors
/// Those of [`select`].
pub fn choose(name: Option<&str>, shape: &Shape, weights: &Weights) -> Result<Choice, Error> {
    let mut passed_over = Vec::new();
    if let Some(name) = name {
        let device = named(name)?;
        (device.check)(shape, weights)?;
        return Ok(Choice { device, passed_over });
    }
    for device in DEVICES {
        match (device.check)(shape, weights) {
            Ok(()) => return Ok(Choice { device, passed_over }),
            Err(error) if (device.present)() => passed_over.push(error),
            Err(_) => {}
        }
    }
    Err(passed_over.pop().expect("the last device is always present"))
}

/// Compares the kernels of every device that works here with the reference, on made-up inputs, the
/// best device first; with a name those of the named device and of the processor alone. A device that
/// fails at it says so.
pub fn self_test(
    name: Option<&str>,
    options: &BackendOptions,
) -> Vec<Result<Vec<KernelCheck>, Error>> {
    let is_wanted =
        |device: &&Device| device.name == CPU || name.is_none_or(|name| name == device.name);
    let works = |device: &&Device| (device.probe)().is_ok();
    // The processor's kernels are tried whichever of them CALLA_SIMD takes.
    let tried = DEVICES.iter().filter(is_wanted).filter(|it| it.name == CPU || works(it));
    tried.map(|device| (device.self_test)(options)).collect()
}

/// Instruction sets that this build has kernels for, fastest first, and whether the processor has
/// them.
pub fn instruction_sets() -> impl Iterator<Item = (&'static str, bool)> {
    kernels::Kernels::known()
}

/// The one of them whose kernels are used.
///
/// # Errors
/// [`Error::BackendUnavailable`] when `CALLA_SIMD` names one that cannot be had.
pub fn instruction_set() -> Result<&'static str, Error> {
    kernels::Kernels::detect().map(|kernels| kernels.name)
}

/// Puts the model on the named device, or on the best one that works here.
///
/// Without a name, a line in the log says why a better device was passed over.
///
/// # Errors
/// [`Error::BackendUnavailable`] for a name that is not in [`names`], and when the device cannot
/// run here: it says what is missing.
pub fn select(
    name: Option<&str>,
    shape: &Shape,
    weights: &Weights,
    options: &BackendOptions,
) -> Result<Box<dyn Backend>, Error> {
    let start = |device: &Device| (device.start)(shape.clone(), weights.clone(), options);
    if let Some(name) = name {
        return start(named(name)?);
    }
    let (last, better) = DEVICES.split_last().expect("the table has a device that runs anywhere");
    for device in better {
        match start(device) {
            Ok(backend) => return Ok(backend),
            Err(error) if (device.present)() => tracing::warn!("passed over: {error}"),
            Err(error) => tracing::debug!("passed over: {error}"),
        }
    }
    start(last)
}

fn named(name: &str) -> Result<&'static Device, Error> {
    DEVICES.iter().find(|device| device.name == name).ok_or_else(|| {
        let known: Vec<&str> = names().collect();
        Error::BackendUnavailable {
            backend: name.into(),
            problem: format!("this build knows no such device: choose one of {}", known.join(", ")),
        }
    })
}
