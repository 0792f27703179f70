//! The commit that the command is built from, for `girih --version`. Without git, or outside of a
//! repository, there is none, and the version stands alone.

use std::process::Command;

#[expect(clippy::disallowed_methods, reason = "a build is told so by who packs it")]
fn main() {
    println!("cargo::rerun-if-env-changed=GIRIH_COMMIT");
    let named = std::env::var("GIRIH_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = named.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    let version = env!("CARGO_PKG_VERSION");
    let shown = match commit {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=GIRIH_VERSION={shown}");
    // A commit writes a line there; without this a build would keep the commit before.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}

/// What git says, if there is one and it says something.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !said.is_empty()).then_some(said)
}
