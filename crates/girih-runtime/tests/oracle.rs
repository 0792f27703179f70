//! PyTorch's own answers, to the byte.

use std::fs::File;
use std::path::Path;

use flate2::read::GzDecoder;
use girih_runtime::conform::{Conformance, OracleFile, conform};

/// Where the recorded answers lie.
const ORACLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/oracle");

fn read(path: &Path) -> OracleFile {
    let file = File::open(path).expect("the oracle file opens");
    serde_json::from_reader(GzDecoder::new(file)).expect("the oracle file is what it should be")
}

#[test]
fn every_recorded_run_of_pytorch_is_met_to_the_byte() {
    let Ok(folder) = std::fs::read_dir(ORACLE) else {
        #[expect(clippy::print_stderr, reason = "a test that skips says so")]
        {
            eprintln!("skipped: {ORACLE} is missing");
        }
        return;
    };
    let mut paths: Vec<_> = folder.map(|entry| entry.expect("a folder entry").path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".json.gz"));
    paths.sort();
    assert!(!paths.is_empty(), "{ORACLE} holds no oracle file");
    for path in paths {
        let name = path.file_name().expect("a file has a name").to_string_lossy();
        let file = read(&path);
        let runs = file.runs.len();
        let expected = Conformance { runs, exact: runs, first_difference: None };
        assert_eq!(conform(&file, &name), expected);
    }
}
