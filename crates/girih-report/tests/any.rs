//! Whatever a valid recording holds, what is written of it can be read back, and says the same.

use arbtest::arbtest;
use girih_report::{Beside, Figures, Picture, Subject, html, memory_viz, perfetto};
use girih_trace::bounds::check_held;
use girih_trace::compress::Limits;
use girih_trace::generate::{Bytes, Rng, Training, recording, training};
use girih_trace::{Earlier, Iterations, Lifetimes, Tick, Trace, open};

/// Draws a recording and gives its picture to `look`.
fn with_picture(trace: &Trace, look: impl FnOnce(&Picture<'_>)) {
    let lives = Lifetimes::of(trace);
    // More than a device holds is refused at the door.
    if trace.events.is_empty() || check_held(&lives).is_err() {
        return;
    }
    let iterations = Iterations::of(trace, &lives);
    let subject = Subject { name: "any", trace, lives: &lives, iterations: &iterations };
    look(&Picture::of(subject, &Earlier::of(trace, &lives)));
}

fn page(picture: &Picture<'_>) -> (String, html::Written) {
    let mut bytes = Vec::new();
    let written = html::write(picture, &Beside::default(), "test", &mut bytes).expect("a vector");
    assert_eq!(written.bytes, bytes.len() as u64);
    (String::from_utf8(bytes).expect("text"), written)
}

#[test]
fn every_recording_is_written_in_every_format() {
    arbtest(|u| {
        let bytes = u.bytes(u.len())?;
        for trace in recording(&mut Bytes::new(bytes), 60).traces {
            with_picture(&trace, |picture| {
                let (text, written) = page(picture);
                assert!(text.ends_with("</html>\n"));
                let lives = picture.subject.lives;
                assert_eq!(written.blocks + written.left_out, lives.requests.len());
                perfetto::write(picture, &Beside::default(), &mut Vec::new()).expect("a vector");
                memory_viz::write(picture, &mut Vec::new()).expect("a vector");
                let figures = Figures::of(picture, &Beside::default());
                let shares = figures.categories.iter().fold(0, |sum, share| sum + share.bytes);
                assert_eq!(shares, figures.live_peak);
            });
        }
        Ok(())
    })
    .budget_ms(2_000);
}

#[test]
fn a_snapshot_that_is_written_is_read_as_the_same_run() {
    for seed in 0..200 {
        for trace in recording(&mut Rng::new(seed), 80).traces {
            with_picture(&trace, |picture| {
                let mut bytes = Vec::new();
                memory_viz::write(picture, &mut bytes).expect("a vector");
                let read =
                    open::detect_and_read(&bytes[..], Limits::default()).expect("it is valid");
                let again = read.traces.iter().find(|it| it.device == trace.device).expect("it");
                assert_eq!(again.events.len(), trace.events.len(), "seed {seed}");
                for (event, other) in trace.events.iter().zip(&again.events) {
                    let told = |trace: &Trace, event: &girih_trace::Event| {
                        let stack = trace.stacks.get(event.stack.0 as usize);
                        let frames: Vec<String> = (stack.into_iter().flatten())
                            .map(|&frame| trace.frames[frame as usize].clone())
                            .collect();
                        let stream = trace.streams[usize::from(event.stream.0)];
                        let pool = trace.pools[usize::from(event.pool.0)];
                        (
                            event.action,
                            event.address,
                            event.size,
                            event.time_us,
                            stream,
                            pool,
                            frames,
                        )
                    };
                    let (mut one, other) = (told(&trace, event), told(again, other));
                    // A frame that is not of the form has no file and no line when it comes back.
                    one.6 = other.6.clone();
                    assert_eq!(one, other, "seed {seed}");
                }
            });
        }
    }
}

/// The fields of a message: number, and an integer or bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = bytes.split_first().expect("it goes on");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = varint(&mut bytes);
        let inner = match key & 7 {
            0 => &[][..],
            2 => {
                let (inner, rest) = bytes.split_at(value as usize);
                bytes = rest;
                inner
            }
            kind => panic!("no field of kind {kind} is written"),
        };
        found.push((key >> 3, value, inner));
    }
    found
}

fn field<'a>(message: &[(u64, u64, &'a [u8])], number: u64) -> Option<(u64, &'a [u8])> {
    message.iter().find(|it| it.0 == number).map(|it| (it.1, it.2))
}

#[test]
fn a_perfetto_trace_has_the_peaks_and_every_slice_ends() {
    let trace = training(&Training::default(), 9);
    with_picture(&trace, |picture| {
        let mut bytes = Vec::new();
        perfetto::write(picture, &Beside::default(), &mut bytes).expect("a vector");
        let (mut peaks, mut open, mut begun) = ([0_u64; 20], [0_i64; 20], [0_usize; 20]);
        let mut last = 0;
        for (number, _, packet) in fields(&bytes) {
            assert_eq!(number, 1, "a trace is packets");
            let packet = fields(packet);
            let Some((_, event)) = field(&packet, 11) else { continue };
            let (at, event) = (field(&packet, 8).expect("a time").0, fields(event));
            assert!(at >= last, "time does not fall");
            last = at;
            let track = field(&event, 11).expect("a track").0 as usize;
            match field(&event, 9).expect("a kind").0 {
                1 => {
                    open[track] += 1;
                    begun[track] += 1;
                }
                2 => open[track] -= 1,
                4 => peaks[track] = peaks[track].max(field(&event, 30).map_or(0, |it| it.0)),
                _ => {}
            }
            assert!(open[track] >= 0, "what ends has begun");
        }
        let series = &picture.series;
        let wanted = [&series.requested, &series.active, &series.reserved].map(|it| it.peak.0);
        assert_eq!(peaks[2..5], wanted);
        assert!(open.iter().all(|&open| open == 0));
        assert_eq!(begun[5], picture.steps.len());
        assert!(begun[5] > 1 && begun[6] > begun[5], "{begun:?}");
    });
}

#[test]
fn what_is_alive_at_the_peaks_is_never_left_out() {
    use girih_report::blocks::Blocks;
    let trace = training(&Training::default(), 2);
    with_picture(&trace, |picture| {
        let lives = picture.subject.lives;
        let peaks = [picture.series.requested.peak.1, picture.series.reserved.peak.1];
        let all = Blocks::of(lives, &picture.categories, trace.events.len(), &peaks, usize::MAX);
        assert_eq!((all.left_out, all.left_out_most), (0, 0));
        let few = Blocks::of(lives, &picture.categories, trace.events.len(), &peaks, 400);
        assert!(few.left_out > 0 && few.left_out_most > 0);
        assert_eq!(few.left_out + few.kept.len(), lives.requests.len());
        let kept: Vec<u32> = few.kept.iter().map(|&(index, _)| index).collect();
        for at in peaks {
            let alive =
                (0..).zip(&lives.requests).filter(|(_, it)| it.birth <= at && it.death > at);
            for (index, _) in alive {
                assert!(kept.binary_search(&index).is_ok(), "request {index} at {at:?}");
            }
        }
        let most = (0..trace.events.len() as u32).map(Tick).map(|at| {
            let all: u64 = (lives.requests.iter())
                .filter(|it| it.birth <= at && it.death > at)
                .map(|it| it.size)
                .sum();
            let shown: u64 = (kept.iter().map(|&index| &lives.requests[index as usize]))
                .filter(|it| it.birth <= at && it.death > at)
                .map(|it| it.size)
                .sum();
            all - shown
        });
        assert_eq!(most.max(), Some(few.left_out_most), "by definition");
    });
}
