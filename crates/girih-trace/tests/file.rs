//! The trace file: everything comes back, and what is damaged says where.

use crate::common::{arbitrary_recording, check};
use arbtest::arbtest;
use girih_trace::compress::Limits;
use girih_trace::file::{FileError, MAGIC, read, write};
use girih_trace::generate::{Rng, Training, recording, training};
use girih_trace::{Recording, open};

fn written(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(recording, &mut bytes).unwrap();
    bytes
}

fn sample() -> Recording {
    Recording { traces: vec![training(&Training::default(), 1)] }
}

fn read_all(bytes: &[u8]) -> Result<Recording, FileError> {
    read(bytes, Limits::default())
}

/// The file with its header changed and its checksum made right again.
fn with_header(bytes: &[u8], change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&bytes[20..20 + length]).unwrap();
    change(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    let mut crc = flate2::Crc::new();
    crc.update(&header);
    let mut changed = bytes[..12].to_vec();
    changed.extend((header.len() as u32).to_le_bytes());
    changed.extend(crc.sum().to_le_bytes());
    changed.extend(&header);
    changed.extend(&bytes[20 + length..]);
    changed
}

/// The header of a column of the first trace.
fn column<'a>(header: &'a mut serde_json::Value, name: &str) -> &'a mut serde_json::Value {
    let columns = header["traces"][0]["columns"].as_array_mut().unwrap();
    columns.iter_mut().find(|column| column["name"] == name).unwrap()
}

#[test]
fn any_recording_comes_back_as_it_was() {
    arbtest(|u| {
        let recording = arbitrary_recording(u)?;
        let bytes = written(&recording);
        assert_eq!(read_all(&bytes).unwrap(), recording);
        assert_eq!(open::detect_and_read(&bytes[..], Limits::default()).unwrap(), recording);
        Ok(())
    })
    .budget_ms(500);
}

#[test]
fn long_recordings_come_back_across_many_blocks_of_a_column() {
    for seed in 0..20 {
        let recording = recording(&mut Rng::new(seed), 10_000);
        assert_eq!(read_all(&written(&recording)).unwrap(), recording);
    }
}

#[test]
fn a_file_may_be_compressed_once_more() {
    let bytes = zstd::encode_all(&written(&sample())[..], 1).unwrap();
    assert_eq!(read_all(&bytes).unwrap(), sample());
}

#[test]
fn an_empty_recording_is_a_file_too() {
    let empty = Recording::default();
    assert_eq!(read_all(&written(&empty)).unwrap(), empty);
}

#[test]
fn a_file_cut_short_anywhere_is_an_error() {
    let bytes = written(&recording(&mut Rng::new(3), 40));
    for length in 0..bytes.len() {
        match read_all(&bytes[..length]) {
            Err(FileError::NotATrace) => assert!(length < MAGIC.len()),
            Err(FileError::Truncated(_)) => assert!(length >= MAGIC.len()),
            other => panic!("cut to {length}: {other:?}"),
        }
    }
}

#[test]
fn one_flipped_bit_anywhere_is_noticed_or_changes_nothing() {
    let recording = recording(&mut Rng::new(3), 40);
    let bytes = written(&recording);
    let mut harmless = 0;
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        if let Ok(read) = read_all(&damaged) {
            assert_eq!(read, recording, "byte {at}");
            harmless += 1;
        }
    }
    // A frame of zstd has one bit that decoders ignore.
    assert!(harmless < bytes.len() / 100, "{harmless} of {}", bytes.len());
}

#[test]
fn other_files_and_later_versions_are_refused_with_their_names() {
    assert!(matches!(read_all(b"PK\x03\x04 and more bytes"), Err(FileError::NotATrace)));
    let mut bytes = written(&sample());
    bytes[8] = 9;
    let message = read_all(&bytes).unwrap_err().to_string();
    assert!(message.contains("version 9") && message.contains("up to 2"), "{message}");
}

#[test]
fn a_header_that_lies_about_a_column_is_caught_before_memory_is_taken() {
    let bytes = written(&sample());
    for (field, value, wanted) in [
        ("count", u64::MAX, "column `repeats`: "),
        ("count", 1 << 40, "column `repeats`: "),
        ("count", 10, "column `repeats`: is damaged"),
        ("bytes", u64::MAX, "ends in column `repeats` of trace 0"),
        ("bytes", 1 << 40, "ends in column `repeats` of trace 0"),
        ("bytes", 3, "column `repeats`: "),
    ] {
        let changed = with_header(&bytes, |header| {
            column(header, "repeats")[field] = value.into();
        });
        let message = read_all(&changed).unwrap_err().to_string();
        assert!(message.contains(wanted), "{field} {value}: {message}");
    }
}

#[test]
fn a_column_that_is_missing_twice_there_or_of_another_length_is_named() {
    let bytes = written(&sample());
    let renamed = |from: &str, to: &str| {
        let changed = with_header(&bytes, |header| column(header, from)["name"] = to.into());
        read_all(&changed).unwrap_err().to_string()
    };
    assert!(renamed("action", "inaction").contains("column `action`: is missing"));
    assert!(renamed("action", "streams").contains("column `streams`: is there twice"));
    let swapped = with_header(&bytes, |header| {
        column(header, "mark.kind")["name"] = "x".into();
        column(header, "action")["name"] = "mark.kind".into();
        column(header, "x")["name"] = "action".into();
    });
    assert!(read_all(&swapped).unwrap_err().to_string().contains("elements where"));
}

#[test]
fn damaged_files_never_panic() {
    arbtest(|u| {
        let mut bytes = written(&arbitrary_recording(u)?);
        for _ in 0..u.int_in_range(0..=4)? {
            let at = u.choose_index(bytes.len())?;
            bytes[at] = u.arbitrary()?;
        }
        check::trace_file(&bytes);
        check::trace_file(u.bytes(u.len())?);
        Ok(())
    })
    .budget_ms(500);
}

#[test]
fn uses_make_a_file_of_version_2_and_others_stay_of_version_1() {
    let with_uses = Training { operators: true, ..Training::default() };
    let recording = Recording { traces: vec![training(&with_uses, 1)] };
    let bytes = written(&recording);
    assert_eq!((bytes[8], written(&sample())[8]), (2, 1));
    assert!(recording.traces[0].uses.uses.len() > 1000);
    assert_eq!(read_all(&bytes).unwrap(), recording);
}
