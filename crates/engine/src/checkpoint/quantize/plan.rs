//! Which tensors a quantised checkpoint has, and what of the source each is made of.

use super::{
    LeftOut, Options,
    metadata::GATE_PACKING,
    names::Named,
    piece::{Block, Make, Piece},
};
use crate::{
    Error,
    checkpoint::{
        Source,
        config::Packing,
        safetensors::{Dtype, Tensor, Tensors},
        writer::Entry,
    },
    model::{MixerKind, MlpShape, Shape},
};

/// All modules of the checkpoint to write.
pub(super) struct Plan {
    pub(super) pieces: Vec<Piece>,
    pub(super) left_out: LeftOut,
}

/// Finds every tensor that the shape calls for, and complains of those that are left.
pub(super) fn plan(
    source: &Source,
    tensors: Tensors,
    shape: &Shape,
    options: &Options,
) -> Result<Plan, Error> {
    let named = Named::new(source, tensors)?;
    let mut planner = Planner {
        converted: named.is_converted(),
        packing: Packing { bits: options.bits, group: options.group },
        keep_norm_float32: options.keep_norm_float32,
        named,
        pieces: Vec::new(),
    };
    planner.matrix("model.embed_tokens", shape.vocab, shape.hidden)?;
    match shape.tied_embeddings {
        true => planner.named.drop_tied_head(),
        false => planner.matrix("lm_head", shape.vocab, shape.hidden)?,
    }
    for layer in 0..shape.layers() {
        planner.layer(shape, layer)?;
    }
    planner.gain("model.norm.weight", shape.hidden)?;
    Ok(Plan { pieces: planner.pieces, left_out: planner.named.finish()? })
}

struct Planner {
    named: Named,
    converted: bool,
    packing: Packing,
    keep_norm_float32: bool,
    pieces: Vec<Piece>,
}

impl Planner {
    fn layer(&mut self, shape: &Shape, index: usize) -> Result<(), Error> {
        let at = format!("model.layers.{index}");
        self.gain(&format!("{at}.input_layernorm.weight"), shape.hidden)?;
        match shape.mixers[index] {
            MixerKind::DeltaNet => self.delta_net(shape, &format!("{at}.linear_attn"))?,
            MixerKind::Attention => self.attention(shape, &format!("{at}.self_attn"))?,
        }
        self.gain(&format!("{at}.post_attention_layernorm.weight"), shape.hidden)?;
        self.mlp(shape, &format!("{at}.mlp"))
    }

    fn delta_net(&mut self, shape: &Shape, at: &str) -> Result<(), Error> {
        let (hidden, net) = (shape.hidden, &shape.delta_net);
        self.matrix(&format!("{at}.in_proj_qkv"), net.conv_channels(), hidden)?;
        self.matrix(&format!("{at}.in_proj_z"), net.value_width(), hidden)?;
        self.matrix(&format!("{at}.in_proj_b"), net.value_heads, hidden)?;
        self.matrix(&format!("{at}.in_proj_a"), net.value_heads, hidden)?;
        self.conv(&format!("{at}.conv1d.weight"), net.conv_channels(), net.conv_taps)?;
        // mlx-lm casts every float but this one.
        self.vector(&format!("{at}.A_log"), net.value_heads, |_| Make::Same)?;
        self.vector(&format!("{at}.dt_bias"), net.value_heads, |_| Make::Bf16)?;
        let keep = self.keep_norm_float32;
        self.vector(&format!("{at}.norm.weight"), net.value_dim, |dtype| match dtype {
            // bfloat16 holds it exactly already.
            Dtype::F32 | Dtype::F16 if keep => Make::F32,
            _ => Make::Bf16,
        })?;
        self.matrix(&format!("{at}.out_proj"), hidden, net.value_width())
    }

    fn attention(&mut self, shape: &Shape, at: &str) -> Result<(), Error> {
        let (hidden, attention) = (shape.hidden, &shape.attention);
        let (query, kv) = (attention.query_width(), attention.kv_width());
        self.matrix(&format!("{at}.q_proj"), 2 * query, hidden)?;
        self.matrix(&format!("{at}.k_proj"), kv, hidden)?;
        self.matrix(&format!("{at}.v_proj"), kv, hidden)?;
        self.gain(&format!("{at}.q_norm.weight"), attention.head_dim)?;
        self.gain(&format!("{at}.k_norm.weight"), attention.head_dim)?;
        self.matrix(&format!("{at}.o_proj"), hidden, query)
    }

    fn mlp(&mut self, shape: &Shape, at: &str) -> Result<(), Error> {
        let hidden = shape.hidden;
        match shape.mlp {
            MlpShape::Dense { width } => self.swiglu(at, hidden, width),
            MlpShape::Moe { experts, expert_width, shared_width, .. } => {
                self.gate(&format!("{at}.gate"), experts, hidden)?;
                self.experts(at, [experts, expert_width, hidden])?;
                self.swiglu(&format!("{at}.shared_expert"), hidden, shared_width)?;
                self.gate(&format!("{at}.shared_expert_gate"), 1, hidden)
            }
        }
    }

    fn swiglu(&mut self, at: &str, hidden: usize, width: usize) -> Result<(), Error> {
        self.matrix(&format!("{at}.gate_proj"), width, hidden)?;
        self.matrix(&format!("{at}.up_proj"), width, hidden)?;
        self.matrix(&format!("{at}.down_proj"), hidden, width)
    }

    /// The routed experts, from whichever of three layouts the source has.
    fn experts(&mut self, at: &str, [count, width, hidden]: [usize; 3]) -> Result<(), Error> {
        let gate_up = format!("{at}.experts.gate_up_proj");
        let fused = match self.named.has(&gate_up) {
            true => Some(self.named.take(&gate_up, &[count, 2 * width, hidden])?),
            false => None,
        };
        for (half, role) in ["gate_proj", "up_proj", "down_proj"].into_iter().enumerate() {
            let [outputs, inputs] = match role {
                "down_proj" => [hidden, width],
                _ => [width, hidden],
            };
            let dims = [count, outputs, inputs];
            let module = format!("{at}.switch_mlp.{role}");
            let stacked = format!("{module}.weight");
            let blocks = if let Some(gate_up) = &fused {
                match role {
                    "down_proj" => {
                        let down = self.named.take(&format!("{at}.experts.down_proj"), &dims)?;
                        vec![Block::whole(down)]
                    }
                    // An expert's rows: those of its gate, then those of up.
                    _ => {
                        (0..count).map(|e| Block::part(gate_up, 2 * e + half, 2 * count)).collect()
                    }
                }
            } else if self.named.has(&stacked) {
                vec![Block::whole(self.named.take(&stacked, &dims)?)]
            } else {
                (0..count)
                    .map(|e| {
                        let name = format!("{at}.experts.{e}.{role}.weight");
                        self.named.take(&name, &dims[1..]).map(Block::whole)
                    })
                    .collect::<Result<_, _>>()?
            };
            self.push_matrix(&module, &dims, self.packing, blocks)?;
        }
        Ok(())
    }

    fn matrix(&mut self, module: &str, outputs: usize, inputs: usize) -> Result<(), Error> {
        self.packed(module, outputs, inputs, self.packing)
    }

    /// A matrix whose outputs choose or weigh experts.
    fn gate(&mut self, module: &str, outputs: usize, inputs: usize) -> Result<(), Error> {
        self.packed(module, outputs, inputs, GATE_PACKING)
    }

    fn packed(
        &mut self,
        module: &str,
        outputs: usize,
        inputs: usize,
        packing: Packing,
    ) -> Result<(), Error> {
        let dims = [outputs, inputs];
        let tensor = self.named.take(&format!("{module}.weight"), &dims)?;
        self.push_matrix(module, &dims, packing, vec![Block::whole(tensor)])
    }

    /// Notes the three tensors of a matrix [.., outputs, inputs].
    fn push_matrix(
        &mut self,
        module: &str,
        dims: &[usize],
        packing: Packing,
        source: Vec<Block>,
    ) -> Result<(), Error> {
        let (&inputs, rows) = dims.split_last().expect("a matrix has two dimensions or more");
        if !inputs.is_multiple_of(packing.group) {
            return Err(Error::Tensor {
                path: source[0].path.clone(),
                tensor: format!("{module}.weight"),
                problem: format!(
                    "its {inputs} inputs are not a multiple of the group size {}: choose a smaller \
                     group",
                    packing.group
                ),
            });
        }
        let entry = |suffix: &str, dtype: Dtype, columns: usize| Entry {
            name: format!("language_model.{module}.{suffix}"),
            dtype,
            dims: [rows, &[columns]].concat(),
        };
        let entries = vec![
            entry("weight", Dtype::U32, inputs * packing.bits / 32),
            entry("scales", Dtype::BF16, inputs / packing.group),
            entry("biases", Dtype::BF16, inputs / packing.group),
        ];
        self.pieces.push(Piece { entries, source, make: Make::Matrix(packing) });
        Ok(())
    }

    /// A norm's gain: stored zero-centred by the source, unless that is converted.
    fn gain(&mut self, name: &str, len: usize) -> Result<(), Error> {
        let make = match (self.keep_norm_float32, self.converted) {
            (false, false) => Make::GainBf16,
            (true, false) => Make::GainF32,
            (false, true) => Make::Bf16,
            (true, true) => Make::F32,
        };
        self.vector(name, len, |_| make)
    }

    /// Convolution taps [channels, taps, 1]: an unconverted source holds them in the same order.
    fn conv(&mut self, name: &str, channels: usize, taps: usize) -> Result<(), Error> {
        let stored = match self.converted {
            true => [channels, taps, 1],
            false => [channels, 1, taps],
        };
        let tensor = self.named.take(name, &stored)?;
        self.push_vector(name, vec![channels, taps, 1], tensor, Make::Bf16);
        Ok(())
    }

    fn vector(
        &mut self,
        name: &str,
        len: usize,
        make: impl Fn(Dtype) -> Make,
    ) -> Result<(), Error> {
        let tensor = self.named.take(name, &[len])?;
        let make = make(tensor.dtype);
        self.push_vector(name, vec![len], tensor, make);
        Ok(())
    }

    fn push_vector(&mut self, name: &str, dims: Vec<usize>, tensor: Tensor, make: Make) {
        let dtype = match make {
            Make::Same => tensor.dtype,
            Make::GainF32 | Make::F32 => Dtype::F32,
            Make::Bf16 | Make::GainBf16 => Dtype::BF16,
            Make::Matrix(_) => unreachable!("a vector is no matrix"),
        };
        let entry = Entry { name: format!("language_model.{name}"), dtype, dims };
        let source = vec![Block::whole(tensor)];
        self.pieces.push(Piece { entries: vec![entry], source, make });
    }
}
