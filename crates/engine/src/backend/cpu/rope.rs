//! Rotary position embedding: a position's angles, taken once a pass and used in every layer.

use crate::model::AttentionShape;

/// Frequencies of a model: `theta^(-2i/R)` for i < R/2.
pub(super) struct Rope {
    frequencies: Vec<f64>,
}

impl Rope {
    pub(super) fn new(shape: &AttentionShape) -> Self {
        let exponent = |i: usize| -2.0 * i as f64 / shape.rotary_dims as f64;
        let frequency = |i| shape.rope_theta.powf(exponent(i));
        Self { frequencies: (0..shape.rotary_dims / 2).map(frequency).collect() }
    }

    /// Floats of one position's turn: its cosines, then its sines.
    pub(super) fn turn_len(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Cosines and sines of one position. Angles are taken in f64: at position 200,000 a float32
    /// product would be off by 0.01 radians.
    pub(super) fn fill_turn(
        &self,
        position: usize,
        turn: &mut [f32], // [2, R/2]
    ) {
        let (cosines, sines) = turn.split_at_mut(self.frequencies.len());
        for ((cos, sin), frequency) in cosines.iter_mut().zip(sines).zip(&self.frequencies) {
            let angle = position as f64 * frequency;
            (*cos, *sin) = (angle.cos() as f32, angle.sin() as f32);
        }
    }
}
