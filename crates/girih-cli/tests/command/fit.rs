//! `girih fit`.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use girih_runtime::caching::{Caching, Config};
use girih_runtime::record::record;
use girih_runtime::sim::SimDevice;
use girih_trace::bounds::HELD_MAX;
use girih_trace::generate::{Training, training};
use girih_trace::{Recording, file};
use serde_json::{Value, json};

use crate::girih::{
    Ran, arg, corpus, error, girih, has_fields, integer, json, snapshot, text, without_times,
};

/// A small dense job: 1F1B over two stages, with an evaluation in between.
fn dense() -> Training {
    Training { layers: 6, sequence: 768, recompute: true, evaluate_every: 2, ..Training::default() }
}

/// Writes what PyTorch's allocator would have recorded of a job.
fn write(params: &Training, to: &Path) {
    let program = training(params, 1);
    let (mut policy, mut device) = (Caching::new(Config::default()), SimDevice::new(HELD_MAX));
    let trace = record(&program, &mut policy, &mut device, &|_| false).expect("it fits");
    let output = BufWriter::new(File::create(to).expect("a file"));
    file::write(&Recording { traces: vec![trace] }, output).expect("it is whole");
}

/// Recordings of one job at these microbatches, `mb2.girih` and so on.
pub(crate) fn jobs(folder: &Path, microbatches: &[u64]) -> Vec<PathBuf> {
    let one = |&microbatch: &u64| {
        let path = folder.join(format!("mb{microbatch}.girih"));
        write(&Training { microbatch, ..dense() }, &path);
        path
    };
    microbatches.iter().map(one).collect()
}

/// Ranks of one job on 8 GPUs and on 16, each in a folder.
pub(crate) fn worlds(folder: &Path) {
    for (world, last) in [(8, 7), (16, 15)] {
        let ranks = folder.join(format!("world{world}"));
        std::fs::create_dir(&ranks).expect("a folder");
        for (rank, stage) in [(0, 0), (last, 1)] {
            let params = Training { layers: 32 / world, stage, stages: 2, ..dense() };
            write(&params, &ranks.join(format!("rank{rank}.girih")));
        }
    }
}

fn at(value: u64, path: &Path) -> String {
    format!("{value}={}", arg(path))
}

fn row<'a>(answer: &'a Value, allocator: &str) -> &'a Value {
    let rows = answer["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["allocator"] == allocator).expect("it was tried")
}

#[test]
fn the_largest_microbatch_is_the_one_of_the_job_itself() {
    let folder = tempfile::tempdir().unwrap();
    let files = jobs(folder.path(), &[1, 2, 4]);
    let names: Vec<&str> = files.iter().map(|file| arg(file)).collect();
    let own = json(&[&["fit"], &names[..], &["--capacity", "20GiB"]].concat());
    has_fields(&own, &["name", "kind", "of", "capacity", "recordings", "notes", "seconds"]);
    assert_eq!((&own["kind"], &own["of"]), (&json!("growing"), &json!("microbatch")));
    // By names or by --at, the answer is the same.
    let ats = [at(4, &files[2]), at(1, &files[0]), at(2, &files[1])];
    let ats: Vec<&str> = ats.iter().flat_map(|at| ["--at", at]).collect();
    let again = json(&[&["fit"], &ats[..], &["--capacity", "20GiB"]].concat());
    assert_eq!(again["rows"], own["rows"]);
    // Held out is what is at 1, and all of it is as was said.
    let held_out = &own["held_out"][0];
    assert_eq!((integer(held_out, "value"), integer(held_out, "different")), (1, 0));
    assert_eq!(held_out["requests"], held_out["equal"]);
    assert_eq!(held_out["peak_said"], held_out["peak_recorded"]);
    assert_eq!(held_out["native_said"], held_out["native_recorded"]);
    let bound = &own["bound"];
    assert!(integer(bound, "bytes") <= 20 << 30);
    for name in ["native", "expandable", "stitch"] {
        let row = row(&own, name);
        let largest = integer(row, "value");
        assert!(largest <= integer(bound, "value"));
        assert_eq!(integer(row, "reserved_peak") + integer(row, "spare"), 20 << 30);
        // The job itself fits there, and not one further.
        let files = jobs(folder.path(), &[largest, largest + 1]);
        let fits = |path: &Path| {
            let args =
                ["replay", arg(path), "--allocator", name, "--capacity", "20GiB", "--require-fit"];
            girih(&args).code == 0
        };
        assert!(fits(&files[0]) && !fits(&files[1]), "{name}: {largest}");
    }
}

#[test]
fn the_answer_is_printed_within_80_columns() {
    let folder = tempfile::tempdir().unwrap();
    let files = jobs(folder.path(), &[1, 2, 4]);
    let names: Vec<&str> = files.iter().map(|file| arg(file)).collect();
    let said = text(&[&["fit"], &names[..], &["--capacity", "20GiB", "--require", "380"]].concat());
    let wide: Vec<&str> = said.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(wide.is_empty(), "{wide:?}");
    insta::assert_snapshot!("the_largest_microbatch", without_times(&said));
}

#[test]
fn what_must_fit_and_does_not_is_a_no() {
    let folder = tempfile::tempdir().unwrap();
    let files = jobs(folder.path(), &[2, 4]);
    let ask = |value: &str, more: &[&str]| -> Ran {
        let args =
            ["fit", arg(&files[0]), arg(&files[1]), "--capacity", "20GiB", "--require", value];
        girih(&[&args[..], more].concat())
    };
    assert_eq!(ask("1", &[]).code, 0);
    assert_eq!(ask("500", &[]).code, 1);
    // More than any GPU holds is a no, and no error.
    assert_eq!(ask("8000000000", &[]).code, 1);
    // One that fits under stitching alone.
    let own = json(&["fit", arg(&files[0]), arg(&files[1]), "--capacity", "20GiB"]);
    let most = integer(row(&own, "stitch"), "value");
    assert!(most > integer(row(&own, "native"), "value"));
    assert_eq!(ask(&most.to_string(), &["--allocators", "stitch"]).code, 0);
    assert_eq!(ask(&most.to_string(), &["--allocators", "native"]).code, 1);
}

#[test]
fn where_nothing_fits_it_says_where_the_smallest_stops() {
    let folder = tempfile::tempdir().unwrap();
    let files = jobs(folder.path(), &[2, 4]);
    let args = ["fit", arg(&files[0]), arg(&files[1]), "--capacity", "200MiB"];
    let own = json(&args);
    assert_eq!((integer(&own["bound"], "value"), &row(&own, "native")["value"]), (0, &Value::Null));
    let said = text(&args);
    assert!(said.contains("none") && said.contains("native stops at request"), "{said}");
}

#[test]
fn only_multiples_of_a_step_are_tried() {
    let folder = tempfile::tempdir().unwrap();
    for sequence in [256, 512] {
        let params = Training { sequence, ..dense() };
        write(&params, &folder.path().join(format!("s{sequence}.girih")));
    }
    let file = |name: &str| folder.path().join(name);
    let (short, long) = (file("s256.girih"), file("s512.girih"));
    let args =
        ["fit", arg(&short), arg(&long), "--of", "tokens", "--step", "128", "--capacity", "20GiB"];
    let own = json(&args);
    assert_eq!(own["of"], "tokens");
    for row in own["rows"].as_array().unwrap() {
        let value = integer(row, "value");
        assert!(value > 512 && value.is_multiple_of(128), "{row}");
    }
    let finer = json(&[&args[..5], &args[7..]].concat());
    let [coarse, fine] = [&own, &finer].map(|own| integer(row(own, "native"), "value"));
    assert!(coarse <= fine && fine < coarse + 128, "{coarse} {fine}");
}

#[test]
fn one_recording_alone_fits_or_not_and_asks_for_a_second() {
    let run = snapshot("megatron_gpt2-R_r3");
    let own = json(&["fit", arg(&run), "--capacity", "80GiB"]);
    assert_eq!((&own["kind"], &own["growth"]), (&json!("alone"), &Value::Null));
    let native = row(&own, "native");
    let replayed = json(&["replay", arg(&run), "--capacity", "80GiB"]);
    assert_eq!(native["reserved_peak"], replayed["reserved_peak"]);
    assert_eq!(integer(native, "spare"), (80 << 30) - integer(native, "reserved_peak"));
    let said = text(&["fit", arg(&run), "--capacity", "8GiB", "--allocators", "native,stitch"]);
    assert!(said.contains("record the job at another microbatch too"), "{said}");
    assert!(said.contains("native stops at request"), "{said}");
}

#[test]
fn of_a_recording_alone_it_is_said_what_compare_says() {
    // Its first plan is not its best.
    let run = corpus("zero3/opt1b_LR.girih");
    let own = json(&["fit", arg(&run), "--capacity", "80GiB", "--allocators", "planned"]);
    let replayed = json(&["replay", arg(&run), "--capacity", "80GiB", "--allocator", "planned"]);
    assert_eq!(row(&own, "planned")["reserved_peak"], replayed["reserved_peak"]);
}

#[test]
fn of_worlds_the_worst_rank_of_the_smallest_that_fits_decides() {
    let folder = tempfile::tempdir().unwrap();
    let rank = |world: u64, stage: u32| {
        let path = folder.path().join(format!("w{world}_r{stage}.girih"));
        let layers = u32::try_from(16 / world).unwrap();
        write(&Training { layers, stages: 2, stage, ..Training::default() }, &path);
        path
    };
    let ats: Vec<String> = [2, 4, 8]
        .into_iter()
        .flat_map(|world| [at(world, &rank(world, 0)), at(world, &rank(world, 1))])
        .collect();
    let mut args: Vec<&str> = ats.iter().flat_map(|at| ["--at", at]).collect();
    args.extend(["--of", "gpus", "--capacity", "1400MiB"]);
    let own = json(&[&["fit"], &args[..]].concat());
    assert_eq!(own["kind"], "worlds");
    let native = row(&own, "native");
    // The first stage keeps more microbatches.
    let fewest = integer(native, "value");
    assert_eq!(native["worst"], format!("w{fewest}_r0"));
    let fits = |world: u64| {
        let path = folder.path().join(format!("w{world}_r0.girih"));
        girih(&["replay", arg(&path), "--capacity", "1400MiB", "--require-fit"]).code == 0
    };
    assert!(fewest > 2 && fits(fewest) && !fits(fewest / 2), "{fewest}");
    let require = |world: &str| girih(&[&["fit"], &args[..], &["--require", world]].concat()).code;
    assert_eq!((require("8"), require("2")), (0, 1));
    let refused = error(&[&["fit"], &args[..], &["--require", "16"]].concat());
    assert!(refused.contains("give --at 16=RUN"), "{refused}");
    let said = text(&[&["fit"], &args[..]].concat());
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
}

#[test]
fn recordings_that_are_no_pair_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let files = jobs(folder.path(), &[2, 4]);
    let deeper = folder.path().join("mb8.girih");
    write(&Training { layers: 9, microbatch: 8, ..dense() }, &deeper);
    let capacity = ["--capacity", "20GiB"];
    let refused = error(&[&["fit", arg(&files[0]), arg(&deeper)], &capacity[..]].concat());
    assert!(refused.contains("record the same program at both values"), "{refused}");
    assert!(refused.contains("part at request"), "{refused}");
    let same = folder.path().join("mb3.girih");
    std::fs::copy(&files[0], &same).unwrap();
    let refused = error(&[&["fit", arg(&files[0]), arg(&same)], &capacity[..]].concat());
    assert!(refused.contains("nothing of mb3 that counts is larger"), "{refused}");
    let twice = [at(2, &files[0]), at(2, &files[1])];
    let refused = error(&[&["fit", "--at", &twice[0], "--at", &twice[1]], &capacity[..]].concat());
    assert!(refused.contains("a value of its own"), "{refused}");
}
