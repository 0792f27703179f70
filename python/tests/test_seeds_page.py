"""docs/seeds.md: what it quotes from bench/results/seeds/ stands there.

The page promises that what follows a link to a file, up to the next link or the end of the cell, is
of that file. Here the promise is held: each number is found in the file, in the column or the rows
of the allocator that it is said of and in their order, or is computed from it by `DERIVED`.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = ROOT / "bench/results/seeds"
PAGE = (ROOT / "docs/seeds.md").read_text()
# A number that stands for itself: not that of GPT-2, Llama2-7B, 32K or Qwen2.5.
NUMBER = re.compile(r"(?<![\w.\-])\d[\d,]*(?:\.\d+)?(?![\w\-])")
LINK = re.compile(r"\[[^\]]*\]\(([^)]*)\)")
PUBLISHED = ("gmlake", "gmlake-128", "gmlake-code", "stweaver")
ALLOCATORS = (
    *("native", "expandable", *PUBLISHED, "stitch", "planned", "auto", "again"),
    *("uncached", "profile"),
)
OURS = ("auto", "again", "planned")


def file(name):
    return json.loads((SEEDS / name).read_text())


FILES = {path.name: file(path.name) for path in sorted(SEEDS.glob("*.json"))}


def quotes() -> Iterator[tuple[str, str]]:
    """Of each link to a file its name, and the text that is of it."""
    for line in PAGE.splitlines():
        if not line.startswith("| "):
            continue
        cell = line.rstrip(" |").rpartition(" | ")[2]
        links = [*LINK.finditer(cell)]
        ends = [link.start() for link in links[1:]] + [len(cell)]
        for link, end in zip(links, ends, strict=False):
            if link[1].endswith(".json") and "/seeds/" in link[1]:
                yield Path(link[1]).name, said(cell[link.end() : end])


def said(text: str) -> str:
    """Without commands and the ticks of names."""
    return re.sub(r"`gpu/[^`]*`|`--quick`", "", text).replace("`", "")


QUOTES = [*quotes()]


def numbers(text: object) -> list[str]:
    found = NUMBER.findall(str(text))
    return [number.rstrip(",").replace(",", "") for number in found]


def strings(made) -> Iterator[object]:
    """All that a file says in words and cells."""
    yield from (made["what"], *made["notes"])
    for section in made["sections"]:
        yield section["heading"]
        yield from section["columns"]
        for row in section["rows"]:
            yield from row
    yield from (run["error"] for run in made["runs"] if "error" in run)
    yield from (run["words"] for run in made["runs"] if "words" in run)


def of_allocator(made, allocator: str) -> list[list[str]]:
    """Lists of cells in which what is said of an allocator is found, in their order."""
    lists = []
    for section in made["sections"]:
        heads = [re.split("[:,]", column)[0] for column in section["columns"]]
        if allocator in heads:
            at = heads.index(allocator)
            lists.append([number for row in section["rows"] for number in numbers(row[at])])
        rows = [row for row in section["rows"] if allocator in row[:2]]
        if rows:
            lists.append([number for row in rows for cell in row for number in numbers(cell)])
    return lists


def is_within(wanted: list[str], cells: list[str]) -> bool:
    """Whether they are there in this order, whatever stands between."""
    rest = iter(cells)
    return all(number in rest for number in wanted)


# ---- what is computed from a file ----


def cell(name: str, column: str, *begins: str) -> float:
    """The number in a column of the one row that begins so."""
    (found,) = (
        row[section["columns"].index(column)]
        for section in FILES[name]["sections"]
        for row in section["rows"]
        if row[: len(begins)] == [*begins]
    )
    return float(found.replace(",", ""))


def time_of_first(way: str) -> float:
    return cell("memo-table4-quick.json", "time of the first's", "32768", way)


def longest(name: str, way: str) -> float:
    """Tokens of the longest sequence that ran."""
    (section,) = (one for one in FILES[name]["sections"] if "longest that ran" in one["columns"])
    (row,) = (row for row in section["rows"] if row[0] == way)
    return float(row[section["columns"].index("longest that ran")].replace(",", ""))


def speed(name: str, *begins: str) -> float:
    return cell(name, "samples/s", *begins)


def faster(one: str, other: str) -> float:
    """By how many percent, both under native."""
    name = "stweaver-fig1b-quick.json"
    return 100 * (speed(name, one, "native") / speed(name, other, "native") - 1)


def chunks(chunk: str) -> float:
    whole = cell("gmlake-fig6.json", "2048 MiB", "whole, cudaMalloc")
    return cell("gmlake-fig6.json", "2048 MiB", chunk) / whole


def times_of_native(name: str, label: str) -> list[float]:
    (section,) = FILES[name]["sections"]
    at = section["columns"].index("time of native's")
    return [float(row[at]) for row in section["rows"] if row[0] == label]


def ahead_of_native(allocator: str) -> list[float]:
    """By how many points, at each number of GPUs of GMLake's figure 11."""
    labels = [row[0] for row in FILES["gmlake-fig11.json"]["sections"][0]["rows"]]
    return [
        cell("gmlake-fig11.json", allocator, label) - cell("gmlake-fig11.json", "native", label)
        for label in labels
    ]


RESTLESS = ("batch 16", "layers 8", "hidden 5504")
"""Shapes of Chameleon's figure 6 whose steps made views to the end."""


def driver_of_step(shape: str) -> float:
    """Seconds of the driver in a settled step of swapping alone."""
    (run,) = (
        run
        for run in FILES["chameleon-fig6.json"]["runs"]
        if (run["shape"], run["way"]) == (shape, "girih")
    )
    seen = run["seen"]
    return seen["settled_changes"]["driver_seconds"] / seen["settled_steps"]


def stweaver_ahead(table: str) -> float:
    """Of a first launch, by how many points at most."""
    of_table = [rows for (where, _), rows in recordings().items() if where == table]
    return max(rows["stweaver"] - rows["auto"] for rows in of_table)


DERIVED: dict[str, dict[str, Callable[[], float]]] = {
    "stweaver-fig1b-quick.json": {
        "4.2": lambda: faster("GPT-2 N, 32 a microbatch", "GPT-2 N, 16 a microbatch"),
        "2.4": lambda: faster("GPT-2 R, 64 a microbatch", "GPT-2 R, 32 a microbatch"),
        "21.7": lambda: -faster("GPT-2 R, 32 a microbatch", "GPT-2 N, 32 a microbatch"),
    },
    "stweaver-table1-quick.json": {
        "2.5": lambda: (
            100
            * (
                1
                - speed("stweaver-table1-quick.json", "half the microbatch", "native")
                / speed("stweaver-table1-quick.json", "original", "auto")
            )
        )
    },
    "stweaver-fig11.json": {
        "0.06": lambda: 100 * (1 - times_of_native("stweaver-fig11.json", "GPT-2 R")[-1]),
    },
    "stweaver-fig8.json": {
        "1.2": lambda: stweaver_ahead("stweaver-fig8"),
    },
    "gmlake-fig6.json": {
        "203.7": lambda: chunks("2 MiB"),
        "3.8": lambda: chunks("128 MiB"),
        "1.6": lambda: chunks("1024 MiB"),
    },
    "gmlake-fig11.json": {
        "18.9": lambda: (
            cell("gmlake-fig11.json", "native", "1 GPUs")
            - cell("gmlake-fig11.json", "native", "16 GPUs")
        ),
        "2.6": lambda: min(ahead_of_native("gmlake-code")),
        "5.2": lambda: max(ahead_of_native("gmlake-code")),
    },
    "gmlake-fig10-bytes.json": {
        "2.9": lambda: stweaver_ahead("gmlake-fig10"),
    },
    "chameleon-fig6.json": {
        "4.2": lambda: (
            cell("chameleon-fig6.json", "step s", "batch 16", "girih, products")
            / cell("chameleon-fig6.json", "step s", "base")
        ),
        "1.4": lambda: min(driver_of_step(shape) for shape in RESTLESS),
        "2.2": lambda: max(driver_of_step(shape) for shape in RESTLESS),
    },
    "chameleon-fig7-quick.json": {
        "51.4": lambda: (
            100
            * (
                cell("chameleon-fig7-quick.json", "step ms", "girih")
                / cell("chameleon-fig7-quick.json", "step ms", "recompute")
                - 1
            )
        ),
        "35.6": lambda: 2e3 * cell("chameleon-fig7-quick.json", "GB out a step", "girih") / 55,
    },
    "memo-fig1a-quick.json": {
        "1.17": lambda: (
            cell("memo-fig1a-quick.json", "step s", "65536", "recomputation")
            / cell("memo-fig1a-quick.json", "step s", "65536", "Girih, alpha 0")
        )
    },
    "memo-table3-quick.json": {
        "1.67": lambda: (
            longest("memo-table3-quick.json", "Girih, alpha 0")
            / longest("memo-table3-quick.json", "recomputation")
        ),
    },
    "memo-table4-quick.json": {
        "1.10": lambda: 1 / time_of_first("Girih, alpha 0"),
        "1.21": lambda: 1 / time_of_first("Girih, products"),
        "1.03": lambda: 1 / time_of_first("Girih, all swapped"),
        "1.01": lambda: 1 / time_of_first("Girih, swapping"),
    },
}
# Numbers that are no results: the paper's, those of a link, of rows and GPUs.
BESIDE = {
    "stweaver-fig1b-quick.json": {"64"},
    "stweaver-fig7-bytes.json": {"2", "1", "172", "7"},
    "stweaver-fig11.json": {"18", "0.05", "0.01", "0.02"},
    "stweaver-table2-quick.json": {"3"},
    "gmlake-fig10-bytes.json": {"18", "0", "4", "310"},
    "gmlake-fig12.json": {"0", "4"},
    "gmlake-native.json": {"11"},
    "gmlake-fig3-quick.json": {"2.11"},
    "chameleon-fig6.json": {"15", "50", "80", "64", "4", "2"},
    "gmlake-fig13.json": {"14", "32"},
    # The last two are of an earlier build, on another machine.
    "chameleon-fig7-quick.json": {"97", "200", "55", "43.84", "41.60"},
    "memo-fig1a-quick.json": {"4"},
    "memo-table3-quick.json": {"4", "16384"},
    "memo-table5-quick.json": {"4"},
    # Of the 11 layers; bench/results/lake.md has them.
    "chameleon-table4.json": {"10", "80", "60", "1.22", "1.40", "67"},
}


# ---- the tests ----


def test_every_file_of_results_is_quoted_and_every_link_leads_to_one():
    assert {name for name, _ in QUOTES} == set(FILES)
    links = LINK.findall(PAGE)
    broken = [
        link
        for link in links
        if not link.startswith("http")
        and not (ROOT / "docs" / link.partition("#")[0]).resolve().exists()
    ]
    assert broken == []


def test_the_page_names_the_commits_the_dates_and_the_machine_of_all_files():
    head = PAGE.partition("\n## ")[0]
    for made in FILES.values():
        assert made["commit"] in head
        assert made["date"] in head
        assert all(part in head for part in made["machine"].removeprefix("NVIDIA ").split(", "))
    named = set(re.findall(r"\b(?=\w*\d)[0-9a-f]{7}\b", head))
    assert named == {made["commit"] for made in FILES.values()}


def test_a_link_says_which_card_its_file_is_of():
    links = [link for link in LINK.finditer(PAGE) if link[1].endswith(".json")]
    assert links
    for link in links:
        card = link[0].partition("]")[0].removeprefix("[")
        assert f"NVIDIA {card}" in FILES[Path(link[1]).name]["machine"], link[0]


def test_no_replay_emptied_its_cache_at_every_free():
    for name, made in FILES.items():
        for run in made["runs"]:
            if "replayed" in run:
                native = next(row for row in run["rows"] if row["allocator"] == "native")
                calls = native["device_calls"]
                # Where streams wait for each other nearly all are of events, a microsecond each.
                of_events = native["device_microseconds"] < 2 * calls
                assert of_events or calls < native["requests"] / 10, (name, run["replayed"])


@pytest.mark.parametrize(("name", "text"), QUOTES, ids=[name for name, _ in QUOTES])
def test_each_number_after_a_link_is_in_that_file(name, text):
    known = {number for part in strings(FILES[name]) for number in numbers(part)}
    allowed = known | BESIDE.get(name, set()) | set(DERIVED.get(name, {}))
    assert numbers(text), text
    assert [number for number in numbers(text) if number not in allowed] == []


@pytest.mark.parametrize(("name", "text"), QUOTES, ids=[name for name, _ in QUOTES])
def test_figures_of_an_allocator_are_its_own_in_their_order(name, text):
    names = {"STWeaver": "stweaver"} | {one: one for one in ALLOCATORS}
    words = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    figures = r"\d[\d.]*(?:(?:, | and )\d[\d.]*)*"
    for match in re.finditer(rf"(?<![\w\-])({words}) ({figures})", text):
        wanted = numbers(match[2])
        lists = of_allocator(FILES[name], names[match[1]])
        assert any(is_within(wanted, cells) for cells in lists), match[0]


@pytest.mark.parametrize("name", DERIVED)
def test_what_is_computed_from_a_file_is_what_the_page_says(name):
    for text, formula in DERIVED[name].items():
        decimals = len(text.partition(".")[2])
        assert f"{formula():.{decimals}f}" == text
        assert any(text in numbers(quoted) for of, quoted in QUOTES if of == name), text


# ---- where Girih is not ahead ----


def recordings():
    """Of each recording once, the efficiencies in percent: figure 7's first rows are figure 2's."""
    found = {}
    for name, made in FILES.items():
        where = name.removesuffix(".json").removesuffix("-quick").removesuffix("-bytes")
        where = where.replace("fig7", "fig2")
        for run in made["runs"]:
            if "replayed" in run:
                rows = {row["allocator"]: 100 * row["efficiency"] for row in run["rows"]}
                found[where, run["replayed"]] = rows
    return found


def test_where_others_are_ahead_is_counted_as_the_page_has_it():
    part = PAGE.partition("## Where Girih is not ahead")[2]
    every = recordings().values()
    assert f"Of the {len(every)} recordings that were made on an H200" in part
    for ours in OURS:
        cells = []
        for theirs in ("stweaver", "native"):
            ahead = [rows[theirs] - rows[ours] for rows in every]
            ahead = [points for points in ahead if points >= 0.1]
            cells += [str(len(ahead)), f"{max(ahead):.2f}" if ahead else "-"]
        assert f"| `{ours}` | {' | '.join(cells)} |" in part
        for theirs in ("gmlake", "gmlake-128", "gmlake-code", "expandable"):
            assert all(rows[theirs] - rows[ours] < 0.1 for rows in every)


WAYS = ("alpha 0", "products", "all swapped", "swapping")


def test_what_is_said_of_time_is_in_the_files():
    part = PAGE.partition("In time and reach:")[2]
    for batch in ("batch 8", "batch 16"):
        ratio = cell("chameleon-fig6.json", "of recomputation's", batch, "girih")
        assert f"{ratio:.3f} ({batch})" in part
    small = {
        (way, column): cell("chameleon-fig7-quick.json", column, way)
        for way in ("recompute", "girih")
        for column in ("step ms", "allocated GiB")
    }
    share = small["girih", "step ms"] / small["recompute", "step ms"]
    sizes = [small[way, "allocated GiB"] for way in ("girih", "recompute")]
    assert f"Girih's step is {share:.2f} of recomputation's" in part
    said = "allocates {:.2f} GiB where recomputation allocates {:.2f}".format(*sizes)
    assert said in " ".join(part.split())
    gains = [1 / time_of_first(f"Girih, {way}") for way in WAYS]
    assert f"the gain at 32K tokens is {min(gains):.2f} to {max(gains):.2f}" in part
    shapes = {
        (way, column): cell("chameleon-table4.json", column, "batch 24", way)
        for way in ("recompute", "girih")
        for column in ("of recomputation's", "allocated GiB")
    }
    text = " ".join(part.split())
    largest = shapes["girih", "of recomputation's"]
    sizes = [shapes[way, "allocated GiB"] for way in ("recompute", "girih")]
    more = f"takes {sizes[0] / sizes[1]:.2f} times as much memory"
    assert f"goes through at {largest:.3f} of the step of recomputation, which {more}" in text
    # The step of 11 layers is of a run of its own, of which ten steps are laid out.
    runs = json.loads((SEEDS.parent / "gpu/rest-120-h200.json").read_text())["runs"]
    (own,) = (run["step_s"][69:79] for run in runs if run["program"].startswith("eleven"))
    recomputed = cell("chameleon-table4.json", "step s", "layers 11", "recompute")
    shares = f"{min(own) / recomputed:.1f} to {max(own) / recomputed:.1f}"
    ratio = cell("chameleon-table4.json", "of recomputation's", "layers 11", "girih")
    said = f"the step is {ratio:.3f} of recomputation's, in another call {shares}"
    assert said in text
    gained = [
        100 * (1 - cell("chameleon-fig6.json", "of recomputation's", shape, "girih, products"))
        for shape in ("batch 16", "length 12288")
    ]
    assert "({:.0f} and {:.0f} %)".format(*gained) in text
    assert f"{min(own):.2f} to {max(own):.2f} s by another run of 80 steps" in PAGE


def test_what_a_later_build_takes_is_in_its_file():
    part = PAGE.partition("By a later build, one program at a time")[2].partition("So Chameleon")[0]
    runs = json.loads((SEEDS.parent / "gpu/rest-two-h200.json").read_text())["runs"]
    compared = [run for run in runs if run["call"] > 1 and not run["shape"].endswith("6016")]
    last = {(run["shape"], run["way"]): run for run in compared}
    for (shape, way), run in last.items():
        table = "table4" if shape == "layers 11" else "fig6"
        theirs = json.loads((SEEDS / f"chameleon-{table}.json").read_text())["runs"]
        (seen,) = (it["seen"] for it in theirs if (it["shape"], it["way"]) == (shape, "recompute"))
        ratio = sorted(run["step_s"][-11:-1])[5] / seen["median_step_s"]
        kept = part.partition("with what products gave kept")
        assert f"{ratio:.2f} ({shape})" in kept[2 if way == "products kept" else 0].replace(
            " of it (", " ("
        ), (shape, way, ratio)
    assert len(last) == 8
