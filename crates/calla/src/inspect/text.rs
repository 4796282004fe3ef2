//! The report as text.

use std::fmt;

use super::{Context, Dimensions, Format, MlpReport, Report, RoleReport, Tensor};
use crate::output::size;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.model)?;
        write!(f, "{}", self.shape)?;
        writeln!(
            f,
            "parameters  {}, of which {} work on a token",
            count(self.parameters),
            count(self.parameters_active)
        )?;
        write!(f, "size        {}", size(self.bytes))?;
        if self.unused.tensors > 0 {
            let bytes = size(self.unused.bytes as u64);
            write!(f, "; not used: {} tensors, {bytes}", self.unused.tensors)?;
        }
        writeln!(f, "\n")?;
        roles(f, &self.roles)?;
        writeln!(f)?;
        self.costs(f)?;
        writeln!(f)?;
        contexts(f, &self.contexts)?;
        if let Some(tensors) = &self.tensors {
            writeln!(f)?;
            list(f, tensors)?;
        }
        Ok(())
    }
}

impl Report {
    fn costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = &self.cost;
        writeln!(f, "backend     {}", cost.backend)?;
        writeln!(f, "decode      {} of weights a token", size(cost.decode_weight_bytes))?;
        writeln!(
            f,
            "prefill     {}FLOP a token, and {}FLOP for each token it attends to",
            scaled(cost.prefill_flop),
            scaled(cost.attend_flop)
        )?;
        writeln!(f, "KV cache    {} a token, {}", size(cost.kv_token_bytes), cost.kv_dtype)?;
        writeln!(f, "states      {} a sequence, float32", size(cost.state_bytes))?;
        writeln!(f, "memory      {}", self.memory_line())
    }

    fn memory_line(&self) -> String {
        let Some(free) = self.memory.free_bytes() else {
            return "unknown: this system does not tell".into();
        };
        let room = self.room_bytes.expect("known where the free memory is");
        let fits = match self.context_fits {
            Some(tokens) if tokens == self.shape.context_max => "any context fits".into(),
            Some(tokens) => format!("a context of {tokens} tokens fits"),
            None => "the model does not fit".into(),
        };
        format!("{} free, of which a model may take {}: {fits}", size(free), size(room))
    }
}

impl fmt::Display for Dimensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (attention, net) = (&self.attention, &self.delta_net);
        writeln!(f, "layers      {}", pattern(&self.layers))?;
        let tied = if self.tied_embeddings { ", head tied to the embeddings" } else { "" };
        writeln!(f, "width       {}, vocabulary of {}{tied}", self.hidden, self.vocab)?;
        writeln!(f, "context     {} tokens", self.context_max)?;
        writeln!(
            f,
            "attention   {} heads of {}, {} of keys and values; RoPE on {} dimensions, base {}",
            attention.heads,
            attention.head_dim,
            attention.kv_heads,
            attention.rotary_dims,
            attention.rope_theta
        )?;
        writeln!(
            f,
            "delta_net   {} key heads of {}, {} value heads of {}; convolution over {} tokens",
            net.key_heads, net.key_dim, net.value_heads, net.value_dim, net.conv_taps
        )?;
        match self.mlp {
            MlpReport::Dense { width } => writeln!(f, "mlp         {width} wide"),
            MlpReport::Moe { experts, experts_per_token, expert_width, shared_width } => writeln!(
                f,
                "moe         {experts} experts {expert_width} wide, {experts_per_token} a token; \
                 a shared one {shared_width} wide"
            ),
        }
    }
}

fn roles(f: &mut fmt::Formatter<'_>, roles: &[RoleReport]) -> fmt::Result {
    writeln!(
        f,
        "{:<14}{:>12}{:>12}{:>12}{:>13}  bits/group",
        "role", "parameters", "active", "size", "bits/weight"
    )?;
    for role in roles {
        let formats: Vec<String> = role.formats.iter().map(Format::to_string).collect();
        writeln!(
            f,
            "{:<14}{:>12}{:>12}{:>12}{:>13.2}  {}",
            role.role,
            count(role.parameters),
            count(role.parameters_active),
            size(role.bytes),
            role.bits_per_weight,
            formats.join(", ")
        )?;
    }
    Ok(())
}

fn contexts(f: &mut fmt::Formatter<'_>, contexts: &[Context]) -> fmt::Result {
    writeln!(
        f,
        "{:>9}{:>12}{:>13}{:>16}  fits",
        "context", "KV cache", "all memory", "decode moves"
    )?;
    for context in contexts {
        writeln!(
            f,
            "{:>9}{:>12}{:>13}{:>16}  {}",
            context.tokens,
            size(context.kv_bytes),
            size(context.need_bytes),
            size(context.decode_bytes),
            match context.fits {
                Some(true) => "yes",
                Some(false) => "no",
                None => "?",
            }
        )?;
    }
    Ok(())
}

fn list(f: &mut fmt::Formatter<'_>, tensors: &[Tensor]) -> fmt::Result {
    let name_len = tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0);
    writeln!(
        f,
        "{:<name_len$}  {:<14}{:>20}  {:<10}{:>12}",
        "tensor", "role", "shape", "bits/group", "size"
    )?;
    for tensor in tensors {
        let format = Format { bits: tensor.bits, group: tensor.group };
        writeln!(
            f,
            "{:<name_len$}  {:<14}{:>20}  {:<10}{:>12}",
            tensor.name,
            tensor.role,
            format!("{:?}", tensor.shape),
            format.to_string(),
            size(tensor.bytes as u64)
        )?;
    }
    Ok(())
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            Some(group) => write!(f, "{}/{group}", self.bits),
            None => write!(f, "{}", self.bits),
        }
    }
}

/// The layers' kinds in order, runs and repetitions told as such.
fn pattern(layers: &[&str]) -> String {
    let period = (1..=layers.len())
        .find(|&len| layers.len().is_multiple_of(len) && repeats(layers, len))
        .unwrap_or(layers.len());
    let runs = layers[..period].chunk_by(|a, b| a == b);
    let runs: Vec<String> = runs.map(|run| format!("{} {}", run.len(), run[0])).collect();
    match layers.len() / period.max(1) {
        0 | 1 => format!("{}: {}", layers.len(), runs.join(", ")),
        times => format!("{}: {times} times ({})", layers.len(), runs.join(", ")),
    }
}

/// Whether all is repetitions of its first `len`.
fn repeats(layers: &[&str], len: usize) -> bool {
    layers.chunks(len).all(|chunk| chunk == &layers[..len])
}

/// A number of weights, as a person reads it.
fn count(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        1_000..1_000_000 => format!("{:.1} k", number as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", number as f64 / 1e6),
        _ => format!("{:.2} B", number as f64 / 1e9),
    }
}

/// A number before a unit, with the unit's prefix.
fn scaled(number: u64) -> String {
    match number {
        0..1_000 => format!("{number} "),
        1_000..1_000_000 => format!("{:.1} k", number as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", number as f64 / 1e6),
        _ => format!("{:.2} G", number as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_told_by_their_repetitions() {
        let (d, a) = ("delta_net", "attention");
        let published = [d, d, d, a].repeat(10);
        assert_eq!(pattern(&published), "40: 10 times (3 delta_net, 1 attention)");
        assert_eq!(pattern(&[d, a, d]), "3: 1 delta_net, 1 attention, 1 delta_net");
        assert_eq!(pattern(&[d, d]), "2: 2 times (1 delta_net)");
        assert_eq!(pattern(&[a]), "1: 1 attention");
    }

    #[test]
    fn numbers_have_the_usual_units() {
        assert_eq!(count(34_660_610_688), "34.66 B");
        assert_eq!(scaled(5_800_000_000), "5.80 G");
        assert_eq!(scaled(512), "512 ");
        assert_eq!(Format { bits: 4, group: Some(64) }.to_string(), "4/64");
        assert_eq!(Format { bits: 16, group: None }.to_string(), "16");
    }
}
