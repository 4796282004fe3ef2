//! Step 5 on the CPU: the chain of stages.

use super::{
    Cpu,
    attention::attention,
    delta_net::delta_net,
    embed::embed,
    head::head,
    mlp::mlp,
    moe::moe,
    pass::{Pass, RowPlan},
    scratch::{MlpScratch, Scratch},
};
use crate::{
    backend::{Batch, profile::Stage},
    model::{Mixer, Mlp},
};

impl Cpu {
    /// Runs a checked batch whose sequences have their pages, and lengthens the sequences.
    pub(super) fn run(
        &mut self,
        batch: &Batch<'_>,
        logits: &mut [f32], // [wanted, vocab]
    ) {
        self.pool.begin_pass(Stage::Embed);
        self.plan(batch);
        let scratch = &mut self.scratch;
        let mut pass = Pass {
            shape: &self.shape,
            kernels: self.kernels,
            pool: &mut self.pool,
            sequences: &self.sequences,
            rows: &scratch.rows,
            tokens: &scratch.numbers[..batch.tokens()],
        };
        let all = pass.tokens;
        let (normed, read, residual) =
            (&mut scratch.normed, &mut scratch.read, &mut scratch.residual);

        // embed
        embed(&mut pass, batch, &self.weights.embed, residual);

        let (mut delta_nets, mut attentions) = (0, 0);
        for layer in &self.weights.layers {
            // delta_net or attention
            pass.pool.enter_stage(match layer.mixer {
                Mixer::DeltaNet(_) => Stage::DeltaNet,
                Mixer::Attention(_) => Stage::Attention,
            });
            pass.add_and_norm(residual, &layer.input_norm, all, normed);
            match &layer.mixer {
                Mixer::DeltaNet(weights) => {
                    let scratch = scratch.delta_net.as_mut().expect("made for this shape");
                    delta_net(&mut pass, weights, delta_nets, normed, scratch, read, residual);
                    delta_nets += 1;
                }
                Mixer::Attention(weights) => {
                    let scratch = scratch.attention.as_mut().expect("made for this shape");
                    attention(&mut pass, weights, attentions, normed, scratch, read, residual);
                    attentions += 1;
                }
            }

            // moe or mlp
            pass.pool.enter_stage(match layer.mlp {
                Mlp::Moe(_) => Stage::Moe,
                Mlp::Dense(_) => Stage::Mlp,
            });
            pass.add_and_norm(residual, &layer.post_norm, all, normed);
            match (&layer.mlp, &mut scratch.mlp) {
                (Mlp::Moe(weights), MlpScratch::Moe(scratch)) => {
                    moe(&mut pass, weights, normed, scratch, residual);
                }
                (Mlp::Dense(weights), MlpScratch::Dense(scratch)) => {
                    mlp(&mut pass, weights, normed, scratch, residual);
                }
                _ => {
                    unreachable!("a checkpoint's shape and weights agree on the feed-forward part")
                }
            }
        }

        // head
        pass.pool.enter_stage(Stage::Head);
        head(&mut pass, &self.weights, &scratch.wanted, residual, normed, logits);

        for row in &self.scratch.rows {
            self.sequences.history_mut(row.sequence).len += row.len;
        }
        self.pool.end_pass();
    }

    /// Notes where the batch's rows and the tokens that want logits stand.
    fn plan(&mut self, batch: &Batch<'_>) {
        let Scratch { rows, wanted, attention, .. } = &mut self.scratch;
        rows.clear();
        wanted.clear();
        let mut first = 0;
        for row in batch.rows {
            let sequence = self.sequences.index(row.sequence).expect("the batch was checked");
            let len = row.tokens.len();
            let position = self.sequences.history(sequence).len;
            rows.push(RowPlan { sequence, first, len, position });
            first += len;
            wanted.extend((first - row.wants.rows(len)..first).map(|token| token as u32));
        }
        if let Some(attention) = attention {
            attention.plan(rows);
        }
    }
}
