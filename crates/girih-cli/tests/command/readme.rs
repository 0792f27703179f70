//! The first table of README.md: each cell is one of bench/results/efficiency.md.

use std::collections::BTreeMap;
use std::fs;

use crate::girih::corpus;

const BEGIN: &str = "<!-- results: written by ./scripts/bench --readme -->";
const END: &str = "<!-- end of results -->";
/// Behind the name of a run whose recording began late.
const LATE: (&str, &str) = (" ¹", " (late)");

fn read(path: &str) -> String {
    fs::read_to_string(corpus("..").join(path)).expect("the repository has it")
}

/// The lines of the first table of a text, as cells, without the rule.
fn table(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().skip_while(|line| !line.starts_with('|'));
    let cells = |line: &str| {
        let cells = line.trim().trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = lines.take_while(|line| line.starts_with('|')).map(cells).collect();
    let rule = rows.remove(1);
    assert!(rule.iter().all(|cell| cell.chars().all(|c| "-: ".contains(c))), "{rule:?}");
    rows
}

/// The first table after a heading: of each run its cells by the name of their column.
fn by_run(text: &str, heading: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let (_, section) = text.split_once(&format!("{heading}\n")).expect("a section");
    let mut rows = table(section).into_iter();
    let header = rows.next().expect("a header");
    rows.map(|row| (row[0].clone(), header.iter().cloned().zip(row).collect())).collect()
}

#[test]
fn each_cell_of_the_readme_is_one_of_the_results() {
    let (readme, results) = (read("README.md"), read("bench/results/efficiency.md"));
    let (_, shown) = readme.split_once(BEGIN).expect("a mark before the table");
    let (shown, _) = shown.split_once(END).expect("a mark behind it");
    let held = by_run(&results, "# What each allocator would have held");
    let used = by_run(&results, "## Efficiency");
    let named: BTreeMap<String, String> = by_run(&results, "## The runs")
        .into_iter()
        .map(|(run, row)| {
            let mark = if run.ends_with(LATE.1) { LATE.0 } else { "" };
            (format!("{}{mark}", row["what it is"]), run)
        })
        .collect();
    let mut rows = table(shown).into_iter();
    let header = rows.next().expect("a header");
    assert_eq!(
        header,
        [
            "run",
            "native",
            "expandable",
            "Girih, first launch",
            "Girih, second launch",
            "given back"
        ]
    );
    let mut count = 0;
    for row in rows {
        let [what, cells @ .., given_back] = &row[..] else { panic!("{row:?}") };
        let run = named.get(what).unwrap_or_else(|| panic!("{what} is in no result"));
        let expected = ["native", "expandable", "auto", "again"].map(|of| used[run][of].clone());
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace("**", "")).collect();
        assert_eq!(cells, expected, "{what}: run `./scripts/bench --readme`");
        assert_eq!(*given_back, format!("{} GiB", held[run]["given back"]), "{what}");
        count += 1;
    }
    assert_eq!(count, named.len(), "every run that has a name is shown, once");
}

#[test]
fn the_results_are_of_one_commit() {
    let results = read("bench/results/efficiency.md");
    let made = results.lines().find(|line| line.starts_with("Made by ")).expect("it says so");
    assert!(made.starts_with("Made by `./scripts/bench` from commit "), "{made}");
    assert!(!made.contains("with changes"), "made of what no commit has: {made}");
}
