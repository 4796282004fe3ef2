//! Where the time of forward passes goes.
//!
//! Objects: a [`Profile`] covers the passes between [`super::Backend::start_profile`] and
//! [`super::Backend::end_profile`]; it has a [`StageProfile`] for each stage that ran, and that an
//! [`OpProfile`] for each op. Times of ops are times of threads: a stage's ops add up to its
//! duration once for each thread, the waiting included, so nothing is left unexplained. A device that
//! runs one kernel after the other is one thread.

use std::time::Duration;

/// A part of the forward pass, in the words that files and tests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Rows of the embedding matrix.
    Embed,
    /// Gated DeltaNet mixers and the norms before them.
    DeltaNet,
    /// Attention mixers and the norms before them.
    Attention,
    /// Routed and shared experts and the norms before them.
    Moe,
    /// Feed-forward parts of dense layers and the norms before them.
    Mlp,
    /// The last norm and the output matrix.
    Head,
}

impl Stage {
    /// Every stage, in the order of the forward pass.
    pub const ALL: [Stage; 6] =
        [Stage::Embed, Stage::DeltaNet, Stage::Attention, Stage::Moe, Stage::Mlp, Stage::Head];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Embed => "embed",
            Stage::DeltaNet => "delta_net",
            Stage::Attention => "attention",
            Stage::Moe => "moe",
            Stage::Mlp => "mlp",
            Stage::Head => "head",
        }
    }
}

macro_rules! ops {
    ($($(#[$doc:meta])* $op:ident $name:literal,)*) => {
        /// What a thread is at.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Op {
            $($(#[$doc])* $op,)*
        }

        impl Op {
            /// Every op, about in the order in which a stage runs them.
            pub const ALL: &[Op] = &[$(Op::$op),*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Op::$op => $name,)*
                }
            }
        }
    };
}

ops! {
    /// Expanding rows of the embedding matrix.
    Rows "rows",
    /// Cosines and sines of RoPE, where all layers share them.
    RopeTable "rope_table",
    /// Residual, norm, and rounding of the result for the products after it.
    Norm "norm",
    /// Products that give a DeltaNet's queries, keys, values, gates.
    InProj "in_proj",
    /// Convolution of a DeltaNet's channels, and the norms of its queries and keys.
    Conv "conv",
    /// Decay and write strength of a DeltaNet.
    Gates "gates",
    /// What the keys of a chunk of tokens are to each other, where the delta rule takes chunks.
    Solve "solve",
    /// The delta rule.
    State "state",
    /// Norm and gate of what the states gave.
    GatedNorm "gated_norm",
    /// All of a DeltaNet between its products, where one kernel does it.
    DeltaDecode "delta_decode",
    /// Products that give an attention's queries, gates, keys and values.
    Qkv "qkv",
    /// Norms and turns of queries and keys; keys and values to the cache.
    KvWrite "kv_write",
    /// Scores, softmax and weighted values.
    Attend "attend",
    /// Joining the parts of a softmax, and the output gate.
    Merge "merge",
    /// Rounding for products, where it is a step of its own.
    Round "round",
    /// A DeltaNet's output product.
    OutProj "out_proj",
    /// An attention's output product.
    OProj "o_proj",
    /// Products that give the experts' scores and the shared expert's gate.
    Router "router",
    /// Softmax of the scores and the best experts.
    Choose "choose",
    /// Sorting the experts' visits by expert.
    SortVisits "sort_visits",
    /// Products of the routed experts' gates and ups.
    ExpertsGateUp "experts_gate_up",
    /// Products of the routed experts' downs.
    ExpertsDown "experts_down",
    /// Products of the shared expert.
    SharedExpert "shared_expert",
    /// Products of a dense layer's gate and up.
    GateUp "gate_up",
    /// SiLU of the gate times up, and rounding where it follows.
    Activate "activate",
    /// Product of a dense layer's down.
    Down "down",
    /// Adding up a token's experts.
    Combine "combine",
    /// The output matrix.
    Logits "logits",
    /// The best tokens of rows of logits, and the sums of their softmax.
    Candidates "candidates",
    /// What the calling thread does between jobs, while the others have nothing to do.
    Alone "alone",
    /// Waiting: for work, for a hand-off, for the last task of another thread.
    Idle "idle",
}

/// Where the time of some forward passes went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Threads that shared the work.
    pub threads: usize,
    /// How many there were.
    pub passes: u64,
    /// Duration of the passes.
    pub wall: Duration,
    /// The stages that ran, in order; their durations add up to [`Profile::wall`].
    pub stages: Vec<StageProfile>,
}

/// One stage of every layer and pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageProfile {
    /// Which.
    pub stage: Stage,
    /// Its duration.
    pub wall: Duration,
    /// The ops that ran, in order; their times add up to [`StageProfile::wall`] for each thread.
    pub ops: Vec<OpProfile>,
}

/// One op of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpProfile {
    /// Which.
    pub op: Op,
    /// What all threads together spent on it.
    pub time: Duration,
    /// Kernels that were launched for it; 0 where there is nothing to launch.
    pub launches: u64,
    /// Bytes of weights, states and caches that it asked for, wherever they lay.
    pub bytes: u64,
    /// Operations of its products, delta rules and attention.
    pub flop: u64,
}
