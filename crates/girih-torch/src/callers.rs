//! Who asks for memory: whether a request comes out of PyTorch's calls of cuBLAS.
//!
//! Such a request is for a workspace, and says so to nobody. Its size is that of many tensors (32 MiB on an H200, a
//! matrix of 4096 by 4096), and the table of workspaces has it only once it was given. But the functions that ask are on
//! the stack:
//!
//! ```text
//!  Phantom::alloc ◄─ girih_alloc ◄─ GirihAllocator::allocate ◄─ at::cuda::getCurrentCUDABlasHandle ◄─ at::addmm
//! ```
//!
//! To name one of them takes a fraction of a millisecond, for the C library goes through all names of a library that has
//! half a million; so what each is called is remembered. To walk the stack takes some ten microseconds: this is for
//! recordings alone.

#![expect(unsafe_code, reason = "the C library's calls that walk a stack and name its functions")]

use std::cell::RefCell;

use rustc_hash::FxHashMap;

/// What names of functions contain that ask for a workspace, as the linker has them. `at::cuda` has
/// `getCurrentCUDABlasHandle`, and since cuBLASLt has one of its own `getCUDABlasLtWorkspace`.
const ASKING: &[&[u8]] = &[b"CUDABlas"];

/// Callers that are looked at: from the phantom up to the product it is some fifteen.
const FRAMES: usize = 32;

/// Callers at most that are remembered: a program has some hundreds.
const KNOWN_MAX: usize = 1 << 14;

thread_local! {
    static KNOWN: RefCell<Callers> = RefCell::new(Callers::of(ASKING));
}

/// True if the request that is served now, on this thread, is for a workspace of cuBLAS. False where the C library
/// cannot say who calls.
pub(crate) fn is_workspace() -> bool {
    KNOWN
        .try_with(|known| known.try_borrow_mut().is_ok_and(|mut it| it.is_called()))
        .unwrap_or(false)
}

/// Functions whose names contain one of some words.
struct Callers {
    words: &'static [&'static [u8]],
    /// By the address to which a call returns, whether it is one of theirs.
    known: FxHashMap<usize, bool>,
}

impl Callers {
    fn of(words: &'static [&'static [u8]]) -> Callers {
        Callers { words, known: FxHashMap::default() }
    }

    /// True if one of them is being called now, on this thread.
    fn is_called(&mut self) -> bool {
        let frames = frames();
        frames.into_iter().take_while(|frame| *frame != 0).any(|frame| self.is_one(frame))
    }

    fn is_one(&mut self, frame: usize) -> bool {
        if let Some(known) = self.known.get(&frame) {
            return *known;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let is_word_in = |name: &[u8]| {
            self.words.iter().any(|word| name.windows(word.len()).any(|part| part == *word))
        };
        let is_one = with_name(frame, is_word_in);
        self.known.insert(frame, is_one);
        is_one
    }
}

/// The addresses to which the calls of this thread return, the last call first; zeros behind them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn frames() -> [usize; FRAMES] {
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: it writes no more than it is told there is room for.
    unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as i32) };
    frames.map(|frame| frame as usize)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn frames() -> [usize; FRAMES] {
    [0; FRAMES]
}

/// What is said of the name of the function that an address lies in; false if it has none.
fn with_name(frame: usize, says: impl FnOnce(&[u8]) -> bool) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about, and there is room for the answer.
    if unsafe { libc::dladdr(frame as *const _, found.as_mut_ptr()) } == 0 {
        return false;
    }
    // SAFETY: numbers and pointers, of which zeros are sound too.
    let name = unsafe { found.assume_init() }.dli_sname;
    if name.is_null() {
        return false;
    }
    // SAFETY: a name in the tables of a library that is being called, so that it stays until it has returned.
    says(unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes())
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use std::cell::Cell;
    use std::ffi::{c_int, c_void};

    use super::*;

    thread_local! {
        static SEEN: Cell<[bool; 3]> = const { Cell::new([false; 3]) };
    }

    fn is_called(words: &'static [&'static [u8]]) -> bool {
        let mut callers = Callers::of(words);
        // What is remembered is what was found.
        let found = callers.is_called();
        assert_eq!(callers.is_called(), found);
        found
    }

    extern "C" fn compare(_one: *const c_void, _other: *const c_void) -> c_int {
        let [sorts, other] = [is_called(&[b"qsort"]), is_called(&[b"no function is called that"])];
        SEEN.set([sorts, other, is_workspace()]);
        0
    }

    #[test]
    fn functions_of_libraries_are_found_where_they_call() {
        assert!(!is_called(&[b"qsort"]), "nobody sorts");
        let mut two = [1_u8, 2];
        // SAFETY: two bytes, and a function that compares any.
        unsafe { libc::qsort(two.as_mut_ptr().cast(), 2, 1, Some(compare)) };
        assert_eq!(SEEN.get(), [true, false, false]);
    }

    #[test]
    fn what_is_remembered_of_callers_is_less_than_a_mebibyte() {
        let mut callers = Callers::of(ASKING);
        for frame in 1..3 * KNOWN_MAX {
            callers.is_one(frame);
            assert!(callers.known.len() <= KNOWN_MAX);
        }
        assert!(callers.known.capacity() * size_of::<(usize, bool)>() < 1 << 20);
    }
}
