//! Touching memory that is not there, in a kernel: an error of its launch instead of the end of the
//! process.

use std::{
    cell::Cell,
    ffi::{c_int, c_void},
    sync::OnceLock,
};

/// `calla_fault` of emulator.h: goes on with the error, on the stack of the kernel's thread.
pub(super) type Entry = unsafe extern "C" fn(usize) -> !;

/// The signals that such an access raises.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// `si_code` of a fault without an address, as of one that has too high bits.
const WITHOUT_ADDRESS: c_int = 0x80;

thread_local! {
    /// Where the launch that this thread runs handles faults.
    static ENTRY: Cell<Option<Entry>> = const { Cell::new(None) };
}

/// What handled the signals before.
static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

/// Runs a launch with its faults sent to `entry`.
pub(super) fn guarded<R>(entry: Entry, launch: impl FnOnce() -> R) -> R {
    BEFORE.get_or_init(|| SIGNALS.map(install));
    ENTRY.set(Some(entry));
    let result = launch();
    ENTRY.set(None);
    result
}

fn install(signal: c_int) -> libc::sigaction {
    // SAFETY: a zeroed sigaction is valid; the handler does only what a signal handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        let mut before: libc::sigaction = std::mem::zeroed();
        let status = libc::sigaction(signal, &raw const action, &raw mut before);
        assert_eq!(status, 0, "the signal exists and the action is valid");
        before
    }
}

/// In a launch the thread goes on at its entry; elsewhere the handler before this one decides.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a siginfo and a context; the thread-local cell needs no set-up and
    // has no destructor.
    unsafe {
        if let Some(entry) = ENTRY.get() {
            let address = if (*info).si_code == WITHOUT_ADDRESS {
                usize::MAX
            } else {
                (*info).si_addr() as usize
            };
            go_on_at(&mut *context.cast::<libc::ucontext_t>(), entry, address);
            return;
        }
        let index = SIGNALS.iter().position(|&other| other == signal);
        let before = BEFORE.get().zip(index).map(|(before, index)| before[index]);
        match before {
            Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handle: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(before.sa_sigaction);
                handle(signal, info, context);
            }
            // The access is tried again, and then ends the process.
            _ => {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// Makes the interrupted thread call `entry(address)` when the signal handler returns.
#[cfg(target_arch = "x86_64")]
fn go_on_at(context: &mut libc::ucontext_t, entry: Entry, address: usize) {
    let registers = &mut context.uc_mcontext.gregs;
    registers[libc::REG_RIP as usize] = entry as usize as i64;
    registers[libc::REG_RDI as usize] = address as i64;
    // Below what the interrupted function may use, and as a call leaves it.
    registers[libc::REG_RSP as usize] = ((registers[libc::REG_RSP as usize] - 256) & !15) - 8;
}

/// Makes the interrupted thread call `entry(address)` when the signal handler returns.
#[cfg(target_arch = "aarch64")]
fn go_on_at(context: &mut libc::ucontext_t, entry: Entry, address: usize) {
    context.uc_mcontext.pc = entry as usize as u64;
    context.uc_mcontext.regs[0] = address as u64;
    context.uc_mcontext.sp = (context.uc_mcontext.sp - 256) & !15;
}
