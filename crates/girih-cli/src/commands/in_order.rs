//! Several pieces of work at once, and what comes of them in their order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Works on so many of `items` at once, and gives what came of each to `take`, in the order of `items` and
/// on this thread. An error of `take` is the end: what is begun is finished, and nothing more is.
pub(crate) fn in_order<T: Sync, R: Send>(
    items: &[T],
    at_once: usize,
    work: impl Fn(&T) -> R + Sync,
    mut take: impl FnMut(usize, R) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let (next, work) = (&next, &work);
    thread::scope(|scope| {
        let (give, given) = mpsc::channel();
        for _ in 0..at_once.clamp(1, items.len().max(1)) {
            let give = give.clone();
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    // Nobody takes any more once `take` has failed.
                    if give.send((at, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(give);
        let mut early = BTreeMap::new();
        let mut wanted = 0;
        for (at, result) in given {
            early.insert(at, result);
            while let Some(result) = early.remove(&wanted) {
                take(wanted, result)?;
                wanted += 1;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use anyhow::bail;

    use super::*;

    #[test]
    fn results_come_in_order_however_long_each_takes() {
        let items: Vec<u64> = (0..40).collect();
        for at_once in [0, 1, 3, 100] {
            let busy = Mutex::new((0, 0));
            let work = |&item: &u64| {
                let mut it = busy.lock().expect("nothing panics");
                *it = (it.0 + 1, it.1.max(it.0 + 1));
                drop(it);
                thread::sleep(Duration::from_micros(item * 7919 % 13 * 100));
                busy.lock().expect("nothing panics").0 -= 1;
                item * item
            };
            let mut taken = Vec::new();
            let take = |at, square| {
                taken.push((at as u64, square));
                Ok(())
            };
            in_order(&items, at_once, work, take).expect("nothing fails");
            assert_eq!(taken, items.iter().map(|&item| (item, item * item)).collect::<Vec<_>>());
            assert!(busy.into_inner().expect("nothing panics").1 <= at_once.max(1));
        }
        in_order(&[], 4, |_: &u64| panic!("there is nothing"), |_, ()| Ok(())).expect("no work");
    }

    #[test]
    fn an_error_of_who_takes_is_the_end() {
        let items: Vec<u64> = (0..1000).collect();
        let begun = AtomicUsize::new(0);
        let work = |&item: &u64| {
            begun.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
            item
        };
        let take = |_, item| if item == 3 { bail!("enough") } else { Ok(()) };
        let error = in_order(&items, 4, work, take).expect_err("it fails");
        assert_eq!(error.to_string(), "enough");
        assert!(begun.into_inner() < 100, "the rest is not begun");
    }
}
