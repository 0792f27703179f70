//! How fast recordings are read: the largest shared one, or a generated one if it is not there.

use std::fs;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use girih_trace::compress::Limits;
use girih_trace::generate::{Training, training};
use girih_trace::{Recording, file, snapshot};

const LARGEST: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces/megatron_qwenmoe-R_r0.pickle.gz");

fn read(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read");
    group.sample_size(10);
    let recording = match fs::read(LARGEST) {
        Ok(pickle) => {
            let recording = snapshot::read_slice(&pickle).expect("the recording is whole");
            group.throughput(Throughput::Elements(recording.traces[0].events.len() as u64));
            group.bench_function("snapshot", |bencher| {
                bencher.iter(|| snapshot::read_slice(black_box(&pickle)));
            });
            recording
        }
        Err(_) => {
            let params = Training { layers: 40, microbatches: 32, steps: 8, ..Training::default() };
            Recording { traces: vec![training(&params, 1)] }
        }
    };
    let mut bytes = Vec::new();
    file::write(&recording, &mut bytes).expect("a vector takes everything");
    group.throughput(Throughput::Elements(recording.traces[0].events.len() as u64));
    group.bench_function("trace file", |bencher| {
        bencher.iter(|| file::read(black_box(&bytes[..]), Limits::default()));
    });
    group.finish();
}

criterion_group!(benches, read);
criterion_main!(benches);
