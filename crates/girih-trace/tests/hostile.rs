//! Snapshots that are not as they should be: an error that says where, and never more.

use std::rc::Rc;

use crate::common::pickle::{Py, Style, dict, encode, int, snapshot_of};
use crate::common::{arbitrary_recording, check};
use arbtest::arbtest;
use girih_trace::compress::Limits;
use girih_trace::open::{OpenError, detect_and_read};
use girih_trace::snapshot::{ReadError, ReadOptions, read, read_slice};

/// The message for a pickle that must be refused.
#[track_caller]
fn refusal(pickle: &[u8]) -> String {
    read_slice(pickle).expect_err("this must not be read").to_string()
}

#[track_caller]
fn refused(pickle: &[u8], wanted: &str) {
    let message = refusal(pickle);
    assert!(message.contains(wanted), "{message}\n  should say: {wanted}");
}

fn traces(entries: Vec<Py>) -> Vec<u8> {
    let object = dict([("device_traces", Py::List(vec![Py::List(entries)]))]);
    encode(&object, Style::python(4))
}

fn entry(action: &str) -> Py {
    dict([("action", Py::from(action)), ("addr", int(512)), ("size", int(8))])
}

#[test]
fn a_pickle_that_would_run_code_is_refused_by_name_and_offset() {
    refused(
        b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.",
        "at byte 2 of the pickle: opcode GLOBAL would import `os.system`",
    );
    refused(
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.",
        "at byte 14 of the pickle: opcode STACK_GLOBAL would import `os.system`",
    );
    refused(b"\x80\x02]]R.", "at byte 4 of the pickle: opcode REDUCE would call");
    for (code, name) in [
        (b'b', "BUILD"),
        (b'o', "OBJ"),
        (b'P', "PERSID"),
        (b'Q', "BINPERSID"),
        (0x81, "NEWOBJ"),
        (0x92, "NEWOBJ_EX"),
        (0x82, "EXT1"),
        (0x83, "EXT2"),
        (0x84, "EXT4"),
        (0x97, "NEXT_BUFFER"),
        (0x8f, "EMPTY_SET"),
    ] {
        refused(&[0x80, 4, code, b'.'], &format!("at byte 2 of the pickle: opcode {name} would"));
    }
    refused(b"(ios\nsystem\n.", "opcode INST would import `os.system`");
    refused(b"\x80\x02]]R.", "nothing of it was executed");
}

#[test]
fn a_pickle_cut_short_anywhere_is_an_error_that_names_a_byte() {
    let whole = traces(vec![entry("alloc"), entry("free_requested")]);
    for length in 0..whole.len() {
        let message = refusal(&whole[..length]);
        assert!(message.contains("at byte") && message.contains("cut short"), "{message}");
    }
}

#[test]
fn a_length_is_not_believed_before_its_bytes_have_come() {
    for start in [
        &b"X\xff\xff\xff\xff"[..],
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"B\xff\xff\xff\xff",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x96\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x8b\xff\xff\xff\x7f",
        b"\x8a\xff",
        b"\x8c\xff",
    ] {
        refused(&[b"\x80\x04", start, b"few"].concat(), "the file ends in the middle");
    }
}

#[test]
fn the_memo_takes_no_slot_that_the_file_cannot_have_filled() {
    refused(b"\x80\x02]r\xff\xff\xff\xff.", "memo slot 4294967295 is written");
    refused(b"]p99999999999\n.", "memo slot 99999999999 is written");
    refused(b"\x80\x02h\x05.", "memo slot 5 is read before it is written");
    refused(b"\x80\x02]q\x09h\x05.", "memo slot 5 is read before it is written");
    refused(b"\x80\x02j\xff\xff\xff\xff.", "memo slot 4294967295 is read");
}

#[test]
fn the_stack_never_goes_below_its_bottom_or_below_a_mark() {
    for code in [b'0', b'2', b's', b'a', b'e', b'u', b't', b'd', b'l', b'1', 0x94, 0x85, 0x87] {
        refused(&[0x80, 4, code, b'.'], "too little on the stack");
    }
    refused(b"\x80\x04.", "opcode STOP finds too little");
    refused(b"\x80\x04](a.", "opcode APPEND finds too little");
    refused(b"\x80\x04}(NNs.", "opcode SETITEM finds too little");
    refused(b"\x80\x04}(Nu.", "opcode SETITEMS finds too little");
    refused(b"\x80\x04](\x85.", "opcode TUPLE1 finds too little");
    refused(b"\x80\x04N(NNu.", "opcode SETITEMS wants a dict, found None");
    refused(b"\x80\x04}Na.", "opcode APPEND wants a list, found a dict");
}

#[test]
fn marks_cannot_be_nested_without_end() {
    refused(&[b'('].repeat(1 << 20), "more than 1024 marks are open at once");
    refused(&[b']'].repeat(1 << 23), "more than 4194304 values are open at once");
}

#[test]
fn lists_and_dicts_that_hold_themselves_are_harmless() {
    // d = {}; d["device_traces"] = [l]; l = [d, l]
    refused(
        b"\x80\x02}q\0X\x0d\0\0\0device_traces]q\x01(]q\x02(h\0h\x02ees.",
        "device 0, entry 0: is a dict, wanted a dict with `action`",
    );
    // d["segments"] = [d]
    refused(b"\x80\x02}q\0X\x08\0\0\0segments](h\0es.", "segment 0: has no `address`");
    // d["device_traces"] = l = [l]
    refused(b"\x80\x02}X\x0d\0\0\0device_traces]q\x01h\x01as.", "device 0, entry 0: is a list");
}

#[test]
fn sharing_cannot_unfold_to_more_than_the_file() {
    let block = dict([("size", int(512)), ("state", Py::from("inactive"))]);
    let blocks = Py::Shared(1, Rc::new(Py::List(vec![Py::Shared(2, Rc::new(block)); 2000])));
    let segment = dict([("address", int(0)), ("total_size", int(512 * 2000)), ("blocks", blocks)]);
    let segments = Py::List(vec![Py::Shared(3, Rc::new(segment)); 2000]);
    let bytes = encode(&dict([("segments", segments)]), Style::python(4));
    let error = read_slice(&bytes).unwrap_err();
    assert!(matches!(error, ReadError::Unfolds { .. }), "{error}");

    let list = Py::Shared(1, Rc::new(Py::List(vec![entry("snapshot"); 2000])));
    let object = dict([("device_traces", Py::List(vec![list; 1000]))]);
    let error = read_slice(&encode(&object, Style::python(4))).unwrap_err();
    assert!(matches!(error, ReadError::Unfolds { .. }), "{error}");
}

#[test]
fn long_names_cannot_be_multiplied_by_sharing() {
    let long = Py::Shared(1, Rc::new(Py::from("x".repeat(1 << 20).as_str())));
    let frame =
        |line| dict([("filename", long.clone()), ("name", Py::from("f")), ("line", int(line))]);
    let with_frames = |line| {
        let Py::Dict(mut items) = entry("alloc") else { unreachable!() };
        items.push((Py::from("frames"), Py::List(vec![frame(line)])));
        Py::Dict(items)
    };
    let error = read_slice(&traces((0..200).map(with_frames).collect())).unwrap_err();
    assert!(matches!(error, ReadError::Unfolds { .. }), "{error}");

    let annotated = |_| {
        let Py::Dict(mut items) = entry("annotate") else { unreachable!() };
        items.push((Py::from("user_metadata"), long.clone()));
        Py::Dict(items)
    };
    let recording = read_slice(&traces((0..500).map(annotated).collect())).unwrap();
    assert!(recording.traces[0].marks.iter().all(|mark| mark.name.len() == 256));
}

#[test]
fn a_bomb_is_an_error_in_bounded_memory() {
    let mut zeros = b"\x80\x04X\xff\xff\xff\x7f".to_vec();
    zeros.resize(64 << 20, 0);
    let bomb = zstd::encode_all(&zeros[..], 1).unwrap();
    let limits = Limits { max_expansion: 100, floor_bytes: 1 << 20 };
    let error = read(&bomb[..], &ReadOptions { limits }).unwrap_err().to_string();
    assert!(error.contains("have become more than 1048576 bytes"), "{error}");
}

#[test]
fn a_damaged_gzip_is_an_error_even_behind_the_end_of_the_pickle() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&traces(vec![entry("alloc")])).unwrap();
    let mut bytes = encoder.finish().unwrap();
    assert!(read_slice(&bytes).is_ok());
    let checksum = bytes.len() - 8;
    bytes[checksum] ^= 1;
    refused(&bytes, "at byte");
}

#[test]
fn a_wrong_entry_is_named_by_device_index_and_key() {
    let entry_with = |key: &str, value: Py| {
        let Py::Dict(mut items) = entry("alloc") else { unreachable!() };
        items.retain(|(known, _)| !matches!(known, Py::Str(known) if known == key));
        items.push((Py::from(key), value));
        traces(vec![entry("snapshot"), Py::Dict(items)])
    };
    for (key, value, wanted) in [
        ("size", Py::from("8"), "device 0, entry 1: `size` is not an integer"),
        ("addr", Py::Int(-1), "device 0, entry 1: `addr` is not an integer"),
        ("size", Py::Int(1 << 100), "device 0, entry 1: `size` is not an integer"),
        ("addr", int(u64::MAX - 7), "`addr` is not an integer"),
        ("time_us", Py::Float(0.0), "device 0, entry 1: `time_us` is not an integer"),
        ("pool_id", Py::List(vec![]), "device 0, entry 1: `pool_id` is not a tuple"),
        ("action", Py::None, "device 0, entry 1: `action` is not a string"),
    ] {
        refused(&entry_with(key, value), wanted);
    }
    let beyond =
        dict([("action", Py::from("alloc")), ("addr", int(1 << 63)), ("size", int(1 << 63))]);
    refused(&traces(vec![beyond]), "device 0, entry 0: `size` 9223372036854775808 reaches beyond");
    let lacking = dict([("action", Py::from("alloc")), ("size", int(1))]);
    refused(&traces(vec![lacking]), "device 0, entry 0: has no `addr`");
    let lacking = dict([("action", Py::from("alloc")), ("addr", int(1))]);
    refused(&traces(vec![lacking]), "device 0, entry 0: has no `size`");
    refused(&traces(vec![Py::from("alloc")]), "device 0, entry 0: is a string");
}

#[test]
fn a_wrong_segment_is_named_by_its_index() {
    let segment = |address, blocks: Vec<(u64, u64)>| {
        let block = |(address, size)| {
            dict([("address", int(address)), ("size", int(size)), ("state", Py::from("inactive"))])
        };
        let blocks = blocks.into_iter().map(block).collect();
        let segment = dict([
            ("address", int(address)),
            ("total_size", int(1024)),
            ("blocks", Py::List(blocks)),
        ]);
        encode(&dict([("segments", Py::List(vec![segment]))]), Style::python(4))
    };
    assert!(read_slice(&segment(0, vec![(0, 512), (512, 512)])).is_ok());
    refused(&segment(0, vec![(0, 512), (0, 512)]), "segment 0, block 1: `address` 0");
    refused(&segment(0, vec![(0, 512), (512, 1024)]), "segment 0, block 1");
    refused(&segment(0, vec![(0, 512)]), "segment 0: its blocks end at 512");
    refused(&segment(u64::MAX - 1023 - (1 << 40), vec![(0, 512)]), "segment 0, block 0");
}

#[test]
fn other_files_are_told_apart() {
    refused(b"\x80\x02].", "the pickle holds a list, not a memory snapshot");
    refused(b"\x80\x02}.", "a dict without `device_traces` and `segments`");
    refused(b"{\"json\": 1}", "byte 0x7b is no opcode");
    refused(b"\x80\x09.", "protocol 9 is not known");
    refused(b"", "cut short");
    for (bytes, shown) in [(&b"{\"json\": 1}"[..], "{"), (b"PK\x03\x04", "PK")] {
        let error = detect_and_read(bytes, Limits::default()).unwrap_err();
        assert!(matches!(error, OpenError::Unknown(_)), "{error}");
        assert!(error.to_string().contains(shown), "{error}");
    }
    assert!(matches!(detect_and_read(&b""[..], Limits::default()), Err(OpenError::Empty)));
    assert!(matches!(
        detect_and_read(&b"\x80\x02}."[..], Limits::default()),
        Err(OpenError::Snapshot(ReadError::NotASnapshot { .. }))
    ));
}

#[test]
fn arbitrary_bytes_and_damaged_snapshots_never_panic() {
    arbtest(|u| {
        let style = Style { batch: 3, ..Style::python(u.int_in_range(2..=5)?) };
        let recording = arbitrary_recording(u)?;
        let mut bytes = encode(&snapshot_of(&recording), style);
        for _ in 0..u.int_in_range(0..=4)? {
            let at = u.choose_index(bytes.len())?;
            bytes[at] = *u.choose(b"()]}0.sauetdhjqr\x94\x85\x86\x8a\xff\x00N2Ig")?;
        }
        check::snapshot(&bytes);
        check::snapshot(u.bytes(u.len())?);
        Ok(())
    })
    .budget_ms(500);
}
