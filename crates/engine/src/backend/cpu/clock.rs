//! Stopwatches for a profile: one for each worker, that knows what it is at and since when.
//!
//! A worker is at one label at a time, so its labels add up. The caller's clock runs through the
//! whole pass, the others' inside of jobs. When no profile is taken, a label costs one branch.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::backend::profile::{Op, OpProfile, Profile, Stage, StageProfile};

const LABELS: usize = Stage::ALL.len() * Op::ALL.len();
/// The label of who is in no job.
const NOWHERE: usize = LABELS;

/// Who runs a task.
#[derive(Clone, Copy)]
pub(crate) struct Worker<'a> {
    /// Its number; the calling thread is 0.
    pub(crate) index: usize,
    stage: Stage,
    clock: Option<&'a Clock>,
}

impl Worker<'_> {
    /// From now on it is at `op`: part of a task, or the whole.
    pub(crate) fn at(self, op: Op) {
        if let Some(clock) = self.clock {
            clock.switch(label(self.stage, op));
        }
    }

    /// Its present op asks for so many bytes and computes so many operations.
    pub(crate) fn moves(self, bytes: usize, flop: usize) {
        if let Some(clock) = self.clock {
            clock.count(bytes as u64, flop as u64);
        }
    }

    /// It leaves the job.
    pub(super) fn leave(self) {
        if let Some(clock) = self.clock {
            clock.switch(NOWHERE);
        }
    }
}

/// The clocks of a pool's workers.
pub(super) struct Clocks {
    of_workers: Box<[Clock]>,
    /// Duration of the passes.
    wall_ns: AtomicU64,
    passes: AtomicU64,
    /// When the present pass began.
    begin_ns: AtomicU64,
}

impl Clocks {
    pub(super) fn new(workers: usize) -> Self {
        let start = Instant::now();
        Self {
            of_workers: (0..workers).map(|_| Clock::new(start)).collect(),
            wall_ns: AtomicU64::new(0),
            passes: AtomicU64::new(0),
            begin_ns: AtomicU64::new(0),
        }
    }

    /// A worker at a stage, with a clock if it is to be measured.
    pub(super) fn worker(&self, index: usize, stage: Stage, measured: bool) -> Worker<'_> {
        Worker { index, stage, clock: measured.then(|| &self.of_workers[index]) }
    }

    /// Forgets everything.
    pub(super) fn reset(&self) {
        self.wall_ns.store(0, Relaxed);
        self.passes.store(0, Relaxed);
        for clock in &self.of_workers {
            clock.label.store(NOWHERE, Relaxed);
            clock.totals.iter().for_each(Total::reset);
        }
    }

    /// The caller begins a pass.
    pub(super) fn begin(&self, stage: Stage) {
        let now = self.of_workers[0].switch(label(stage, Op::Alone));
        self.begin_ns.store(now, Relaxed);
    }

    /// The caller has ended it.
    pub(super) fn end(&self) {
        let now = self.of_workers[0].switch(NOWHERE);
        add(&self.wall_ns, now - self.begin_ns.load(Relaxed));
        add(&self.passes, 1);
    }

    /// What was measured since the reset; no pass and no job may be running.
    pub(super) fn profile(&self) -> Profile {
        Profile {
            threads: self.of_workers.len(),
            passes: self.passes.load(Relaxed),
            wall: Duration::from_nanos(self.wall_ns.load(Relaxed)),
            stages: Stage::ALL
                .into_iter()
                .map(|stage| self.stage(stage))
                .filter(|profile| !profile.wall.is_zero())
                .collect(),
        }
    }

    /// Whether a worker is at this now; `None` is in no job.
    #[cfg(test)]
    pub(super) fn is_at(&self, worker: usize, place: Option<(Stage, Op)>) -> bool {
        let label = place.map_or(NOWHERE, |(stage, op)| label(stage, op));
        self.of_workers[worker].label.load(Relaxed) == label
    }

    fn stage(&self, stage: Stage) -> StageProfile {
        let ns = |clock: &Clock, op| clock.totals[label(stage, op)].ns.load(Relaxed);
        // The caller's clock runs through the whole stage; what the others lack is waiting.
        let wall_ns = Op::ALL.iter().map(|&op| ns(&self.of_workers[0], op)).sum::<u64>();
        let busy_ns = |clock| -> u64 {
            Op::ALL.iter().filter(|&&op| op != Op::Idle).map(|&op| ns(clock, op)).sum()
        };
        let idle_ns = |clock| wall_ns.saturating_sub(busy_ns(clock));
        let ops = Op::ALL.iter().map(|&op| {
            let sum = |value: fn(&Total) -> &AtomicU64| -> u64 {
                let totals = self.of_workers.iter().map(|clock| &clock.totals[label(stage, op)]);
                totals.map(|total| value(total).load(Relaxed)).sum()
            };
            let time_ns = match op {
                Op::Idle => self.of_workers.iter().map(idle_ns).sum(),
                _ => sum(|total| &total.ns),
            };
            OpProfile {
                op,
                time: Duration::from_nanos(time_ns),
                launches: 0,
                bytes: sum(|total| &total.bytes),
                flop: sum(|total| &total.flop),
            }
        });
        StageProfile {
            stage,
            wall: Duration::from_nanos(wall_ns),
            ops: ops.filter(|profile| !profile.time.is_zero()).collect(),
        }
    }
}

/// One worker's. Only its worker writes to it, so plain loads and stores do; cache lines of its
/// own keep the others out of its way.
#[repr(align(128))]
struct Clock {
    start: Instant,
    label: AtomicUsize,
    since_ns: AtomicU64,
    totals: [Total; LABELS + 1],
}

#[derive(Default)]
struct Total {
    ns: AtomicU64,
    bytes: AtomicU64,
    flop: AtomicU64,
}

impl Total {
    fn reset(&self) {
        [&self.ns, &self.bytes, &self.flop].into_iter().for_each(|value| value.store(0, Relaxed));
    }
}

impl Clock {
    fn new(start: Instant) -> Self {
        Self {
            start,
            label: AtomicUsize::new(NOWHERE),
            since_ns: AtomicU64::new(0),
            totals: std::array::from_fn(|_| Total::default()),
        }
    }

    /// Books the time since the last switch, and says what time it is.
    fn switch(&self, label: usize) -> u64 {
        let old = self.label.load(Relaxed);
        if label == old {
            return self.since_ns.load(Relaxed);
        }
        let now = self.start.elapsed().as_nanos() as u64;
        add(&self.totals[old].ns, now - self.since_ns.load(Relaxed));
        self.since_ns.store(now, Relaxed);
        self.label.store(label, Relaxed);
        now
    }

    fn count(&self, bytes: u64, flop: u64) {
        let total = &self.totals[self.label.load(Relaxed)];
        add(&total.bytes, bytes);
        add(&total.flop, flop);
    }
}

fn label(stage: Stage, op: Op) -> usize {
    stage as usize * Op::ALL.len() + op as usize
}

/// For a value that only one thread writes.
fn add(value: &AtomicU64, more: u64) {
    value.store(value.load(Relaxed) + more, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_told_apart() {
        let labels = Stage::ALL
            .into_iter()
            .flat_map(|stage| Op::ALL.iter().map(move |&op| label(stage, op)));
        assert!(labels.eq(0..LABELS));
    }
}
