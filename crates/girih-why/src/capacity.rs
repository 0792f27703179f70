//! How much there was to have: for this process, and on the card.
//!
//! ```text
//!  card      |  others, and what this process has beside PyTorch  |  reserved  |  free  |
//!  capacity                                                       |<------ for PyTorch ->|
//! ```
//!
//! A snapshot has what was free when the request failed, and what was reserved: together they are
//! the capacity. Where enough was free and the request failed all the same, a limit refused it
//! (`set_per_process_memory_fraction`), which lies between the most that was ever reserved and what
//! this request would have needed. How large the card is no snapshot says; the text of the error
//! does.

use girih_plan::granted;

use crate::moment::Moment;
use crate::refusal::Refusal;

/// What is known beside the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// Bytes that this process may have of the device.
    pub capacity: Option<u64>,
    /// Bytes that a limit of this process allows it.
    pub allowed: Option<u64>,
    /// Bytes of the card.
    pub card: Option<u64>,
    /// Bytes that this process had of the card, PyTorch's and others.
    pub own: Option<u64>,
    /// Bytes that other processes had.
    pub others: Option<u64>,
}

/// What set the capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// What was reserved and what the device had free.
    Device,
    /// A limit of the process refused the request; only its bounds are known.
    Limit,
    /// It was given, or the error's text says it.
    Given,
}

/// How much there was to have. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// For PyTorch in this process: at least this.
    pub bytes: u64,
    /// At most this.
    pub most: u64,
    /// What set it.
    pub source: Source,
    /// Of the card, if it is known.
    pub card: Option<u64>,
    /// What others had of the card: other processes, and this one beside PyTorch's allocator.
    pub others: Option<u64>,
}

/// Bytes of a CUDA context and of libraries, that a process has beside PyTorch's allocator: up to
/// this much of the card is no sign of others.
const CONTEXT: u64 = 2 << 30;

/// The capacity at a refusal. `most_held` is the most that was reserved until then.
pub fn infer(refusal: &Refusal, moment: &Moment, most_held: u64, known: &Known) -> Capacity {
    let Known { card, .. } = *known;
    let (bytes, most, source) = match (known.capacity, refusal.device_free) {
        (Some(capacity), _) => (capacity, capacity, Source::Given),
        (None, Some(free)) if free >= segment(refusal.size) => {
            let most = (moment.reserved + segment(refusal.size)).saturating_sub(1);
            match known.allowed {
                Some(allowed) => {
                    let allowed = allowed.max(moment.reserved);
                    (allowed, allowed, Source::Limit)
                }
                None => (most_held.min(most).max(moment.reserved), most, Source::Limit),
            }
        }
        (None, free) => {
            let bytes = moment.reserved + free.unwrap_or(0);
            (bytes, bytes, Source::Device)
        }
    };
    let beside = card.map(|card| card.saturating_sub(bytes).saturating_sub(CONTEXT));
    let others = match source {
        // Under a limit what others have takes nothing away.
        Source::Limit => None,
        _ => known.others.or(beside),
    };
    Capacity { bytes, most, source, card, others }
}

/// What PyTorch takes of the device for a request (`get_allocation_size`).
pub fn segment(size: u64) -> u64 {
    let size = granted(size);
    match size {
        ..=0x10_0000 => 2 << 20,
        0x10_0001..0xa0_0000 => 20 << 20,
        _ => size.next_multiple_of(2 << 20),
    }
}

/// Reads PyTorch's own sentence about an error of memory out of whatever a program has printed; the
/// last if there are several. None if there is none.
pub fn read_sentence(text: &str) -> Option<Known> {
    const TOTAL: &str = "has a total capacity of ";
    let at = text.rfind(TOTAL)?;
    let sentence = &text[at..];
    let sentence = &sentence[..sentence.find("If reserved but").unwrap_or(sentence.len())];
    let card = size_at(&sentence[TOTAL.len()..])?;
    let before = |words: &str| {
        let mut before = sentence[..sentence.find(words)?].split_whitespace().rev();
        let (unit, number) = (before.next()?, before.next()?);
        size_at(&format!("{number} {unit}"))
    };
    let own = sentence.find("this process has ").and_then(|at| size_at(&sentence[at + 17..]));
    let mut others = None;
    for (at, _) in sentence.match_indices("Process ") {
        if let Some(has) = sentence[at..].find(" has ")
            && let Some(bytes) = size_at(&sentence[at + has + 5..])
        {
            others = Some(others.unwrap_or(0) + bytes);
        }
    }
    Some(Known { capacity: None, allowed: before(" allowed"), card: Some(card), own, others })
}

/// The size with which a text begins, as PyTorch writes it: `79.25 GiB`.
fn size_at(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let number: f64 = words.next()?.parse().ok()?;
    let unit = words.next()?.trim_end_matches(['.', ',', ';']);
    let shift = match unit {
        "bytes" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    (number >= 0.0).then_some((number * f64::from(1u32 << shift)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn pytorchs_sentence_says_how_large_the_card_is_and_who_has_it() {
        let text = "step 3\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 \
                    GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.50 GiB is free. \
                    Process 4711 has 60.00 GiB memory in use. Including non-PyTorch memory, this \
                    process has 18.50 GiB memory in use. Of the allocated memory 17.00 GiB is \
                    allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated. \
                    If reserved but unallocated memory is large try setting x\n";
        let known = read_sentence(text).unwrap();
        let others = Some(60 * GIB);
        let own = Some(18 * GIB + GIB / 2);
        assert_eq!(known, Known { card: Some(80 * GIB), own, others, ..Known::default() });
        assert_eq!(read_sentence("all is well"), None);
    }

    #[test]
    fn the_sentence_says_how_much_was_allowed() {
        let text = "GPU 0 has a total capacity of 139.80 GiB of which 130.00 GiB is free. 14.00 \
                    GiB allowed; Of the allocated memory 13.00 GiB is allocated by PyTorch";
        let known = read_sentence(text).unwrap();
        assert_eq!(known.allowed, Some(14 * GIB));
    }

    #[test]
    fn where_enough_was_free_a_limit_has_refused() {
        let refusal = Refusal {
            tick: girih_trace::Tick(0),
            size: GIB,
            stream: girih_trace::StreamId(0),
            pool: girih_trace::PoolId::DEFAULT,
            stack: girih_trace::StackId::NONE,
            device_free: Some(100 * GIB),
        };
        let moment = Moment { reserved: 7 * GIB, ..Moment::default() };
        let found = infer(&refusal, &moment, 7 * GIB + 5, &Known::default());
        assert_eq!((found.bytes, found.most), (7 * GIB + 5, 8 * GIB - 1));
        assert_eq!(found.source, Source::Limit);
        let known = Known { allowed: Some(10 * GIB), card: Some(200 * GIB), ..Known::default() };
        let told = infer(&refusal, &moment, 7 * GIB + 5, &known);
        assert_eq!((told.bytes, told.most, told.others), (10 * GIB, 10 * GIB, None));
        let refusal = Refusal { device_free: Some(GIB / 2), ..refusal };
        let known = Known { card: Some(80 * GIB), ..Known::default() };
        let found = infer(&refusal, &moment, 7 * GIB, &known);
        assert_eq!((found.bytes, found.source), (7 * GIB + GIB / 2, Source::Device));
        assert_eq!(found.others, Some(80 * GIB - 7 * GIB - GIB / 2 - CONTEXT));
    }
}
