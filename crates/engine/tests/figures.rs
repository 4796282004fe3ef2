//! The figures of a model agree with its dimensions, its files and what backends predict.

use std::path::Path;

use calla_engine::{
    backend::{BackendOptions, Precision, SequenceBytes, select},
    checkpoint::{Checkpoint, Source, Tensors, Unused},
    model::{Figures, Linear, Mixer, MixerKind, Mlp, MlpShape, Role, Shape, Swiglu, Weights},
};

const MODELS: [&str; 9] = [
    "bits8",
    "dense",
    "dense_zero_centred",
    "moe_base",
    "moe_override",
    "moe_sharded",
    "moe_tied",
    "moe_unnormalised",
    "moe_wide",
];

fn each(test: impl Fn(&str, &Source, Checkpoint)) {
    for name in MODELS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(name);
        let source = Source::folder(folder);
        let checkpoint = Checkpoint::open(&source).expect("a good checkpoint");
        test(name, &source, checkpoint);
    }
}

#[test]
fn every_byte_of_the_files_is_listed_or_of_no_use() {
    each(|name, source, checkpoint| {
        let tensors = Tensors::open(source).expect("a good checkpoint");
        let in_files: usize = tensors.iter().map(|(_, tensor)| tensor.bytes.len()).sum();
        let listed: usize = checkpoint.tensors.iter().map(|tensor| tensor.bytes).sum();
        assert_eq!(listed + checkpoint.unused.bytes, in_files, "{name}");
        assert_eq!(checkpoint.figures().bytes, listed as u64, "{name}");
        assert_eq!(checkpoint.unused == Unused::default(), listed == in_files, "{name}");
        let names: Vec<_> = tensors.iter().map(|(name, _)| name).collect();
        for tensor in &checkpoint.tensors {
            assert!(names.contains(&&tensor.name), "{name}: {}", tensor.name);
        }
    });
}

#[test]
fn parameters_are_those_of_the_dimensions() {
    each(|name, _, checkpoint| {
        let figures = checkpoint.figures();
        let (all, active) = parameters(&checkpoint.shape);
        assert_eq!((figures.parameters, figures.parameters_active), (all, active), "{name}");
        let of = |role: Role| {
            figures.roles.iter().find(|figures| figures.role == role).map(|role| role.parameters)
        };
        let dense = matches!(checkpoint.shape.mlp, MlpShape::Dense { .. });
        assert_eq!(of(Role::Mlp).is_some(), dense, "{name}");
        assert_eq!(of(Role::Experts).is_some(), !dense, "{name}");
        assert_eq!(of(Role::Head).is_some(), !checkpoint.shape.tied_embeddings, "{name}");
    });
}

#[test]
fn a_decoded_token_reads_what_it_is_multiplied_with() {
    each(|name, _, checkpoint| {
        let Checkpoint { shape, weights, .. } = &checkpoint;
        let figures = checkpoint.figures();
        assert_eq!(figures.decode_weight_bytes, read_bytes(shape, weights), "{name}");
        let sequence = SequenceBytes { state: 1000, kv: 7 };
        assert_eq!(figures.decode_bytes(sequence), figures.decode_weight_bytes + 2007, "{name}");
    });
}

#[test]
fn the_work_of_a_token_is_two_operations_a_weight_and_what_the_state_takes() {
    each(|name, _, checkpoint| {
        let Checkpoint { shape, weights, .. } = &checkpoint;
        let mut products = 0;
        visit(shape, weights, &mut |matrix| products += matrix.outputs * matrix.inputs);
        let net = &shape.delta_net;
        let delta = net.value_heads * net.value_dim * net.key_dim * 7;
        let conv = 2 * net.conv_taps * net.conv_channels();
        let nets = shape.layers_of(MixerKind::DeltaNet);
        let expected = 2 * products + nets * (delta + conv);
        let Figures { prefill_flop, attend_flop, .. } = checkpoint.figures();
        assert_eq!(prefill_flop, expected as u64, "{name}");
        let attend = 4 * shape.attention.heads * shape.attention.head_dim;
        let attentions = shape.layers_of(MixerKind::Attention);
        assert_eq!(attend_flop, (attentions * attend) as u64, "{name}");
    });
}

#[test]
fn predictions_are_what_backends_say() {
    each(|name, _, checkpoint| {
        let Checkpoint { shape, weights, .. } = &checkpoint;
        for device in select::names() {
            for precision in [Precision::Default, Precision::Exact] {
                let options = BackendOptions { precision, threads: Some(1) };
                let choice = select::choose(Some(device), shape, weights);
                let backend = select::select(Some(device), shape, weights, &options);
                let (Ok(choice), Ok(backend)) = (&choice, &backend) else {
                    let (choice, backend) = (choice.err(), backend.err());
                    assert!(choice.is_some() && backend.is_some(), "{name} on {device}");
                    continue;
                };
                assert_eq!(choice.name(), device);
                for tokens in [0, 1, 64, 65, 4096] {
                    let predicted = choice.footprint(shape, &options, tokens);
                    assert_eq!(predicted.sequence, backend.bytes_for(tokens), "{name} on {device}");
                    let element = if predicted.kv_dtype == "float16" { 2 } else { 4 };
                    let kv = shape.layers_of(MixerKind::Attention)
                        * 2
                        * shape.attention.kv_width()
                        * element;
                    let least = tokens * kv;
                    assert!((least..least + 64 * kv).contains(&predicted.sequence.kv), "{name}");
                }
            }
        }
    });
}

#[test]
fn without_a_name_the_device_is_the_first_that_takes_the_model() {
    each(|name, _, Checkpoint { shape, weights, .. }| {
        let choice = select::choose(None, &shape, &weights).expect("the last device takes any");
        let refused = select::choose(Some("cpu"), &shape, &weights).is_err();
        assert_eq!(choice.name(), if refused { "reference" } else { "cpu" }, "{name}");
        assert_eq!(choice.passed_over.len(), usize::from(refused), "{name}");
    });
}

/// Weights of a model with these dimensions, and those that one token is computed with.
fn parameters(shape: &Shape) -> (u64, u64) {
    let h = shape.hidden;
    let (attention, net) = (&shape.attention, &shape.delta_net);
    let (heads, kv_heads, dim) = (attention.heads, attention.kv_heads, attention.head_dim);
    let attention = h * dim * (2 * heads + 2 * kv_heads) + heads * dim * h + 2 * dim;
    let (keys, values) = (net.key_heads * net.key_dim, net.value_heads * net.value_dim);
    let delta_net = h * (2 * keys + 2 * values + 2 * net.value_heads)
        + values * h
        + (2 * keys + values) * net.conv_taps
        + 2 * net.value_heads
        + net.value_dim;
    let (mlp, mlp_active) = match shape.mlp {
        MlpShape::Dense { width } => (3 * h * width, 3 * h * width),
        MlpShape::Moe { experts, experts_per_token, expert_width, shared_width, .. } => {
            let always = h * experts + 3 * h * shared_width + h;
            let expert = 3 * h * expert_width;
            (always + experts * expert, always + experts_per_token * expert)
        }
    };
    let mixers = shape.layers_of(MixerKind::DeltaNet) * delta_net
        + shape.layers_of(MixerKind::Attention) * attention;
    let rest = mixers + shape.layers() * 2 * h + h;
    let matrix = shape.vocab * h;
    let (ends, ends_active) =
        if shape.tied_embeddings { (matrix, matrix) } else { (2 * matrix, matrix + h) };
    let layers = shape.layers();
    ((rest + layers * mlp + ends) as u64, (rest + layers * mlp_active + ends_active) as u64)
}

/// Bytes of the weights that one token is computed with: vectors are float32.
fn read_bytes(shape: &Shape, weights: &Weights) -> u64 {
    let mut bytes = weights.head.size_bytes() + 4 * weights.norm.len();
    if !shape.tied_embeddings {
        bytes += weights.embed.size_bytes() / weights.embed.outputs;
    }
    visit(shape, weights, &mut |matrix| bytes += matrix.size_bytes());
    for layer in &weights.layers {
        bytes += 4 * (layer.input_norm.len() + layer.post_norm.len());
        bytes += 4 * match &layer.mixer {
            Mixer::DeltaNet(net) => {
                net.conv.len() + net.a_log.len() + net.dt_bias.len() + net.norm.len()
            }
            Mixer::Attention(attention) => attention.q_norm.len() + attention.k_norm.len(),
        };
    }
    bytes as u64
}

/// Every matrix of the layers that one token is multiplied with.
fn visit(shape: &Shape, weights: &Weights, visit: &mut impl FnMut(&Linear)) {
    for layer in &weights.layers {
        match &layer.mixer {
            Mixer::DeltaNet(net) => {
                [&net.in_proj_qkv, &net.in_proj_z, &net.in_proj_b, &net.in_proj_a, &net.out_proj]
                    .into_iter()
                    .for_each(&mut *visit);
            }
            Mixer::Attention(attention) => {
                [&attention.q_proj, &attention.k_proj, &attention.v_proj, &attention.o_proj]
                    .into_iter()
                    .for_each(&mut *visit);
            }
        }
        let swiglu = |Swiglu { gate, up, down }: &Swiglu, visit: &mut dyn FnMut(&Linear)| {
            [gate, up, down].into_iter().for_each(visit);
        };
        match &layer.mlp {
            Mlp::Dense(mlp) => swiglu(mlp, visit),
            Mlp::Moe(moe) => {
                swiglu(&moe.shared, visit);
                [&moe.router, &moe.shared_gate].into_iter().for_each(&mut *visit);
                let MlpShape::Moe { experts_per_token, .. } = shape.mlp else {
                    unreachable!("weights and shape agree")
                };
                for stack in [&moe.experts.gate, &moe.experts.up, &moe.experts.down] {
                    stack[..experts_per_token].iter().for_each(&mut *visit);
                }
            }
        }
    }
}
