"""STWeaver (Huang et al., EuroSys 2026): its figures and tables on one card.

Its runs are of Megatron-LM on 8 to 128 GPUs. Here one rank of such a job is recorded alone, on one
card, in memory that may be larger than the card's (`girih record`), and the recording is replayed
under every allocator; what fits one card whole is launched on it.
Strategies are N (none), R (recomputation), V (virtual pipeline), Z (distributed optimizer), O (its
states on the host).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from fit import smaller_card

from seeds.bench import (
    ALLOCATORS,
    MEASURED,
    ROOT,
    Bench,
    Table,
    label_of,
    rank0,
    replayed_columns,
)
from seeds.gmlake import RANK_STEPS, limit_between

STRATEGIES = {
    "N": "",
    "R": " --recompute",
    "V": " --interleaved",
    "VR": " --interleaved --recompute",
    "ZR": " --distributed-optimizer --recompute",
    "ZOR": " --distributed-optimizer --offload-optimizer --recompute",
}
MEGATRON = "megatron.core"
WITHOUT_MEGATRON = "V, VR, ZR and ZOR are left out: install megatron-core for them."
HF = ("transformers",)


def ranks(bench: Bench, label: str, world: int, words: str, which: tuple[int, ...]) -> None:
    """A row for each rank that is recorded: the first and the last stage differ most."""
    for rank in which:
        recording, said = bench.record_rank(world, rank, f"{words} {' '.join(RANK_STEPS)}")
        if recording:
            bench.replayed(f"{label}, rank {rank} of {world}", recording)
        else:
            bench.note(f"{label}, rank {rank} of {world} failed: {said}")


# ---- one card ----


def fig1b(bench: Bench) -> None:
    """Settings of the same step of 64 sequences: what they reserve, and how fast they are."""
    settings = {
        "N, 16 a microbatch": "--batch 16 --micro 4",
        "N, 32 a microbatch": "--batch 32 --micro 2",
        "R, 32 a microbatch": "--recompute --batch 32 --micro 2",
        "R, 64 a microbatch": "--recompute --batch 64",
    }
    bench.section(MEASURED)
    for label, options in settings.items():
        allocators = ("native", "auto") if bench.quick else ("native", "expandable", "auto")
        bench.measured(f"GPT-2 {label}", f"hf.py gpt2 {options}", allocators)


def fig2(bench: Bench) -> None:
    """Native's efficiency of GPT-2 by strategy: on one card whole, then as rank of 8."""
    bench.section(replayed_columns(), "Efficiency in percent, replayed")
    for name, options in (("N", " --batch 16"), ("R", " --recompute --batch 64")):
        if recording := bench.record(f"hf.py gpt2{options}"):
            bench.replayed(f"GPT-2 {name}", recording)
    if not bench.has(MEGATRON):
        bench.note(WITHOUT_MEGATRON)
        return
    for name in ("N", "R", "V", "VR"):
        # Stages in turns need no fewer microbatches than stages; 8 are the workload's own.
        words = f"megatron_gpt.py gpt2 --tensor 4 --pipeline 2 --batch 32{STRATEGIES[name]}"
        ranks(bench, f"GPT-2 {name}", 8, words, (0,) if bench.quick else (0, 7))


def fig7(bench: Bench) -> None:
    """Dense models by strategy: launched on one card, then as ranks of 8 replayed."""
    rows = {
        "GPT-2 N": "hf.py gpt2 --batch 16",
        "GPT-2 R": "hf.py gpt2 --recompute --batch 64",
        "Llama2-7B N": "hf.py llama-7b --batch 2",
        "Llama2-7B R": "hf.py llama-7b --recompute --batch 4",
    }
    if bench.wants("bytes"):
        replayed_by_strategy(bench, rows)
    if bench.wants("times") and not bench.quick:
        bench.section(MEASURED, "Measured")
        for label, words in rows.items():
            bench.measured(label, words, ("native", "expandable", "gmlake", "auto", "again"))


def replayed_by_strategy(bench: Bench, whole: dict[str, str]) -> None:
    """What fits a card whole, then ranks of 8."""
    bench.section(replayed_columns(), "Efficiency in percent, replayed")
    for label, words in list(whole.items())[: 2 if bench.quick else None]:
        if recording := bench.record(words):
            bench.replayed(label, recording)
    if bench.has(MEGATRON):
        models = {"GPT-2": "gpt2 --tensor 4 --pipeline 2 --batch 32"}
        if not bench.quick:
            models["Llama2-7B"] = "llama-7b --tensor 4 --pipeline 2 --batch 4"
            # Experts are not split where ranks are recorded alone: what they receive is unknown.
        for model, options in models.items():
            for name, more in STRATEGIES.items():
                words = f"megatron_gpt.py {options}{more}"
                if "Z" in name:
                    # A distributed optimizer needs ranks to share with: no pipeline then.
                    words = words.replace("--pipeline 2", "--pipeline 1")
                ranks(bench, f"{model} {name}", 8, words, (0,) if bench.quick else (0, 7))
    else:
        bench.note(WITHOUT_MEGATRON)


# Model, GPUs, how it is split. Qwen2.5-7B has four groups of heads: no more tensor parallel ranks.
# The paper names the split of 14B alone (section 2.2); the others are as large as a node allows.
SCALES = [
    ("7b", 8, "--tensor 2 --pipeline 2"),
    ("14b", 16, "--tensor 2 --pipeline 2"),
    ("32b", 32, "--tensor 4 --pipeline 4"),
    ("72b", 64, "--tensor 8 --pipeline 4"),
    ("72b", 128, "--tensor 8 --pipeline 4"),
]


def fig8(bench: Bench) -> None:
    """Qwen2.5 of 7B to 72B on 8 to 128 GPUs: a rank recorded alone, replayed."""
    if bench.has(MEGATRON):
        program = "megatron_gpt.py"
    else:
        program = "fsdp.py"
        bench.note("FSDP2 stands in, and V is left out: install megatron-core for its splits.")
    bench.section(replayed_columns(), "Efficiency in percent, replayed")
    for name in ("R",) if bench.quick or program == "fsdp.py" else ("R", "V"):
        for size, world, split in SCALES:
            words = f"{program} qwen2.5-{size}"
            if program == "fsdp.py":
                words += " --meta --recompute --batch 2 --length 4096"
                which: tuple[int, ...] = (0,)
            else:
                # Of the last stage, whose rank is the last, there are the logits.
                words += f" {split} --batch 1 --distributed-optimizer{STRATEGIES[name]}"
                which = (0,) if bench.quick else (0, world - 1)
            ranks(bench, f"Qwen2.5-{size.upper()} {name}", world, words, which)
    bench.note(
        "Each rank alone on one card: collectives return at once, and what a rank computes is not"
        " what the job would."
    )


def fig9(bench: Bench) -> None:
    """Llama with recomputation, microbatches of 1 to 64."""
    bench.section(replayed_columns(), "Efficiency in percent, replayed")
    for batch in (1, 8, 64) if bench.quick else (1, 2, 4, 8, 16, 32, 64):
        words = f"hf.py llama-2b --recompute --micro 2 --batch {batch} --steps 6 --settled 4"
        if recording := bench.record(words):
            bench.replayed(f"batch {batch}", recording)
    bench.note("Layers are those of Llama2-7B, 8 in place of 32, so that 64 sequences fit a card.")


def fig11(bench: Bench) -> None:
    """Throughput beside native's, with recomputation; native again at the end is the noise."""
    rows = {
        "GPT-2 R": "hf.py gpt2 --recompute --batch 64",
        "Qwen MoE R": "hf.py qwen-moe --recompute",
        "Llama2-7B R": "hf.py llama-7b --recompute --batch 4",
    }
    bench.section(MEASURED)
    few = ("native", "auto", "again", "native")
    allocators = few if bench.quick else (*ALLOCATORS, "stitch", "native")
    labels = list(rows)[: 2 if bench.quick else None]
    bench.on_cards(labels, lambda label: bench.measured(label, rows[label], allocators))
    bench.in_order(labels)


def table1(bench: Bench) -> None:
    """On a card too small for native's fragmentation: the run as it is, and what avoids it."""
    cases = {
        "GPT-2 R": {
            "original": "hf.py gpt2 --recompute --batch 64",
            "half the microbatch": "hf.py gpt2 --recompute --batch 32 --micro 2",
        },
        "GPT-2 N": {
            "original": "hf.py gpt2 --batch 16 --micro 4",
            "half the microbatch": "hf.py gpt2 --batch 8 --micro 8",
            "recomputation": "hf.py gpt2 --recompute --batch 16 --micro 4",
        },
    }
    allocators: tuple[str, ...] = ("native", "expandable", "auto", "again")
    if bench.quick:
        del cases["GPT-2 N"]
        allocators = ("native", "expandable", "auto")
    for case, configs in cases.items():
        # Two fifths of the way from what is allocated to what native reserves: ours needs one
        # percent of it, and native more than all.
        limit = limit_between(bench, configs["original"], 0.4)
        if limit is None:
            bench.note(f"{case}: native has no fragmentation to speak of.")
            bench.has_failed = True
            continue
        with smaller_card(limit, 1) as left:
            bench.section(MEASURED, f"{case}, {left}")
            for label, words in configs.items():
                bench.measured(label, words, allocators)


def seconds_of_plan(recording: Path, planner: str) -> dict[str, float]:
    """What a planner takes: by its own clock, and the command as a whole."""
    words = ["plan", str(recording), "--planner", planner, "--json", "-q"]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "girih", *words], capture_output=True, text=True, check=False
    )
    taken = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"girih plan failed: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout)
    return {
        "requests": found["iteration_requests"],
        "planning": found["seconds"],
        "command": taken,
    }


def table2(bench: Bench) -> None:
    """Three iterations without a cache beside three of native, and what planners take."""
    rows = {
        "GPT-2 N": "hf.py gpt2 --batch 16",
        "GPT-2 R": "hf.py gpt2 --recompute --batch 64",
        "Qwen MoE R": "hf.py qwen-moe --recompute",
        "Qwen MoE N": "hf.py qwen-moe",
        "Llama2-7B N": "hf.py llama-7b --batch 2",
        "Llama2-7B R": "hf.py llama-7b --recompute --batch 4",
    }
    columns = ["run", "requests", "native, 3 steps, s", "profiled, 3 steps, s", "recorded, s"]
    bench.section([*columns, "STWeaver's plan, s", "Girih's plan, s"])
    for label, words in list(rows.items())[: 3 if bench.quick else None]:
        # A step more than is timed: planners want to see two alike that are whole.
        four = f"{words} --steps 4 --settled 2"
        cells = []
        for mode in ("native", "profile"):
            seen = rank0(bench.launch(mode, four))
            cells.append(f"{sum(seen['step_s'][:3]):.2f}" if seen else "-")
        trace = bench.folder / f"{label_of(label)}.girih"
        seen = rank0(bench.launch("stitch", f"{words} --steps 5 --settled 3", trace=trace))
        if seen is None:
            bench.row(label, "-", *cells, "-", "-", "-")
            continue
        theirs, ours = (seconds_of_plan(trace, name) for name in ("stweaver", "auto"))
        cells += [f"{sum(seen['step_s'][:3]):.2f}"]
        cells += [f"{theirs['planning']:.3f}", f"{ours['planning']:.3f}"]
        bench.row(label, f"{ours['requests']:,.0f}", *cells)
    bench.note(
        "Profiled is without a cache, as the paper has it; recorded is what Girih needs, and its"
        " first three steps."
    )


SEEDS = "cargo run --release -q -p girih-runtime --example seeds --"
"""Prints the paper's tables of recordings."""


def table3(bench: Bench) -> None:
    """Experts' memory: static, and what falls back without and with reuse (figure 12 too)."""
    if shutil.which("cargo") is None and not bench.keeps:
        raise SystemExit(f"install cargo, or say --keep FOLDER and run elsewhere: {SEEDS} FOLDER")
    for name in ("R", "N"):
        bench.record(f"marked.py hf.py qwen-moe{STRATEGIES[name]}")
    bench.note("V and VR need a pipeline, and are left out; ZR and ZOR several cards.")
    if shutil.which("cargo") is None:
        bench.note(f"There is no cargo here; elsewhere: `{SEEDS} FOLDER` of the recordings.")
        return
    command = [*SEEDS.split(), str(bench.traces)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the example seeds failed: {done.stderr.strip()[-500:]}")
    for part in done.stdout.split("\n## "):
        if "figure 12" in part or "table 3" in part:
            copy_markdown(bench, part)


def copy_markdown(bench: Bench, part: str) -> None:
    """A section of a page of tables, as a section of ours."""
    heading, _, rest = part.partition("\n")
    lines = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in rest.splitlines()
        if line.startswith("|")
    ]
    if lines:
        bench.section(lines[0], heading)
        for cells in lines[2:]:
            bench.row(*cells)


BYTES, BOTH = ("bytes",), ("bytes", "times")
TABLES = [
    Table("stweaver", "fig1b", "memory and throughput", fig1b, 6, 4, modules=HF),
    Table("stweaver", "fig2", "GPT-2 under native, by strategy", fig2, 5, 3, HF, parts=BYTES),
    Table("stweaver", "fig7", "dense models by strategy", fig7, 25, 5, HF, parts=BOTH),
    Table("stweaver", "fig8", "Qwen2.5 on 8 to 128 GPUs", fig8, 20, 5, HF, parts=BYTES),
    Table("stweaver", "fig9", "microbatches of 1 to 64", fig9, 5, 2, HF, parts=BYTES),
    Table("stweaver", "fig11", "throughput", fig11, 12, 4, modules=HF),
    Table("stweaver", "table1", "fits under Girih alone", table1, 10, 4, HF, fills_card=True),
    Table("stweaver", "table2", "profiling and planning time", table2, 10, 4, modules=HF),
    Table("stweaver", "table3", "experts", table3, 3, 3, modules=HF),
]
