//! The heaps of the process: one for each device, made at the first request of the device, never
//! given up.
//!
//! A free names no device. Where one heap was made, it is that one. Else the thread's last device is
//! tried first, which is right but for programs that use several devices from one thread; then the
//! others. The driver is not asked.
//!
//! ```text
//!  set up ─► init(count) ─► first request of device 1 ─► heap 1 ... ─► finish ─► frees do nothing
//! ```
//!
//! Nothing here has a destructor. Blocks are freed from any thread until the very end of a process,
//! after its other statics are gone; after [`finish`] such a free is not passed on to a driver that
//! may be gone too: the process's memory goes back with it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use girih_runtime::Address;
use girih_trace::MarkKind;

use crate::abi::Sink;
use crate::early::EarlyMarks;
use crate::error::{Outcome, unknown};
use crate::heap::{Heap, add_warning, check_fraction};
use crate::settings::Settings;
use crate::swap;

/// Devices that a process may have: as many as PyTorch can number are never seen.
pub const DEVICES: usize = 64;

static HEAPS: [OnceLock<Heap>; DEVICES] = [const { OnceLock::new() }; DEVICES];
static SETTINGS: OnceLock<Settings> = OnceLock::new();
/// Devices of the process; -1 before [`init`].
static COUNT: AtomicI32 = AtomicI32::new(-1);
/// The share that each device's heap may hold, as bits: it may be set before the heap is made. No
/// number as long as it was not set.
static FRACTIONS: [AtomicU64; DEVICES] = [const { AtomicU64::new(f64::NAN.to_bits()) }; DEVICES];
static FINISHED: AtomicBool = AtomicBool::new(false);
/// The device of the heap that was made, if there is one; else [`NONE`] or [`SEVERAL`]. A thread's own
/// memory costs a call to find in a library that a program has loaded; most processes use one device
/// and need none. It is a hint: a free that looks at the wrong heap first goes on to the others.
static ONLY: AtomicUsize = AtomicUsize::new(NONE);
const NONE: usize = usize::MAX;
const SEVERAL: usize = usize::MAX - 1;
/// What a heap that is made begins with. Held while one is made, so that none misses a change.
static EARLY: Mutex<Early> =
    Mutex::new(Early { sink: None, marks: EarlyMarks::new(), changed: None, warnings: Vec::new() });

struct Early {
    /// Where events go.
    sink: Option<Sink>,
    /// What the program has marked in the present iteration.
    marks: EarlyMarks,
    /// The settings as the program has changed them last, if it has.
    changed: Option<Settings>,
    /// What a user should be told of changed settings.
    warnings: Vec<String>,
}

impl Early {
    /// The settings that hold now.
    fn settings(&self) -> &Settings {
        self.changed.as_ref().unwrap_or_else(|| settings())
    }
}

thread_local! {
    /// The device of this thread's last request since there are several heaps. It has no destructor:
    /// threads free while they die.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// Sets how the heaps behave.
///
/// # Errors
/// If they were set before, or if a heap exists already.
pub(crate) fn configure(settings: Settings) -> Result<(), String> {
    let too_late = "Girih is configured already; its settings can be chosen once, before the first \
                    request for GPU memory";
    let warnings = settings.warnings.clone();
    SETTINGS.set(settings).map_err(|_| too_late.to_owned())?;
    early().warnings.extend(warnings);
    Ok(())
}

/// Changes the settings of the caching allocator, of the heaps that there are and of those to come:
/// see [`Settings::changed`].
///
/// # Errors
/// After a panic inside a heap.
pub(crate) fn change_settings(text: &str) -> Outcome<()> {
    let mut early = early();
    let changed = early.settings().changed(text);
    for warning in &changed.warnings {
        // Some programs change them in every step.
        add_warning(&mut early.warnings, warning.clone());
    }
    let config = changed.config.clone();
    early.changed = Some(changed);
    each(|heap| heap.configure(&config))
}

/// What `look` makes of the settings that hold now.
pub(crate) fn with_settings<T>(look: impl FnOnce(&Settings) -> T) -> T {
    look(early().settings())
}

/// What a user should be told of settings and was not yet.
pub(crate) fn take_warnings() -> Vec<String> {
    std::mem::take(&mut early().warnings)
}

/// The settings of the beginning, which can no longer change.
pub(crate) fn settings() -> &'static Settings {
    SETTINGS.get_or_init(Settings::default)
}

/// The process has `count` devices.
///
/// # Errors
/// If Girih does not have as many.
pub fn init(count: i32) -> Outcome<()> {
    if !(0..=DEVICES as i32).contains(&count) {
        return Err(unknown(format!("{count} devices; Girih has heaps for 0 to {DEVICES}")));
    }
    COUNT.fetch_max(count, Ordering::Relaxed);
    Ok(())
}

/// True once [`init`] was called.
pub fn is_initialized() -> bool {
    COUNT.load(Ordering::Relaxed) >= 0
}

/// The heap of a device, made now if this is its first request.
///
/// # Errors
/// If there is no such device, or if it cannot be opened.
#[inline]
pub fn heap(device: i32) -> Outcome<&'static Heap> {
    match HEAPS.get(device as usize).and_then(OnceLock::get) {
        Some(heap) => Ok(heap),
        None => make(device),
    }
}

/// The heap of a device if it was made. To look at a device must not open it: that takes memory.
///
/// # Errors
/// If there is no such device.
pub(crate) fn look(device: i32) -> Outcome<Option<&'static Heap>> {
    Ok(HEAPS[number(device)?].get())
}

/// Limits what the heap of a device may hold to a share of it, now or when it is made.
///
/// # Errors
/// If there is no such device, or the share is not from 0 to 1.
pub(crate) fn set_memory_fraction(device: i32, fraction: f64) -> Outcome<()> {
    let number = number(device)?;
    check_fraction(fraction)?;
    // Held, so that a heap which is being made gets this share or the heap is found below.
    let _making = early();
    FRACTIONS[number].store(fraction.to_bits(), Ordering::Relaxed);
    HEAPS[number].get().map_or(Ok(()), |heap| heap.set_memory_fraction(fraction))
}

/// The share of a device that its heap may hold.
///
/// # Errors
/// If there is no such device.
pub(crate) fn memory_fraction(device: i32) -> Outcome<f64> {
    if let Some(heap) = look(device)? {
        return heap.memory_fraction();
    }
    let set = f64::from_bits(FRACTIONS[number(device)?].load(Ordering::Relaxed));
    Ok(if set.is_nan() { 1.0 } else { set })
}

/// A device as an index.
fn number(device: i32) -> Outcome<usize> {
    let count = COUNT.load(Ordering::Relaxed);
    if device < 0 || device >= count {
        return Err(unknown(match count {
            -1 => "Girih's heaps are not initialized: call girih_init first".to_owned(),
            _ => format!("there is no device {device}: this process has {count}"),
        }));
    }
    Ok(device as usize)
}

#[cold]
fn make(device: i32) -> Outcome<&'static Heap> {
    let number = number(device)?;
    let (early, place) = (early(), &HEAPS[number]);
    if place.get().is_none() {
        let heap = Heap::new(device as u32, early.settings())?;
        heap.set_sink(early.sink)?;
        let fraction = f64::from_bits(FRACTIONS[number].load(Ordering::Relaxed));
        if !fraction.is_nan() {
            heap.set_memory_fraction(fraction)?;
        }
        for (kind, name) in early.marks.iter() {
            // A mark is a hint: the heap is as good without it.
            let _ = heap.mark(kind, name);
        }
        // Nobody else makes heaps meanwhile.
        let _ = place.set(heap);
        let only = if all().count() == 1 { number } else { SEVERAL };
        ONLY.store(only, Ordering::Relaxed);
    }
    place.get().ok_or_else(|| unknown(format!("the heap of device {device} was not made")))
}

fn early() -> MutexGuard<'static, Early> {
    // What it holds is written whole: a panic of another holder leaves it right.
    EARLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The heap of a device, if it has had a request.
pub fn existing(device: i32) -> Option<&'static Heap> {
    HEAPS.get(usize::try_from(device).ok()?)?.get()
}

/// The heaps that were made, with their devices.
pub fn all() -> impl Iterator<Item = (i32, &'static Heap)> {
    (0..).zip(&HEAPS).filter_map(|(device, place)| Some((device, place.get()?)))
}

/// Runs `work` on every heap that was made; the first error comes back after all were tried.
pub(crate) fn each(mut work: impl FnMut(&Heap) -> Outcome<()>) -> Outcome<()> {
    all().map(|(_, heap)| work(heap)).fold(Ok(()), Outcome::and)
}

/// Gives memory of a device.
///
/// # Errors
/// See [`Heap::allocate`].
#[inline]
pub fn allocate(device: i32, size: u64, stream: u64, pool: (u64, u64)) -> Outcome<Address> {
    let heap = heap(device)?;
    if ONLY.load(Ordering::Relaxed) == SEVERAL {
        LAST.set(device as usize);
    }
    heap.allocate(size, stream, pool)
}

/// Takes a block back. After [`finish`] it does nothing.
///
/// # Errors
/// If no live block of any heap begins there; or what the driver refused.
#[inline]
pub fn free(address: Address) -> Outcome<()> {
    if FINISHED.load(Ordering::Relaxed) {
        return Ok(());
    }
    if let Some(heap) = HEAPS.get(likely()).and_then(OnceLock::get)
        && heap.free(address)?
    {
        return Ok(());
    }
    find(address, |heap| heap.free(address))
}

/// Says that a stream of a device uses a block too.
///
/// # Errors
/// If no live block of any heap begins there, or if there is no such device; or what the driver refused.
pub fn record_stream(address: Address, device: i32, stream: u64) -> Outcome<()> {
    let device = number(device)? as u32;
    find(address, |heap| heap.record_stream(address, device, stream))
}

/// The device of a live block.
///
/// # Errors
/// If no live block of any heap begins there.
pub fn device_of(address: Address) -> Outcome<i32> {
    for (device, heap) in all() {
        if heap.holds(address)? {
            return Ok(device);
        }
    }
    Err(no_block(address))
}

/// The segment that an address lies in.
///
/// # Errors
/// If it lies in no memory of any heap.
pub fn segment_of(address: Address) -> Outcome<(Address, u64)> {
    Ok(heap_around(address)?.0)
}

/// The segment that an address lies in, and the heap that holds it.
///
/// # Errors
/// If it lies in no memory of any heap.
pub(crate) fn heap_around(address: Address) -> Outcome<((Address, u64), &'static Heap)> {
    for (_, heap) in all() {
        if let Some(segment) = heap.segment_of(address)? {
            return Ok((segment, heap));
        }
    }
    Err(unknown(format!("{address:#x} lies in no memory of Girih's heaps")))
}

/// The device whose block this thread most likely speaks of.
#[inline]
fn likely() -> usize {
    match ONLY.load(Ordering::Relaxed) {
        SEVERAL => LAST.get(),
        only => only,
    }
}

/// Tries `work` on the heaps, the most likely one first, until one says that the address is its own.
pub(crate) fn find(address: Address, mut work: impl FnMut(&Heap) -> Outcome<bool>) -> Outcome<()> {
    let likely = likely();
    let first = HEAPS.get(likely).and_then(OnceLock::get).map(|heap| (likely as i32, heap));
    let others = all().filter(|&(device, _)| device as usize != likely);
    for (_, heap) in first.into_iter().chain(others) {
        if work(heap)? {
            return Ok(());
        }
    }
    Err(no_block(address))
}

#[cold]
fn no_block(address: Address) -> Box<crate::error::HeapError> {
    unknown(format!(
        "no live block of Girih's heaps begins at {address:#x}; it was freed already, or another \
         allocator gave it"
    ))
}

/// Sends the events of all heaps, present and future, to another sink, or to none. After this the
/// former sink is not called any more.
///
/// # Errors
/// After a panic inside one of the heaps.
pub(crate) fn set_sink(new: Option<Sink>) -> Outcome<()> {
    let mut early = early();
    early.sink = new;
    each(|heap| heap.set_sink(new))
}

/// Tells every heap of a mark: those that there are, and those that are made while it counts.
///
/// # Errors
/// What the driver refused.
pub(crate) fn mark(kind: MarkKind, name: &str) -> Outcome<()> {
    let mut early = early();
    early.marks.add(kind, name);
    each(|heap| heap.mark(kind, name))
}

/// True after [`finish`].
pub(crate) fn is_finished() -> bool {
    FINISHED.load(Ordering::Relaxed)
}

/// The process ends: frees do nothing from now on.
pub fn finish() {
    FINISHED.store(true, Ordering::Relaxed);
    swap::await_end();
}
