//! Every command in a block of the README and of `docs/` does what it says, and what stands below it
//! is what it prints.

use std::fs;
use std::path::{Path, PathBuf};

use crate::girih::{command, corpus, snapshot, without_times};

/// A block of commands, and the output that is shown below it, if any.
struct Block {
    place: String,
    commands: Vec<String>,
    shown: Option<String>,
}

/// The blocks of `sh` of a text. A block of `text` that follows with nothing but space between is
/// what the last command prints.
fn blocks(file: &Path) -> Vec<Block> {
    let text = fs::read_to_string(file).expect("the repository has it");
    let mut found: Vec<Block> = Vec::new();
    let mut rest = text.as_str();
    let mut follows = false;
    while let Some((before, after)) = rest.split_once("```") {
        follows &= before.trim().is_empty();
        let (head, body) = after.split_once('\n').expect("a block has lines");
        let (body, behind) = body.split_once("```").expect("a block ends");
        match head.trim() {
            "sh" => {
                let line = text[..text.len() - after.len()].lines().count();
                let place = format!("{}, line {line}", file.display());
                let commands = body.lines().filter_map(words_of).collect();
                found.push(Block { place, commands, shown: None });
                follows = true;
            }
            "text" if follows => {
                found.last_mut().expect("a block before").shown = Some(body.to_owned());
                follows = false;
            }
            _ => follows = false,
        }
        rest = behind;
    }
    found
}

/// The words after `girih` of a line that runs it, without the remark at its end.
fn words_of(line: &str) -> Option<String> {
    let begins = ["girih ", "cargo run --release -p girih-cli -- "];
    let words = begins.iter().find_map(|begin| line.strip_prefix(begin))?;
    Some(words.split(" #").next().unwrap_or(words).trim().to_owned())
}

/// The words of a command as a shell has them: quotes taken off, `*` filled in.
fn shell_words(words: &str, folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for word in words.split_whitespace().map(|word| word.trim_matches('"')) {
        match word.split_once('*') {
            Some((before, after)) => {
                let at = folder.join(before);
                let (from, name) = match before.ends_with('/') {
                    true => (at.as_path(), ""),
                    false => {
                        (at.parent().expect("a folder"), before.rsplit('/').next().unwrap_or(""))
                    }
                };
                let entries = fs::read_dir(from).expect("a folder").filter_map(Result::ok);
                let mut names: Vec<String> = entries
                    .map(|entry| entry.path().display().to_string())
                    .filter(|path| path.ends_with(after))
                    .filter(|path| path.rsplit('/').next().is_some_and(|it| it.starts_with(name)))
                    .collect();
                names.sort();
                all.extend(names);
            }
            None => all.push(word.to_owned()),
        }
    }
    all
}

#[test]
fn every_block_of_commands_runs_and_prints_what_stands_below_it() {
    let root = corpus("..");
    let mut files: Vec<PathBuf> = fs::read_dir(root.join("docs"))
        .expect("the repository has docs")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect();
    files.extend([root.join("README.md"), root.join("corpus/README.md")]);
    files.sort();
    // What the blocks call their own files.
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::os::unix::fs::symlink(fs::canonicalize(corpus("")).expect("it is there"), at("corpus"))
        .expect("a link");
    for (name, is) in [
        ("run.pickle", "megatron_gpt2-R_r3"),
        ("girih-why.pickle", "died_fragmented"),
        ("before.pickle", "died_fragmented"),
        ("after.pickle", "died_leak"),
    ] {
        fs::copy(snapshot(is), at(name)).expect("it can be copied");
    }
    crate::fit::jobs(folder.path(), &[2, 4, 6]);
    crate::fit::worlds(folder.path());
    let (mut ran, mut compared) = (0, 0);
    for block in files.iter().flat_map(|file| blocks(file)) {
        let mut printed = String::new();
        for words in &block.commands {
            let args = shell_words(words, folder.path());
            let output = command(&args).current_dir(folder.path()).output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: girih {words}: {said}", block.place);
            printed = String::from_utf8(output.stdout).expect("text");
            ran += 1;
        }
        if let (Some(shown), false) = (&block.shown, block.commands.is_empty()) {
            let (shown, printed) = (without_times(shown), without_times(&printed));
            assert!(
                printed.starts_with(shown.trim_end()),
                "{} shows\n{shown}\nand the command prints\n{printed}",
                block.place
            );
            compared += 1;
        }
    }
    assert!(ran > 15 && compared > 0, "{ran} commands, {compared} outputs");
}
