//! Mistakes, limits and recordings: what the device refuses, and what it does with what it takes.

use super::*;

/// Kernel, threads of a block, dynamic shared memory, arguments, words of the error.
type Case<'a> = (&'a str, u32, u32, &'a [Argument], &'a [&'a str]);

#[test]
fn mistakes_in_a_kernel_are_errors_that_say_where() {
    Fixture::each(|f| {
        let out: Argument = f.device.fresh::<u32>(64).into();
        let x: Argument = f.device.memory_of(&[0_u32; 64]).into();
        let lines = |of: &str| -> Vec<String> {
            let at =
                KERNELS.lines().position(|line| line.contains(of)).expect("a line of tests.cu");
            (at + 1..at + 12).map(|line| format!("tests.cu:{line}")).collect()
        };
        let cases: [Case<'_>; 18] = [
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
            ("bulk_unaligned", 1, 0, &[x], &["copy_bulk", "not 16-byte aligned"]),
            (
                "bulk_unexpected",
                1,
                0,
                &[x],
                &["copy_bulk of bytes that its arrival does not expect"],
            ),
            ("bulk_not_started", 1, 0, &[], &["arrival_wait for copies that nobody has started"]),
            ("bulk_left", 1, 0, &[x], &["ends before what copy_bulk has under way"]),
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
                ["past_the_end", "no_wait", "bulk_left"].contains(&kernel)
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
    let (count, out): (Argument, Argument) =
        (f.device.memory_of(&[0_u32]).into(), f.device.fresh::<u32>(64).into());
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
                    let out = f.device.fresh::<u32>(300);
                    f.run("turns", 1, 300, &[0_u32.into(), out.into()]);
                    assert_eq!(f.device.read::<u32>(out, 300), (0..300).collect::<Vec<u32>>());
                    let out = f.device.fresh::<u32>(3 * 2 * 32);
                    f.launch("unwritten", [3, 1, 1], 32, 128, &[out.into()]).expect("correct");
                    assert_eq!(f.device.read::<u32>(out, 3 * 2 * 32), [POISON; 3 * 2 * 32]);
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
    let (count, out) = (f.device.memory_of(&[0_u32]), f.device.fresh::<u32>(61));
    let error = f.refused("order", 32, 0, &[count.into(), out.into()]);
    assert_has(&error, &["behind the 244 bytes of a test"]);
}

#[test]
fn a_recording_runs_when_it_is_replayed() {
    let f = Fixture::new(0);
    let (count, out) = (f.device.memory_of(&[0_u32]), f.device.fresh::<u32>(64));
    let graph = f
        .device
        .record(&mut || {
            f.launch("order", [1, 1, 1], 32, 0, &[count.into(), out.into()])?;
            f.launch("order", [1, 1, 1], 32, 0, &[count.into(), out.plus(128).into()])
        })
        .expect("launches");
    assert_eq!(f.device.read::<u32>(count, 1), [0]);
    assert!(f.device.launches().is_empty());
    for round in 0..3 {
        f.device.replay(graph).expect("correct launches");
        assert_eq!(
            f.device.read::<u32>(out, 64),
            (round * 64..(round + 1) * 64).collect::<Vec<u32>>()
        );
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
