use super::dot;

/// Added to the squared length in [`l2norm`], whatever the model's own epsilon.
const L2_EPS: f32 = 1e-6;

/// Each row over its root mean square, times a gain: `x / sqrt(mean(x²) + eps) * gain`.
pub fn rmsnorm(
    x: &[f32],    // [rows, width]
    gain: &[f32], // [width]
    eps: f32,
) -> Vec<f32> {
    let width = gain.len();
    assert!(x.len().is_multiple_of(width));
    let mut y = x.to_vec(); // [rows, width]
    for row in y.chunks_exact_mut(width) {
        let scale = (dot(row, row) / width as f32 + eps).sqrt().recip();
        row.iter_mut().zip(gain).for_each(|(x, gain)| *x *= scale * gain);
    }
    y
}

/// Each row over its length: `x / sqrt(Σx² + 1e-6) * scale`.
pub fn l2norm(
    x: &[f32], // [rows, width]
    width: usize,
    scale: f32,
) -> Vec<f32> {
    assert!(x.len().is_multiple_of(width));
    let mut y = x.to_vec(); // [rows, width]
    for row in y.chunks_exact_mut(width) {
        let scale = (dot(row, row) + L2_EPS).sqrt().recip() * scale;
        row.iter_mut().for_each(|x| *x *= scale);
    }
    y
}
