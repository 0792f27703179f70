//! The Rust side and `include/girih.h` say the same: every function with its types, every struct
//! field by field, and a C program that calls through the header gets what the header promises.
//!
//! The types of functions are compared as text, which needs nothing; the rest needs a C compiler
//! and says so where there is none.

#![expect(unsafe_code, reason = "it calls a C interface, and C calls it")]
#![expect(clippy::print_stderr, reason = "what is skipped is said")]

mod common;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use girih_torch::abi::{self, blocks, ipc, memory, pools, settings, storages, tensors, view};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A function: what it returns and what it takes, in the words of Rust.
type Signature = (String, Vec<String>);

#[test]
fn every_function_of_the_header_has_the_same_types_in_rust() {
    let (header, rust) = (of_header(), of_rust());
    let names = |of: &BTreeMap<String, Signature>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&header), names(&rust));
    assert!(header.len() > 30, "the header was read: {} functions", header.len());
    for (name, signature) in &header {
        assert_eq!(signature, &rust[name], "{name}");
    }
}

#[test]
fn the_version_of_the_interface_is_that_of_the_header() {
    let text = header_text();
    assert!(text.contains(&format!("#define GIRIH_ABI {}\n", abi::ABI)));
    assert!(text.contains(&format!("#define GIRIH_IPC_BYTES {}\n", abi::IPC_BYTES)));
    assert!(text.contains(&format!("#define GIRIH_SHAPE_MAX {}\n", tensors::SHAPE_MAX)));
}

#[test]
fn every_struct_has_the_same_layout_in_c() {
    let source = r#"
        #include <stdio.h>
        #include "girih.h"
        #define S(type) printf(#type " %zu\n", sizeof(type));
        #define F(type, field) printf(#type "." #field " %zu\n", offsetof(type, field));
        int main(void) { LAYOUT return 0; }
    "#;
    let rust = layout();
    let lines = rust.iter().map(|(name, _)| match name.split_once('.') {
        Some((of, field)) => format!("F({of}, {field})"),
        None => format!("S({name})"),
    });
    let source = source.replace("LAYOUT", &lines.collect::<Vec<_>>().join(" "));
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), &source, &[]) else { return };
    let printed = String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap();
    let expected: String = rust.iter().map(|(name, at)| format!("{name} {at}\n")).collect();
    assert_eq!(printed, expected);
}

#[test]
fn a_c_program_that_calls_through_the_header_gets_what_it_promises() {
    let functions = functions();
    let names: Vec<&str> = functions.iter().map(|&(name, _)| name).collect();
    assert_eq!(names.len(), of_header().len(), "the table has every function");
    let fields: String = names.iter().map(|n| format!("__typeof__(&{n}) {n};\n")).collect();
    let body = fs::read_to_string(format!("{HERE}/tests/header/calls.c")).unwrap();
    let source = format!("#include \"girih.h\"\nstruct table {{\n{fields}}};\n{body}");
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = compile(folder.path(), &source, &["-shared", "-fPIC"]) else { return };
    common::set_up("native", 1 << 30, "");
    let table: Vec<*const ()> = functions.iter().map(|&(_, function)| function).collect();
    // SAFETY: the library has no constructors, and `run` has this type.
    let failed_line = unsafe {
        let library = libloading::Library::new(library).unwrap();
        let run = library.get::<unsafe extern "C" fn(*const *const ()) -> i32>(b"run").unwrap();
        run(table.as_ptr())
    };
    assert_eq!(failed_line, 0, "line of tests/header/calls.c; {}", common::last_error());
}

/// Every function of the interface, in the order in which the C program is handed them.
fn functions() -> Vec<(&'static str, *const ())> {
    macro_rules! table {
        ($($($module:ident)::+ . $name:ident),* $(,)?) => {
            vec![$((stringify!($name), $($module)::+::$name as *const ())),*]
        };
    }
    table![
        abi.girih_abi,
        abi.girih_last_error,
        abi.girih_last_oom,
        abi.girih_set_sink,
        blocks.girih_init,
        blocks.girih_is_initialized,
        blocks.girih_alloc,
        blocks.girih_free,
        blocks.girih_record_stream,
        blocks.girih_see_stream,
        blocks.girih_base,
        blocks.girih_device_of,
        blocks.girih_has_room,
        memory.girih_empty_cache,
        memory.girih_set_memory_fraction,
        memory.girih_memory_fraction,
        memory.girih_largest_free,
        memory.girih_enable_peer,
        settings.girih_change_settings,
        settings.girih_get_settings,
        settings.girih_settings_text,
        pools.girih_pool_create,
        pools.girih_pool_release,
        pools.girih_pool_use_count,
        pools.girih_pool_use_on_oom,
        pools.girih_pool_no_split,
        pools.girih_pool_one_handle,
        pools.girih_pool_source,
        pools.girih_pool_begin,
        pools.girih_pool_end,
        pools.girih_checkpoint_take,
        pools.girih_checkpoint_drop,
        pools.girih_checkpoint_restore,
        view.girih_get_stats,
        view.girih_reset_peak_stats,
        view.girih_reset_accumulated_stats,
        view.girih_visit_pools,
        view.girih_visit,
        storages.girih_set_storages,
        tensors.girih_set_tensors,
        ipc.girih_ipc_export,
        ipc.girih_ipc_open,
        ipc.girih_ipc_close,
    ]
}

/// Sizes and offsets as Rust has them.
fn layout() -> Vec<(String, usize)> {
    macro_rules! layout {
        ($($c:literal $type:ty { $($field:ident),* })*) => {{
            let mut all = Vec::new();
            $(
                all.push(($c.to_owned(), size_of::<$type>()));
                $(all.push((
                    format!("{}.{}", $c, stringify!($field)),
                    offset_of!($type, $field),
                ));)*
            )*
            all
        }};
    }
    layout! {
        "girih_status" abi::Status {}
        "girih_pool" abi::Pool { first, second }
        "girih_oom" abi::Oom {
            device, is_rejection, requested, needed, allocated, reserved, limit, device_free,
            device_total
        }
        "girih_settings" abi::Settings {
            max_split_size, garbage_collection_threshold, roundup_power2_divisions,
            expandable_segments, release_lock_on_malloc, graph_capture_record_stream_reuse
        }
        "girih_stat" abi::Stat { current, peak, allocated, freed }
        "girih_stats" abi::Stats {
            allocation, segment, active, inactive_split, allocated_bytes, reserved_bytes,
            active_bytes, inactive_split_bytes, requested_bytes, oversize_allocations,
            oversize_segments, num_alloc_retries, num_ooms, num_sync_all_streams,
            num_device_alloc, num_device_free, num_oom_rejections, max_split_size
        }
        "girih_event" abi::Event { address, size, stream, pool, device, action }
        "girih_tensor" tensors::Tensor {
            storage, size, address, version, device, element_size, dimensions, may_have_graph, shape
        }
        "girih_segment" abi::Segment {
            address, size, stream, pool, device, registration, is_large, is_expandable
        }
        "girih_block" abi::Block { address, size, requested, allocated, active }
    }
}

/// Compiles C with the system's compiler; None, and a word about it, if there is none.
fn compile(folder: &Path, source: &str, options: &[&str]) -> Option<PathBuf> {
    let (input, output) = (folder.join("test.c"), folder.join("test.out"));
    fs::write(&input, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(format!("{HERE}/include")).args(options).arg(&input).arg("-o").arg(&output);
    let Ok(compiled) = compiler.output() else {
        eprintln!("SKIPPED: there is no C compiler `cc` on this machine");
        return None;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(output)
}

fn header_text() -> String {
    fs::read_to_string(format!("{HERE}/include/girih.h")).unwrap()
}

/// The prototypes of the header, in the words of Rust.
fn of_header() -> BTreeMap<String, Signature> {
    let mut text = header_text();
    while let Some(start) = text.find("/*") {
        let end = start + text[start..].find("*/").expect("a comment ends");
        text.replace_range(start..end + 2, " ");
    }
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.contains("extern"));
    let text: String = lines.collect::<Vec<_>>().join(" ");
    let prototypes = text.split(';').map(str::trim).filter(|statement| {
        statement.contains('(') && !statement.starts_with("typedef") && !statement.contains('{')
    });
    prototypes.map(prototype).collect()
}

fn prototype(text: &str) -> (String, Signature) {
    let open = text.find('(').expect("a prototype has parameters");
    let at = text[..open].rfind(|c: char| !c.is_alphanumeric() && c != '_').expect("a type") + 1;
    let returns = if text[..at].trim() == "void" { String::new() } else { rust_type(&text[..at]) };
    let takes = split(&text[open + 1..text.len() - 1]);
    let takes = takes.iter().filter(|parameter| *parameter != "void");
    (text[at..open].to_owned(), (returns, takes.map(|p| rust_type(without_name(p))).collect()))
}

/// A parameter of C without its name: `const void *` of `const void *address`.
fn without_name(parameter: &str) -> &str {
    if parameter.contains("(*") {
        return parameter;
    }
    let parameter = parameter.split('[').next().expect("a split has a part");
    let end = parameter.rfind(|c: char| !c.is_alphanumeric() && c != '_').expect("a type") + 1;
    // An array is a pointer.
    parameter[..end].trim_end()
}

fn rust_type(c: &str) -> String {
    if c.contains("(*") {
        return "Option<Told>".to_owned();
    }
    let pointers = c.matches('*').count();
    let is_const = c.contains("const ");
    let base = match c.replace("const ", "").replace('*', "").trim() {
        "int32_t" => "i32",
        "uint32_t" => "u32",
        "uint64_t" => "u64",
        "uint8_t" if pointers == 0 => return "*mut u8".to_owned(),
        "uint8_t" => "u8",
        "size_t" => "usize",
        "bool" => "bool",
        "double" => "f64",
        "char" => "c_char",
        "void" => "c_void",
        "girih_status" => "Status",
        "girih_pool" => "Pool",
        "girih_oom" => "Oom",
        "girih_settings" => "Settings",
        "girih_stats" => "Stats",
        "girih_checkpoint" => "HeapCheckpoint",
        "girih_sink" => "Option<SinkFunction>",
        "girih_of_tensor" => "Option<OfTensorFunction>",
        "girih_owners" => "Option<OwnersFunction>",
        "girih_address" => "Option<AddressFunction>",
        "girih_take" => "Option<TakeFunction>",
        "girih_give" => "Option<GiveFunction>",
        "girih_look" => "Option<LookFunction>",
        "girih_version" => "Option<VersionFunction>",
        "girih_share_version" => "Option<ShareVersionFunction>",
        "girih_current_stream" => "Option<CurrentStreamFunction>",
        "girih_source_alloc" => "Option<SourceAlloc>",
        "girih_source_free" => "Option<SourceFree>",
        "girih_visitor" => "Option<Visitor>",
        "girih_pool_visitor" => "Option<PoolVisitor>",
        other => panic!("the type {other:?} of the header is new: teach it to this test"),
    };
    let inner = if is_const { "*const " } else { "*mut " };
    match pointers {
        0 => base.to_owned(),
        1 => format!("{inner}{base}"),
        _ => format!("{}{inner}{base}", "*mut ".repeat(pointers - 1)),
    }
}

/// The exported functions of the Rust sources.
fn of_rust() -> BTreeMap<String, Signature> {
    let folder = fs::read_dir(format!("{HERE}/src/abi")).unwrap();
    let files = folder.map(|entry| entry.unwrap().path());
    let files = files.chain([PathBuf::from(format!("{HERE}/src/abi.rs"))]);
    let mut found = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        for part in text.split("#[unsafe(no_mangle)]").skip(1) {
            let from = part.find("extern \"C\" fn ").expect("it is exported to C") + 14;
            let end = from + part[from..].find('{').expect("it has a body");
            let text = part[from..end].split_whitespace().collect::<Vec<_>>().join(" ");
            let open = text.find('(').unwrap();
            let close = text.rfind(')').unwrap();
            let returns = text[close + 1..].trim().trim_start_matches("->").trim().to_owned();
            let takes = split(text[open + 1..close].trim_end_matches([' ', ',']));
            let types = takes.iter().map(|p| p.split_once(": ").unwrap().1.to_owned());
            found.insert(text[..open].to_owned(), (returns, types.collect()));
        }
    }
    found
}

/// Splits at the commas outside of parentheses.
fn split(text: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in text.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().expect("never empty").push(c);
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// A pointer that C hands over unchanged.
const _: () = assert!(size_of::<*const c_void>() == size_of::<u64>());
