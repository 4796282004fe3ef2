//! Norms, gates and sums of a token's vectors, which lie in a cache.

use divan::{Bencher, black_box};

use crate::{SHAPE, counted, experts, kernels};

#[divan::bench]
fn rms_norm(bencher: Bencher<'_, '_>) {
    let (x, gain) = (vector(SHAPE.hidden), vector(SHAPE.hidden));
    let mut out = vec![0.0; x.len()];
    floats(bencher, 3 * x.len())
        .bench_local(|| kernels().rms_norm(black_box(&x), &gain, SHAPE.norm_eps, &mut out));
}

/// A query or key of DeltaNet.
#[divan::bench]
fn l2_norm(bencher: Bencher<'_, '_>) {
    let mut x = vector(SHAPE.delta_net.key_dim);
    floats(bencher, 2 * x.len()).bench_local(|| kernels().l2_norm(black_box(&mut x), 1e-6, 1.0));
}

/// The residual stream and an update.
#[divan::bench]
fn add(bencher: Bencher<'_, '_>) {
    let (mut x, zeros) = (vector(SHAPE.hidden), vec![0.0; SHAPE.hidden]);
    floats(bencher, 3 * x.len()).bench_local(|| kernels().add(black_box(&mut x), &zeros));
}

/// What one expert adds to a token's update.
#[divan::bench]
fn add_scaled(bencher: Bencher<'_, '_>) {
    let (mut x, zeros) = (vector(SHAPE.hidden), vec![0.0; SHAPE.hidden]);
    floats(bencher, 3 * x.len())
        .bench_local(|| kernels().add_scaled(black_box(&mut x), 0.5, &zeros));
}

/// An expert's gate and up.
#[divan::bench]
fn silu_mul(bencher: Bencher<'_, '_>) {
    gate(bencher, experts().0, |x, up| kernels().silu_mul(x, up));
}

/// What DeltaNet heads gave and their gates.
#[divan::bench]
fn mul_silu(bencher: Bencher<'_, '_>) {
    let gates = SHAPE.delta_net.value_width();
    gate(bencher, gates, |x, gate| kernels().mul_silu(x, gate));
}

/// What attention heads gave and their gates.
#[divan::bench]
fn mul_sigmoid(bencher: Bencher<'_, '_>) {
    let gates = SHAPE.attention.query_width();
    gate(bencher, gates, |x, gate| kernels().mul_sigmoid(x, gate));
}

/// A token's probabilities of all experts.
#[divan::bench]
fn softmax(bencher: Bencher<'_, '_>) {
    let mut x = vector(experts().1);
    floats(bencher, 2 * x.len()).bench_local(|| kernels().softmax(black_box(&mut x)));
}

/// A query or key of attention.
#[divan::bench]
fn rope(bencher: Bencher<'_, '_>) {
    let mut head = vector(SHAPE.attention.head_dim);
    let half = SHAPE.attention.rotary_dims / 2;
    let (cos, sin) = (vec![0.6; half], vec![0.8; half]);
    floats(bencher, 2 * 2 * half).bench_local(|| kernels().rope(black_box(&mut head), &cos, &sin));
}

/// A key or value on its way into the cache.
#[divan::bench]
fn store_f16(bencher: Bencher<'_, '_>) {
    let x = vector(SHAPE.attention.head_dim);
    let mut out = vec![0u16; x.len()];
    counted(bencher, 6 * x.len(), 0).bench_local(|| kernels().store_f16(black_box(&x), &mut out));
}

/// `op(x, gate)`. The time has a copy in it: gated again and again, `x` would vanish.
fn gate(bencher: Bencher<'_, '_>, len: usize, op: impl Fn(&mut [f32], &[f32])) {
    let (source, gate) = (vector(len), vector(len));
    let mut x = vec![0.0; len];
    floats(bencher, 3 * len).bench_local(|| {
        x.copy_from_slice(black_box(&source));
        op(&mut x, &gate);
    });
}

/// Reads and writes so many floats. Operations would say nothing: loads and stores bound these ops,
/// or an exponential.
fn floats<'a, 'b>(bencher: Bencher<'a, 'b>, count: usize) -> Bencher<'a, 'b> {
    counted(bencher, count * size_of::<f32>(), 0)
}

/// Values from -0.3 to 0.3.
pub(crate) fn vector(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect()
}
