//! `girih alpha`.

use serde_json::{Value, json};

use crate::girih::{arg, corpus, error, girih, has_fields, integer, json, snapshot, text};

/// Seven billion weights as Memo's paper has them, a million tokens, four GPUs.
const SEVEN: [&str; 15] = [
    "alpha",
    "--model",
    "4096,16384,32,32",
    "--block",
    "gpt",
    "--tokens",
    "1M",
    "--gpus",
    "4",
    "--flops",
    "500",
    "--gpu-budget",
    "130GiB",
    "--host-budget",
    "1TiB",
];

fn us(object: &Value, field: &str) -> f64 {
    object[field].as_f64().unwrap_or_else(|| panic!("`{field}` is {}", object[field]))
}

#[test]
fn a_million_tokens_of_seven_billion_weights_fit_four_gpus() {
    let own = json(&SEVEN);
    has_fields(&own, &["method", "assumed", "compared", "kinds", "untiled", "memo", "arithmetic"]);
    assert_eq!((&own["fits"], &own["tokens"]), (&json!(true), &json!(1 << 20)));
    assert!(integer(&own, "longest_tokens") > 1 << 20);
    assert!(integer(&own, "gpu_peak") <= 130 << 30);
    // The GPUs share the host.
    assert!(integer(&own, "host_peak") <= 1 << 38);
    // 4,096 GiB of activations and their log-sum-exp, on four GPUs.
    let arithmetic = &own["arithmetic"];
    assert_eq!(integer(arithmetic, "layer_bytes"), (32 << 30) + (1 << 20) * 128 / 4);
    let layers = own["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 32);
    for layer in layers {
        has_fields(layer, &["alpha", "time_us", "binds"]);
        let parts = ["keep", "swap", "recompute"].map(|part| integer(layer, part));
        assert_eq!(parts.iter().sum::<u64>(), integer(arithmetic, "layer_bytes"));
    }
    let swapped: u64 = layers.iter().map(|layer| integer(layer, "swap")).sum();
    assert_eq!((swapped, swapped), (integer(&own, "bytes_out"), integer(&own, "host_peak")));
    let (step, bound) = (us(&own, "step_us"), us(&own, "step_us_bound"));
    assert!(step >= bound && step < 1.01 * bound, "{step} of {bound}");
    let sum = us(&own, "step_us_plain") + us(&own, "stall_us") + us(&own, "recompute_us");
    assert!((sum - step).abs() < 1e-6 * step);
}

#[test]
fn nothing_that_stands_beside_it_is_faster_or_reaches_further() {
    let own = json(&SEVEN);
    let names: Vec<&str> =
        own["compared"].as_array().unwrap().iter().filter_map(|it| it["method"].as_str()).collect();
    assert_eq!(names, ["plain", "recompute", "swap", "whole-tensors", "memo"]);
    for other in own["compared"].as_array().unwrap() {
        assert!(integer(other, "longest_tokens") <= integer(&own, "longest_tokens"), "{other}");
        assert!(other["fits"] == false || us(other, "step_us") >= us(&own, "step_us"), "{other}");
        let name = other["method"].as_str().unwrap();
        let asked = json(&[&SEVEN[..], &["--method", name]].concat());
        assert_eq!(us(&asked, "step_us"), us(other, "step_us"));
    }
}

#[test]
fn the_longest_fits_and_one_more_token_does_not() {
    let longest = integer(&json(&SEVEN), "longest_tokens");
    let fits = |tokens: u64| {
        let tokens = tokens.to_string();
        let mut args: Vec<&str> = SEVEN.to_vec();
        args[6] = &tokens;
        // As many tiles as without being told, for both.
        let ran = girih(&[&args[..], &["--require-fit"]].concat());
        assert!(ran.code < 2, "{}", ran.stderr);
        ran.code == 0
    };
    assert!(fits(longest) && !fits(longest + 1));
}

#[test]
fn what_does_not_fit_says_how_much_and_is_a_no_where_it_must_fit() {
    let mut args = SEVEN;
    args[12] = "20GiB";
    let own = json(&args);
    assert_eq!(own["fits"], false);
    assert!(own["layers"].as_array().unwrap().iter().all(|layer| layer["binds"] == "gpu"));
    assert!(integer(&own, "gpu_least") > 20 << 30);
    assert_eq!(girih(&[&args[..], &["--require-fit"]].concat()).code, 1);
    let said = text(&args);
    assert!(said.contains("nothing does with less than"), "{said}");
    let memo = [&SEVEN[..13], &["--host-budget", "1GiB", "--method", "memo"]].concat();
    let said = text(&memo);
    assert!(said.contains("must be on the host"), "{said}");
    assert!(said.contains("not even alpha = 0 is within what the host can do"), "{said}");
}

#[test]
fn tiles_make_contexts_longer() {
    let own = json(&SEVEN);
    assert_eq!(integer(&own, "tiles"), 64);
    let untiled = &own["untiled"];
    let one = json(&[&SEVEN[..], &["--tiles", "1"]].concat());
    assert_eq!(one["untiled"], Value::Null);
    assert_eq!(integer(&one, "longest_tokens"), integer(untiled, "longest_tokens"));
    assert_eq!(integer(&one, "gpu_least"), integer(untiled, "gpu_least"));
    assert!(integer(&one, "longest_tokens") < integer(&own, "longest_tokens"));
}

#[test]
fn a_recording_is_decided_and_without_tokens_says_nothing_of_them() {
    let run = corpus("llama2b_vary.girih");
    let own = json(&["-q", "alpha", arg(&run), "--gpu-budget", "20GiB", "--host-budget", "100GiB"]);
    assert_eq!((&own["longest_tokens"], &own["tokens"]), (&Value::Null, &Value::Null));
    assert_eq!(own["layers"].as_array().unwrap().len(), 8);
    assert_eq!((&own["fits"], integer(&own, "tiles")), (&json!(true), 1));
    let assumed = own["assumed"].to_string();
    assert!(assumed.contains("has no times of operators"), "{assumed}");
    // With tokens it is known for any number of them.
    let args = ["--recorded-tokens", "7680", "--tokens", "16K", "--layers", "32"];
    let more = json(&[&["-q", "alpha", arg(&run), "--gpu-budget", "130GiB"], &args[..]].concat());
    assert_eq!(more["layers"].as_array().unwrap().len(), 32);
    assert!(integer(&more, "longest_tokens") > 0);
    let assumed = more["assumed"].to_string();
    assert!(assumed.contains("attention's goes by the square"), "{assumed}");
}

#[test]
fn a_shape_beside_a_recording_says_what_is_attention_s() {
    let run = corpus("llama2b_vary.girih");
    let args = ["-q", "alpha", arg(&run), "--gpu-budget", "130GiB", "--recorded-tokens", "7680"];
    let shape = ["--tokens", "64K", "--model", "4096,11008,8,32", "--flops", "500"];
    let with = json(&[&args[..], &shape].concat());
    let without = json(&[&args[..], &shape[..2]].concat());
    assert!(us(&with, "step_us_plain") > us(&without, "step_us_plain"));
    assert!(with["assumed"].to_string().contains("of a layer's time is attention's"));
}

#[test]
fn what_would_not_be_used_is_refused_and_what_is_taken_for_granted_is_said() {
    let run = corpus("llama2b_vary.girih");
    let recording = ["-q", "alpha", arg(&run), "--gpu-budget", "20GiB"];
    let model = ["--model", "4096,11008,8,32"];
    for (more, words) in [
        (&["--flops", "500"][..], "with --model"),
        (&[&model[..], &["--tokens", "8K"]].concat(), "with --flops"),
        (&[&model[..], &["--flops", "500"]].concat(), "with --recorded-tokens"),
    ] {
        let said = error(&[&recording[..], more].concat());
        assert!(said.contains(words), "{said}");
    }
    let said = error(&["alpha", "--gpu-budget", "20GiB"]);
    assert!(said.contains("name a recording, or the shape of a model"), "{said}");
    let said = error(&[&SEVEN[..], &["--layers", "5"]].concat());
    assert!(said.contains("in --model, as its third number"), "{said}");
    // Tokens that are asked about are not those of the recording, unless it is said that they are.
    let assumed = |more: &[&str]| json(&[&recording[..], more].concat())["assumed"].to_string();
    let said = assumed(&["--tokens", "32K", "--gpus", "2"]);
    assert!(said.contains("the recording itself has 32,768 tokens"), "{said}");
    assert!(said.contains("one of 2 GPUs"), "{said}");
    let said = assumed(&["--tokens", "32K", "--recorded-tokens", "7680"]);
    assert!(!said.contains("the recording itself") && !said.contains("GPUs"), "{said}");
}

#[test]
fn two_recordings_of_one_program_are_drawn_through() {
    let run = corpus("llama2b_vary.girih");
    let args = ["-q", "alpha", arg(&run), "--gpu-budget", "60GiB", "--recorded-tokens", "4096"];
    let both = ["--second", arg(&run), "--second-tokens", "8192", "--tokens", "16K"];
    let own = json(&[&args[..], &both].concat());
    // The same bytes at two lengths: nothing grows.
    assert!(integer(&own, "longest_tokens") >= 1 << 33, "{own}");
    let refused = error(&[&args[..], &["--second", arg(&run), "--second-tokens", "4096"]].concat());
    assert!(refused.contains("record another length: both recordings have 4096"), "{refused}");
    let other = corpus("gpt2m_R_vary.girih");
    let args = [&args[..], &["--second", arg(&other), "--second-tokens", "8192"]].concat();
    let refused = girih(&args);
    assert!(
        refused.code == 2 && refused.stderr.contains("record the same program twice"),
        "{}",
        refused.stderr
    );
}

#[test]
fn what_has_no_layers_is_refused_with_a_reason() {
    let refused = error(&["alpha", arg(&snapshot("mlp_stacks")), "--gpu-budget", "1GiB"]);
    assert!(refused.contains("use `girih swap`, which schedules steps of any kind"), "{refused}");
    let run = corpus("megatron_gpt2-V-R_r0.girih");
    let refused = error(&["-q", "alpha", arg(&run), "--gpu-budget", "1GiB"]);
    assert!(refused.contains("so several are in flight"), "{refused}");
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that skips says so")]
fn a_stage_of_a_pipeline_is_refused_though_something_of_it_is_freed_in_time() {
    let run = corpus("../../shared/traces/megatron_qwenmoe-R_r0.pickle.gz");
    if !run.exists() {
        return eprintln!("SKIPPED: {} is not there", run.display());
    }
    let ran = girih(&["alpha", arg(&run), "--gpu-budget", "60GiB"]);
    assert!(ran.code == 2 && ran.stderr.contains("are in flight"), "{}", ran.stderr);
}

#[test]
fn what_is_no_shape_no_budget_and_no_length_is_refused() {
    let budget = ["--gpu-budget", "1GiB"];
    let model = ["--model", "4096,16384,32,32", "--flops", "500", "--tokens", "1M"];
    for args in [
        &[][..],
        &["--gpu-budget", "1GiB"],
        &[&model[..], &["--gpu-budget", "1"]].concat(),
        &[&model[..4], &budget].concat(),
        &[&model[..2], &model[4..], &budget].concat(),
        &[&["--model", "4096,16384,32"], &model[2..], &budget].concat(),
        &[&["--model", "4096,16384,32,33"], &model[2..], &budget].concat(),
        &[&["--model", "4096,16384,32,32,5"], &model[2..], &budget].concat(),
        &[&["--model", "4096,16384,2000,32"], &model[2..], &budget].concat(),
        &[&model[..], &budget, &["--link", "1,2,3,4"]].concat(),
        &[&model[..], &budget, &["--link", "0"]].concat(),
        &[&model[..], &budget, &["--tiles", "0"]].concat(),
        &[&model[..], &budget, &["--method", "belady"]].concat(),
        &[&model[..], &budget, &["--method", "exact"]].concat(),
        &[&model[..4], &budget, &["--tokens", "0"]].concat(),
    ] {
        let ran = girih(&[&["alpha"], args].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}");
    }
    let refused = error(&[&["alpha"], &model[..], &budget, &["--method", "exact"]].concat());
    assert!(refused.contains("take --method girih, or --layers 4"), "{refused}");
}

#[test]
fn a_link_has_one_rate_or_two_or_three() {
    let with = |rates: &str| us(&json(&[&SEVEN[..], &["--link", rates]].concat()), "step_us_bound");
    assert_eq!(with("40"), with("40,40,80"));
    assert!(with("1") > with("40"));
    assert!(with("1,40") <= with("1"));
}

#[test]
fn a_decision_is_printed_within_80_columns() {
    let run = corpus("llama2b_vary.girih");
    let printed =
        [text(&SEVEN), text(&["-q", "alpha", arg(&run), "--gpu-budget", "20GiB"])].concat();
    // Sentences are not broken; tables are.
    let is_sentence =
        |line: &str| line.starts_with("assumed: ") || line.starts_with("does not fit");
    let is_narrow = |line: &str| line.chars().count() <= 80 || is_sentence(line);
    let wide: Vec<&str> = printed.lines().filter(|line| !is_narrow(line)).collect();
    assert!(wide.is_empty(), "{wide:?}");
    assert!(printed.contains("nothing is faster than"), "{printed}");
}
