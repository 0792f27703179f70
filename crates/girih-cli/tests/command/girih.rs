//! Running the command, and looking at what it said.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The recordings that the repository has, each with its marks beside it if it has any.
pub(crate) const RECORDINGS: [&str; 3] = ["megatron_gpt2-R_r3", "fsdp2_R_r0", "mlp_stacks"];

/// A file of the corpus.
pub(crate) fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus").join(name)
}

/// The snapshot of a recording of the corpus.
pub(crate) fn snapshot(name: &str) -> PathBuf {
    corpus(&format!("{name}.pickle.gz"))
}

/// What a run of the command left.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The command with these arguments, ready to be run.
pub(crate) fn command<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_girih"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub(crate) fn girih<S: AsRef<OsStr>>(args: &[S]) -> Ran {
    let Output { status, stdout, stderr } = command(args).output().expect("the command starts");
    Ran {
        code: status.code().expect("the command ends by itself"),
        stdout: String::from_utf8(stdout).expect("what is printed is text"),
        stderr: String::from_utf8(stderr).expect("what is printed is text"),
    }
}

/// The text of a run that succeeds and warns of nothing.
pub(crate) fn text<S: AsRef<OsStr>>(args: &[S]) -> String {
    let ran = girih(args);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    ran.stdout
}

/// The one JSON object of a run that succeeds. `--json` is added.
pub(crate) fn json<S: AsRef<OsStr>>(args: &[S]) -> Value {
    let mut all: Vec<&OsStr> = args.iter().map(AsRef::as_ref).collect();
    all.push(OsStr::new("--json"));
    let text = text(&all);
    assert_eq!(text.lines().count(), 1, "one object on one line: {text}");
    serde_json::from_str(&text).expect("JSON")
}

/// The error of a run that could not be carried out: exit status 2, nothing on standard output, one
/// line on standard error.
pub(crate) fn error<S: AsRef<OsStr>>(args: &[S]) -> String {
    let ran = girih(args);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    ran.stderr
}

/// A path as an argument.
pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

/// A field that must be there, as an unsigned integer: bytes and counts are never anything else.
pub(crate) fn integer(object: &Value, field: &str) -> u64 {
    let value = &object[field];
    value.as_u64().unwrap_or_else(|| panic!("`{field}` is {value}, not an unsigned integer"))
}

/// Asserts that an object has fields of these names.
pub(crate) fn has_fields(object: &Value, fields: &[&str]) {
    for field in fields {
        assert!(object.get(field).is_some(), "no `{field}` in {object}");
    }
}

/// The text with every duration (`0.123 s`) and rate (`1.5 million a second`) replaced.
pub(crate) fn without_times(text: &str) -> String {
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        for at in 1..words.len() {
            let unit = words[at].trim_end_matches([')', ':']);
            if matches!(unit, "s" | "million") && words[at - 1].parse::<f64>().is_ok() {
                words[at - 1] = "[time]";
            }
        }
        words.join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}
