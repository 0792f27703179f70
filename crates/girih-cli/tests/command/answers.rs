//! `girih conform` and `girih lab`: Girih against PyTorch's own answers.

use std::fs;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::girih::{arg, corpus, girih, integer, json, text};

const FILES: [&str; 3] = ["default_2s_cap", "es_2s", "gc"];

#[test]
fn every_run_of_the_corpus_is_met_exactly() {
    let paths = FILES.map(|name| corpus(&format!("oracle/{name}.json.gz")));
    let args = ["conform", arg(&paths[0]), arg(&paths[1]), arg(&paths[2])];
    insta::assert_snapshot!("conform_of_the_corpus", text(&args));
    let files = json(&args)["files"].clone();
    for (file, name) in files.as_array().expect("a list").iter().zip(FILES) {
        assert_eq!(file["name"], name);
        assert_eq!(integer(file, "exact"), integer(file, "runs"), "{file}");
        assert!(integer(file, "runs") > 0 && file["first_difference"].is_null());
    }
}

#[test]
fn an_answer_that_was_changed_is_found_and_named() {
    let mut text = String::new();
    let original = fs::File::open(corpus("oracle/gc.json.gz")).unwrap();
    GzDecoder::new(original).read_to_string(&mut text).unwrap();
    let mut answers: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    // The bytes allocated after the first operation of the last run, one too many.
    let seed = answers["runs"][2]["seed"].clone();
    let allocated = &mut answers["runs"][2]["ops"][0][4];
    *allocated = (allocated.as_u64().expect("bytes") + 1).into();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.json.gz");
    let mut file = GzEncoder::new(fs::File::create(&path).unwrap(), Compression::fast());
    file.write_all(answers.to_string().as_bytes()).unwrap();
    file.finish().unwrap();

    let ran = girih(&["conform", arg(&path), "--json"]);
    assert_eq!(ran.code, 1, "a no, not a failure: {}", ran.stderr);
    let result: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let file = &result["files"][0];
    assert_eq!(integer(file, "exact") + 1, integer(file, "runs"));
    let difference = file["first_difference"].as_str().expect("a sentence");
    assert!(difference.starts_with(&format!("changed, seed {seed}: operation 0 ")), "{difference}");
}

#[test]
fn the_laboratory_meets_every_number_of_the_article() {
    let printed = text(&["lab"]);
    let (_, table) = printed.split_once("\n\nreserved after").expect("a table at the end");
    insta::assert_snapshot!("table_of_the_laboratory", format!("reserved after{table}"));
    let cases = json(&["lab"])["cases"].clone();
    let steps =
        cases.as_array().expect("a list").iter().filter_map(|case| case["steps"].as_array());
    assert!(steps.flatten().all(|step| step["equal"] != false));
}

#[test]
fn the_laboratory_lists_its_cases_and_runs_one_of_them() {
    let listed = json(&["lab", "--list"])["cases"].clone();
    let name = listed[1]["name"].as_str().expect("a name").to_owned();
    let run = json(&["lab", &name]);
    assert_eq!(run["cases"].as_array().map(Vec::len), Some(1));
    assert_eq!(run["cases"][0]["name"], name.as_str());
}
