//! `girih compare DIR`: all recordings of folders, and what allocators make of them on average and at worst.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;
use serde::Serialize;

use super::aggregate::{Aggregate, Line};
use super::compare::{CompareArgs, Finished, JsonRecording, answer, compare_all};
use super::folder::{self, ENDINGS, Found};
use super::write_json;
use crate::Answer;
use crate::load;
use crate::progress::in_one_line;
use crate::units::count;

#[derive(Serialize)]
struct Json {
    /// What `compare FILE --json` has in its list.
    recordings: Vec<JsonRecording>,
    /// The file of each of the recordings.
    files: Vec<String>,
    unread: Vec<JsonUnread>,
    aggregate: Aggregate,
}

/// What looks like a recording and could not be read.
#[derive(Serialize)]
struct JsonUnread {
    file: String,
    error: String,
}

/// All recordings of folders. One that cannot be read is named, and does not end the rest.
pub(crate) fn of_folders(
    args: &CompareArgs,
    json: bool,
    out: &mut dyn Write,
) -> anyhow::Result<Answer> {
    let is_folder = |path: &&PathBuf| path.is_dir();
    let folders: Vec<&PathBuf> = args.files.iter().filter(is_folder).collect();
    let shown = folders[0].display();
    if !args.marks.is_empty() {
        bail!("leave out --marks, those beside each recording are taken: {shown} is a folder");
    }
    if args.learn.is_some() && !json {
        bail!("use --json with --learn, it has no table for many recordings: {shown} is a folder");
    }
    let mut found = Found::default();
    for path in &args.files {
        if path.is_dir() {
            let Found { files, unread } = folder::recordings(path);
            found.files.extend(files);
            found.unread.extend(unread);
        } else {
            found.files.push(path.clone());
        }
    }
    let mut unread: Vec<JsonUnread> =
        found.unread.into_iter().map(|(path, error)| JsonUnread::new(&path, error)).collect();
    if found.files.is_empty() && unread.is_empty() {
        bail!("name a folder with recordings: nothing in {shown} ends in {}", ENDINGS.join(", "));
    }
    let source =
        |file: &PathBuf| load::Source { file: file.clone(), marks: None, device: args.device };
    let sources: Vec<load::Source> = found.files.iter().map(source).collect();
    let (mut recordings, mut lines, mut files) = (Vec::new(), Vec::new(), Vec::new());
    let mut all_fit = true;
    compare_all(&sources, args, json, |index, finished| {
        let file = &found.files[index];
        match finished {
            Ok(Finished { json, held, fits, .. }) => {
                all_fit &= fits;
                recordings.extend(json);
                files.push(file.display().to_string());
                lines.push(Line { name: called(file, &folders), held });
            }
            Err(error) => unread.push(JsonUnread::new(file, in_one_line(&error))),
        }
        Ok(())
    })?;
    unread.sort_by(|one, other| one.file.cmp(&other.file));
    if lines.is_empty() {
        let others = match unread.len() - 1 {
            0 => String::new(),
            more => format!(", and {} more", count(more as u64)),
        };
        bail!("none of the recordings could be read: {}{others}", unread[0].error);
    }
    let aggregate = Aggregate::of(&lines);
    if json {
        write_json(out, &Json { recordings, files, unread, aggregate })?;
    } else {
        write!(out, "{}", aggregate.text(&lines))?;
        for (at, of) in unread.iter().enumerate() {
            let before = if at == 0 { "\nnot read:\n" } else { "" };
            writeln!(out, "{before}  {}", of.error)?;
        }
    }
    Ok(answer(args, all_fit))
}

impl JsonUnread {
    fn new(file: &Path, error: String) -> JsonUnread {
        JsonUnread { file: file.display().to_string(), error }
    }
}

/// A recording as the table of many calls it: by its path in the folder, without the endings.
fn called(file: &Path, folders: &[&PathBuf]) -> String {
    let path = match folders {
        [folder] => file.strip_prefix(folder).unwrap_or(file),
        _ => file,
    };
    path.with_file_name(load::name_of(file)).display().to_string()
}
