//! `girih compare` of folders.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::girih::{arg, corpus, error, girih, integer, json, snapshot, text};

/// A folder of jobs and ranks, with the marks that the corpus has.
fn jobs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, to) in [
        ("mlp_stacks.pickle.gz", "b/rank0.pickle.gz"),
        ("fsdp2_R_r0.pickle.gz", "a/rank0.pickle.gz"),
        ("fsdp2_R_r0.marks.json.gz", "a/rank0.marks.json.gz"),
        ("died_leak.pickle.gz", "a/rank1.pickle.gz"),
        ("llama2b_N.girih", "c/deep/er/rank0.girih"),
    ] {
        let to = folder.path().join(to);
        fs::create_dir_all(to.parent().expect("a folder")).expect("it can be made");
        fs::copy(corpus(name), to).expect("it can be copied");
    }
    fs::write(folder.path().join("train.log"), "no recording").expect("it can be written");
    folder
}

const FILES: [&str; 4] =
    ["a/rank0.pickle.gz", "a/rank1.pickle.gz", "b/rank0.pickle.gz", "c/deep/er/rank0.girih"];

/// What the clock has nothing to do with.
fn without_seconds(mut recording: Value) -> Value {
    for row in recording["rows"].as_array_mut().expect("a list") {
        row["seconds"] = Value::Null;
    }
    recording
}

#[test]
fn a_folder_is_printed_as_a_line_each_and_what_they_come_to() {
    insta::assert_snapshot!(text(&["compare", arg(jobs().path())]));
}

#[test]
fn each_recording_of_a_folder_is_what_it_is_alone() {
    let folder = jobs();
    let all = json(&["compare", arg(folder.path())]);
    let files: Vec<String> = FILES.map(|it| arg(&folder.path().join(it)).to_owned()).to_vec();
    assert_eq!(all["files"], Value::from(files.clone()));
    assert_eq!(all["unread"], Value::Array(Vec::new()));
    let recordings = all["recordings"].as_array().expect("a list");
    assert_eq!(recordings.len(), 4);
    for (file, found) in files.iter().zip(recordings) {
        let alone = json(&["compare", file]);
        assert!(alone.get("aggregate").is_none(), "a file is no folder");
        let alone = alone["recordings"][0].clone();
        assert_eq!(without_seconds(found.clone()), without_seconds(alone), "{file}");
    }
}

#[test]
fn the_aggregate_is_that_of_the_rows() {
    let all = json(&["compare", arg(jobs().path()), "--baselines", "--capacity", "24GiB"]);
    let recordings = all["recordings"].as_array().expect("a list");
    let row = |recording: &Value, name: &str| -> (i64, Option<f64>) {
        let rows = recording["rows"].as_array().expect("a list");
        let row = rows.iter().find(|row| row["allocator"] == name).expect("a row for each");
        (integer(row, "reserved_peak") as i64, row["efficiency"].as_f64())
    };
    let of_all = all["aggregate"]["allocators"].as_array().expect("a list");
    assert_eq!(of_all.len(), 10);
    let near = |found: &Value, wanted: f64| {
        let found = found.as_f64().expect("a number");
        assert!((found - wanted).abs() <= 1e-9 * wanted.abs().max(1.0), "{found}, not {wanted}");
    };
    for of in of_all {
        let name = of["allocator"].as_str().expect("text");
        let shares: Vec<f64> = recordings.iter().filter_map(|it| row(it, name).1).collect();
        assert_eq!(integer(of, "recordings") as usize, shares.len(), "{name}");
        near(&of["efficiency_average"], shares.iter().sum::<f64>() / shares.len() as f64);
        near(&of["efficiency_least"], shares.iter().copied().fold(1.0, f64::min));
        near(&of["efficiency_largest"], shares.iter().copied().fold(0.0, f64::max));
        let pairs: Vec<_> = (recordings.iter())
            .map(|it| (row(it, "native"), row(it, name)))
            .filter_map(|(native, own)| Some((native.0, native.1?, own.0, own.1?)))
            .collect();
        assert!(!pairs.is_empty() && pairs.len() < 4, "native needs more than there is for one");
        let wasted = |reserved: i64, share: f64| reserved as f64 * (1.0 - share);
        let removed = pairs.iter().map(|&(a, b, c, d)| 1.0 - wasted(c, d) / wasted(a, b));
        near(&of["removed_share_average"], removed.clone().sum::<f64>() / pairs.len() as f64);
        near(&of["removed_share_largest"], removed.fold(f64::MIN, f64::max));
        let most = pairs.iter().map(|&(a, b, c, d)| wasted(a, b) - wasted(c, d));
        near(&of["removed_bytes_largest"], most.fold(f64::MIN, f64::max).round());
        let saved: i64 = pairs.iter().map(|&(native, _, own, _)| native - own).sum();
        assert_eq!(of["bytes_saved"].as_i64(), Some(saved), "{name}");
    }
}

#[test]
fn what_is_printed_does_not_depend_on_how_many_are_read_at_once() {
    let folder = jobs();
    // A warning of its own.
    fs::copy(corpus("moe_vary.girih"), folder.path().join("b/rank1.girih")).expect("a copy");
    fs::write(folder.path().join("b/rank2.girih"), "no trace").expect("it can be written");
    let of = |words: &[&str], jobs: &str| {
        let ran = girih(&[&["compare"], words, &["--jobs", jobs]].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        (ran.stdout, ran.stderr)
    };
    let path = arg(folder.path());
    let files = FILES.map(|it| folder.path().join(it));
    let files: Vec<&str> = files.iter().map(|it| arg(it)).collect();
    for words in [&["-v", path][..], &[path], &files] {
        let alone = of(words, "1");
        if words.len() == 1 {
            assert!(alone.1.contains("rank1.girih: "), "{}", alone.1);
            assert!(alone.0.contains("not read:\n  cannot read "), "{}", alone.0);
        }
        for jobs in ["2", "7"] {
            assert_eq!(of(words, jobs), alone, "{words:?}, {jobs} jobs");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_hostile_folder_gets_an_answer() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::copy(snapshot("mlp_stacks"), at("run.pickle.gz")).expect("a copy");
    symlink(at("run.pickle.gz"), at("again.pickle.gz")).expect("a link");
    symlink(corpus("llama2b_N.girih"), at("elsewhere.girih")).expect("a link");
    fs::create_dir(at("inner")).expect("a folder");
    symlink("..", at("inner/round")).expect("a link");
    symlink("/", at("inner/everything")).expect("a link");
    symlink("loop.girih", at("loop.girih")).expect("a link");
    symlink("nowhere", at("dangling.girih")).expect("a link");
    symlink("inner", at("folder.girih")).expect("a link");
    let pipe = at("pipe.pickle");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    fs::write(at("empty.girih"), b"").expect("it can be written");
    fs::write(at("text.pickle"), "hello").expect("it can be written");
    fs::create_dir(at("odd.pickle")).expect("a folder may be called so");
    fs::write(at("secret.pickle"), "hello").expect("it can be written");
    fs::set_permissions(at("secret.pickle"), fs::Permissions::from_mode(0o000)).expect("ours");
    let all = json(&["compare", arg(folder.path())]);
    let names = |list: &Value| -> Vec<String> {
        let name = |path: &str| Path::new(path).file_name().unwrap().to_string_lossy().into_owned();
        list.as_array().expect("a list").iter().map(|it| name(it.as_str().unwrap())).collect()
    };
    assert_eq!(names(&all["files"]), ["elsewhere.girih", "run.pickle.gz"], "each file once");
    let unread = all["unread"].as_array().expect("a list");
    let mut told: Vec<(String, &str)> = (unread.iter())
        .map(|of| {
            let name = Path::new(of["file"].as_str().unwrap()).file_name().unwrap();
            (name.to_string_lossy().into_owned(), of["error"].as_str().expect("text"))
        })
        .collect();
    told.sort();
    let told_names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
    let wanted = [
        "dangling.girih",
        "empty.girih",
        "folder.girih",
        "loop.girih",
        "pipe.pickle",
        "secret.pickle",
        "text.pickle",
    ];
    assert_eq!(told_names, wanted);
    for ((name, error), why) in told.iter().zip([
        "No such file",
        "it is empty",
        "name the folder",
        "symbolic links",
        "pipe or a device",
        // Who is root may read all.
        "",
        "give a PyTorch memory snapshot",
    ]) {
        assert!(error.contains(why) && error.contains(name.as_str()), "{name}: {error}");
    }
    let ran = girih(&["compare", arg(folder.path())]);
    assert_eq!(
        (ran.code, ran.stdout.matches("cannot ").count()),
        (0, wanted.len()),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_folder_of_which_nothing_can_be_read_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let message = error(&["compare", arg(folder.path())]);
    assert!(message.starts_with("girih: name a folder with recordings: nothing in "), "{message}");
    for name in ["a.girih", "b.girih", "c.girih"] {
        fs::write(folder.path().join(name), "no trace").expect("it can be written");
    }
    let message = error(&["compare", arg(folder.path())]);
    assert!(message.contains("a.girih: give a PyTorch memory snapshot"), "{message}");
    assert!(message.ends_with(", and 2 more\n"), "{message}");
}

#[test]
fn requiring_that_all_fit_is_a_no_if_one_fits_under_no_allocator() {
    let folder = jobs();
    let of = |capacity: &str| {
        girih(&["compare", arg(folder.path()), "--capacity", capacity, "--require-fit"]).code
    };
    assert_eq!(of("80GiB"), 0);
    assert_eq!(of("2GiB"), 1);
}
