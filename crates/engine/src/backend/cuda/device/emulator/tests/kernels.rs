//! What works: one kernel for each thing that the emulator must get right.

use half::f16;

use super::*;
use crate::backend::cuda::device::{Activations, Matrix};

#[test]
fn every_thread_runs_once_with_its_coordinates() {
    Fixture::each(|f| {
        let out = f.device.fresh::<[u32; 4]>(24 * 40);
        f.launch("coordinates", [2, 3, 4], 40, 0, &[out.into()]).expect("a correct kernel");
        let expected: Vec<[u32; 4]> = (0..24 * 40)
            .map(|i| (i / 40, i % 40))
            .map(|(block, thread)| [block % 2, block / 2 % 3, block / 6, thread])
            .collect();
        assert_eq!(f.device.read::<[u32; 4]>(out, 24 * 40), expected);
    });
}

#[test]
fn arguments_arrive_and_those_that_do_not_fit_are_refused() {
    let f = Fixture::new(0);
    let (words, affine) = (f.device.memory_of(&[3_u32, 4, 5, 6]), f.device.memory_of(&[0_u32]));
    let activations = Activations { halves: words, sums: affine, rows: 7 };
    let out = f.device.fresh::<u64>(6);
    let arguments: [Argument; 5] = [
        Matrix { words, affine, range: affine }.into(),
        activations.into(),
        9_u32.into(),
        Argument::NULL,
        out.into(),
    ];
    f.run("arguments", 1, 1, &arguments);
    assert_eq!(f.device.read::<u64>(out, 6), [words.0 + 2 * affine.0, words.0, affine.0, 7, 9, 0]);

    let error = f.refused("arguments", 1, 0, &arguments[..4]);
    assert_has(&error, &["`arguments`", "[24, 24, 4, 8]", "[24, 24, 4, 8, 8]"]);
    let mut wrong = arguments;
    wrong[3] = 0_u32.into();
    assert_has(&f.refused("arguments", 1, 0, &wrong), &["[24, 24, 4, 4, 8]"]);
    for (index, foreign) in [
        (3, Address(0x1000).into()),
        (0, Matrix { words, affine: Address(64), range: words }.into()),
    ] {
        let mut wrong = arguments;
        wrong[index] = foreign;
        let error = f.refused("arguments", 1, 0, &wrong);
        assert_has(&error, &["`arguments`", &format!("argument {index}"), "no allocation"]);
    }
}

#[test]
fn sums_over_a_block_are_right() {
    Fixture::each(|f| {
        let x = floats(5 * 1000, 1);
        let out = f.device.fresh::<f32>(5);
        f.run("row_sums", 5, 128, &[f.device.memory_of(&x).into(), 1000_u32.into(), out.into()]);
        for (sum, row) in f.device.read::<f32>(out, 5).into_iter().zip(x.chunks(1000)) {
            let expected: f64 = row.iter().map(|&x| f64::from(x)).sum();
            assert!((f64::from(sum) - expected).abs() < 1e-4, "{sum} {expected}");
        }
    });
}

#[test]
fn barriers_hold_every_thread_and_ended_ones_count_as_arrived() {
    Fixture::each(|f| {
        for threads in [1, 2, 32, 33, 300, 1024] {
            let out = f.device.fresh::<u32>(threads);
            f.run("turns", 1, threads as u32, &[10_u32.into(), out.into()]);
            let mut expected: Vec<u32> = (0..threads as u32).collect();
            let turn = |part: &mut [u32]| {
                part.rotate_left(1.min(part.len()));
                part.iter_mut().for_each(|x| *x += 1);
            };
            (0..5).for_each(|_| turn(&mut expected));
            (0..5).for_each(|_| turn(&mut expected[..threads / 2]));
            assert_eq!(f.device.read::<u32>(out, threads), expected, "{threads} threads");
        }
    });
}

#[test]
fn warps_and_parts_of_a_warp_go_their_own_ways() {
    Fixture::each(|f| {
        let out = f.device.fresh::<u32>(96);
        f.run("divergent", 1, 96, &[out.into()]);
        let expected: Vec<u32> = (0..96)
            .map(|thread| {
                let (warp, lane) = (thread / 32, thread % 32);
                let shuffled: u32 = (0..warp).map(|i| i * 10).sum();
                let halves = if lane < 16 { 5 } else { 1 } * (lane ^ 8);
                // Of the 16 even lanes those from 8 on vote yes.
                shuffled + halves + if lane % 2 == 0 { 12_000 } else { 0 }
            })
            .collect();
        assert_eq!(f.device.read::<u32>(out, 96), expected);
    });
}

#[test]
fn warp_operations_give_each_lane_what_is_its_own() {
    Fixture::each(|f| {
        let x: Vec<u32> = numbers(32, 2).into_iter().map(|x| x % 1000).collect();
        let out = f.device.fresh::<u32>(16 * 32);
        f.run("lanes", 1, 32, &[f.device.memory_of(&x).into(), out.into()]);
        let out = f.device.read::<u32>(out, 16 * 32);

        let from = |place: &dyn Fn(usize) -> usize| (0..32).map(|lane| x[place(lane)]).collect();
        let all = |value: u32| vec![value; 32];
        let bits = |wanted: &dyn Fn(u32) -> bool| {
            (0..32).map(|lane| u32::from(wanted(x[lane])) << lane).sum::<u32>()
        };
        let expected: [Vec<u32>; 16] = [
            from(&|lane| (lane * 7 + 3) % 32),
            from(&|lane| (lane & !7) | ((lane + 5) & 7)),
            from(&|lane| lane ^ 5),
            from(&|lane| if lane ^ 12 <= lane | 7 { lane ^ 12 } else { lane }),
            from(&|lane| if lane >= 3 { lane - 3 } else { lane }),
            from(&|lane| if lane % 16 >= 3 { lane - 3 } else { lane }),
            from(&|lane| if lane < 29 { lane + 3 } else { lane }),
            from(&|lane| if lane % 16 < 13 { lane + 3 } else { lane }),
            all(bits(&|x| x % 2 == 1)),
            all(4),
            all(1),
            (0..32).map(|lane| bits(&|other| other % 4 == x[lane] % 4)).collect(),
            all(x.iter().sum()),
            all(x.iter().copied().fold(0, u32::max)),
            all(x.iter().copied().fold(u32::MAX, u32::min).wrapping_sub(1000)),
            all(x.iter().fold(0, |sum, x| sum ^ x)),
        ];
        for (operation, expected) in expected.iter().enumerate() {
            assert_eq!(&out[operation * 32..][..32], expected, "operation {operation}");
        }
    });
}

/// A NaN becomes a NaN; everything else has the very bits.
fn assert_same_half(ours: u16, expected: f16, of: &str) {
    if expected.is_nan() {
        assert!(f16::from_bits(ours).is_nan(), "{of}: {ours:#06x}");
    } else {
        assert_eq!(ours, expected.to_bits(), "{of}");
    }
}

#[test]
fn conversions_and_bit_tricks_are_exact() {
    let f = Fixture::new(0);
    let n = 1 << 16;
    // Every half as a float, every middle between two neighbours, a little beside it, and any float.
    let half = |i: u32| f16::from_bits(i as u16).to_f32();
    let halves: Vec<f32> = (0..n).map(half).collect();
    let middles: Vec<f32> = (0..n).map(|i| (half(i) + half((i + 1) % n)) / 2.0).collect();
    let beside = |up: bool| {
        let step = |x: f32| if up { x.next_up() } else { x.next_down() };
        middles.iter().map(|&x| step(x)).collect()
    };
    let any: Vec<f32> = numbers(n as usize, 3).into_iter().map(f32::from_bits).collect();
    let edges: Vec<f32> = [65519.99, 65520.0, 65536.0, 1e-8, f32::INFINITY, f32::NAN, -0.0, 2e-45]
        .into_iter()
        .cycle()
        .take(n as usize)
        .collect();
    let words: Vec<u32> =
        numbers(n as usize, 4).into_iter().zip(0..).map(|(x, i)| x & 0xffff_0000 | i).collect();

    for x in [halves, middles.clone(), beside(true), beside(false), any, edges] {
        let (out, back) = (f.device.fresh::<u16>(x.len()), f.device.fresh::<f32>(x.len()));
        let bits = f.device.fresh::<u32>(7 * x.len());
        let arguments: [Argument; 6] = [
            f.device.memory_of(&x).into(),
            n.into(),
            out.into(),
            back.into(),
            f.device.memory_of(&words).into(),
            bits.into(),
        ];
        f.run("conversions", n / 256, 256, &arguments);
        let (out, back) = (f.device.read::<u16>(out, x.len()), f.device.read::<f32>(back, x.len()));
        let bits = f.device.read::<u32>(bits, 7 * x.len());
        for i in 0..n as usize {
            assert_same_half(out[i], f16::from_f32(x[i]), &format!("{:e}", x[i]));
            let half = f16::from_bits(words[i] as u16);
            assert!(
                back[i].to_bits() == half.to_f32().to_bits() || half.is_nan() && back[i].is_nan(),
                "{half}"
            );
            let (word, next) = (words[i], words[(i + 1) % n as usize]);
            let row = |row: usize| bits[row * n as usize + i];
            for shift in [0, 16] {
                let of = |word: u32| f16::from_bits((word >> shift) as u16).to_f64();
                assert_same_half(
                    (row(0) >> shift) as u16,
                    f16::from_f64(of(word) - of(next)),
                    &format!("{word:#x} - {next:#x}"),
                );
            }
            assert_eq!(row(1), word & 0x000f_000f | 0x6400_6400);
            let ([a, _, c, _], [_, f, _, h]) = (word.to_le_bytes(), next.to_le_bytes());
            assert_eq!(row(2).to_le_bytes(), [a, f, c, h]);
            assert_eq!(row(3), word.reverse_bits());
            let first = if word == 0 { 0 } else { word.trailing_zeros() + 1 };
            assert_eq!(row(4), word.leading_zeros() * 10_000 + first * 100 + word.count_ones());
            let following = f16::from_f32(x[(i + 1) % n as usize]);
            assert_same_half(row(5) as u16, f16::from_f32(x[i]), "low");
            assert_same_half((row(5) >> 16) as u16, following, "high");
            assert_eq!(row(6), word);
        }
    }
}

#[test]
fn matrix_products_are_what_a_plain_loop_says() {
    Fixture::each(|f| {
        let halves = |count, seed| -> Vec<f16> {
            floats(count, seed).into_iter().map(f16::from_f32).collect()
        };
        let (a, b, d) = (halves(16 * 16, 5), halves(16 * 8, 6), floats(16 * 8, 7));
        for kernel in ["product", "product_loaded", "product_transposed"] {
            let out = f.device.memory_of(&d);
            f.run(
                kernel,
                1,
                32,
                &[f.device.memory_of(&a).into(), f.device.memory_of(&b).into(), out.into()],
            );
            for (at, value) in f.device.read::<f32>(out, 16 * 8).into_iter().enumerate() {
                let (row, column) = (at / 8, at % 8);
                let expected: f64 = f64::from(d[at])
                    + (0..16)
                        .map(|k| a[row * 16 + k].to_f64() * b[k * 8 + column].to_f64())
                        .sum::<f64>();
                assert!((f64::from(value) - expected).abs() < 1e-5, "{kernel} {row} {column}");
            }
        }
    });
}

#[test]
fn a_copy_arrives_when_its_group_is_waited_for_and_not_before() {
    let f = Fixture::new(0);
    let x: Vec<u32> = (100..112).collect();
    let out = f.device.fresh::<u32>(12);
    f.run("copies", 1, 1, &[f.device.memory_of(&x).into(), out.into()]);
    let expected = [[POISON; 3], [103, POISON, POISON], [103, 0, POISON], [103, 0, 111]].concat();
    assert_eq!(f.device.read::<u32>(out, 12), expected);
}

#[test]
fn bulk_copies_are_there_when_they_have_arrived() {
    Fixture::each(|f| {
        let x: Vec<u32> = (100..112).collect();
        let out = f.device.fresh::<u32>(6);
        f.run("bulk_copies", 1, 32, &[f.device.memory_of(&x).into(), out.into()]);
        let expected = [[POISON; 3], [103, 107, 111]].concat();
        assert_eq!(f.device.read::<u32>(out, 6), expected);
    });
}

#[test]
fn a_word_is_awaited_until_a_kernel_hands_it_on() {
    Fixture::each(|f| {
        let word = f.device.memory_of(&[0_u32]);
        let error = f.refused("awaits", 1, 0, &[word.into(), 3_u32.into()]);
        assert!(error.contains("await_hand_on for what no kernel has written"), "{error}");
        f.run("hands_on", 1, 1, &[word.into(), 3_u32.into()]);
        f.run("awaits", 2, 32, &[word.into(), 3_u32.into()]);
    });
}

#[test]
fn what_nobody_has_written_is_poison() {
    Fixture::each(|f| {
        let out = f.device.fresh::<u32>(3 * 2 * 32);
        assert_eq!(f.device.read::<u32>(out, 3 * 2 * 32), [POISON; 3 * 2 * 32]);
        f.launch("unwritten", [3, 1, 1], 32, 128, &[out.into()]).expect("a correct kernel");
        assert_eq!(f.device.read::<u32>(out, 3 * 2 * 32), [POISON; 3 * 2 * 32]);

        let out = f.device.fresh::<u32>(32);
        f.run("from_nobody", 1, 32, &[out.into()]);
        assert_eq!(f.device.read::<u32>(out, 32), [POISON; 32]);
    });
    assert!(f32::from_bits(POISON).is_nan() && f16::from_bits(POISON as u16).is_nan());
    assert!(f64::from_bits(u64::from(POISON) << 32 | u64::from(POISON)).is_nan());
}

#[test]
fn atomics_lose_nothing() {
    Fixture::each(|f| {
        let (total, out) = (f.device.memory_of(&[0_u32; 4]), f.device.fresh::<u32>(5));
        f.run("atomics", 7, 100, &[total.into(), out.into()]);
        assert_eq!(f.device.read::<u32>(out, 5), [7 * 4950, 699, 5, 0, 100]);
    });
}

#[test]
fn a_seed_shuffles_threads_and_blocks_and_shows_races() {
    let in_order: Vec<u32> = (0..192).collect();
    for seed in 0..4 {
        let f = Fixture::new(seed);
        let out = f.device.fresh::<u32>(192);
        f.run("order", 3, 64, &[f.device.memory_of(&[0_u32]).into(), out.into()]);
        let mut order = f.device.read::<u32>(out, 192);
        assert_eq!(order == in_order, seed == 0, "seed {seed}");
        order.sort_unstable();
        assert_eq!(order, in_order);

        let out = f.device.fresh::<u32>(64);
        f.run("race", 1, 64, &[out.into()]);
        let out = f.device.read::<u32>(out, 64);
        let right = out.iter().skip(1).eq(in_order[..63].iter());
        assert_eq!(right, seed == 0, "seed {seed}");
    }
}

#[test]
fn functions_are_those_of_mathematics() {
    let f = Fixture::new(0);
    let x: Vec<f32> = (1..=50).map(|i| i as f32 * 0.1).collect();
    let out = f.device.fresh::<f64>(12 * 50);
    f.run("mathematics", 1, 64, &[f.device.memory_of(&x).into(), 50_u32.into(), out.into()]);
    let out = f.device.read::<f64>(out, 12 * 50);
    for (i, &x) in x.iter().enumerate() {
        let v = f64::from(x);
        let sigmoid = 1.0 / (1.0 + (-v).exp());
        let expected = [
            v.exp(),
            v.exp2(),
            v.ln(),
            v.ln_1p(),
            1.0 / v.sqrt(),
            v.max(1.0) + v.min(1.0) + v,
            v * v - 1.0,
            1.0 / v,
            (v * 1e4).cos(),
            (v * 1e4).sin(),
            v.floor().min(2.0) + v.floor().max(3.0),
            sigmoid + v * sigmoid,
        ];
        for (row, expected) in expected.into_iter().enumerate() {
            let ours = out[row * 50 + i];
            let tolerance = 3e-7 + 3e-7 * expected.abs();
            assert!((ours - expected).abs() < tolerance, "row {row} of {x}: {ours} {expected}");
        }
    }
}
