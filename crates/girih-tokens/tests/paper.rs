//! Memo's own numbers: which follow from its model, and which do not.

use girih_swap::{Budgets, Links};
use girih_tokens::memo::{Limit, alpha};
use girih_tokens::shape::{ADAMW_BYTES, Block, Machine, Shape, problem};

const K: u64 = 1024;
/// Half-precision flops a microsecond of an A800, as the paper has them.
const A800: f64 = 312e6;

/// Table 2. The vocabulary is GPT-2's.
fn gpt(layers: u32, hidden: u64, ffn: u64, heads: u64) -> Shape {
    let (kv_heads, vocabulary) = (heads, 50_257);
    Shape { hidden, ffn, layers, heads, kv_heads, vocabulary, block: Block::Gpt }
}

fn models() -> [(Shape, u64); 4] {
    [
        (gpt(32, 4096, 16_384, 32), 8),
        (gpt(40, 5120, 20_480, 40), 16),
        (gpt(48, 7168, 28_672, 56), 32),
        (gpt(80, 8192, 32_768, 64), 64),
    ]
}

#[test]
fn the_models_of_table_2_have_the_sizes_of_their_names() {
    let billions = models().map(|(shape, _)| (shape.parameters() as f64 / 1e8).round() / 10.0);
    assert_eq!(billions, [6.6, 12.8, 30.0, 64.8]);
}

#[test]
fn a_layer_keeps_16_numbers_of_each_token_and_feature_and_a_log_sum_exp() {
    let (shape, _) = models()[0];
    let lse = 4.0 * 32.0;
    assert_eq!(shape.skeletal_bytes_per_token(), 16.0 * 2.0 * 4096.0 + lse);
    // Section 2.1.3: 4,096 GB (GiB) of a million tokens.
    let all = 32 * 16 * 2 * 4096 * K * K;
    assert_eq!(all, 4096 << 30);
    // Section 4.1 says 128 GB of layer inputs. By its own 6.25 % it is twice that.
    assert_eq!(all / 16, 256 << 30);
}

/// Rows of Table 3, Memo's columns: model, thousands of tokens, MFU in per cent, tokens of a GPU in a second.
const TABLE_3: [(usize, u64, f64, f64); 12] = [
    (0, 4, 49.45, 3578.86),
    (0, 64, 52.34, 1786.22),
    (0, 256, 53.62, 679.92),
    (0, 1024, 52.30, 188.73),
    (1, 8, 50.91, 1823.52),
    (1, 512, 52.40, 226.65),
    (1, 1408, 52.10, 87.93),
    (2, 128, 49.66, 344.09),
    (2, 1280, 51.59, 55.79),
    (3, 32, 44.79, 269.84),
    (3, 640, 50.05, 52.65),
    (3, 1408, 51.45, 26.50),
];

#[test]
fn the_utilization_of_table_3_follows_from_its_throughput_by_the_flops_of_section_5_1() {
    for (model, thousands, mfu, rate) in TABLE_3 {
        let (shape, _) = models()[model];
        let tokens = thousands * K;
        let flops = shape.model_flops(tokens) / tokens as f64 * rate;
        let own = 100.0 * flops / (A800 * 1e6);
        assert!((own - mfu).abs() < 0.15, "{model}, {thousands}K: {own} for {mfu}");
    }
}

#[test]
fn the_times_of_table_3_are_those_of_16_sequences() {
    // Seconds: 3h5m, 12m51s, 4h33m, 3h47m. Printed to the minute where they are hours.
    for (model, thousands, rate, seconds) in
        [(0, 1024, 188.73, 11_100.0), (0, 256, 679.92, 771.0), (1, 1408, 87.93, 16_380.0)]
    {
        let sequences = rate * models()[model].1 as f64 * seconds / (thousands * K) as f64;
        assert!((sequences - 16.0).abs() < 0.1, "{model}, {thousands}K: {sequences}");
    }
}

/// The 7B model on a GPU of eight, with the flops that it reaches in Table 5.
fn seven(tokens: u64, gigabytes: f64) -> girih_tokens::Problem {
    let rate = A800 * 0.53;
    let machine = Machine {
        flops: rate,
        attention_flops: rate,
        memory: 1.6e6,
        gpus: 8,
        links: Links::of_gigabytes(gigabytes, gigabytes, 2.0 * gigabytes),
        bytes_per_parameter: ADAMW_BYTES,
    };
    problem(&models()[0].0, &machine, tokens, 1)
}

/// The largest multiple of an eighth that the program allows, as in Table 5.
fn eighths(tokens: u64, gigabytes: f64, host: Option<u64>) -> (f64, Limit) {
    let own = alpha(&seven(tokens, gigabytes), host);
    assert!(own.is_feasible);
    ((own.alpha * 8.0).floor() / 8.0, own.limit)
}

#[test]
fn the_host_s_limits_of_table_5_are_those_of_a_usable_host_of_965_gib() {
    // The GPUs of a node share its memory.
    let of_gpu = |gib: u64| Some((gib << 30) / 8);
    let fast = 1000.0;
    // 256K: all fits. 320K: .75 is the last that fits. 384K: .5.
    let answers = |gib: u64| [256, 320, 384].map(|k| eighths(k * K, fast, of_gpu(gib)).0);
    assert_eq!(answers(965), [1.0, 0.75, 0.5]);
    // The 2 TB that the machines have would hold all of 320K.
    assert_eq!(answers(2048), [1.0, 1.0, 1.0]);
    assert_eq!(eighths(384 * K, fast, of_gpu(965)).1, Limit::Host);
    // Below 960 GiB all of 256K would not fit; at 975 GiB .625 of 384K would.
    assert!(answers(955)[0] < 1.0 && answers(975)[2] > 0.5);
}

#[test]
fn the_link_s_limits_of_table_5_are_those_of_9_gb_a_second_and_not_of_32() {
    // 192K is best at .75, 256K at 1.
    assert_eq!(eighths(192 * K, 9.0, None), (0.75, Limit::Link));
    assert_eq!(eighths(256 * K, 9.0, None).0, 1.0);
    // With 32 GB/s to each GPU, nothing of 192K would wait for a copy.
    assert_eq!(eighths(192 * K, 32.0, None), (1.0, Limit::None));
    // Figure 1b: by its own bandwidth the copies would be hidden long before 192K.
    assert_eq!(eighths(64 * K, 32.0, None).0, 1.0);
}

#[test]
fn what_does_not_fit_at_alpha_0_is_said_to_be_infeasible() {
    let own = alpha(&seven(K * K, 9.0), Some(1 << 30));
    assert_eq!((own.alpha, own.limit, own.is_feasible), (0.0, Limit::Host, false));
    let own = alpha(&seven(4 * K, 1.0), None);
    assert_eq!((own.alpha, own.limit, own.is_feasible), (0.0, Limit::Link, false));
    let budgets = Budgets { gpu: 80 << 30, host: Some(1 << 30) };
    let method = girih_tokens::Method::Memo;
    assert!(!method.answer(&seven(K * K, 9.0), &budgets).unwrap().fits);
}
