//! Makes the generic kernels into code of each instruction set.

use std::ops::Range;

#[cfg(target_arch = "aarch64")]
use super::simd::neon::Neon;
#[cfg(target_arch = "x86_64")]
use super::simd::{avx2::Avx2, avx512::Avx512};
use super::{
    Activations, AttendBlock, DeltaRun, Kernels, Running,
    simd::{Simd, portable::Portable},
};
use crate::model::Linear;

/// All tables, fastest first. Whoever hands one out asks `detected` before.
pub(super) static ALL: &[&Kernels] = &[
    #[cfg(target_arch = "x86_64")]
    &avx512_amd::KERNELS,
    #[cfg(target_arch = "x86_64")]
    &avx512::KERNELS,
    #[cfg(target_arch = "x86_64")]
    &avx2::KERNELS,
    #[cfg(target_arch = "aarch64")]
    &neon::KERNELS,
    &portable::KERNELS,
];

/// One input row of a convolution's tap: weights and values.
type Tap<'a> = (&'a [f32], &'a [f32]);

/// Hands the list of operations to another macro, behind its own arguments.
macro_rules! with_ops {
    ($macro:ident, $($args:tt)*) => {
        $macro! {
            $($args)*
            prepare(to: &Activations, row: usize, x: &[f32]);
            matmul(w: &Linear, x: &Activations, rows: &[u32], outputs: Range<usize>, y: *mut f32, stride: usize);
            dequantize_row(w: &Linear, row: usize, out: &mut [f32]);
            rms_norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]);
            l2_norm(x: &mut [f32], eps: f32, factor: f32);
            silu_mul(gate: &mut [f32], up: &[f32]);
            mul_silu(x: &mut [f32], gate: &[f32]);
            mul_sigmoid(x: &mut [f32], gate: &[f32]);
            add(x: &mut [f32], y: &[f32]);
            add_scaled(x: &mut [f32], factor: f32, y: &[f32]);
            softmax(x: &mut [f32]);
            conv_silu(taps: &[Tap<'_>], out: &mut [f32]);
            rope(head: &mut [f32], cos: &[f32], sin: &[f32]);
            store_f16(x: &[f32], out: &mut [u16]);
            delta_run(run: &DeltaRun<'_>, state: &mut [f32], out: &mut [f32], out_stride: usize);
            attend_f16(block: &AttendBlock<'_>, keys: &[u16], values: &[u16], running: &mut Running<'_>);
            attend_f32(block: &AttendBlock<'_>, keys: &[f32], values: &[f32], running: &mut Running<'_>);
        }
    };
}

macro_rules! declare_ops {
    (; $($name:ident($($arg:ident: $type:ty),*);)*) => {
        /// # Safety
        /// All functions: the processor has the instruction set, and what the generic kernel
        /// of that name asks for.
        pub(super) struct Ops {
            $(pub(super) $name: unsafe fn($($type),*),)*
        }
    };
}

/// One table: each function has the features, and the generic kernel is inlined into it.
macro_rules! instruction_set {
    (
        $module:ident, $simd:ty, $attribute:meta, $detected:expr;
        $($name:ident($($arg:ident: $type:ty),*);)*
    ) => {
        mod $module {
            use super::*;

            pub(super) static KERNELS: Kernels = Kernels {
                name: stringify!($module),
                detected: || $detected,
                ops: Ops { $($name),* },
            };

            $(
                #[$attribute]
                unsafe fn $name($($arg: $type),*) {
                    // SAFETY: passed on from the caller.
                    unsafe { generic::$name::<$simd>($($arg),*) }
                }
            )*
        }
    };
}

#[cfg(test)]
macro_rules! idle_ops {
    (; $($name:ident($($arg:ident: $type:ty),*);)*) => {
        /// Names of all operations.
        pub(super) const OPS: &[&str] = &[$(stringify!($name)),*];

        /// The portable kernels, one of which computes nothing.
        pub(super) fn without(op: &str) -> Kernels {
            $(unsafe fn $name($(_: $type),*) {})*
            let mut ops = Ops { $($name: portable::KERNELS.ops.$name),* };
            match op {
                $(stringify!($name) => ops.$name = $name,)*
                _ => panic!("no operation `{op}`"),
            }
            Kernels { name: "idle", detected: || true, ops }
        }
    };
}

with_ops!(declare_ops, ;);
#[cfg(test)]
with_ops!(idle_ops, ;);
with_ops!(instruction_set, portable, Portable, inline(never), true;);
#[cfg(target_arch = "x86_64")]
with_ops!(
    instruction_set,
    avx2,
    Avx2,
    target_feature(enable = "avx2,fma,f16c"),
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
);
#[cfg(target_arch = "x86_64")]
with_ops!(
    instruction_set,
    avx512_amd,
    Avx512<true>,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni"),
    (avx512::KERNELS.detected)() && made_by_amd();
);
#[cfg(target_arch = "x86_64")]
with_ops!(
    instruction_set,
    avx512,
    Avx512<false>,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni"),
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni");
);
#[cfg(target_arch = "aarch64")]
with_ops!(
    instruction_set,
    neon,
    Neon,
    target_feature(enable = "neon"),
    std::arch::is_aarch64_feature_detected!("neon");
);

#[cfg(target_arch = "x86_64")]
fn made_by_amd() -> bool {
    let id = std::arch::x86_64::__cpuid(0);
    [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
}

/// The kernels under the names of the table, formats and precisions told apart.
mod generic {
    use super::*;
    pub(super) use crate::backend::cpu::kernels::{delta_net::delta_run, elementwise::*};
    use crate::backend::{
        Precision,
        cpu::kernels::{
            attention,
            matmul::{self as integer, exact},
        },
    };

    /// Calls a kernel with the constants of a matrix's format.
    macro_rules! by_format {
        ($w:expr, $module:ident::$kernel:ident::<$simd:ident>$args:tt) => {
            match ($w.bits, $w.group) {
                (4, 32) => $module::$kernel::<$simd, 4, 32>$args,
                (4, 64) => $module::$kernel::<$simd, 4, 64>$args,
                (4, 128) => $module::$kernel::<$simd, 4, 128>$args,
                (8, 32) => $module::$kernel::<$simd, 8, 32>$args,
                (8, 64) => $module::$kernel::<$simd, 8, 64>$args,
                (8, 128) => $module::$kernel::<$simd, 8, 128>$args,
                (bits, group) => panic!("{bits} bits in groups of {group} passed `supports`"),
            }
        };
    }

    /// Calls a kernel with the constant that integer products need of a matrix's groups.
    macro_rules! by_unit {
        ($w:expr, $module:ident::$kernel:ident::<$simd:ident, $bits:literal>$args:tt) => {
            if $w.group == 32 {
                $module::$kernel::<$simd, $bits, 32>$args
            } else {
                $module::$kernel::<$simd, $bits, 64>$args
            }
        };
    }

    #[inline(always)]
    pub(super) unsafe fn prepare<S: Simd>(to: &Activations, row: usize, x: &[f32]) {
        // SAFETY: passed on from the caller.
        unsafe {
            match to.precision() {
                Precision::Default => integer::prepare::<S>(to, row, x),
                Precision::Exact => exact::prepare::<S>(to, row, x),
            }
            to.join_sums(row);
        }
    }

    #[inline(always)]
    pub(super) unsafe fn matmul<S: Simd>(
        w: &Linear,
        x: &Activations,
        rows: &[u32],
        outputs: Range<usize>,
        y: *mut f32,
        stride: usize,
    ) {
        // SAFETY: passed on from the caller.
        unsafe {
            match (x.precision(), w.bits) {
                (Precision::Exact, _) => {
                    by_format!(w, exact::matmul::<S>(w, x, rows, outputs, y, stride));
                }
                (Precision::Default, 4) => {
                    by_unit!(w, integer::matmul::<S, 4>(w, x, rows, outputs, y, stride));
                }
                (Precision::Default, _) => {
                    by_unit!(w, integer::matmul::<S, 8>(w, x, rows, outputs, y, stride));
                }
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn dequantize_row<S: Simd>(w: &Linear, row: usize, out: &mut [f32]) {
        // SAFETY: passed on from the caller.
        unsafe { by_format!(w, exact::dequantize_row::<S>(w, row, out)) }
    }

    #[inline(always)]
    pub(super) unsafe fn attend_f16<S: Simd>(
        block: &AttendBlock<'_>,
        keys: &[u16],
        values: &[u16],
        running: &mut Running<'_>,
    ) {
        // SAFETY: passed on from the caller.
        unsafe { attention::attend::<S, u16>(block, keys, values, running) }
    }

    #[inline(always)]
    pub(super) unsafe fn attend_f32<S: Simd>(
        block: &AttendBlock<'_>,
        keys: &[f32],
        values: &[f32],
        running: &mut Running<'_>,
    ) {
        // SAFETY: passed on from the caller.
        unsafe { attention::attend::<S, f32>(block, keys, values, running) }
    }
}
