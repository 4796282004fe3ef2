/// A kernel of this machine's devices against the reference, on made-up inputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelCheck {
    /// Instruction set that it was compiled for, or device.
    pub path: &'static str,
    /// Its name, and its precision where it has several; or the kind of pass, with all kernels that it
    /// launches.
    pub kernel: &'static str,
    /// Largest error found: the norm of the difference over the norm of the reference's values.
    /// Not a number when the kernel's result is none, infinite when it wrote where it must not.
    pub error: f64,
    /// Largest error that docs/numerics.md allows; 0 asks for the same bits.
    pub tolerance: f64,
}

impl KernelCheck {
    /// Whether the kernel may be used.
    pub fn ok(&self) -> bool {
        // False for an error that is not a number.
        self.error <= self.tolerance
    }
}
