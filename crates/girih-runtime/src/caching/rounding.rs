//! How PyTorch rounds: requests to block sizes, and blocks to segment sizes.
//!
//! Source: `round_size`, `get_allocation_size` of `CUDACachingAllocator.cpp`, and
//! `roundup_power2_next_division` of `AllocatorConfig.cpp`. All sizes in bytes.

/// Every block is a multiple of this (`kMinBlockSize`).
pub const MIN_BLOCK_SIZE: u64 = 512;
/// The largest request that the small pool serves, after rounding (`kSmallSize`).
pub const SMALL_SIZE: u64 = 1 << 20;
/// Size of a segment of the small pool (`kSmallBuffer`).
pub const SMALL_SEGMENT: u64 = 2 << 20;
/// Requests from this size on get a segment of their own size (`kMinLargeAlloc`).
pub const MIN_LARGE_ALLOC: u64 = 10 << 20;
/// Segments of large requests are a multiple of this (`kRoundLarge`).
pub const ROUND_LARGE: u64 = 2 << 20;
/// Size of a segment for large requests below [`MIN_LARGE_ALLOC`] (`kLargeBuffer`), unless
/// `large_segment_size_mb` says otherwise.
pub const LARGE_SEGMENT: u64 = 20 << 20;
/// Requests of this size and more are refused before the allocator sees them: 1 EiB.
pub const MAX_REQUEST: u64 = 1 << 60;
/// Buckets of `roundup_power2_divisions`: one for each power of two from 1 MiB to 32 GiB.
pub const ROUNDUP_BUCKETS: usize = 16;

/// Divisions between one power of two and the next, for each bucket; 0 and 1 mean none.
pub type RoundupDivisions = [u32; ROUNDUP_BUCKETS];

/// The block size for a request of `size` bytes, which is less than [`MAX_REQUEST`].
pub fn round_size(size: u64, divisions: &RoundupDivisions) -> u64 {
    if size < MIN_BLOCK_SIZE {
        return MIN_BLOCK_SIZE;
    }
    let bucket = (size.ilog2() as usize).saturating_sub(20).min(ROUNDUP_BUCKETS - 1);
    let division = u64::from(divisions[bucket]);
    if division > 1 && size > MIN_BLOCK_SIZE * division {
        round_to_division(size, division)
    } else {
        size.next_multiple_of(MIN_BLOCK_SIZE)
    }
}

/// Rounds up to the next of `division` equal steps between two powers of two. `division` is a
/// power of two.
fn round_to_division(size: u64, division: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let floor = 1 << size.ilog2();
    match floor >> division.ilog2() {
        0 => 2 * floor,
        step => size.next_multiple_of(step),
    }
}

/// The segment size for a block of `size` bytes.
pub fn segment_size(size: u64, large_segment: u64) -> u64 {
    if size <= SMALL_SIZE {
        SMALL_SEGMENT
    } else if size < MIN_LARGE_ALLOC {
        large_segment
    } else {
        size.next_multiple_of(ROUND_LARGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: RoundupDivisions = [0; ROUNDUP_BUCKETS];

    #[test]
    fn without_divisions_sizes_round_to_512_bytes() {
        for (size, rounded) in
            [(1, 512), (511, 512), (512, 512), (513, 1024), (1_048_577, 1_049_088)]
        {
            assert_eq!(round_size(size, &OFF), rounded, "{size}");
        }
    }

    #[test]
    fn four_divisions_cut_each_power_of_two_in_four() {
        let four = [4; ROUNDUP_BUCKETS];
        for (size, rounded) in
            [(1200, 1536), (3000, 3072), (5_000_000, 5_242_880), (4096, 4096), (2048, 2048)]
        {
            assert_eq!(round_size(size, &four), rounded, "{size}");
        }
    }

    #[test]
    fn one_division_is_none() {
        let one = [1; ROUNDUP_BUCKETS];
        for size in [1, 700, 3000, 5_000_000, 1 << 33] {
            assert_eq!(round_size(size, &one), round_size(size, &OFF), "{size}");
        }
    }

    #[test]
    fn each_bucket_rounds_by_its_own_divisions() {
        let mut divisions = OFF;
        divisions[0] = 8; // below 2 MiB, and everything below 1 MiB too
        divisions[2] = 2; // 4 MiB to 8 MiB
        divisions[15] = 4; // 32 GiB and more
        let mib = 1 << 20;
        assert_eq!(round_size(mib + 1, &divisions), mib + mib / 8);
        assert_eq!(round_size(5000, &divisions), 5120);
        assert_eq!(round_size(2 * mib + 1, &divisions), 2 * mib + 512);
        assert_eq!(round_size(4 * mib + 1, &divisions), 6 * mib);
        assert_eq!(round_size((32 << 30) + 1, &divisions), 40 << 30);
        assert_eq!(round_size((256 << 30) + 1, &divisions), 320 << 30);
    }

    #[test]
    fn segments_are_2_mib_20_mib_or_the_request_rounded_to_2_mib() {
        let mib = 1 << 20;
        for (size, segment) in [
            (512, 2 * mib),
            (mib, 2 * mib),
            (mib + 512, 20 * mib),
            (10 * mib - 512, 20 * mib),
            (10 * mib, 10 * mib),
            (10 * mib + 512, 12 * mib),
        ] {
            assert_eq!(segment_size(size, LARGE_SEGMENT), segment, "{size}");
        }
        assert_eq!(segment_size(3 * mib, 40 * mib), 40 * mib);
    }

    #[test]
    fn rounding_never_shrinks_and_keeps_the_alignment() {
        arbtest::arbtest(|u| {
            let size = u.int_in_range(1..=MAX_REQUEST - 1)? >> u.int_in_range(0..=59)?;
            let division = 1 << u.int_in_range(0..=6)?;
            let rounded = round_size(size.max(1), &[division; ROUNDUP_BUCKETS]);
            assert!(rounded >= size && rounded.is_multiple_of(MIN_BLOCK_SIZE), "{size} {division}");
            assert!(rounded <= 2 * size.max(MIN_BLOCK_SIZE));
            Ok(())
        });
    }
}
