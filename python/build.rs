//! Puts the source of the C++ shim into the extension.
//!
//! The shim is compiled on the user's machine, against the user's torch. Its source and the
//! library whose C interface it calls must be of one version; inside the library they cannot part.
//! The result is `shim_sources.rs`: a table of names and texts.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let torch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/girih-torch");
    let mut files = Vec::new();
    for folder in ["include", "shim"] {
        let folder = torch.join(folder);
        println!("cargo::rerun-if-changed={}", folder.display());
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if matches!(extension, Some("h" | "cpp")) {
                files.push(path);
            }
        }
    }
    files.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    let mut table = String::from("&[\n");
    for path in &files {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let path = path.canonicalize()?;
        println!("cargo::rerun-if-changed={}", path.display());
        let path = path.to_string_lossy();
        writeln!(table, "    ({name:?}, include_str!({path:?})),").map_err(io::Error::other)?;
    }
    table.push_str("]\n");
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(out.join("shim_sources.rs"), table)
}
