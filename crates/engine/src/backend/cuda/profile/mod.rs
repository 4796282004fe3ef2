//! Where the time of passes goes, measured in the chain of kernels as it is.
//!
//! Every kernel waits once for those before it. Kernels that are compiled with `STAMPS` note when
//! that wait is over (prelude.cu), and what lies between two notes is what a launch adds to the pass:
//! its work, and of starting it what does not overlap with others. They are a second set beside the
//! plain kernels, with recorded steps of its own, so nothing is slower when no profile is taken.
//!
//! Objects: a [`Trace`] lists what a pass launches. The [`Meter`] owns the memory for the times, and
//! adds them up by stage and op after each pass.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use super::{
    arena::Arena,
    device::{Address, Device, Unit},
};
use crate::{
    Error,
    backend::profile::{Op, OpProfile, Profile, Stage, StageProfile},
    model::Linear,
};

/// The kernel file.
pub(super) const SOURCE: &str = include_str!("profile.cu");

/// Most kernels of a pass whose times there is room for.
const STAMPS_MAX: usize = 65_535;

/// The unit as it is compiled for a profile. Where `stamps` lies is no part of the source, so that
/// compiled kernels can be kept.
pub(super) fn stamped(unit: &Unit, stamps: Address) -> Unit {
    let source = format!("#define STAMPS {STAMPS_MAX}\n{}", unit.source);
    Unit { source, stamps: Some(stamps), ..unit.clone() }
}

/// What is asked of the memory and of the arithmetic units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Amount {
    /// As [`OpProfile::bytes`].
    pub(super) bytes: u64,
    /// As [`OpProfile::flop`].
    pub(super) flop: u64,
}

impl Amount {
    /// Of a product of these matrices with one row.
    pub(super) fn of_product(matrices: &[&Linear]) -> Self {
        let of = |linear: &&Linear| Self {
            bytes: linear.size_bytes() as u64,
            flop: 2 * (linear.outputs * linear.inputs) as u64,
        };
        matrices.iter().map(of).fold(Self::default(), Self::and)
    }

    /// The product with `rows` rows: what it reads is read once.
    pub(super) fn rows(self, rows: usize) -> Self {
        Self { flop: self.flop * rows as u64, ..self }
    }

    /// The same `count` times.
    pub(super) fn times(self, count: usize) -> Self {
        Self { bytes: self.bytes * count as u64, flop: self.flop * count as u64 }
    }

    /// Both.
    pub(super) fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, flop: self.flop + other.flop }
    }
}

/// What a launch does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    op: Op,
    amount: Amount,
}

impl From<Op> for Work {
    fn from(op: Op) -> Self {
        Self { op, amount: Amount::default() }
    }
}

impl From<(Op, Amount)> for Work {
    fn from((op, amount): (Op, Amount)) -> Self {
        Self { op, amount }
    }
}

/// What a pass has launched, in order.
pub(super) struct Trace {
    stage: Cell<Stage>,
    notes: RefCell<Vec<Note>>,
}

/// A kernel that notes its time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Note {
    /// One of a stage.
    Launch(Stage, Work),
    /// The one behind a run of launches.
    End,
}

impl Trace {
    pub(super) fn new() -> Self {
        Self { stage: Cell::new(Stage::Embed), notes: RefCell::default() }
    }

    /// The launches from now on are this stage's.
    pub(super) fn enter(&self, stage: Stage) {
        self.stage.set(stage);
    }

    /// A launch.
    pub(super) fn launched(&self, work: Work) {
        self.notes.borrow_mut().push(Note::Launch(self.stage.get(), work));
    }

    /// The end of a run of launches.
    pub(super) fn ended(&self) {
        self.notes.borrow_mut().push(Note::End);
    }

    /// What has been launched.
    pub(super) fn take(&self) -> Vec<Note> {
        self.notes.take()
    }
}

/// Adds up the times of passes.
pub(super) struct Meter {
    device: Arc<dyn Device>,
    /// See prelude.cu.
    stamps: Address,
    bytes: Vec<u8>,
    times_ns: Vec<u64>,
    totals: Vec<Total>, // [stages, ops]
    passes: u64,
    _memory: Arena,
}

#[derive(Debug, Clone, Copy, Default)]
struct Total {
    ns: u64,
    launches: u64,
    amount: Amount,
}

impl Meter {
    /// # Errors
    /// When the memory cannot be had.
    pub(super) fn new(device: &Arc<dyn Device>) -> Result<Self, Error> {
        let mut memory = Arena::new(Arc::clone(device), "a profile");
        let stamps = memory.bytes_of(8 * (1 + STAMPS_MAX))?;
        Ok(Self {
            device: Arc::clone(device),
            stamps,
            bytes: Vec::new(),
            times_ns: Vec::new(),
            totals: vec![Total::default(); Stage::ALL.len() * Op::ALL.len()],
            passes: 0,
            _memory: memory,
        })
    }

    /// Where kernels note their times.
    pub(super) fn stamps(&self) -> Address {
        self.stamps
    }

    /// Forgets what was measured.
    pub(super) fn reset(&mut self) {
        self.totals.fill(Total::default());
        self.passes = 0;
    }

    /// A pass begins.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn begin(&self) -> Result<(), Error> {
        self.device.zero(self.stamps, 8)
    }

    /// Waits for the pass that launched `notes`, whose attention does `attend` in all layers
    /// together, and adds its times.
    ///
    /// # Errors
    /// When the device fails, or has not run each of them once.
    pub(super) fn end(&mut self, notes: &[Note], attend: Amount) -> Result<(), Error> {
        let room = 8 * (1 + notes.len().min(STAMPS_MAX));
        self.bytes.resize(room, 0);
        self.device.download(self.stamps, &mut self.bytes)?;
        let words = self.bytes.chunks_exact(8);
        let mut words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        let count = words.next();
        if count != Some(notes.len() as u64) || notes.len() > STAMPS_MAX {
            return Err(Error::Device {
                backend: "cuda",
                action: "measuring a pass".into(),
                problem: format!(
                    "{} launches left {} times, of {STAMPS_MAX} at most",
                    notes.len(),
                    count.unwrap_or_default()
                ),
            });
        }
        self.times_ns.clear();
        self.times_ns.extend(words);
        self.times_ns.sort_unstable();
        for (note, times) in notes.iter().zip(self.times_ns.windows(2)) {
            if let &Note::Launch(stage, work) = note {
                let total = &mut self.totals[place(stage, work.op)];
                total.ns += times[1] - times[0];
                total.launches += 1;
                total.amount = total.amount.and(work.amount);
            }
        }
        let total = &mut self.totals[place(Stage::Attention, Op::Attend)];
        total.amount = total.amount.and(attend);
        self.passes += 1;
        Ok(())
    }

    /// What was measured since the reset.
    pub(super) fn profile(&self) -> Profile {
        let stages: Vec<_> = Stage::ALL
            .into_iter()
            .map(|stage| self.stage(stage))
            .filter(|profile| !profile.ops.is_empty())
            .collect();
        let wall = stages.iter().map(|stage| stage.wall).sum();
        Profile { threads: 1, passes: self.passes, wall, stages }
    }

    fn stage(&self, stage: Stage) -> StageProfile {
        let ops = Op::ALL.iter().map(|&op| {
            let Total { ns, launches, amount } = self.totals[place(stage, op)];
            let Amount { bytes, flop } = amount;
            OpProfile { op, time: Duration::from_nanos(ns), launches, bytes, flop }
        });
        let ops: Vec<_> = ops.filter(|op| op.launches > 0).collect();
        StageProfile { stage, wall: ops.iter().map(|op| op.time).sum(), ops }
    }
}

fn place(stage: Stage, op: Op) -> usize {
    stage as usize * Op::ALL.len() + op as usize
}

#[cfg(all(
    test,
    feature = "cuda-emulator",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod tests {
    use super::{super::device::emulator::Emulator, *};

    fn meter() -> Meter {
        let device: Arc<dyn Device> = Arc::new(Emulator::open().expect("a C++ compiler"));
        Meter::new(&device).expect("memory")
    }

    /// What kernels would have written.
    fn write(meter: &Meter, count: u64, times: &[u64]) {
        meter.begin().expect("its memory");
        let words = [&[count], times].concat();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        meter.device.upload(meter.stamps(), &bytes).expect("its memory");
    }

    fn notes() -> Vec<Note> {
        let trace = Trace::new();
        trace.enter(Stage::Head);
        let amount = Amount { bytes: 10, flop: 20 };
        for _ in 0..2 {
            trace.launched(Op::Norm.into());
            trace.launched((Op::Logits, amount).into());
            trace.ended();
        }
        trace.take()
    }

    #[test]
    fn a_launch_takes_until_the_next_one_and_the_host_takes_nothing() {
        let mut meter = meter();
        for _ in 0..2 {
            // Places are taken in any order.
            write(&meter, 6, &[103, 100, 110, 1000, 1057, 1007]);
            meter.end(&notes(), Amount::default()).expect("as many as launched");
        }
        let profile = meter.profile();
        assert_eq!((profile.passes, profile.wall), (2, Duration::from_nanos(2 * (10 + 57))));
        let expected = [(Op::Norm, 2 * (3 + 7), 0), (Op::Logits, 2 * (7 + 50), 4)];
        let expected = expected.map(|(op, ns, count)| OpProfile {
            op,
            time: Duration::from_nanos(ns),
            launches: 4,
            bytes: 10 * count,
            flop: 20 * count,
        });
        assert_eq!(profile.stages.len(), 1);
        assert_eq!(profile.stages[0].ops, expected);
    }

    #[test]
    fn a_launch_without_a_time_is_an_error() {
        let mut meter = meter();
        for count in [5, 7] {
            write(&meter, count, &[1, 2, 3, 4, 5, 6]);
            let error = meter.end(&notes(), Amount::default()).expect_err("one is not there");
            assert!(error.to_string().contains(&format!("6 launches left {count} times")));
        }
    }
}
