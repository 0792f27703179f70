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
//! To look there takes some ten microseconds: for recordings alone.

#![expect(unsafe_code, reason = "the C library's calls that walk a stack and name its functions")]

/// What names of functions contain that ask for a workspace, as the linker has them. `at::cuda` has
/// `getCurrentCUDABlasHandle`, and since cuBLASLt has one of its own `getCUDABlasLtWorkspace`.
const ASKING: [&[u8]; 1] = [b"CUDABlas"];

/// True if the request that is served now, on this thread, is for a workspace of cuBLAS. False where the C library
/// cannot say who calls.
pub(crate) fn is_workspace() -> bool {
    has_caller(&ASKING)
}

/// True if the name of a function that is being called now contains one of these.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn has_caller(names: &[&[u8]]) -> bool {
    use std::ffi::{CStr, c_void};
    use std::mem::MaybeUninit;
    use std::ptr;

    /// Callers that are looked at: from the phantom up to the product it is some fifteen.
    const FRAMES: usize = 32;
    let mut frames: [*mut c_void; FRAMES] = [ptr::null_mut(); FRAMES];
    // SAFETY: it writes no more than it is told there is room for.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as i32) };
    let count = usize::try_from(count).unwrap_or(0).min(FRAMES);
    frames[..count].iter().any(|&frame| {
        let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be asked about, and there is room for the answer.
        if unsafe { libc::dladdr(frame, found.as_mut_ptr()) } == 0 {
            return false;
        }
        // SAFETY: numbers and pointers, of which zeros are sound too.
        let name = unsafe { found.assume_init() }.dli_sname;
        if name.is_null() {
            return false;
        }
        // SAFETY: a name in the tables of a library that is being called, so that it stays until it has returned.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        names.iter().any(|wanted| name.windows(wanted.len()).any(|part| part == *wanted))
    })
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn has_caller(_names: &[&[u8]]) -> bool {
    false
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use std::cell::Cell;
    use std::ffi::{c_int, c_void};

    use super::*;

    thread_local! {
        static SEEN: Cell<[bool; 3]> = const { Cell::new([false; 3]) };
    }

    extern "C" fn compare(_one: *const c_void, _other: *const c_void) -> c_int {
        let asks: [&[u8]; 2] = [b"qsort", b"no function is called that"];
        let [sorts, other] = asks.map(|name| has_caller(&[name]));
        SEEN.set([sorts, other, is_workspace()]);
        0
    }

    #[test]
    fn functions_of_libraries_are_found_where_they_call() {
        assert!(!has_caller(&[b"qsort"]), "nobody sorts");
        let mut two = [1_u8, 2];
        // SAFETY: two bytes, and a function that compares any.
        unsafe { libc::qsort(two.as_mut_ptr().cast(), 2, 1, Some(compare)) };
        assert_eq!(SEEN.get(), [true, false, false]);
    }
}
