//! Pages of the host near a GPU: a machine of several sockets has memory at each, and a copy to the far one is slower.
//!
//! The system gives a page from the memory of the processor that asks for it first. So whoever finds pages for a GPU does
//! it on that GPU's own processors, as the system lists them, as far as the process may run there. What does not fit
//! near comes from elsewhere.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::driver::Driver;
use crate::driver::types::{CuAttribute, CuDevice};

/// Where the system lists a device of the PCI bus.
const DEVICES: &str = "/sys/bus/pci/devices";

/// The processors near a GPU, as the system lists them; none where nobody says.
pub(crate) fn processors(driver: &Driver, device: CuDevice) -> Option<String> {
    let number = |which| driver.attribute(device, which).ok();
    let (domain, bus) = (number(CuAttribute::PCI_DOMAIN)?, number(CuAttribute::PCI_BUS)?);
    let slot = number(CuAttribute::PCI_DEVICE)?;
    fs::read_to_string(format!("{DEVICES}/{domain:04x}:{bus:02x}:{slot:02x}.0/local_cpulist")).ok()
}

/// Numbers of processors in such a list: `0-3,8`. None if it is no list.
fn listed(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= CpuSet::MAX_CPU || first > last {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Runs on these processors until it is dropped; where it may not, or it makes no difference, where it was.
pub(crate) struct Near {
    before: Option<CpuSet>,
}

impl Near {
    /// On the processors of a list.
    pub(crate) fn new(list: Option<&str>) -> Near {
        Near { before: list.and_then(listed).and_then(|near| move_to(&near)) }
    }
}

/// Moves this thread to those of the processors on which it may run. Where it ran before, if it has moved.
fn move_to(near: &[usize]) -> Option<CpuSet> {
    let before = sched_getaffinity(None).ok()?;
    let mut own = CpuSet::new();
    near.iter().filter(|&&number| before.is_set(number)).for_each(|&number| own.set(number));
    if own.count() == 0 || own.count() == before.count() {
        return None;
    }
    sched_setaffinity(None, &own).ok().map(|()| before)
}

impl Drop for Near {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // A refusal leaves the thread near the GPU: it may run there.
            let _ = sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_system_writes_them() {
        assert_eq!(listed("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(listed("5"), Some(vec![5]));
        assert_eq!(listed("\n"), Some(vec![]));
        for wrong in ["a", "1-", "3-1", "0-99999999"] {
            assert_eq!(listed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_thread_runs_near_as_long_as_it_says_and_never_where_it_may_not() {
        let all = sched_getaffinity(None).expect("it can be asked");
        let first = (0..CpuSet::MAX_CPU).find(|&number| all.is_set(number)).expect("it runs");
        let near = Near::new(Some(&first.to_string()));
        let now = sched_getaffinity(None).expect("it can be asked");
        assert!(now.is_set(first) && now.count() == 1);
        // Within it no other is allowed.
        let other = Near::new(Some(&format!("{}", first + 1)));
        assert!(other.before.is_none() && sched_getaffinity(None).is_ok_and(|set| set == now));
        drop(other);
        drop(near);
        assert!(sched_getaffinity(None).is_ok_and(|set| set == all));
        for nothing in [None, Some(""), Some("no list")] {
            assert!(Near::new(nothing).before.is_none());
        }
    }
}
