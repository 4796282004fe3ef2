use half::f16;

use super::*;
use crate::backend::cuda::device::{Activations, Matrix};

const KERNELS: &str = include_str!("tests.cu");
const PRELUDE: &str = include_str!("../../prelude.cu");

/// Two bytes of memory that nobody has written, and four.
const POISON: u32 = 0x7ff7_7ff7;

/// A device with all kernels of tests.cu, by name.
struct Fixture {
    device: Emulator,
    kernels: HashMap<String, Kernel>,
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let device = Emulator::with(1 << 30, seed).expect("a C++ compiler");
        let names: Vec<String> = KERNELS
            .lines()
            .filter_map(|line| line.strip_prefix("KERNEL void "))
            .map(|rest| rest.split('(').next().unwrap_or_default().to_owned())
            .collect();
        let source = format!(
            "#define GROUP 64\n#define PIECES 1\n{PRELUDE}\n#line 1 \"tests.cu\"\n{KERNELS}"
        );
        let unit = Unit { name: "tests", source, kernels: names.clone(), stamps: None };
        let kernels = device.compile(&unit).expect("kernels that compile");
        Self { device, kernels: names.into_iter().zip(kernels).collect() }
    }

    /// Every order of threads that a test tries.
    fn each(test: impl Fn(&Self)) {
        for seed in [0, 1, 2, 3] {
            test(&Self::new(seed));
        }
    }

    /// A new piece of memory with these elements.
    fn with<T: Copy>(&self, elements: &[T]) -> Address {
        // SAFETY: plain numbers, looked at as bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements))
        };
        let address = self.device.allocate(bytes.len(), "a test").expect("memory");
        self.device.upload(address, bytes).expect("memory of that size");
        address
    }

    /// A new piece of memory that nobody has written.
    fn fresh<T>(&self, elements: usize) -> Address {
        self.device.allocate(elements * size_of::<T>(), "a test").expect("memory")
    }

    fn read<T: Copy + Default>(&self, address: Address, elements: usize) -> Vec<T> {
        let mut result = vec![T::default(); elements];
        // SAFETY: plain numbers, of which every pattern of bits is one.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                result.as_mut_ptr().cast::<u8>(),
                elements * size_of::<T>(),
            )
        };
        self.device.download(address, bytes).expect("memory of that size");
        result
    }

    fn launch(
        &self,
        name: &str,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        arguments: &[Argument],
    ) -> Result<(), Error> {
        let kernel = self.kernels[name];
        self.device.launch(&Launch { kernel, grid, block, shared_bytes, arguments })
    }

    fn run(&self, name: &str, blocks: u32, threads: u32, arguments: &[Argument]) {
        self.launch(name, [blocks, 1, 1], threads, 768, arguments).expect("a correct kernel");
    }

    /// What a launch of two blocks is refused with.
    fn refused(
        &self,
        name: &str,
        threads: u32,
        shared_bytes: u32,
        arguments: &[Argument],
    ) -> String {
        self.launch(name, [2, 1, 1], threads, shared_bytes, arguments).expect_err(name).to_string()
    }
}

/// Numbers that look random.
fn numbers(count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Numbers in [-1, 1).
fn floats(count: usize, seed: u64) -> Vec<f32> {
    numbers(count, seed).into_iter().map(|x| x as i32 as f32 / 2_f32.powi(31)).collect()
}

fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[test]
fn every_thread_runs_once_with_its_coordinates() {
    Fixture::each(|f| {
        let out = f.fresh::<[u32; 4]>(24 * 40);
        f.launch("coordinates", [2, 3, 4], 40, 0, &[out.into()]).expect("a correct kernel");
        let expected: Vec<[u32; 4]> = (0..24 * 40)
            .map(|i| (i / 40, i % 40))
            .map(|(block, thread)| [block % 2, block / 2 % 3, block / 6, thread])
            .collect();
        assert_eq!(f.read::<[u32; 4]>(out, 24 * 40), expected);
    });
}

#[test]
fn arguments_arrive_and_those_that_do_not_fit_are_refused() {
    let f = Fixture::new(0);
    let (words, affine) = (f.with(&[3_u32, 4, 5, 6]), f.with(&[0_u32]));
    let activations = Activations { halves: words, sums: affine, rows: 7 };
    let out = f.fresh::<u64>(6);
    let arguments: [Argument; 5] = [
        Matrix { words, affine, range: affine }.into(),
        activations.into(),
        9_u32.into(),
        Argument::NULL,
        out.into(),
    ];
    f.run("arguments", 1, 1, &arguments);
    assert_eq!(f.read::<u64>(out, 6), [words.0 + 2 * affine.0, words.0, affine.0, 7, 9, 0]);

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
        let out = f.fresh::<f32>(5);
        f.run("row_sums", 5, 128, &[f.with(&x).into(), 1000_u32.into(), out.into()]);
        for (sum, row) in f.read::<f32>(out, 5).into_iter().zip(x.chunks(1000)) {
            let expected: f64 = row.iter().map(|&x| f64::from(x)).sum();
            assert!((f64::from(sum) - expected).abs() < 1e-4, "{sum} {expected}");
        }
    });
}

#[test]
fn barriers_hold_every_thread_and_ended_ones_count_as_arrived() {
    Fixture::each(|f| {
        for threads in [1, 2, 32, 33, 300, 1024] {
            let out = f.fresh::<u32>(threads);
            f.run("turns", 1, threads as u32, &[10_u32.into(), out.into()]);
            let mut expected: Vec<u32> = (0..threads as u32).collect();
            let turn = |part: &mut [u32]| {
                part.rotate_left(1.min(part.len()));
                part.iter_mut().for_each(|x| *x += 1);
            };
            (0..5).for_each(|_| turn(&mut expected));
            (0..5).for_each(|_| turn(&mut expected[..threads / 2]));
            assert_eq!(f.read::<u32>(out, threads), expected, "{threads} threads");
        }
    });
}

#[test]
fn warps_and_parts_of_a_warp_go_their_own_ways() {
    Fixture::each(|f| {
        let out = f.fresh::<u32>(96);
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
        assert_eq!(f.read::<u32>(out, 96), expected);
    });
}

#[test]
fn warp_operations_give_each_lane_what_is_its_own() {
    Fixture::each(|f| {
        let x: Vec<u32> = numbers(32, 2).into_iter().map(|x| x % 1000).collect();
        let out = f.fresh::<u32>(16 * 32);
        f.run("lanes", 1, 32, &[f.with(&x).into(), out.into()]);
        let out = f.read::<u32>(out, 16 * 32);

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
        let (out, back) = (f.fresh::<u16>(x.len()), f.fresh::<f32>(x.len()));
        let bits = f.fresh::<u32>(7 * x.len());
        let arguments: [Argument; 6] = [
            f.with(&x).into(),
            n.into(),
            out.into(),
            back.into(),
            f.with(&words).into(),
            bits.into(),
        ];
        f.run("conversions", n / 256, 256, &arguments);
        let (out, back) = (f.read::<u16>(out, x.len()), f.read::<f32>(back, x.len()));
        let bits = f.read::<u32>(bits, 7 * x.len());
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
            let out = f.with(&d);
            f.run(kernel, 1, 32, &[f.with(&a).into(), f.with(&b).into(), out.into()]);
            for (at, value) in f.read::<f32>(out, 16 * 8).into_iter().enumerate() {
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
    let out = f.fresh::<u32>(12);
    f.run("copies", 1, 1, &[f.with(&x).into(), out.into()]);
    let expected = [[POISON; 3], [103, POISON, POISON], [103, 0, POISON], [103, 0, 111]].concat();
    assert_eq!(f.read::<u32>(out, 12), expected);
}

#[test]
fn what_nobody_has_written_is_poison() {
    Fixture::each(|f| {
        let out = f.fresh::<u32>(3 * 2 * 32);
        assert_eq!(f.read::<u32>(out, 3 * 2 * 32), [POISON; 3 * 2 * 32]);
        f.launch("unwritten", [3, 1, 1], 32, 128, &[out.into()]).expect("a correct kernel");
        assert_eq!(f.read::<u32>(out, 3 * 2 * 32), [POISON; 3 * 2 * 32]);

        let out = f.fresh::<u32>(32);
        f.run("from_nobody", 1, 32, &[out.into()]);
        assert_eq!(f.read::<u32>(out, 32), [POISON; 32]);
    });
    assert!(f32::from_bits(POISON).is_nan() && f16::from_bits(POISON as u16).is_nan());
    assert!(f64::from_bits(u64::from(POISON) << 32 | u64::from(POISON)).is_nan());
}

#[test]
fn atomics_lose_nothing() {
    Fixture::each(|f| {
        let (total, out) = (f.with(&[0_u32; 4]), f.fresh::<u32>(5));
        f.run("atomics", 7, 100, &[total.into(), out.into()]);
        assert_eq!(f.read::<u32>(out, 5), [7 * 4950, 699, 5, 0, 100]);
    });
}

#[test]
fn a_seed_shuffles_threads_and_blocks_and_shows_races() {
    let in_order: Vec<u32> = (0..192).collect();
    for seed in 0..4 {
        let f = Fixture::new(seed);
        let out = f.fresh::<u32>(192);
        f.run("order", 3, 64, &[f.with(&[0_u32]).into(), out.into()]);
        let mut order = f.read::<u32>(out, 192);
        assert_eq!(order == in_order, seed == 0, "seed {seed}");
        order.sort_unstable();
        assert_eq!(order, in_order);

        let out = f.fresh::<u32>(64);
        f.run("race", 1, 64, &[out.into()]);
        let out = f.read::<u32>(out, 64);
        let right = out.iter().skip(1).eq(in_order[..63].iter());
        assert_eq!(right, seed == 0, "seed {seed}");
    }
}

#[test]
fn functions_are_those_of_mathematics() {
    let f = Fixture::new(0);
    let x: Vec<f32> = (1..=50).map(|i| i as f32 * 0.1).collect();
    let out = f.fresh::<f64>(12 * 50);
    f.run("mathematics", 1, 64, &[f.with(&x).into(), 50_u32.into(), out.into()]);
    let out = f.read::<f64>(out, 12 * 50);
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

/// Kernel, threads of a block, dynamic shared memory, arguments, words of the error.
type Case<'a> = (&'a str, u32, u32, &'a [Argument], &'a [&'a str]);

#[test]
fn mistakes_in_a_kernel_are_errors_that_say_where() {
    Fixture::each(|f| {
        let out: Argument = f.fresh::<u32>(64).into();
        let x: Argument = f.with(&[0_u32; 64]).into();
        let lines = |of: &str| -> Vec<String> {
            let at =
                KERNELS.lines().position(|line| line.contains(of)).expect("a line of tests.cu");
            (at + 1..at + 12).map(|line| format!("tests.cu:{line}")).collect()
        };
        let cases: [Case<'_>; 14] = [
            (
                "deadlock",
                64,
                0,
                &[],
                &["64 threads wait for ever", "__syncthreads", "__shfl_sync", "0xffffffff"],
            ),
            ("two_barriers", 64, 0, &[], &["a barrier that threads reach at different places"]),
            ("two_operations", 32, 0, &[out], &["__shfl_sync", "a vote"]),
            ("foreign_mask", 32, 0, &[], &["__syncwarp", "0x000000ff lacks lane"]),
            ("half_a_product", 32, 0, &[out], &["mma_f16 at", "needs all 32 lanes", "0x0000ffff"]),
            ("no_wait", 64, 0, &[40_u32.into()], &["thread 40", "without wait_for_inputs"]),
            ("waits_twice", 1, 0, &[], &["a second time"]),
            (
                "past_the_end",
                65,
                64,
                &[],
                &["behind the 64 bytes of dynamic shared memory", "at 64"],
            ),
            ("copy_unaligned", 1, 16, &[x], &["copy_async", "not 16-byte aligned"]),
            ("copy_to_global", 1, 0, &[x, out], &["copy_async", "in shared memory"]),
            ("load_unaligned", 1, 0, &[x, out], &["not aligned"]),
            ("outside_array", 1, 0, &[8_u32.into(), out], &["an index outside of its array (0x8)"]),
            ("shift_too_far", 1, 0, &[32_u32.into(), out], &["a shift by too much (0x20)"]),
            ("wild", 64, 0, &[x, 64_u32.into()], &["reads or writes 0x", "it has passed"]),
        ];
        for (kernel, threads, shared_bytes, arguments, parts) in cases {
            let error = f.refused(kernel, threads, shared_bytes, arguments);
            assert_has(&error, parts);
            assert_has(&error, &[&format!("`{kernel}`"), "block ("]);
            // Those that the emulator cannot place name the kernel only.
            let lines = lines(&format!("KERNEL void {kernel}("));
            assert!(
                ["past_the_end", "no_wait"].contains(&kernel)
                    || lines.iter().any(|line| error.contains(line)),
                "no line of the kernel in: {error}"
            );
        }
        let error = f.refused("poisoned_pointer", 1, 8, &[]);
        assert_has(&error, &["`poisoned_pointer`", "where no address can be"]);
        // After all of it the device still works.
        f.run("order", 1, 64, &[x, out]);
    });
}

#[test]
fn launches_that_no_card_takes_are_refused() {
    let f = Fixture::new(0);
    let (count, out): (Argument, Argument) = (f.with(&[0_u32]).into(), f.fresh::<u32>(64).into());
    for threads in [0, 1025] {
        let error = f.refused("order", threads, 0, &[count, out]);
        assert_has(&error, &["`order`", &threads.to_string(), "1 to 1024"]);
    }
    f.launch("past_the_end", [1, 1, 1], 64, 227 << 10, &[]).expect("the most that there is");
    let error = f.refused("past_the_end", 64, (227 << 10) + 1, &[]);
    assert_has(&error, &["`past_the_end`", "232449 bytes of dynamic shared memory"]);
    for grid in [[0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 65536, 1], [1, 1, 65536], [1 << 31, 1, 1]] {
        let error = f.launch("order", grid, 64, 0, &[count, out]).expect_err("such a grid");
        assert_has(&error.to_string(), &["`order`", "a grid of"]);
    }
    let launch =
        Launch { kernel: Kernel(0), grid: [1; 3], block: 1, shared_bytes: 0, arguments: &[] };
    for kernel in [Kernel(0), Kernel(1000), Kernel(u64::MAX)] {
        let error = f.device.launch(&Launch { kernel, ..launch }).expect_err("no such kernel");
        assert_has(&error.to_string(), &["Kernel("]);
    }
}

#[test]
fn a_unit_that_does_not_compile_is_an_error_with_what_the_compiler_said() {
    let device = Emulator::open().expect("a C++ compiler");
    let unit = |source: &str, kernel: &str| Unit {
        name: "broken",
        source: format!("#define GROUP 64\n#define PIECES 1\n{PRELUDE}\n{source}"),
        kernels: vec![kernel.to_owned()],
        stamps: None,
    };
    let wrong = unit("#line 7 \"broken.cu\"\nKERNEL void f() { no_such_function(); }", "f");
    let error = device.compile(&wrong).expect_err("a function that is not there").to_string();
    assert_has(&error, &["compiling `broken`", "no_such_function", "broken.cu:7"]);
    let large = "KERNEL void f(u32* x) { volatile u32 a[20000]; a[*x] = 1; x[0] = a[1]; }";
    let error = device.compile(&unit(large, "f")).expect_err("more than a stack").to_string();
    assert_has(&error, &["frame"]);
    let missing = unit("KERNEL void f() { wait_for_inputs(); }", "g");
    device.compile(&missing).expect_err("a kernel that is not there");
}

#[test]
fn several_threads_may_compile_and_launch_at_once() {
    std::thread::scope(|scope| {
        for seed in 0..8 {
            scope.spawn(move || {
                let f = Fixture::new(seed);
                for _ in 0..20 {
                    let out = f.fresh::<u32>(300);
                    f.run("turns", 1, 300, &[0_u32.into(), out.into()]);
                    assert_eq!(f.read::<u32>(out, 300), (0..300).collect::<Vec<u32>>());
                    let out = f.fresh::<u32>(3 * 2 * 32);
                    f.launch("unwritten", [3, 1, 1], 32, 128, &[out.into()]).expect("correct");
                    assert_eq!(f.read::<u32>(out, 3 * 2 * 32), [POISON; 3 * 2 * 32]);
                }
            });
        }
    });
}

#[test]
fn memory_is_bounded_and_every_access_is_checked() {
    let device = Emulator::with(1 << 20, 0).expect("a C++ compiler");
    let [a, b] = [100, 5000].map(|bytes| device.allocate(bytes, "a test").expect("enough memory"));
    assert_eq!(
        device.memory().expect("no fault"),
        DeviceMemory { free: (1 << 20) - 5100, total: 1 << 20 }
    );
    assert!(a.0 % 256 == 0 && b.0 % 256 == 0);
    let error = device.allocate(1 << 20, "too much").expect_err("more than there is");
    assert!(matches!(error, Error::OutOfMemory { bytes: 1_048_576, purpose: "too much" }));
    assert!(device.allocate(usize::MAX, "too much").is_err());

    device.upload(a, &[1; 100]).expect("just fits");
    device.copy(a, b.plus(4900), 100).expect("just fits");
    device.zero(b.plus(4990), 10).expect("just fits");
    let mut read = [0; 20];
    device.download(b.plus(4980), &mut read).expect("just fits");
    assert_eq!(read, [[1; 10], [0; 10]].concat()[..]);

    let outside = |result: Result<(), Error>| {
        assert_has(&result.expect_err("outside").to_string(), &["lie in no allocation"]);
    };
    outside(device.upload(a.plus(1), &[1; 100]));
    outside(device.download(a.plus(100), &mut [0]));
    outside(device.copy(a, b.plus(4901), 100));
    outside(device.copy(b.plus(4901), a, 100));
    outside(device.zero(Address(0), 1));
    outside(device.zero(b, usize::MAX));
    assert_has(
        &device.copy(b, b.plus(99), 100).expect_err("overlap").to_string(),
        &["the two ranges overlap"],
    );

    device.free(a.plus(1)); // nobody's
    device.free(a);
    outside(device.upload(a, &[1]));
    assert_eq!(device.memory().expect("no fault").free, (1 << 20) - 5000);
}

#[test]
fn writing_behind_an_allocation_is_an_error() {
    let f = Fixture::new(0);
    // 61 words: the page behind begins a few words later.
    let (count, out) = (f.with(&[0_u32]), f.fresh::<u32>(61));
    let error = f.refused("order", 32, 0, &[count.into(), out.into()]);
    assert_has(&error, &["behind the 244 bytes of a test"]);
}

#[test]
fn a_recording_runs_when_it_is_replayed() {
    let f = Fixture::new(0);
    let (count, out) = (f.with(&[0_u32]), f.fresh::<u32>(64));
    let graph = f
        .device
        .record(&mut || {
            f.launch("order", [1, 1, 1], 32, 0, &[count.into(), out.into()])?;
            f.launch("order", [1, 1, 1], 32, 0, &[count.into(), out.plus(128).into()])
        })
        .expect("launches");
    assert_eq!(f.read::<u32>(count, 1), [0]);
    assert!(f.device.launches().is_empty());
    for round in 0..3 {
        f.device.replay(graph).expect("correct launches");
        assert_eq!(f.read::<u32>(out, 64), (round * 64..(round + 1) * 64).collect::<Vec<u32>>());
    }
    assert_eq!(f.device.launches(), HashMap::from([("order".to_owned(), 6)]));

    let only = |work: &mut dyn FnMut() -> Result<(), Error>| {
        let error = f.device.record(work).expect_err("no launch").to_string();
        assert_has(&error, &["nothing but launches may be recorded"]);
    };
    only(&mut || f.device.upload(out, &[0]));
    only(&mut || f.device.download(out, &mut [0]));
    only(&mut || f.device.zero(out, 1));
    only(&mut || f.device.copy(out, count, 1));
    only(&mut || f.device.wait());
    only(&mut || f.device.replay(graph));
    only(&mut || f.device.allocate(1, "a test").map(drop));
    only(&mut || f.device.record(&mut || Ok(())).map(drop));
    // A failed recording leaves nothing behind.
    f.device.wait().expect("no recording");
    assert!(f.device.replay(Graph(2)).is_err() && f.device.replay(Graph(0)).is_err());
    f.device.free(out);
    assert_has(
        &f.device.replay(graph).expect_err("a freed buffer").to_string(),
        &["`order`", "argument 1", "no allocation"],
    );
}
