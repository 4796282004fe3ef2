/// How many leading tokens `a` and `b` share.
pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    const BLOCK: usize = 64;
    // Whole blocks first: comparing slices is many times faster than comparing elements.
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let start = blocks.take_while(|(a, b)| a == b).count() * BLOCK;
    let rest = a[start..].iter().zip(&b[start..]);
    start + rest.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_the_first_difference_is_found() {
        let a: Vec<u32> = (0..200).collect();
        for place in 0..200 {
            let mut b = a.clone();
            b[place] += 1;
            assert_eq!(common_prefix(&a, &b), place);
            assert_eq!(common_prefix(&a, &a[..place]), place);
            assert_eq!(common_prefix(&a[..place], &a), place);
        }
    }
}
