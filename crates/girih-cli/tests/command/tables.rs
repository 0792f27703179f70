//! Tables as a terminal of 80 columns shows them.

use std::fs;

use crate::girih::{RECORDINGS, arg, corpus, snapshot, text};

/// The lines of each table: those around a rule, up to the next empty line.
fn tables(printed: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = printed.lines().collect();
    let is_rule = |line: &str| line.len() > 4 && line.chars().all(|letter| letter == '-');
    let rules = (1..lines.len()).filter(|&at| is_rule(lines[at]));
    let table = |at: usize| {
        lines[at - 1..].iter().copied().take_while(|line| !line.is_empty()).collect::<Vec<_>>()
    };
    rules.map(table).collect()
}

#[test]
fn no_table_is_wider_than_a_terminal() {
    let oracle = corpus("oracle").read_dir().expect("the corpus has it").next();
    let oracle = oracle.expect("it has files").expect("they can be read").path();
    let died = ["died_fragmented", "died_leak"].map(snapshot);
    let [one, other] = [arg(&died[0]), arg(&died[1])];
    let mut commands = vec![vec!["lab"], vec!["conform", arg(&oracle)], vec!["diff", one, other]];
    for by in ["line", "function", "module", "stream", "category"] {
        commands.push(vec!["why", one, "--group-by", by]);
        commands.push(vec!["why", other, "--group-by", by, "--at", "never-freed"]);
    }
    let files = RECORDINGS.map(snapshot);
    for file in &files {
        let file = arg(file);
        commands.extend([
            vec!["compare", file],
            vec!["compare", file, "--baselines"],
            vec!["compare", file, "--learn", "50%", "--capacity", "2TiB"],
            vec!["replay", file, "--allocator", "gmlake"],
            vec!["replay", file, "--allocator", "stitch", "--capacity", "2TiB"],
            vec!["stats", file],
            vec!["swap", file, "--gpu-budget", "8GiB"],
            vec!["plan", file, "--explain"],
        ]);
    }
    for command in &commands {
        let printed = text(command);
        let tables = tables(&printed);
        assert!(!tables.is_empty() || command[0] == "lab", "{command:?} prints a table: {printed}");
        for line in tables.concat() {
            assert!(line.chars().count() <= 80, "{command:?}: {} columns:\n{line}", line.len());
        }
    }
}

#[test]
fn the_readme_shows_what_the_command_prints() {
    let readme = corpus("../README.md");
    let readme = fs::read_to_string(readme).expect("the repository has one");
    let (_, after) = readme.split_once("## Read the answer").expect("a chapter");
    let (_, after) = after.split_once("```text\n").expect("a sample");
    let (sample, _) = after.split_once("```").expect("its end");
    let printed = text(&["compare", arg(&snapshot("megatron_gpt2-R_r3"))]);
    assert!(
        printed.starts_with(sample),
        "the README has\n{sample}and the command prints\n{printed}"
    );
}
