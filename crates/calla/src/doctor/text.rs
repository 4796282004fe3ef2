//! The report as text.

use std::fmt;

use super::{Backend, ModelReport, Report};
use crate::{
    machine::{Gpu, HugePages, Memory, Processors},
    output::size,
};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "calla {}  {}", self.version, self.system)?;
        writeln!(f, "processor   {}", self.processors)?;
        writeln!(f, "simd        {}", self.instruction_sets())?;
        writeln!(f, "memory      {}", self.memory)?;
        writeln!(f, "huge pages  {}", self.huge_pages)?;
        match self.gpus.is_empty() {
            true => writeln!(f, "gpu         none found")?,
            false => self.gpus.iter().try_for_each(|gpu| writeln!(f, "gpu         {gpu}"))?,
        }
        writeln!(f, "backends    {}", self.backends())?;
        for backend in &self.backends {
            if let Some(problem) = &backend.problem {
                writeln!(f, "            {problem}")?;
            }
        }
        match self.read_gb_s {
            Some(gb_s) => {
                writeln!(f, "bandwidth   {gb_s:.1} GB/s, {} threads reading", self.read_threads)?
            }
            None => writeln!(f, "bandwidth   not measured: too little memory is free")?,
        }
        writeln!(f, "kernels     {}", self.kernels())?;
        for kernel in self.kernels.iter().filter(|kernel| !kernel.ok) {
            writeln!(
                f,
                "            {} {}: off by {:.1e}, allowed {:.0e}",
                kernel.path, kernel.kernel, kernel.error, kernel.tolerance
            )?;
        }
        if let Some(model) = &self.model {
            writeln!(f, "model       {model}")?;
            writeln!(f, "backend     {}", self.backend(model))?;
        }
        writeln!(f, "\n{}", if self.ok { "all is well" } else { "not all is well" })
    }
}

impl Report {
    fn instruction_sets(&self) -> String {
        let set = |set: &super::InstructionSet| match (set.used, set.available) {
            (true, _) => format!("{} (used)", set.name),
            (false, true) => set.name.to_owned(),
            (false, false) => format!("{} (not here)", set.name),
        };
        self.instruction_sets.iter().map(set).collect::<Vec<_>>().join(", ")
    }

    fn backends(&self) -> String {
        let backend = |backend: &Backend| match backend.problem {
            None => backend.name.to_owned(),
            Some(_) => format!("{} (not here)", backend.name),
        };
        self.backends.iter().map(backend).collect::<Vec<_>>().join(", ")
    }

    fn kernels(&self) -> String {
        let good = self.kernels.iter().filter(|kernel| kernel.ok).count();
        let paths = self.kernels.chunk_by(|a, b| a.path == b.path);
        let paths: Vec<&str> = paths.map(|path| path[0].path).collect();
        format!("{good} of {} agree with the reference ({})", self.kernels.len(), paths.join(", "))
    }

    /// What is taken, and why.
    fn backend(&self, model: &ModelReport) -> String {
        let taken = model.description.as_deref().unwrap_or(model.backend);
        let best = self.backends.iter().find(|backend| backend.problem.is_none());
        let why = match &model.passed_over[..] {
            [] if best.is_some_and(|best| best.name == model.backend) => {
                "the best that works here".into()
            }
            [] => "asked for".into(),
            reasons => format!("passed over: {}", reasons.join("; ")),
        };
        format!("{taken}: {why}")
    }
}

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} needs {}", self.name, size(self.need.total_bytes()))?;
        match self.context_fits {
            Some(tokens) if tokens == self.context_max => {
                write!(f, " and fits, with all its context of {tokens} tokens")
            }
            Some(tokens) => {
                write!(f, " and fits, with {tokens} of its {} tokens of context", self.context_max)
            }
            None => write!(f, ", and does not fit or nobody can tell"),
        }
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} cores for this program", self.name, self.cores)?;
        if let Some(total) = self.cores_total {
            write!(f, " of {total}")?;
        }
        match self.quota {
            Some(quota) => write!(f, ", quota of {quota:.1}"),
            None => write!(f, ", no quota"),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |bytes: Option<u64>| bytes.map_or("unknown".into(), size);
        write!(f, "{}, {} available", known(self.total_bytes), known(self.available_bytes))?;
        match (self.limit_bytes, self.limit_left_bytes) {
            (Some(limit), Some(left)) => {
                write!(f, "; limited to {}, of which {} are left", size(limit), size(left))
            }
            _ => write!(f, ", no limit"),
        }
    }
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transparent = self.transparent.as_deref().unwrap_or("unknown");
        write!(f, "transparent ones {transparent}")?;
        self.reserved.map_or(Ok(()), |reserved| write!(f, ", {reserved} reserved"))
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name.as_deref().unwrap_or(self.maker))?;
        if let Some(driver) = &self.driver {
            write!(f, ", driver {driver}")?;
        }
        for missing in &self.missing {
            write!(f, "; no {} ({})", missing.what, missing.package)?;
        }
        Ok(())
    }
}
