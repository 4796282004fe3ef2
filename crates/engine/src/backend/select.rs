//! Which device runs the model: the only place that names devices.

use super::{Backend, BackendOptions, cpu::Cpu, reference::Reference};
use crate::{
    Error,
    model::{Shape, Weights},
};

/// Sets a device up and puts the model on it.
type Start = fn(Shape, Weights, &BackendOptions) -> Result<Box<dyn Backend>, Error>;

/// A device that this build knows.
struct Device {
    /// What `--backend` calls it.
    name: &'static str,
    start: Start,
}

/// Best first. The last one runs anywhere.
const DEVICES: &[Device] = &[
    Device {
        name: "cpu",
        start: |shape, weights, options| Ok(Box::new(Cpu::new(shape, weights, options)?)),
    },
    Device {
        name: "reference",
        start: |shape, weights, _| Ok(Box::new(Reference::new(shape, weights))),
    },
];

/// Names that [`select`] takes, the one it would rather have first.
pub fn names() -> impl Iterator<Item = &'static str> {
    DEVICES.iter().map(|device| device.name)
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
        let device = DEVICES.iter().find(|device| device.name == name);
        return start(device.ok_or_else(|| unknown(name))?);
    }
    let (last, better) = DEVICES.split_last().expect("the table has a device that runs anywhere");
    for device in better {
        match start(device) {
            Ok(backend) => return Ok(backend),
            Err(error) => tracing::warn!("passed over: {error}"),
        }
    }
    start(last)
}

fn unknown(name: &str) -> Error {
    let known: Vec<&str> = names().collect();
    Error::BackendUnavailable {
        backend: name.into(),
        problem: format!("this build knows no such device: choose one of {}", known.join(", ")),
    }
}
