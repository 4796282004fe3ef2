//! Which tensors a checkpoint of a shape has, what each is filled with, and its config.json.

use serde_json::{Map, Value, json};

use super::fill::Stream;
use crate::{
    Error,
    checkpoint::{
        safetensors::Dtype,
        writer::{Entry, Piece, TensorOut},
    },
    model::{MixerKind, MlpShape, Shape},
};

/// Bytes filled and written at a time.
const BUFFER_BYTES: usize = 4 << 20;
/// Inputs that share a scale and a bias.
const GROUP: usize = 64;
/// Bits of a quantised element, the router's and the shared expert's gate excepted.
const BITS: usize = 4;
/// Bits of the router and of the shared expert's gate.
const BITS_GATE: usize = 8;
/// What a branch adds to the residual stream, against the unit it starts from: small enough that
/// 80 branches stay of order one.
const GAIN_BRANCH: f64 = 0.3;
/// Router logits spread this far: the best experts stand clear of the others, as when trained.
const GAIN_ROUTER: f64 = 3.0;
/// Logits spread this far: the best token has a margin.
const GAIN_HEAD: f64 = 2.0;

/// All that a checkpoint's files hold.
pub(super) struct Plan {
    pub(super) config: Value,
    pub(super) tensors: Vec<Tensor>,
    seed: u64,
}

/// One tensor to write.
#[derive(Clone)]
pub(super) struct Tensor {
    pub(super) entry: Entry,
    pub(super) fill: Fill,
    pub(super) seed: u64,
}

/// What a tensor is filled with.
#[derive(Clone, Copy)]
pub(super) enum Fill {
    /// Packed elements (u32): all bits random.
    Codes,
    /// Scales of a quantised matrix (bf16): this value, up to 10 % more or less by group.
    Scales(f64),
    /// Biases to the scales of the same matrix (bf16): they centre its values on zero.
    Biases {
        /// Value of the scales.
        scale: f64,
        /// Mean of the elements, 7.5 for 4 bits.
        centre: f64,
    },
    /// Even over a range (bf16).
    Uniform(f64, f64),
    /// Even over a range (f32).
    UniformF32(f64, f64),
}

impl Plan {
    pub(super) fn new(shape: &Shape, seed: u64) -> Self {
        let mut plan = Plan { config: Value::Null, tensors: Vec::new(), seed };
        plan.root(shape);
        for (i, &mixer) in shape.mixers.iter().enumerate() {
            plan.layer(shape, &format!("language_model.model.layers.{i}"), mixer);
        }
        plan.config = config(shape);
        plan
    }

    fn root(&mut self, shape: &Shape) {
        // A tied matrix is both: rows to start from and the head's inputs.
        let embed_deviation = match shape.tied_embeddings {
            true => GAIN_HEAD / (shape.hidden as f64).sqrt(),
            false => 1.0,
        };
        let dims = [shape.vocab, shape.hidden];
        self.matrix("language_model.model.embed_tokens", &dims, BITS, embed_deviation);
        if !shape.tied_embeddings {
            self.linear("language_model.lm_head", &dims, BITS, GAIN_HEAD);
        }
        self.norm("language_model.model.norm", shape.hidden);
    }

    fn layer(&mut self, shape: &Shape, layer: &str, mixer: MixerKind) {
        self.norm(&format!("{layer}.input_layernorm"), shape.hidden);
        self.norm(&format!("{layer}.post_attention_layernorm"), shape.hidden);
        match mixer {
            MixerKind::DeltaNet => self.delta_net(shape, &format!("{layer}.linear_attn")),
            MixerKind::Attention => self.attention(shape, &format!("{layer}.self_attn")),
        }
        self.mlp(shape, &format!("{layer}.mlp"));
    }

    fn delta_net(&mut self, shape: &Shape, at: &str) {
        let net = &shape.delta_net;
        let hidden = shape.hidden;
        self.linear(&format!("{at}.in_proj_qkv"), &[net.conv_channels(), hidden], BITS, 1.0);
        self.linear(&format!("{at}.in_proj_z"), &[net.value_width(), hidden], BITS, 1.0);
        self.linear(&format!("{at}.in_proj_b"), &[net.value_heads, hidden], BITS, 1.0);
        self.linear(&format!("{at}.in_proj_a"), &[net.value_heads, hidden], BITS, 1.0);
        self.linear(&format!("{at}.out_proj"), &[hidden, net.value_width()], BITS, GAIN_BRANCH);
        let taps = vec![net.conv_channels(), net.conv_taps, 1];
        self.tensor(format!("{at}.conv1d.weight"), taps, Fill::Uniform(-0.9, 0.9));
        // Decay rates from slow to fast, as at the start of training.
        self.tensor(format!("{at}.A_log"), vec![net.value_heads], Fill::UniformF32(0.0, 2.5));
        self.tensor(format!("{at}.dt_bias"), vec![net.value_heads], Fill::Uniform(-4.0, 1.0));
        self.norm(&format!("{at}.norm"), net.value_dim);
    }

    fn attention(&mut self, shape: &Shape, at: &str) {
        let attention = &shape.attention;
        let hidden = shape.hidden;
        let query_width = attention.query_width();
        self.linear(&format!("{at}.q_proj"), &[2 * query_width, hidden], BITS, 1.0);
        self.linear(&format!("{at}.k_proj"), &[attention.kv_width(), hidden], BITS, 1.0);
        self.linear(&format!("{at}.v_proj"), &[attention.kv_width(), hidden], BITS, 1.0);
        self.linear(&format!("{at}.o_proj"), &[hidden, query_width], BITS, GAIN_BRANCH);
        self.norm(&format!("{at}.q_norm"), attention.head_dim);
        self.norm(&format!("{at}.k_norm"), attention.head_dim);
    }

    fn mlp(&mut self, shape: &Shape, at: &str) {
        match shape.mlp {
            MlpShape::Dense { width } => self.swiglu(at, &[], width, shape.hidden),
            MlpShape::Moe { experts, expert_width, shared_width, .. } => {
                let hidden = shape.hidden;
                self.linear(&format!("{at}.gate"), &[experts, hidden], BITS_GATE, GAIN_ROUTER);
                self.linear(&format!("{at}.shared_expert_gate"), &[1, hidden], BITS_GATE, 1.0);
                self.swiglu(&format!("{at}.shared_expert"), &[], shared_width, hidden);
                self.swiglu(&format!("{at}.switch_mlp"), &[experts], expert_width, hidden);
            }
        }
    }

    fn swiglu(&mut self, at: &str, stack: &[usize], width: usize, hidden: usize) {
        let inward = [stack, &[width, hidden]].concat();
        let outward = [stack, &[hidden, width]].concat();
        self.linear(&format!("{at}.gate_proj"), &inward, BITS, 1.0);
        self.linear(&format!("{at}.up_proj"), &inward, BITS, 1.0);
        // silu(gate) * up of unit normals has a deviation near 0.6.
        self.linear(&format!("{at}.down_proj"), &outward, BITS, GAIN_BRANCH / 0.6);
    }

    /// A matrix [.., outputs, inputs] whose product with a unit vector has deviation `gain`.
    fn linear(&mut self, module: &str, dims: &[usize], bits: usize, gain: f64) {
        let inputs = dims[dims.len() - 1] as f64;
        self.matrix(module, dims, bits, gain / inputs.sqrt());
    }

    /// A quantised matrix [.., outputs, inputs] of values with the given deviation.
    fn matrix(&mut self, module: &str, dims: &[usize], bits: usize, deviation: f64) {
        let levels = (1u32 << bits) as f64;
        // Deviation of whole numbers spread evenly over `levels` values.
        let scale = deviation / ((levels * levels - 1.0) / 12.0).sqrt();
        let centre = (levels - 1.0) / 2.0;
        let (inputs, outer) = dims.split_last().expect("a matrix has two dimensions or more");
        let with_last = |last: usize| [outer, &[last]].concat();
        let groups = with_last(inputs / GROUP);
        self.tensor(format!("{module}.weight"), with_last(inputs * bits / 32), Fill::Codes);
        self.tensor(format!("{module}.scales"), groups.clone(), Fill::Scales(scale));
        self.tensor(format!("{module}.biases"), groups, Fill::Biases { scale, centre });
    }

    fn norm(&mut self, module: &str, width: usize) {
        self.tensor(format!("{module}.weight"), vec![width], Fill::Uniform(0.8, 1.2));
    }

    fn tensor(&mut self, name: String, dims: Vec<usize>, fill: Fill) {
        let entry = Entry { name, dtype: fill.dtype(), dims };
        self.tensors.push(Tensor { entry, fill, seed: self.seed });
    }
}

impl Tensor {
    /// The module that a quantised matrix's three tensors share.
    pub(super) fn module(&self) -> &str {
        let name = &self.entry.name;
        name.rsplit_once('.').map_or(name, |(module, _)| module)
    }
}

impl Piece for Tensor {
    fn entries(&self) -> &[Entry] {
        std::slice::from_ref(&self.entry)
    }

    fn fill(&self, outs: &mut [TensorOut]) -> Result<(), Error> {
        let [out] = outs else { unreachable!("there is one entry") };
        let mut stream = Stream::new(self);
        let mut buffer = vec![0; BUFFER_BYTES.min(out.left_bytes() as usize)];
        while out.left_bytes() > 0 {
            let len = buffer.len().min(out.left_bytes() as usize);
            stream.write(&mut buffer[..len]);
            out.append(&buffer[..len])?;
        }
        Ok(())
    }
}

impl Fill {
    fn dtype(self) -> Dtype {
        match self {
            Fill::Codes => Dtype::U32,
            Fill::UniformF32(..) => Dtype::F32,
            Fill::Scales(_) | Fill::Biases { .. } | Fill::Uniform(..) => Dtype::BF16,
        }
    }
}

/// config.json as a conversion to MLX writes it.
fn config(shape: &Shape) -> Value {
    let (model_type, architecture) = match shape.mlp {
        MlpShape::Dense { .. } => ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
        MlpShape::Moe { .. } => ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
    };
    let quantization = quantization(shape);
    json!({
        "architectures": [architecture],
        "eos_token_id": shape.eos,
        "model_type": model_type,
        "quantization": quantization,
        "quantization_config": quantization,
        "text_config": text_config(shape, model_type),
        "tie_word_embeddings": shape.tied_embeddings,
    })
}

/// The `quantization` object: the common format, and an override for each 8-bit module.
fn quantization(shape: &Shape) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("group_size".into(), GROUP.into());
    object.insert("bits".into(), BITS.into());
    object.insert("mode".into(), "affine".into());
    if matches!(shape.mlp, MlpShape::Moe { .. }) {
        for layer in 0..shape.layers() {
            for gate in ["gate", "shared_expert_gate"] {
                let module = format!("language_model.model.layers.{layer}.mlp.{gate}");
                object.insert(module, json!({"group_size": GROUP, "bits": BITS_GATE}));
            }
        }
    }
    object
}

fn text_config(shape: &Shape, model_type: &str) -> Value {
    let (attention, net) = (&shape.attention, &shape.delta_net);
    let layer_types: Vec<&str> = (shape.mixers.iter())
        .map(|mixer| match mixer {
            MixerKind::DeltaNet => "linear_attention",
            MixerKind::Attention => "full_attention",
        })
        .collect();
    let mut object = json!({
        "attention_bias": false,
        "attn_output_gate": true,
        "eos_token_id": shape.eos[0],
        "head_dim": attention.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "layer_types": layer_types,
        "linear_conv_kernel_dim": net.conv_taps,
        "linear_key_head_dim": net.key_dim,
        "linear_num_key_heads": net.key_heads,
        "linear_num_value_heads": net.value_heads,
        "linear_value_head_dim": net.value_dim,
        "max_position_embeddings": shape.context_max,
        "model_type": format!("{model_type}_text"),
        "num_attention_heads": attention.heads,
        "num_hidden_layers": shape.layers(),
        "num_key_value_heads": attention.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_theta": attention.rope_theta,
            "rope_type": "default",
            "partial_rotary_factor": attention.rotary_dims as f64 / attention.head_dim as f64,
        },
        "tie_word_embeddings": shape.tied_embeddings,
        "vocab_size": shape.vocab,
    });
    let fields = object.as_object_mut().expect("json! of braces is an object");
    match shape.mlp {
        MlpShape::Dense { width } => {
            fields.insert("intermediate_size".into(), width.into());
        }
        MlpShape::Moe { experts, experts_per_token, expert_width, shared_width, renormalise } => {
            fields.insert("num_experts".into(), experts.into());
            fields.insert("num_experts_per_tok".into(), experts_per_token.into());
            fields.insert("moe_intermediate_size".into(), expert_width.into());
            fields.insert("shared_expert_intermediate_size".into(), shared_width.into());
            fields.insert("norm_topk_prob".into(), renormalise.into());
        }
    }
    object
}
