//! A profile explains all of the time, counts what the model asks for, and changes nothing else.

mod common;

use std::{collections::BTreeMap, time::Duration};
#[cfg(target_os = "linux")]
use std::{collections::HashMap, sync::Arc};

#[cfg(target_os = "linux")]
use calla_engine::backend::cuda::{Cuda, device::emulator::Emulator};
use calla_engine::{
    backend::{
        Backend, BackendOptions, Batch, Logits, Precision, Row, SequenceId, Wants,
        cpu::Cpu,
        profile::{Op, OpProfile, Profile, Stage},
        reference::Reference,
    },
    model::{Linear, Mixer, MixerKind, Mlp, MlpShape, Shape, Weights},
};
use common::random::{self, Random};

/// A prompt that fills a page and begins another.
const PROMPT_TOKENS: usize = 70;

/// Tokens that the CPU's recurrence takes with one pass over its states.
const STATE_RUN_TOKENS: usize = 64;

fn cpu(shape: &Shape, weights: &Weights, threads: usize) -> Cpu {
    let options = BackendOptions { precision: Precision::Default, threads: Some(threads) };
    Cpu::new(shape.clone(), weights.clone(), &options).expect("the suite's models suit the kernels")
}

fn forward(backend: &mut dyn Backend, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let mut logits = Logits::new();
    let row = Row { sequence, tokens, wants: Wants::Last };
    backend.forward(&Batch { rows: &[row] }, &mut logits).expect("a good batch");
    logits.row(0).to_vec()
}

/// Profiles of a prompt and of one decoded token.
fn profiles(backend: &mut dyn Backend) -> [Profile; 2] {
    let tokens = Random(5).tokens(PROMPT_TOKENS + 1, backend.shape().vocab);
    let sequence = backend.open(2 * PROMPT_TOKENS).expect("room for one");
    let (prompt, next) = tokens.split_at(PROMPT_TOKENS);
    [prompt, next].map(|tokens| {
        backend.start_profile().expect("it has clocks");
        forward(backend, sequence, tokens);
        backend.end_profile().expect("it was started")
    })
}

#[test]
fn stages_add_up_to_the_passes_and_ops_to_the_stages_on_every_thread() {
    for (model, shape, weights) in random::models() {
        let mlp = match shape.mlp {
            MlpShape::Moe { .. } => Stage::Moe,
            MlpShape::Dense { .. } => Stage::Mlp,
        };
        for threads in [1, 2, 3] {
            let mut backend = cpu(&shape, &weights, threads);
            for profile in profiles(&mut backend) {
                assert_eq!((profile.threads, profile.passes), (threads, 1));
                let stages: Vec<Stage> = profile.stages.iter().map(|stage| stage.stage).collect();
                let expected = [Stage::Embed, Stage::DeltaNet, Stage::Attention, mlp, Stage::Head];
                assert_eq!(stages, expected, "{model}");
                let sum: Duration = profile.stages.iter().map(|stage| stage.wall).sum();
                assert_eq!(sum, profile.wall, "{model}, {threads} threads");
                for stage in &profile.stages {
                    let sum: Duration = stage.ops.iter().map(|op| op.time).sum();
                    let name = stage.stage.name();
                    assert_eq!(
                        sum,
                        stage.wall * threads as u32,
                        "{model}, {threads} threads, {name}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_decoded_token_reads_the_weights_states_and_cache_that_the_model_says() {
    for (model, shape, weights) in random::models() {
        let [prompt, next] = profiles(&mut cpu(&shape, &weights, 2));
        let expected = expected(&shape, &weights);
        for (profile, tokens) in [(&prompt, PROMPT_TOKENS), (&next, 1)] {
            for (&(stage, op), &(bytes, flop)) in &expected {
                let found = find(profile, stage, op);
                let name = format!("{model}, {tokens} tokens, {}, {}", stage.name(), op.name());
                // The head sees one token.
                let rows = if op == Op::Logits { 1 } else { tokens };
                assert_eq!(found.flop, (flop * rows) as u64, "operations of {name}");
                match op {
                    // Each token has its row.
                    Op::Rows => assert_eq!(found.bytes, (bytes * tokens) as u64, "bytes of {name}"),
                    // They pass by for each run of tokens.
                    Op::State => {
                        let runs = tokens.div_ceil(STATE_RUN_TOKENS);
                        assert_eq!(found.bytes, (bytes * runs) as u64, "bytes of {name}");
                    }
                    // How many experts a prompt visits, its tokens decide.
                    Op::ExpertsGateUp | Op::ExpertsDown if tokens > 1 => {
                        assert!(found.bytes > bytes as u64, "bytes of {name}");
                    }
                    _ => assert_eq!(found.bytes, bytes as u64, "bytes of {name}"),
                }
            }
        }

        // Two layers of keys and values at float16, for the new token and those before it.
        let attend = find(&next, Stage::Attention, Op::Attend);
        let (layers, dim) = (shape.layers_of(MixerKind::Attention), shape.attention.head_dim);
        let (heads, kv_heads) = (shape.attention.heads, shape.attention.kv_heads);
        let elements = layers * (PROMPT_TOKENS + 1) * dim;
        assert_eq!(attend.bytes, (2 * 2 * elements * kv_heads) as u64, "{model}");
        assert_eq!(attend.flop, (4 * elements * heads) as u64, "{model}");
        let attend = find(&prompt, Stage::Attention, Op::Attend);
        let elements = layers * PROMPT_TOKENS * (PROMPT_TOKENS + 1) / 2 * dim;
        assert_eq!(attend.flop, (4 * elements * heads) as u64, "{model}");
    }
}

#[test]
fn logits_are_the_same_and_nothing_is_measured_unasked() {
    for (model, shape, weights) in random::models() {
        let tokens = Random(6).tokens(PROMPT_TOKENS, shape.vocab);
        let mut backend = cpu(&shape, &weights, 2);
        let [plain, measured, after] = [false, true, false].map(|profiled| {
            let sequence = backend.open(2 * PROMPT_TOKENS).unwrap();
            if profiled {
                backend.start_profile().unwrap();
            }
            let logits = forward(&mut backend, sequence, &tokens);
            assert_eq!(backend.end_profile().is_some(), profiled, "{model}");
            logits
        });
        common::assert_bits(model, &measured, &plain);
        common::assert_bits(model, &after, &plain);
        assert_eq!(backend.end_profile(), None, "{model}: it has been taken");
    }
}

/// A routed model whose experts are alike, so that few rows take them together, and a dense one.
#[cfg(target_os = "linux")]
fn device_models() -> Vec<(&'static str, Shape, Weights)> {
    let mut models = random::models();
    let (_, mut moe, _) = models.swap_remove(0);
    if let MlpShape::Moe { expert_width, shared_width, .. } = &mut moe.mlp {
        *shared_width = *expert_width;
    }
    let weights = random::weights(&moe, 4, 64, 1);
    models.insert(0, ("moe", moe, weights));
    models
}

#[cfg(target_os = "linux")]
fn emulated(shape: &Shape, weights: &Weights, seed: u64) -> (Arc<Emulator>, Cuda) {
    let device = Arc::new(Emulator::with(8 << 30, seed).expect("a C++ compiler"));
    let options = BackendOptions::default();
    let backend = Cuda::on(Arc::clone(&device) as _, shape.clone(), weights, &options)
        .expect("the suite's models suit the kernels");
    (device, backend)
}

/// Passes of every kind: without logits, with more than are computed at a time, a step that is
/// recorded and one that is replayed.
#[cfg(target_os = "linux")]
fn passes(backend: &mut dyn Backend) -> Vec<f32> {
    let tokens = Random(7).tokens(PROMPT_TOKENS + 7, backend.shape().vocab);
    let sequence = backend.open(2 * PROMPT_TOKENS).expect("room for one");
    let (mut results, mut logits, mut rest) = (Vec::new(), Logits::new(), &tokens[..]);
    for (count, wants) in
        [(5, Wants::Nothing), (PROMPT_TOKENS, Wants::All), (1, Wants::Last), (1, Wants::Last)]
    {
        let (tokens, after) = rest.split_at(count);
        backend
            .forward(&Batch { rows: &[Row { sequence, tokens, wants }] }, &mut logits)
            .expect("a good batch");
        results.extend_from_slice(logits.values());
        rest = after;
    }
    backend.close(sequence).expect("it is open");
    results
}

#[cfg(target_os = "linux")]
#[test]
fn every_launch_of_a_device_is_measured_once_under_its_name() {
    for (model, shape, weights) in device_models() {
        let (device, mut backend) = emulated(&shape, &weights, 0);
        backend.start_profile().unwrap();
        let before = device.launches();
        passes(&mut backend);
        let profile = backend.end_profile().expect("it was started");
        let launches: HashMap<String, u64> = device
            .launches()
            .into_iter()
            .map(|(name, count)| (name.clone(), count - before.get(&name).unwrap_or(&0)))
            .filter(|(_, count)| *count > 0)
            .collect();

        // A prompt's logits are computed 64 at a time, and each time the host has its turn.
        assert_eq!((profile.threads, profile.passes), (1, 4), "{model}");
        assert_eq!(launches["end_of_pass"], 5, "{model}");
        let ops = profile.stages.iter().flat_map(|stage| &stage.ops);
        let measured: u64 = ops.clone().map(|op| op.launches).sum();
        assert_eq!(measured, launches.values().sum::<u64>() - 5, "{model}");
        for (op, kernels) in [
            (Op::Rows, &["embed"][..]),
            (Op::RopeTable, &["rope_table"]),
            (Op::Norm, &["rms_norm"]),
            (Op::Conv, &["conv_gates"]),
            (Op::Solve, &["chunk_solve"]),
            (Op::State, &["delta_step", "delta_chunk"]),
            (Op::GatedNorm, &["gated_norm"]),
            (Op::DeltaDecode, &["delta_decode"]),
            (Op::KvWrite, &["queries_keys"]),
            (Op::Merge, &["attend_merge"]),
            (Op::Choose, &["route", "route_visits"]),
            (Op::SortVisits, &["sort_visits"]),
            (Op::Combine, &["combine"]),
        ] {
            let ops = ops.clone().filter(|known| known.op == op);
            let measured: u64 = ops.map(|known| known.launches).sum();
            let launched: u64 = kernels.iter().filter_map(|&kernel| launches.get(kernel)).sum();
            assert_eq!(measured, launched, "{model}: {} and {kernels:?}", op.name());
        }
        let layers = |kind| shape.layers_of(kind) as u64;
        let (nets, attentions) = (layers(MixerKind::DeltaNet), layers(MixerKind::Attention));
        let mlp = match shape.mlp {
            MlpShape::Moe { .. } => (Stage::Moe, Op::ExpertsDown),
            MlpShape::Dense { .. } => (Stage::Mlp, Op::Down),
        };
        for ((stage, op), count) in [
            ((Stage::DeltaNet, Op::InProj), 4 * nets),
            ((Stage::DeltaNet, Op::OutProj), 4 * nets),
            ((Stage::Attention, Op::Qkv), 4 * attentions),
            ((Stage::Attention, Op::Attend), 4 * attentions),
            ((Stage::Attention, Op::OProj), 4 * attentions),
            (mlp, 4 * (nets + attentions)),
            ((Stage::Head, Op::Logits), 4),
        ] {
            let launches = find(&profile, stage, op).launches;
            assert_eq!(launches, count, "{model}: {}, {}", stage.name(), op.name());
        }

        let stages: Vec<Stage> = profile.stages.iter().map(|stage| stage.stage).collect();
        let expected = [Stage::Embed, Stage::DeltaNet, Stage::Attention, mlp.0, Stage::Head];
        assert_eq!(stages, expected, "{model}");
        let sum: Duration = profile.stages.iter().map(|stage| stage.wall).sum();
        assert_eq!(sum, profile.wall, "{model}");
        for stage in &profile.stages {
            let sum: Duration = stage.ops.iter().map(|op| op.time).sum();
            assert_eq!(sum, stage.wall, "{model}, {}", stage.stage.name());
            assert!(!stage.wall.is_zero(), "{model}, {}", stage.stage.name());
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_gives_the_same_logits_and_measures_nothing_unasked() {
    for (model, shape, weights) in device_models() {
        for seed in [0, 3] {
            let (device, mut backend) = emulated(&shape, &weights, seed);
            let [plain, measured, after, again] = [false, true, false, true].map(|profiled| {
                let before = device.launches();
                if profiled {
                    backend.start_profile().unwrap();
                }
                let logits = passes(&mut backend);
                assert_eq!(backend.end_profile().is_some(), profiled, "{model}");
                let ends = |launches: &HashMap<String, u64>| {
                    launches.get("end_of_pass").copied().unwrap_or(0)
                };
                let marked = ends(&device.launches()) - ends(&before);
                assert_eq!(marked, if profiled { 5 } else { 0 }, "{model}");
                logits
            });
            for (name, logits) in [("measured", measured), ("after", after), ("again", again)] {
                common::assert_bits(&format!("{model}, {name}"), &logits, &plain);
            }
            assert_eq!(backend.end_profile(), None, "{model}: it has been taken");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_counts_what_the_model_asks_for() {
    for (model, shape, weights) in device_models() {
        let (_, mut backend) = emulated(&shape, &weights, 0);
        let measured = profiles(&mut backend);
        // Kernels do several ops at once: by stage they are the model's.
        let mut by_stage = BTreeMap::<Stage, [(usize, usize); 2]>::new();
        for ((stage, op), (bytes, flop)) in expected(&shape, &weights) {
            let sums = by_stage.entry(stage).or_default();
            let rows = if op == Op::Logits { 1 } else { PROMPT_TOKENS };
            sums[0] = (0, sums[0].1 + flop * rows);
            sums[1] = (sums[1].0 + bytes, sums[1].1 + flop);
        }
        let attention = by_stage.get_mut(&Stage::Attention).expect("it has products");
        let layers = shape.layers_of(MixerKind::Attention);
        let (queries, keys) = (shape.attention.query_width(), shape.attention.kv_width());
        let pairs = layers * PROMPT_TOKENS * (PROMPT_TOKENS + 1) / 2;
        attention[0].1 += 4 * pairs * queries;
        attention[1].0 += 2 * 2 * layers * (PROMPT_TOKENS + 1) * keys;
        attention[1].1 += 4 * layers * (PROMPT_TOKENS + 1) * queries;
        for (stage, [prompt, next]) in by_stage {
            let sums = |profile: &Profile| {
                let stage = profile.stages.iter().find(|known| known.stage == stage);
                let ops = &stage.expect("the stage ran").ops;
                let bytes: u64 = ops.iter().map(|op| op.bytes).sum();
                (bytes as usize, ops.iter().map(|op| op.flop).sum::<u64>() as usize)
            };
            let name = format!("{model}, {}", stage.name());
            assert_eq!(sums(&measured[0]).1, prompt.1, "{name}, prompt");
            assert_eq!(sums(&measured[1]), next, "{name}, one token");
        }
        let [prompt, _] = &measured;
        let (stage, op) = (Stage::DeltaNet, Op::OutProj);
        let bytes = expected(&shape, &weights)[&(stage, op)].0;
        assert_eq!(find(prompt, stage, op).bytes, bytes as u64, "{model}: read once for all rows");
    }
}

#[test]
fn a_new_profile_forgets_the_old_one() {
    let (_, shape, weights) = random::models().swap_remove(0);
    let mut backend = cpu(&shape, &weights, 2);
    let [_, first] = profiles(&mut backend);
    let [_, second] = profiles(&mut backend);
    let head = |profile| find(profile, Stage::Head, Op::Logits);
    assert_eq!(head(&first).bytes, head(&second).bytes);
    backend.start_profile().unwrap();
    let empty = backend.end_profile().expect("it was started");
    assert_eq!((empty.wall, empty.stages), (Duration::ZERO, vec![]));
}

#[test]
fn the_reference_says_that_it_has_none() {
    let (_, shape, weights) = random::models().swap_remove(0);
    let mut backend = Reference::new(shape, weights);
    let error = backend.start_profile().expect_err("it has no clocks").to_string();
    assert!(error.contains("reference"), "{error}");
    assert_eq!(backend.end_profile(), None);
}

fn find(profile: &Profile, stage: Stage, op: Op) -> OpProfile {
    let stage = profile.stages.iter().find(|known| known.stage == stage).expect("the stage ran");
    *stage.ops.iter().find(|known| known.op == op).expect("the op ran")
}

/// Bytes and operations of one token at each op that has some, attention aside.
fn expected(shape: &Shape, weights: &Weights) -> BTreeMap<(Stage, Op), (usize, usize)> {
    let mut expected = BTreeMap::new();
    let mut add = |stage, op, bytes, flop| {
        let sums: &mut (usize, usize) = expected.entry((stage, op)).or_default();
        *sums = (sums.0 + bytes, sums.1 + flop);
    };
    add(Stage::Embed, Op::Rows, weights.embed.size_bytes() / shape.vocab, 0);
    let mut product = |stage, op, matrix: &Linear, times: usize| {
        let flop = 2 * matrix.outputs * matrix.inputs;
        add(stage, op, times * matrix.size_bytes(), times * flop);
    };
    product(Stage::Head, Op::Logits, &weights.head, 1);
    for layer in &weights.layers {
        match &layer.mixer {
            Mixer::DeltaNet(net) => {
                for matrix in [&net.in_proj_qkv, &net.in_proj_z, &net.in_proj_b, &net.in_proj_a] {
                    product(Stage::DeltaNet, Op::InProj, matrix, 1);
                }
                product(Stage::DeltaNet, Op::OutProj, &net.out_proj, 1);
            }
            Mixer::Attention(attention) => {
                for matrix in [&attention.q_proj, &attention.k_proj, &attention.v_proj] {
                    product(Stage::Attention, Op::Qkv, matrix, 1);
                }
                product(Stage::Attention, Op::OProj, &attention.o_proj, 1);
            }
        }
        match &layer.mlp {
            Mlp::Dense(mlp) => {
                product(Stage::Mlp, Op::GateUp, &mlp.gate, 1);
                product(Stage::Mlp, Op::GateUp, &mlp.up, 1);
                product(Stage::Mlp, Op::Down, &mlp.down, 1);
            }
            Mlp::Moe(moe) => {
                let MlpShape::Moe { experts_per_token, .. } = shape.mlp else {
                    unreachable!("the weights have experts")
                };
                product(Stage::Moe, Op::Router, &moe.router, 1);
                product(Stage::Moe, Op::Router, &moe.shared_gate, 1);
                for matrix in [&moe.shared.gate, &moe.shared.up, &moe.shared.down] {
                    product(Stage::Moe, Op::SharedExpert, matrix, 1);
                }
                product(Stage::Moe, Op::ExpertsGateUp, &moe.experts.gate[0], experts_per_token);
                product(Stage::Moe, Op::ExpertsGateUp, &moe.experts.up[0], experts_per_token);
                product(Stage::Moe, Op::ExpertsDown, &moe.experts.down[0], experts_per_token);
            }
        }
    }
    // Every state is read and written; seven operations an element.
    let state = shape.layers_of(MixerKind::DeltaNet) * shape.delta_net.state_len();
    expected.insert((Stage::DeltaNet, Op::State), (2 * 4 * state, 7 * state));
    expected
}
