//! PyTorch's own sentence of a request without memory, which programs search and take apart:
//!
//! ```text
//! CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.81 GiB of which
//! 6.31 MiB is free. 70.00 GiB allowed; Of the allocated memory 60.20 GiB is allocated by PyTorch,
//! with 1.50 GiB allocated in private pools (e.g., CUDA Graphs), and 9.79 GiB is reserved by PyTorch
//! but unallocated.
//! ```
//!
//! Its words and the order of its facts are an interface, so they are those of the releases 2.6 to
//! 2.15, which agree up to here. What follows in PyTorch is advice to turn expandable segments on,
//! with the name of a variable and an address that change with the release; it is given where it is
//! good advice, in the mode `native` without them.

use std::fmt;

use crate::settings::Release;

/// The facts of the sentence. Bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sentence {
    /// What the caching allocator would have taken from the device for the request.
    pub(super) needed: u64,
    pub(super) device: i32,
    pub(super) total: u64,
    pub(super) free: u64,
    /// What the heap may hold, if less than all.
    pub(super) allowed: Option<u64>,
    pub(super) allocated: u64,
    /// Of `allocated`, what is in private pools.
    pub(super) in_private_pools: u64,
    pub(super) reserved: u64,
    /// The release whose advice is added, if it is good.
    pub(super) advice: Option<Release>,
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sentence { needed, device, total, free, allocated, in_private_pools, .. } = *self;
        write!(f, "CUDA out of memory. Tried to allocate {}. ", Size(needed))?;
        write!(f, "GPU {device} has a total capacity of {} ", Size(total))?;
        write!(f, "of which {} is free. ", Size(free))?;
        if let Some(allowed) = self.allowed {
            write!(f, "{} allowed; ", Size(allowed))?;
        }
        write!(f, "Of the allocated memory {} is allocated by PyTorch, ", Size(allocated))?;
        if in_private_pools > 0 {
            let pools = Size(in_private_pools);
            write!(f, "with {pools} allocated in private pools (e.g., CUDA Graphs), ")?;
        }
        let unallocated = Size(self.reserved.saturating_sub(allocated));
        write!(f, "and {unallocated} is reserved by PyTorch but unallocated.")?;
        self.advice.map_or(Ok(()), |release| {
            let (variable, page) = where_to_read(release);
            write!(
                f,
                " If reserved but unallocated memory is large try setting \
                 {variable}=expandable_segments:True to avoid fragmentation.  See documentation for \
                 Memory Management  (https://{page})"
            )
        })
    }
}

/// The variable that a release names in its advice, and the page of its documentation.
fn where_to_read(release: Release) -> (&'static str, &'static str) {
    const ENVIRONMENT: &str = "pytorch.org/docs/stable/notes/cuda.html#environment-variables";
    match release {
        Release(..=2, ..=9) => ("PYTORCH_CUDA_ALLOC_CONF", ENVIRONMENT),
        Release(..=2, 10) => ("PYTORCH_ALLOC_CONF", ENVIRONMENT),
        _ => (
            "PYTORCH_CUDA_ALLOC_CONF",
            "docs.pytorch.org/docs/stable/notes/cuda.html\
             #optimizing-memory-usage-with-pytorch-cuda-alloc-conf",
        ),
    }
}

/// Bytes as PyTorch writes them (`format_size`): GiB is the largest unit, and 1 KiB is bytes still.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let of = |unit: u32| bytes as f64 / f64::from(1 << unit);
        match bytes {
            0..=0x400 => write!(f, "{bytes} bytes"),
            0x401..=0x10_0000 => write!(f, "{:.2} KiB", of(10)),
            0x10_0001..=0x4000_0000 => write!(f, "{:.2} MiB", of(20)),
            _ => write!(f, "{:.2} GiB", of(30)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What a run that filled a card of 16 GiB was told, as it stands in many bug reports.
    const FULL: Sentence = Sentence {
        needed: 546 * MIB,
        device: 0,
        total: 16 << 30,
        free: 514 * MIB,
        allowed: None,
        allocated: 14_063 * MIB,
        in_private_pools: 46 * MIB,
        reserved: 14_800 * MIB,
        advice: None,
    };

    #[test]
    fn the_facts_stand_where_pytorch_has_them() {
        assert_eq!(
            FULL.to_string(),
            "CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a total capacity of 16.00 \
             GiB of which 514.00 MiB is free. Of the allocated memory 13.73 GiB is allocated by \
             PyTorch, with 46.00 MiB allocated in private pools (e.g., CUDA Graphs), and 737.00 MiB \
             is reserved by PyTorch but unallocated."
        );
    }

    #[test]
    fn a_limit_is_named_and_empty_pools_are_not() {
        let sentence = Sentence { allowed: Some(15 << 30), in_private_pools: 0, ..FULL };
        let text = sentence.to_string();
        assert!(text.contains("is free. 15.00 GiB allowed; Of the allocated"), "{text}");
        assert!(text.contains("13.73 GiB is allocated by PyTorch, and 737.00 MiB"), "{text}");
    }

    #[test]
    fn the_advice_is_that_of_the_release() {
        let of = |release| Sentence { advice: Some(release), ..FULL }.to_string();
        let old = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See \
                   documentation for Memory Management  \
                   (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)";
        assert!(of(Release(2, 6)).ends_with(old) && of(Release(2, 9)).ends_with(old));
        assert!(of(Release(2, 10)).contains("try setting PYTORCH_ALLOC_CONF=expandable"));
        for release in [Release(2, 11), Release(2, 15), Release(3, 0)] {
            assert!(of(release).contains("try setting PYTORCH_CUDA_ALLOC_CONF=expandable"));
            assert!(of(release).contains("(https://docs.pytorch.org/"), "{release:?}");
        }
    }

    #[test]
    fn sizes_are_written_as_pytorch_writes_them() {
        let size = |bytes| Size(bytes).to_string();
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(1024), "1024 bytes");
        assert_eq!(size(1 << 20), "1024.00 KiB");
        assert_eq!(size(20 << 20), "20.00 MiB");
        assert_eq!(size(1 << 30), "1024.00 MiB");
        assert_eq!(size(800_000_000 << 30), "800000000.00 GiB");
    }
}
