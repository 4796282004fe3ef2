//! The backend's threads.
//!
//! A decoded token is some 240 dispatches of a few microseconds each, so handing out work must
//! not cost a system call: workers spin for a bounded time after each job and only then park.
//! The caller never waits for a worker that has not started: it shuts the gate when the tasks
//! are used up, and whoever comes late finds it shut.
//!
//! Every job says which op it is, for the workers' clocks while a profile is taken.

use std::{
    any::Any,
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::clock::{Clocks, Worker};
use crate::backend::profile::{Op, Profile, Stage};

/// How long a worker spins for the next job before it parks: longer than any gap between the
/// stages of a forward pass and than sampling a token, short enough that an idle server is idle.
const SPIN: Duration = Duration::from_micros(150);

/// Spins between two looks at the clock, and before the caller offers its core to others.
const SPINS_PER_CHECK: u32 = 128;

/// Worker threads that share the tasks of one job at a time. The calling thread is worker 0.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    stage: Stage,
    /// Whether a profile is being taken.
    profiled: bool,
}

impl Pool {
    /// `threads` workers, the caller's thread included; without a number as many as the cores
    /// and the cgroup's CPU quota allow.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub(crate) fn new(threads: Option<usize>) -> std::io::Result<Self> {
        let workers = threads.unwrap_or_else(threads_allowed).max(1);
        let shared = Arc::new(Shared::new(workers));
        let mut pool = Self { shared, threads: Vec::new(), stage: Stage::Embed, profiled: false };
        for worker in 1..workers {
            let shared = Arc::clone(&pool.shared);
            let name = format!("calla-cpu-{worker}");
            let thread = thread::Builder::new().name(name).spawn(move || shared.serve(worker))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Number of workers, the calling thread included.
    pub(crate) fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `work(task, worker)` once for each task in `0..tasks` and returns when all are done.
    /// Tasks are handed out in order, whoever is free takes the next. Allocates nothing.
    ///
    /// # Panics
    /// When a task panics: with its payload, after every worker has left the job.
    pub(crate) fn run<F>(&mut self, op: Op, tasks: usize, work: F)
    where
        F: Fn(usize, Worker<'_>) + Sync,
    {
        let caller = self.shared.clocks.worker(0, self.stage, self.profiled);
        if tasks <= 1 || self.threads.is_empty() {
            for task in 0..tasks {
                caller.at(op);
                work(task, caller);
            }
            caller.at(Op::Alone);
            return;
        }
        let job = Job { stage: self.stage, profiled: self.profiled, ..Job::new(op, &work, tasks) };
        // SAFETY: `&mut self` and the shut gate mean that nobody reads the job now. `job` points
        // to `work`, which outlives the job: the gate is shut and all workers have left below.
        unsafe { *self.shared.job.get() = job };
        self.shared.open_gate();
        let own = catch_unwind(AssertUnwindSafe(|| self.shared.work_off(op, &work, tasks, caller)));
        if own.is_err() {
            self.shared.next.0.store(tasks, Ordering::Relaxed);
        }
        caller.at(Op::Idle);
        self.shared.shut_gate();
        caller.at(Op::Alone);
        let theirs = self.shared.panic().take();
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }

    /// Jobs that follow belong to this stage.
    pub(crate) fn enter_stage(&mut self, stage: Stage) {
        self.stage = stage;
        self.shared.clocks.worker(0, stage, self.profiled).at(Op::Alone);
    }

    /// Measures where time goes from now on.
    pub(crate) fn start_profile(&mut self) {
        self.shared.clocks.reset();
        self.profiled = true;
    }

    /// Ends it: what was measured, if [`Pool::start_profile`] was called.
    pub(crate) fn end_profile(&mut self) -> Option<Profile> {
        std::mem::take(&mut self.profiled).then(|| self.shared.clocks.profile())
    }

    /// A forward pass begins.
    pub(crate) fn begin_pass(&mut self, stage: Stage) {
        self.stage = stage;
        if self.profiled {
            self.shared.clocks.begin(stage);
        }
    }

    /// The pass has ended.
    pub(crate) fn end_pass(&mut self) {
        if self.profiled {
            self.shared.clocks.end();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: as in `run`: the gate is shut.
        unsafe { *self.shared.job.get() = Job::STOP };
        self.shared.open_gate();
        for thread in self.threads.drain(..) {
            // A worker's panic was caught and raised in `run`.
            let _ = thread.join();
        }
    }
}

/// Cores that the affinity mask and the cgroup's CPU quota (v1 or v2) leave to this process.
pub(crate) fn threads_allowed() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// What `run` hands to the workers: the closure without its type.
#[derive(Clone, Copy)]
struct Job {
    /// Takes tasks until none is left; `None` tells the workers to end.
    enter: Option<unsafe fn(&Shared, &Job, usize)>,
    work: *const (),
    tasks: usize,
    op: Op,
    stage: Stage,
    profiled: bool,
}

impl Job {
    const STOP: Job = Job {
        enter: None,
        work: std::ptr::null(),
        tasks: 0,
        op: Op::Alone,
        stage: Stage::Embed,
        profiled: false,
    };

    fn new<F: Fn(usize, Worker<'_>) + Sync>(op: Op, work: &F, tasks: usize) -> Self {
        let work = std::ptr::from_ref(work).cast();
        Self { enter: Some(enter::<F>), work, tasks, op, ..Self::STOP }
    }
}

/// # Safety
/// The job's `work` points to an `F` that lives until the gate is shut and all have left.
unsafe fn enter<F: Fn(usize, Worker<'_>) + Sync>(shared: &Shared, job: &Job, index: usize) {
    // SAFETY: promised by the caller; `F: Sync` allows the sharing.
    let work = unsafe { &*job.work.cast::<F>() };
    let worker = shared.clocks.worker(index, job.stage, job.profiled);
    shared.work_off(job.op, work, job.tasks, worker);
    worker.leave();
}

/// A cache line of its own for a value that several cores write.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    /// Number of the job in the upper half, then [`SHUT`], then how many workers are inside.
    gate: Line<AtomicU64>,
    /// The next task to hand out.
    next: Line<AtomicUsize>,
    /// Written while the gate is shut, read by workers inside.
    job: UnsafeCell<Job>,
    clocks: Clocks,
    /// First panic of a worker in the present job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Workers that are parked or about to park.
    parked: AtomicUsize,
    parking: Mutex<()>,
    wake: Condvar,
}

const SHUT: u64 = 1 << 31;
const INSIDE: u64 = SHUT - 1;
const NEXT_JOB: u64 = 1 << 32;

// SAFETY: `job` is written by the one caller while no worker is inside the gate, and read only
// inside; the closure that it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer in `job` is only followed inside the gate.
unsafe impl Send for Shared {}

impl Shared {
    fn new(workers: usize) -> Self {
        Self {
            clocks: Clocks::new(workers),
            gate: Line(AtomicU64::new(SHUT)),
            next: Line(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job::STOP),
            panic: Mutex::new(None),
            parked: AtomicUsize::new(0),
            parking: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    fn open_gate(&self) {
        self.next.0.store(0, Ordering::Relaxed);
        let job = self.gate.0.load(Ordering::Relaxed) & !(NEXT_JOB - 1);
        // SeqCst here and in `park`: either the worker sees the new job, or we see it parked.
        self.gate.0.store(job.wrapping_add(NEXT_JOB), Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) > 0 {
            drop(self.parking());
            self.wake.notify_all();
        }
    }

    fn shut_gate(&self) {
        let mut state = self.gate.0.fetch_or(SHUT, Ordering::AcqRel);
        let mut spins = 0u32;
        while state & INSIDE != 0 {
            spins += 1;
            if spins.is_multiple_of(SPINS_PER_CHECK * 64) {
                // More threads than cores: the one inside may be waiting for ours.
                thread::yield_now();
            }
            std::hint::spin_loop();
            state = self.gate.0.load(Ordering::Acquire);
        }
    }

    fn work_off<F>(&self, op: Op, work: &F, tasks: usize, worker: Worker<'_>)
    where
        F: Fn(usize, Worker<'_>) + Sync,
    {
        loop {
            let task = self.next.0.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            worker.at(op);
            work(task, worker);
        }
    }

    /// A worker's life: wait for a job, go inside if the gate is still open, work, leave.
    fn serve(&self, worker: usize) {
        let mut last = 0;
        loop {
            let state = self.next_job(last);
            last = state >> 32;
            if !self.go_inside(state) {
                continue;
            }
            // SAFETY: the gate was open and counts us, so the caller waits before it changes it.
            let job = unsafe { *self.job.get() };
            let Some(enter) = job.enter else { return };
            // SAFETY: `run` keeps the closure alive until we have left.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe {
                enter(self, &job, worker);
            }));
            if let Err(payload) = result {
                self.next.0.store(job.tasks, Ordering::Relaxed);
                self.panic().get_or_insert(payload);
            }
            self.gate.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until the gate's job number differs from `last`; spins first, then parks.
    fn next_job(&self, last: u64) -> u64 {
        let start = Instant::now();
        loop {
            for _ in 0..SPINS_PER_CHECK {
                let state = self.gate.0.load(Ordering::Acquire);
                if state >> 32 != last {
                    return state;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                self.park(last);
            }
        }
    }

    fn park(&self, last: u64) {
        let mut guard = self.parking();
        self.parked.fetch_add(1, Ordering::SeqCst);
        while self.gate.0.load(Ordering::SeqCst) >> 32 == last {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts this worker in, unless the gate has been shut or belongs to another job by now.
    fn go_inside(&self, seen: u64) -> bool {
        let mut state = seen;
        while state >> 32 == seen >> 32 && state & SHUT == 0 {
            match self.gate.0.compare_exchange_weak(
                state,
                state + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    fn parking(&self) -> MutexGuard<'_, ()> {
        self.parking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn panic(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: Op = Op::Norm;

    fn pool(threads: usize) -> Pool {
        Pool::new(Some(threads)).expect("threads for a test")
    }

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 5] {
            let mut pool = pool(threads);
            assert_eq!(pool.workers(), threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(OP, tasks, |task, worker| {
                    assert!(worker.index < threads);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn many_tiny_runs_see_each_others_writes() {
        let mut pool = pool(3);
        let total = AtomicUsize::new(0);
        let mut expected = 0;
        for run in 0..20_000 {
            let tasks = run % 5;
            pool.run(OP, tasks, |task, _| {
                total.fetch_add(task + 1, Ordering::Relaxed);
            });
            expected += tasks * (tasks + 1) / 2;
            assert_eq!(total.load(Ordering::Relaxed), expected);
        }
    }

    #[test]
    fn parked_workers_come_back() {
        let mut pool = pool(2);
        for _ in 0..3 {
            while pool.shared.parked.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            // Two tasks that wait for each other: both workers must take part.
            let arrived = AtomicUsize::new(0);
            pool.run(OP, 2, |_, _| {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = pool(3);
        for bad in [0, 1, 49] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(OP, 50, |task, _| assert_ne!(task, bad, "task {bad} fails"));
            }));
            let payload = result.expect_err("the panic is raised again");
            let text = payload.downcast_ref::<String>().expect("a formatted message");
            assert!(text.contains(&format!("task {bad} fails")), "{text}");
        }
        let ran = AtomicUsize::new(0);
        pool.run(OP, 50, |_, _| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.load(Ordering::Relaxed), 50);
    }

    #[test]
    fn a_panic_in_a_worker_alone_reaches_the_caller() {
        let mut pool = pool(2);
        let result = catch_unwind(AssertUnwindSafe(|| {
            let arrived = AtomicUsize::new(0);
            pool.run(OP, 2, |_, worker| {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                assert_eq!(worker.index, 0, "only the spawned worker fails");
            });
        }));
        assert!(result.is_err());
    }
    #[test]
    fn clocks_tell_work_from_waiting_and_stop_with_the_job() {
        const STAGE: Stage = Stage::Head;
        let mut pool = pool(2);
        pool.start_profile();
        pool.begin_pass(STAGE);
        let shared = Arc::clone(&pool.shared);
        let waits_for = |worker, place| {
            let start = Instant::now();
            while !shared.clocks.is_at(worker, place) {
                assert!(start.elapsed() < Duration::from_secs(60), "{worker} never at {place:?}");
                thread::yield_now();
            }
        };
        assert!(shared.clocks.is_at(0, Some((STAGE, Op::Alone))));
        // One task each: the caller's ends first, and the other worker's sees it wait.
        pool.run(OP, 2, |_, worker| match worker.index {
            0 => waits_for(1, Some((STAGE, Op::Attend))),
            _ => {
                worker.at(Op::Attend);
                waits_for(0, Some((STAGE, Op::Idle)));
            }
        });
        assert!(shared.clocks.is_at(0, Some((STAGE, Op::Alone))));
        assert!(shared.clocks.is_at(1, None), "it has left the job");
        pool.end_pass();
        assert!(shared.clocks.is_at(0, None));
        // Each task begins at its job's op again.
        pool.begin_pass(STAGE);
        pool.run(OP, 50, |_, worker| {
            assert!(shared.clocks.is_at(worker.index, Some((STAGE, OP))));
            worker.at(Op::Attend);
        });
        pool.end_pass();
    }
}
