//! Which recordings, and the value of the parameter that each was made at.

use std::path::{Path, PathBuf};

use anyhow::bail;
use girih_trace::Action;

use super::super::folder;
use super::json::JsonRecording;
use super::{FitArgs, GPUS};
use crate::load::{self, Loaded, name_of};
use crate::progress::Progress;

/// The largest value: more tokens than any sequence has.
pub(super) const VALUE_MAX: u64 = 1 << 33;

/// A file at a value.
#[derive(Clone, Debug)]
pub(super) struct At {
    value: u64,
    file: PathBuf,
}

/// A recording at a value; none where one alone was named without.
pub(super) struct Recording {
    pub(super) value: Option<u64>,
    pub(super) loaded: Loaded,
}

impl Recording {
    pub(super) fn described(&self) -> JsonRecording {
        let Loaded { name, trace, .. } = &self.loaded;
        let refused = trace.events.iter().any(|event| event.action == Action::Oom);
        JsonRecording { value: self.value, name: name.clone(), refused }
    }
}

/// Reads `4=mb4.pickle`.
pub(super) fn parse_at(text: &str) -> Result<At, String> {
    let Some((value, file)) = text.split_once('=') else {
        return Err(format!("try 4={text}: the value at which it was recorded is missing"));
    };
    match value.trim().parse() {
        Ok(value) if (1..=VALUE_MAX).contains(&value) && !file.is_empty() => {
            Ok(At { value, file: file.into() })
        }
        _ => Err(format!("try 4=mb4.pickle: `{text}` is no value and file")),
    }
}

/// The name of a parameter: a word, for it stands in sentences.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    let is_word = (1..=24).contains(&text.len())
        && text.chars().all(|it| it.is_ascii_alphanumeric() || "-_".contains(it));
    match is_word {
        true => Ok(text.to_owned()),
        false => Err(format!("try microbatch, tokens or gpus: `{text}` is no single word")),
    }
}

/// Reads all that were named, by rising value.
pub(super) fn recordings(args: &FitArgs, progress: &Progress) -> anyhow::Result<Vec<Recording>> {
    let mut named: Vec<(Option<u64>, PathBuf)> = match &args.files[..] {
        [] => args.at.iter().map(|at| (Some(at.value), at.file.clone())).collect(),
        [alone] => vec![(None, alone.clone())],
        files => {
            let values = values_of(files)?;
            values.into_iter().map(Some).zip(files.iter().cloned()).collect()
        }
    };
    if args.of == GPUS {
        named = in_folders(named)?;
    }
    named.sort_by_key(|(value, _)| *value);
    let mut all = Vec::with_capacity(named.len());
    for (done, (value, file)) in named.iter().enumerate() {
        progress.part(done, named.len());
        progress.say(format!("reading {}", crate::files::shown_input(file)));
        let source = load::Source { file: file.clone(), marks: None, device: args.device };
        all.push(Recording { value: *value, loaded: source.load()? });
    }
    Ok(all)
}

/// Folders as the recordings in them.
fn in_folders(named: Vec<(Option<u64>, PathBuf)>) -> anyhow::Result<Vec<(Option<u64>, PathBuf)>> {
    let mut all = Vec::new();
    for (value, file) in named {
        if !file.is_dir() {
            all.push((value, file));
            continue;
        }
        let found = folder::recordings(&file);
        if let Some((_, error)) = found.unread.into_iter().next() {
            bail!(error);
        }
        if found.files.is_empty() {
            bail!(
                "name a folder with recordings behind --at: nothing in {} ends in {}",
                file.display(),
                folder::ENDINGS.join(", ")
            );
        }
        all.extend(found.files.into_iter().map(|file| (value, file)));
    }
    Ok(all)
}

/// The one number in which the names of files differ.
fn values_of(files: &[PathBuf]) -> anyhow::Result<Vec<u64>> {
    let wrong = || {
        anyhow::anyhow!(
            "give each recording its value with --at VALUE=RUN: the names of {} and {} do not differ in one number \
             alone",
            files[0].display(),
            files[1].display()
        )
    };
    let split: Vec<(Vec<String>, Vec<u64>)> = files.iter().map(|file| numbers_of(file)).collect();
    let (words, first) = &split[0];
    if split.iter().any(|(other, numbers)| other != words || numbers.len() != first.len()) {
        return Err(wrong());
    }
    let differs = |place: &usize| split.iter().any(|(_, numbers)| numbers[*place] != first[*place]);
    let mut places = (0..first.len()).filter(differs);
    match (places.next(), places.next()) {
        (Some(place), None) => {
            let values: Vec<u64> = split.iter().map(|(_, numbers)| numbers[place]).collect();
            match values.iter().all(|value| (1..=VALUE_MAX).contains(value)) {
                true => Ok(values),
                false => Err(wrong()),
            }
        }
        _ => Err(wrong()),
    }
}

/// The name of a file as words and the numbers between them.
fn numbers_of(file: &Path) -> (Vec<String>, Vec<u64>) {
    let (mut words, mut numbers) = (vec![String::new()], Vec::new());
    let mut digits = String::new();
    for letter in name_of(file).chars().chain(['\0']) {
        if letter.is_ascii_digit() {
            digits.push(letter);
            continue;
        }
        if !digits.is_empty() {
            // What is too long for a number is a word.
            match digits.parse() {
                Ok(number) => {
                    numbers.push(number);
                    words.push(String::new());
                }
                Err(_) => words.iter_mut().last().into_iter().for_each(|it| it.push_str(&digits)),
            }
            digits.clear();
        }
        if let Some(word) = words.last_mut() {
            word.push(letter);
        }
    }
    (words, numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(names: &[&str]) -> Option<Vec<u64>> {
        values_of(&names.iter().map(PathBuf::from).collect::<Vec<_>>()).ok()
    }

    #[test]
    fn the_one_number_in_which_names_differ_is_the_value() {
        assert_eq!(values(&["a/mb1.pickle", "b/mb16.pickle.gz"]), Some(vec![1, 16]));
        assert_eq!(values(&["gpt2_b4_r0.girih", "gpt2_b8_r0.girih"]), Some(vec![4, 8]));
        for bad in [["a1", "b2"], ["a1_2", "a2_3"], ["run", "run"], ["mb0", "mb1"], ["a", "a1"]] {
            assert_eq!(values(&bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_value_and_a_file_are_read_with_an_example_where_they_are_not() {
        let at = parse_at("16=a=b.pickle").expect("a value and a file");
        assert_eq!((at.value, at.file), (16, PathBuf::from("a=b.pickle")));
        for bad in ["mb.pickle", "0=x", "x=y", "4=", "-1=x"] {
            assert!(parse_at(bad).is_err_and(|error| error.starts_with("try 4=")), "{bad}");
        }
        assert!(parse_name("two words").is_err() && parse_name("tokens").is_ok());
    }
}
