//! What cannot be done: every error says what went wrong, where, and what to do.

use std::fs;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::girih::{arg, command, error, girih, snapshot};

/// Writes a file and runs `stats` on it, which must refuse it.
fn refused(name: &str, bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    let message = error(&["stats", arg(&path)]);
    assert!(message.starts_with("girih: cannot read "), "{message}");
    message
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let message = error(&["stats", "no/such/file.pickle"]);
    assert!(message.contains("cannot open no/such/file.pickle: "), "{message}");
}

#[test]
fn a_truncated_snapshot_is_refused_with_the_byte_at_which_it_ends() {
    let whole = fs::read(snapshot("megatron_gpt2-R_r3")).unwrap();
    let message = refused("cut.pickle.gz", &whole[..100_000]);
    assert!(message.contains("at byte ") && message.contains("of the pickle"), "{message}");
}

#[test]
fn a_pickle_that_would_run_code_is_refused_with_the_opcode_and_its_byte() {
    let pickle = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00echo\x85R.";
    let message = refused("hostile.pickle", pickle);
    assert!(message.contains("at byte 2 of the pickle"), "{message}");
    assert!(message.contains("GLOBAL would import `os.system`"), "{message}");
}

#[test]
fn a_gzip_bomb_is_refused_before_it_fills_the_memory() {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(b"\x80\x04\x95").unwrap();
    let zeros = vec![0u8; 1 << 20];
    for _ in 0..256 {
        bomb.write_all(&zeros).unwrap();
    }
    refused("bomb.pickle.gz", &bomb.finish().unwrap());
}

#[test]
fn a_pickle_of_something_else_is_refused_with_how_to_make_a_snapshot() {
    let message = refused("list.pickle", b"\x80\x04]\x94.");
    assert!(message.contains("_dump_snapshot"), "{message}");
}

#[test]
fn a_file_of_another_kind_is_refused_with_how_it_begins() {
    let message = refused("text.pickle", b"#!/bin/sh\necho hello\n");
    assert!(message.contains("give a PyTorch memory snapshot or a trace file"), "{message}");
    assert!(message.contains("#!/bin/s"), "{message}");
}

#[test]
fn an_empty_file_is_refused() {
    refused("empty.pickle", b"");
}

#[test]
fn marks_that_are_damaged_are_refused_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let marks = folder.path().join("bad.marks.json");
    fs::write(&marks, "{\"marks\":\n [{\"time_us\": true}]}").unwrap();
    let message = error(&["stats", arg(&snapshot("mlp_stacks")), "--marks", arg(&marks)]);
    assert!(message.contains("bad.marks.json") && message.contains("line 2"), "{message}");
}

#[test]
fn a_device_that_the_recording_does_not_have_is_answered_with_those_it_has() {
    let message = error(&["stats", arg(&snapshot("mlp_stacks")), "--device", "7"]);
    assert!(message.contains("use --device 0: "), "{message}");
}

#[test]
fn a_setting_that_does_not_exist_is_answered_with_those_that_do() {
    let file = snapshot("mlp_stacks");
    let message = error(&["replay", arg(&file), "--conf", "max_split:512"]);
    assert!(message.contains("unknown key `max_split`"), "{message}");
    assert!(message.contains("max_split_size_mb"), "{message}");
}

#[test]
fn a_release_of_torch_that_makes_no_sense_is_refused() {
    let message = error(&["replay", arg(&snapshot("mlp_stacks")), "--torch", "latest"]);
    assert!(message.contains("use --torch 2.1 to 2.15: `latest` is no release"), "{message}");
}

#[test]
fn a_size_without_sense_is_refused_with_an_example() {
    let ran = girih(&["replay", arg(&snapshot("mlp_stacks")), "--capacity", "plenty"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("80GiB"), "{}", ran.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_not_a_success() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(&["stats", arg(&snapshot("mlp_stacks"))]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("No space left on device"), "{message}");
}

/// Runs the command with nobody at the other end of its standard output: the exit status and what
/// was said on standard error.
fn without_a_reader(args: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let output = command(args).stdout(writer).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_reader_that_leaves_early_ends_the_command_quietly() {
    for args in [&["lab"][..], &["stats", arg(&snapshot("mlp_stacks"))]] {
        assert_eq!(without_a_reader(args), (Some(0), String::new()), "{args:?}");
    }
}

#[test]
fn a_reader_that_leaves_early_ends_json_quietly_too() {
    for args in [&["lab", "--json"][..], &["stats", "--json", arg(&snapshot("mlp_stacks"))]] {
        assert_eq!(without_a_reader(args), (Some(0), String::new()), "{args:?}");
    }
}

/// A snapshot of one device with these entries in its trace, of which each is a piece of a pickle.
fn snapshot_of(entries: &[u8]) -> Vec<u8> {
    [b"\x80\x02}X\x0d\x00\x00\x00device_traces](](".as_slice(), entries, b"ees."].concat()
}

#[test]
fn an_entry_that_is_fetched_again_and_again_is_refused_before_it_fills_the_memory() {
    // {"action": "alloc", "addr": 512, "size": 8, "stream": 0}, kept as number 5 and fetched 24 million times.
    let mut entries = b"}q\x05(X\x06\0\0\0actionX\x05\0\0\0allocX\x04\0\0\0addrM\0\x02\
        X\x04\0\0\0sizeK\x08X\x06\0\0\0streamK\0u"
        .to_vec();
    let again = b"e(".iter().chain(b"h\x05".repeat(1 << 20).iter()).copied().collect::<Vec<u8>>();
    for _ in 0..24 {
        entries.extend(&again);
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&snapshot_of(&entries)).unwrap();
    let message = refused("again.pickle.gz", &gzip.finish().unwrap());
    assert!(message.contains("compressed bytes have become more than"), "{message}");
}

#[test]
fn a_snapshot_of_which_no_action_is_known_names_the_first() {
    let entry = b"}(X\x06\0\0\0actionX\x08\0\0\0teleportX\x04\0\0\0addrK\0X\x04\0\0\0sizeK\x08u";
    let message = refused("new.pickle", &snapshot_of(entry));
    assert!(message.contains("update girih") && message.contains("\"teleport\""), "{message}");
}

#[test]
fn marks_that_were_named_and_hold_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let marks = folder.path().join("no.marks.json");
    fs::write(&marks, "{}").unwrap();
    let message = error(&["stats", arg(&snapshot("mlp_stacks")), "--marks", arg(&marks)]);
    assert!(message.contains("give --marks a file with marks"), "{message}");
}

#[test]
fn what_would_be_ignored_is_said_or_refused() {
    let file = snapshot("mlp_stacks");
    for command in [&["man", "--json"][..], &["completions", "bash", "--json"]] {
        assert!(error(command).contains("leave --json out"), "{command:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("a.plan");
    assert_eq!(girih(&["plan", arg(&file), "-o", arg(&plan)]).code, 0);
    let ran = girih(&["replay", arg(&file), "--plan", arg(&plan)]);
    assert_eq!(ran.code, 0);
    assert!(ran.stderr.contains("--plan is not followed: "), "{}", ran.stderr);
    let planned = ["replay", arg(&file), "--plan", arg(&plan), "--allocator", "planned"];
    assert_eq!(girih(&planned).stderr, "");
}

#[test]
fn a_device_on_which_nothing_fits_is_refused_at_the_door() {
    let file = snapshot("mlp_stacks");
    for command in ["replay", "compare", "fit", "why"] {
        for capacity in ["80B", "0", "19MiB"] {
            let ran = girih(&[command, arg(&file), "--capacity", capacity]);
            assert_eq!(ran.code, 2, "{command} {capacity}");
            assert!(ran.stderr.contains("give between 20MiB and 1024TiB"), "{}", ran.stderr);
        }
    }
}
