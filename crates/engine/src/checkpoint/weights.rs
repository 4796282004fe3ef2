//! Tensor names to weights by role.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    Unused,
    config::{Config, Quantization},
    safetensors::{Dtype, Tensor, Tensors},
};
use crate::{
    Error,
    model::{
        Attention, DeltaNet, Experts, Layer, Linear, Mixer, MixerKind, Mlp, MlpShape, Moe, Role,
        Shape, Swiglu, TensorInfo, Weights,
    },
};

/// Parts of a checkpoint that text generation does not need: vision, and the draft head of
/// multi-token prediction.
pub(super) const UNUSED_PREFIXES: [&str; 6] =
    ["vision_tower.", "model.visual.", "visual.", "mtp.", "language_model.mtp.", "model.mtp."];

const DISAGREE: &str = "config.json and the weights disagree, fetch both again";

/// Takes every tensor that the shape calls for, lists them, and complains of those that are left
/// and are not known to be of no use.
pub(super) fn assign(
    config: &Config,
    tensors: Tensors,
) -> Result<(Weights, Vec<TensorInfo>, Unused), Error> {
    let shape = &config.shape;
    let prefix = match tensors.iter().any(|(name, _)| name.starts_with("language_model.model.")) {
        true => "language_model.",
        false => "",
    };
    let mut reader = Reader {
        folder: config.path.parent().map(PathBuf::from).unwrap_or_default(),
        prefix,
        converted: is_converted(&tensors),
        quantization: &config.quantization,
        tensors,
        taken: Vec::new(),
    };
    let embed = reader.linear("model.embed_tokens", shape.vocab, shape.hidden)?;
    let head = match shape.tied_embeddings {
        true => embed.clone(),
        false => reader.linear("lm_head", shape.vocab, shape.hidden)?,
    };
    let weights = Weights {
        layers: (0..shape.layers())
            .map(|index| reader.layer(shape, index))
            .collect::<Result<_, _>>()?,
        norm: reader.gain("model.norm.weight", shape.hidden)?,
        embed,
        head,
    };
    reader.refuse_leftovers(shape.tied_embeddings)?;
    let unused = Unused {
        tensors: reader.tensors.iter().count(),
        bytes: reader.tensors.iter().map(|(_, tensor)| tensor.bytes.len()).sum(),
    };
    Ok((weights, reader.taken, unused))
}

/// What a tensor is for, by its name without the checkpoint's prefix and `.weight`.
fn role_of(name: &str) -> Role {
    const BY_PART: [(&str, Role); 7] = [
        (".embed_tokens", Role::Embed),
        ("lm_head", Role::Head),
        (".linear_attn.", Role::DeltaNet),
        (".self_attn.", Role::Attention),
        (".switch_mlp.", Role::Experts),
        (".shared_expert", Role::SharedExpert),
        (".mlp.", Role::Mlp),
    ];
    if name.ends_with(".mlp.gate") {
        return Role::Router;
    }
    let known = BY_PART.iter().find(|(part, _)| name.contains(part));
    known.map_or(Role::Norms, |&(_, role)| role)
}

/// Whether gains are stored whole. A checkpoint that MLX has not converted keeps the convolution
/// as [channels, 1, taps], and its norms as gain - 1.
fn is_converted(tensors: &Tensors) -> bool {
    let conv = tensors.iter().find(|(name, _)| {
        name.ends_with(".linear_attn.conv1d.weight")
            && !UNUSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    });
    conv.is_none_or(|(_, tensor)| tensor.shape.last() == Some(&1))
}

struct Reader<'a> {
    folder: PathBuf,
    prefix: &'static str,
    converted: bool,
    quantization: &'a Quantization,
    tensors: Tensors,
    /// Those that the model uses.
    taken: Vec<TensorInfo>,
}

impl Reader<'_> {
    fn layer(&mut self, shape: &Shape, index: usize) -> Result<Layer, Error> {
        let name = format!("model.layers.{index}");
        Ok(Layer {
            input_norm: self.gain(&format!("{name}.input_layernorm.weight"), shape.hidden)?,
            mixer: match shape.mixers[index] {
                MixerKind::DeltaNet => {
                    Mixer::DeltaNet(self.delta_net(shape, &format!("{name}.linear_attn"))?)
                }
                MixerKind::Attention => {
                    Mixer::Attention(self.attention(shape, &format!("{name}.self_attn"))?)
                }
            },
            post_norm: self
                .gain(&format!("{name}.post_attention_layernorm.weight"), shape.hidden)?,
            mlp: self.mlp(shape, &format!("{name}.mlp"))?,
        })
    }

    fn delta_net(&mut self, shape: &Shape, name: &str) -> Result<DeltaNet, Error> {
        let (hidden, dims) = (shape.hidden, &shape.delta_net);
        let (channels, heads, width) = (dims.conv_channels(), dims.value_heads, dims.value_width());
        Ok(DeltaNet {
            in_proj_qkv: self.linear(&format!("{name}.in_proj_qkv"), channels, hidden)?,
            in_proj_z: self.linear(&format!("{name}.in_proj_z"), width, hidden)?,
            in_proj_b: self.linear(&format!("{name}.in_proj_b"), heads, hidden)?,
            in_proj_a: self.linear(&format!("{name}.in_proj_a"), heads, hidden)?,
            conv: self.conv(&format!("{name}.conv1d.weight"), channels, dims.conv_taps)?,
            a_log: self.vector(&format!("{name}.A_log"), &[heads])?,
            dt_bias: self.vector(&format!("{name}.dt_bias"), &[heads])?,
            norm: self.vector(&format!("{name}.norm.weight"), &[dims.value_dim])?,
            out_proj: self.linear(&format!("{name}.out_proj"), hidden, width)?,
        })
    }

    fn attention(&mut self, shape: &Shape, name: &str) -> Result<Attention, Error> {
        let (hidden, dims) = (shape.hidden, &shape.attention);
        let (query, kv) = (dims.query_width(), dims.kv_width());
        Ok(Attention {
            q_proj: self.linear(&format!("{name}.q_proj"), 2 * query, hidden)?,
            k_proj: self.linear(&format!("{name}.k_proj"), kv, hidden)?,
            v_proj: self.linear(&format!("{name}.v_proj"), kv, hidden)?,
            q_norm: self.gain(&format!("{name}.q_norm.weight"), dims.head_dim)?,
            k_norm: self.gain(&format!("{name}.k_norm.weight"), dims.head_dim)?,
            o_proj: self.linear(&format!("{name}.o_proj"), hidden, query)?,
        })
    }

    fn mlp(&mut self, shape: &Shape, name: &str) -> Result<Mlp, Error> {
        let hidden = shape.hidden;
        match shape.mlp {
            MlpShape::Dense { width } => Ok(Mlp::Dense(self.swiglu(name, hidden, width)?)),
            MlpShape::Moe { experts, expert_width, shared_width, .. } => Ok(Mlp::Moe(Moe {
                router: self.linear(&format!("{name}.gate"), experts, hidden)?,
                experts: Experts {
                    gate: self.stack(name, "gate_proj", experts, expert_width, hidden)?,
                    up: self.stack(name, "up_proj", experts, expert_width, hidden)?,
                    down: self.stack(name, "down_proj", experts, hidden, expert_width)?,
                },
                shared: self.swiglu(&format!("{name}.shared_expert"), hidden, shared_width)?,
                shared_gate: self.linear(&format!("{name}.shared_expert_gate"), 1, hidden)?,
            })),
        }
    }

    fn swiglu(&mut self, name: &str, hidden: usize, width: usize) -> Result<Swiglu, Error> {
        Ok(Swiglu {
            gate: self.linear(&format!("{name}.gate_proj"), width, hidden)?,
            up: self.linear(&format!("{name}.up_proj"), width, hidden)?,
            down: self.linear(&format!("{name}.down_proj"), hidden, width)?,
        })
    }

    /// The matrix of each expert, from the three-dimensional tensors of the stack.
    fn stack(
        &mut self,
        name: &str,
        role: &str,
        experts: usize,
        outputs: usize,
        inputs: usize,
    ) -> Result<Vec<Linear>, Error> {
        let whole =
            self.quantised(&format!("{name}.switch_mlp.{role}"), &[experts, outputs], inputs)?;
        let part = |bytes: &crate::model::Bytes, expert: usize| {
            let len = bytes.len() / experts;
            bytes.slice(expert * len..(expert + 1) * len).expect("the length was checked")
        };
        Ok((0..experts)
            .map(|expert| Linear {
                outputs,
                weight: part(&whole.weight, expert),
                scales: part(&whole.scales, expert),
                biases: part(&whole.biases, expert),
                ..whole.clone()
            })
            .collect())
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Linear, Error> {
        self.quantised(name, &[outputs], inputs)
    }

    /// A quantised tensor [rows.., inputs]; `outputs` counts the rows of all matrices together.
    fn quantised(&mut self, name: &str, rows: &[usize], inputs: usize) -> Result<Linear, Error> {
        let packing = self.quantization.of(&format!("{}{name}", self.prefix));
        if !inputs.is_multiple_of(packing.group) {
            let problem = format!(
                "its {inputs} inputs are not a multiple of the group size {}",
                packing.group
            );
            return Err(self.wrong(&format!("{name}.weight"), problem));
        }
        let words = inputs * packing.bits / 32;
        let shape = |columns: usize| [rows, &[columns]].concat();
        let weight = self.take(&format!("{name}.weight"))?;
        if weight.dtype != Dtype::U32 || weight.shape != shape(words) {
            let problem = format!(
                "{:?} {:?}, where {} bit in groups of {} want U32 {:?}: {}",
                weight.dtype,
                weight.shape,
                packing.bits,
                packing.group,
                shape(words),
                match weight.dtype.is_float() {
                    true => "it is not quantised, `calla quantize SRC DST` does that",
                    false => DISAGREE,
                }
            );
            return Err(self.wrong(&format!("{name}.weight"), problem));
        }
        let groups = shape(inputs / packing.group);
        let scales = self.take_as(&format!("{name}.scales"), Dtype::BF16, &groups)?;
        let biases = self.take_as(&format!("{name}.biases"), Dtype::BF16, &groups)?;
        self.taken.push(TensorInfo {
            name: format!("{}{name}.weight", self.prefix),
            role: role_of(name),
            shape: shape(inputs),
            bits: packing.bits,
            group: Some(packing.group),
            bytes: weight.bytes.len() + scales.bytes.len() + biases.bytes.len(),
        });
        Ok(Linear {
            outputs: rows.iter().product(),
            inputs,
            bits: packing.bits,
            group: packing.group,
            weight: weight.bytes,
            scales: scales.bytes,
            biases: biases.bytes,
        })
    }

    /// A norm's gain, ready to multiply with.
    fn gain(&mut self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        let mut gain = self.vector(name, &[len])?;
        if !self.converted {
            gain.iter_mut().for_each(|gain| *gain += 1.0);
        }
        Ok(gain)
    }

    /// Convolution taps [channels, taps]: both layouts hold them in this order.
    fn conv(&mut self, name: &str, channels: usize, taps: usize) -> Result<Vec<f32>, Error> {
        match self.converted {
            true => self.vector(name, &[channels, taps, 1]),
            false => self.vector(name, &[channels, 1, taps]),
        }
    }

    fn vector(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let tensor = self.take(name)?;
        if tensor.shape != shape {
            let problem =
                format!("shape {:?}, where {shape:?} is expected: {DISAGREE}", tensor.shape);
            return Err(self.wrong(name, problem));
        }
        let values = tensor.to_f32().ok_or_else(|| {
            let problem =
                format!("{:?}, where BF16, F16 or F32 is expected: {DISAGREE}", tensor.dtype);
            self.wrong(name, problem)
        })?;
        self.taken.push(TensorInfo {
            name: format!("{}{name}", self.prefix),
            role: role_of(name),
            shape: tensor.shape,
            bits: 8 * tensor.dtype.size_bytes().expect("it was read"),
            group: None,
            bytes: tensor.bytes.len(),
        });
        Ok(values)
    }

    fn take_as(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Tensor, Error> {
        let tensor = self.take(name)?;
        if tensor.dtype != dtype || tensor.shape != shape {
            let problem = format!(
                "{:?} {:?}, where {dtype:?} {shape:?} is expected: {DISAGREE}",
                tensor.dtype, tensor.shape
            );
            return Err(self.wrong(name, problem));
        }
        Ok(tensor)
    }

    fn take(&mut self, name: &str) -> Result<Tensor, Error> {
        let full = format!("{}{name}", self.prefix);
        self.tensors.take(&full).ok_or_else(|| self.wrong(name, format!("missing: {DISAGREE}")))
    }

    fn wrong(&self, name: &str, problem: String) -> Error {
        let tensor = format!("{}{name}", self.prefix);
        Error::Tensor { path: self.folder.clone(), tensor, problem }
    }

    fn refuse_leftovers(&self, tied: bool) -> Result<(), Error> {
        let head = format!("{}lm_head.", self.prefix);
        let unknown: BTreeMap<&String, &Tensor> = self
            .tensors
            .iter()
            .filter(|(name, _)| !UNUSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
            // A tied checkpoint may carry the head once more.
            .filter(|(name, _)| !(tied && name.starts_with(&head)))
            .collect();
        match unknown.first_key_value() {
            None => Ok(()),
            Some((name, tensor)) => Err(Error::Tensor {
                path: tensor.path.clone(),
                tensor: (*name).clone(),
                problem: format!(
                    "no part of this model ({} such tensors): {DISAGREE}",
                    unknown.len()
                ),
            }),
        }
    }
}
