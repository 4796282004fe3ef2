//! Brings the weights into memory beside the first work.
//!
//! A mapped file comes in where it is touched: experts at random places, some pages at a time, each
//! with a fault that its token waits for. Read in order it comes as fast as the disk gives it, and
//! sooner when the system is asked to take pages of 2 MiB for what is not in memory yet.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use crate::model::{Bytes, Weights};

/// Files with less of a model than this come in fast enough by themselves.
const FILE_BYTES_MIN: usize = 64 << 20;

/// What lies between two tensors and is read along with them, at most.
const GAP_BYTES_MAX: usize = 2 << 20;

/// What is asked for at a time. A model that is dropped meanwhile is not waited for, but its file
/// stays mapped until so much is there.
const STEP_BYTES: usize = 64 << 20;

/// The thread that brings the weights in. It stops when this is dropped.
pub(super) struct Residency {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Residency {
    /// Starts to bring in what `weights` takes of its files. Where the system knows no way, or gives no
    /// thread, pages come when they are touched.
    pub(super) fn start(weights: &Weights) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        // Other systems are not asked: nothing here knows how.
        let parts = if cfg!(target_os = "linux") { parts(weights) } else { Vec::new() };
        if parts.is_empty() {
            return Self { stop, thread: None };
        }
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("calla-residency".into());
        let thread = thread.spawn(move || parts.iter().for_each(|part| part.bring_in(&stopped)));
        Self { stop, thread: thread.ok() }
    }

    /// Waits until all is there that will come.
    pub(super) fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it does not panic");
        }
    }
}

impl Drop for Residency {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A file, and the runs of its bytes that a model takes, in order.
struct Part {
    file: Bytes,
    runs: Vec<Range<usize>>,
}

/// The large files of a model.
fn parts(weights: &Weights) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let matrices = weights.products().map(|(_, matrix)| matrix).chain([&weights.embed]);
    for bytes in matrices.flat_map(|matrix| [&matrix.weight, &matrix.scales, &matrix.biases]) {
        let (file, run) = bytes.place();
        // Neighbouring tensors tend to share a file.
        match parts.iter_mut().rev().find(|part| part.file.as_ptr() == file.as_ptr()) {
            Some(part) => part.runs.push(run),
            None => parts.push(Part { file, runs: vec![run] }),
        }
    }
    for part in &mut parts {
        part.runs = joined(std::mem::take(&mut part.runs));
    }
    parts.retain(|part| {
        part.runs.iter().map(ExactSizeIterator::len).sum::<usize>() >= FILE_BYTES_MIN
    });
    parts
}

/// Runs in order, those that are near each other as one.
fn joined(mut runs: Vec<Range<usize>>) -> Vec<Range<usize>> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.start <= last.end.saturating_add(GAP_BYTES_MAX) => {
                last.end = last.end.max(run.end);
            }
            _ => joined.push(run),
        }
    }
    joined
}

impl Part {
    #[cfg(target_os = "linux")]
    fn bring_in(&self, stop: &AtomicBool) {
        use rustix::mm::{Advice, madvise};

        let page = rustix::param::page_size();
        let advise = |run: Range<usize>, advice| {
            let start = self.file[run.clone()].as_ptr();
            let before = start.addr() % page;
            // SAFETY: the pages belong to the file, which `self` keeps mapped; neither advice changes
            // what is read there.
            unsafe {
                madvise(start.cast_mut().wrapping_sub(before).cast(), run.len() + before, advice)
            }
        };
        // Without large pages for files the smaller ones do.
        let _ = advise(0..self.file.len(), Advice::LinuxHugepage);
        for run in &self.runs {
            for start in run.clone().step_by(STEP_BYTES) {
                let step = start..run.end.min(start + STEP_BYTES);
                // A system before Linux 5.14 does not know this, a broken file says so when it is used.
                if stop.load(Ordering::Relaxed) || advise(step, Advice::LinuxPopulateRead).is_err()
                {
                    return;
                }
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn bring_in(&self, _: &AtomicBool) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::model::Linear;

    #[test]
    fn runs_that_are_near_each_other_are_one() {
        let far = 10 + GAP_BYTES_MAX;
        assert_eq!(joined(vec![far..far + 5, 0..10, 4..8]), vec![0..far + 5]);
        assert_eq!(joined(vec![far + 1..far + 5, 0..10]), vec![0..10, far + 1..far + 5]);
        assert_eq!(joined(Vec::new()), Vec::new());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_model_takes_of_its_file_comes_in_and_the_rest_does_not() {
        const MIB: usize = 1 << 20;
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::memfd_create("model", flags).unwrap());
        file.set_len(200 * MIB as u64).unwrap();
        // SAFETY: nobody else knows the file.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        let range = map.as_ptr().addr()..map.as_ptr().addr() + map.len();
        let file = Bytes::new(Arc::new(map));
        let matrix = |run: Range<usize>| Linear {
            inputs: 64,
            outputs: run.len() / 32,
            bits: 4,
            group: 64,
            weight: file.slice(run.clone()).unwrap(),
            scales: file.slice(run.end..run.end).unwrap(),
            biases: file.slice(run.end..run.end).unwrap(),
        };
        let weights = |embed, head| Weights {
            embed: matrix(embed),
            layers: Vec::new(),
            norm: Vec::new(),
            head: matrix(head),
        };

        let small = weights(0..MIB, 2 * MIB..3 * MIB);
        Residency::start(&small).wait();
        assert_eq!(resident_bytes(&range), 0, "a small model's pages come when they are touched");

        let model = weights(MIB + 100..66 * MIB, 150 * MIB..151 * MIB);
        Residency::start(&model).wait();
        let resident = resident_bytes(&range);
        assert!((66 * MIB..75 * MIB).contains(&resident), "{resident} bytes");
    }

    /// What of the mappings within `range` is in memory: advice for a part splits a mapping.
    #[cfg(target_os = "linux")]
    fn resident_bytes(range: &Range<usize>) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines();
        let mut bytes = 0;
        while let Some(line) = lines.next() {
            let start =
                line.split('-').next().and_then(|text| usize::from_str_radix(text, 16).ok());
            if start.is_some_and(|start| range.contains(&start)) {
                let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
                bytes += 1024 * rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            }
        }
        bytes
    }
}
