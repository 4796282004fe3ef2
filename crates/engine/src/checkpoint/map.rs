//! Files mapped read-only, and what is said when one is cut short while it is in use.
//!
//! Reading a page that a mapped file no longer has ends the process with SIGBUS. Nothing can be
//! saved then, but the file can be named.

use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A whole file in memory, as the system pages it in.
pub(super) struct Map {
    // Dropped in this order: an address is no longer watched when it is free for others.
    _watch: Watched,
    map: memmap2::Mmap,
}

impl Map {
    /// Maps a regular file. `path` is for messages.
    pub(super) fn of(file: &File, path: &Path) -> io::Result<Self> {
        // SAFETY: the mapping is read-only and lives as long as the slice of it. A file that another
        // program changes gives wrong numbers, one that is cut short SIGBUS; readers treat the
        // contents as plain bytes, of which every value is valid.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(Self { _watch: Watched::new(&map, path), map })
    }
}

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// Makes the process end with a line that names the file, and exit code 1, when a mapped file is
/// cut short or its disk fails. Other faults go where they went before. For the start of a program.
pub fn explain_lost_files() {
    #[cfg(unix)]
    fault::install();
}

/// Where a file is mapped. Kept for good, because a signal may come at any time; a program maps
/// few files.
struct Watch {
    start: usize,
    end: AtomicUsize, // 0 once unmapped
    path: String,
    next: OnceLock<&'static Watch>,
}

static FIRST: OnceLock<&'static Watch> = OnceLock::new();

struct Watched(&'static Watch);

impl Watched {
    fn new(map: &[u8], path: &Path) -> Self {
        let start = map.as_ptr() as usize;
        let watch: &'static Watch = Box::leak(Box::new(Watch {
            start,
            end: AtomicUsize::new(start + map.len()),
            path: path.display().to_string(),
            next: OnceLock::new(),
        }));
        let mut place = &FIRST;
        while let Err(_taken) = place.set(watch) {
            place = &place.get().expect("it was taken").next;
        }
        Self(watch)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
    }
}

/// The path of the file that is mapped there. Only atomic reads: a signal handler calls it.
#[cfg_attr(not(unix), allow(dead_code))]
fn file_at(address: usize) -> Option<&'static str> {
    let mut place = &FIRST;
    while let Some(watch) = place.get() {
        if (watch.start..watch.end.load(Ordering::Acquire)).contains(&address) {
            return Some(&watch.path);
        }
        place = &watch.next;
    }
    None
}

#[cfg(unix)]
mod fault {
    use std::{mem::MaybeUninit, ptr, sync::OnceLock};

    use super::file_at;

    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    pub(super) fn install() {
        BEFORE.get_or_init(|| {
            // SAFETY: sigaction is plain data, of which zero is a valid value; the handler does
            // only what a signal handler may.
            unsafe {
                let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                let mut before: libc::sigaction = MaybeUninit::zeroed().assume_init();
                libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before);
                before
            }
        });
    }

    extern "C" fn on_fault(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _context: *mut libc::c_void,
    ) {
        // SAFETY: the system hands over a valid record.
        let address = unsafe { (*info).si_addr() } as usize;
        if let Some(path) = file_at(address) {
            say("calla: ");
            say(path);
            say(": cannot be read any more: the file was cut short or its disk failed while the \
                 model was in use; fetch it again and start anew\n");
            // SAFETY: ends the process without running anything of it.
            unsafe { libc::_exit(1) };
        }
        let before = BEFORE.get().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: puts back what was there; the instruction faults again and finds it.
        unsafe {
            if before.is_null() {
                libc::signal(signal, libc::SIG_DFL);
            } else {
                libc::sigaction(signal, before, ptr::null_mut());
            }
        }
    }

    fn say(text: &str) {
        // SAFETY: the bytes are valid for the call. Nobody can be told when it fails.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}
