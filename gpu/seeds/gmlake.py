"""GMLake (Guo et al., ASPLOS 2024): its figures and tables on one card.

Its runs are of ZeRO-3 on 1 to 16 GPUs. Here one card trains the same models: whole what fits it,
with adapters what does not; and of more GPUs one rank at a time is recorded alone.
Strategies are N (none), L (LoRA), R (recomputation), O (weights and optimizer on the host).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from fit import smaller_card

from seeds.bench import (
    ALLOCATORS,
    GIB,
    GPU,
    MEASURED,
    OUT,
    Bench,
    Table,
    first_line,
    gib,
    percent,
    ran_out,
    rank0,
    replayed_columns,
)

STRATEGIES = {
    "N": "",
    "R": " --recompute",
    "LR": " --lora --recompute",
    "RO": " --recompute --offload",
    "LRO": " --lora --recompute --offload",
}
MIB_OF_BLOCKS = (512, 1024, 2048)
ROUNDS = 9
"""The median of so many, after one that is not counted: enough to leave out an interrupt."""


# ---- the calls of the driver ----


def includes() -> list[str]:
    """Folders that may have cuda.h: of the toolkit, of the packages that torch brings."""
    roots = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [Path(root) / "include" for root in (*roots, "/usr/local/cuda") if root]
    folders += [Path(nvcc).parents[1] / "include" for nvcc in [shutil.which("nvcc")] if nvcc]
    folders += Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/include")
    return [f"-I{folder}" for folder in folders if (folder / "cuda.h").is_file()]


def build(folder: Path) -> Path:
    """Compiles `facts/calls.cpp`."""
    if not (found := includes()):
        raise SystemExit("install a CUDA toolkit, or set CUDA_HOME to one: there is no cuda.h")
    program = folder / "calls"
    source = str(GPU / "facts" / "calls.cpp")
    command = ["g++", "-O2", "-std=c++17", *found, "-o", str(program), source, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"facts/calls.cpp does not compile: {done.stderr.strip()[-500:]}")
    return program


def calls(bench: Bench, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Microseconds of the calls for blocks of chunks, both in MiB."""
    words = [str(number) for pair in pairs for number in pair]
    libraries = Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/lib")
    path = os.pathsep.join([*map(str, libraries), os.environ.get("LD_LIBRARY_PATH", "")])
    done = subprocess.run(
        [str(build(bench.folder)), str(ROUNDS), *words],
        capture_output=True,
        text=True,
        timeout=bench.timeout,
        check=False,
        env={**os.environ, "LD_LIBRARY_PATH": path},
    )
    if done.returncode != 0:
        raise SystemExit(f"facts/calls.cpp: {done.stderr.strip()[-500:]}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for one in found:
        bench.keep(one)
    return found


def whole(us: dict[str, float]) -> tuple[str, float]:
    """The call that gives a block whole, and its microseconds: PyTorch's if there is a runtime."""
    name = "cudaMalloc" if "cudaMalloc" in us else "cuMemAlloc"
    return name, us[name]


def table1(bench: Bench) -> None:
    """Each call of the driver for 2 GiB, by chunk, as a multiple of the one that gives it whole."""
    found = calls(bench, [(2048, chunk) for chunk in (2, 128, 1024)])
    name, base = whole(found[0]["us"])
    parts = {one["chunk"] >> 20: one["us"] for one in found[1:]}
    bench.section(["call", *(f"{chunk} MiB" for chunk in parts)], f"Multiples of {name}")
    labels = {"reserve": "cuMemAddressReserve", "create": "cuMemCreate", "map": "cuMemMap"}
    labels |= {"set_access": "cuMemSetAccess, a call a chunk"}
    for key, label in labels.items():
        bench.row(label, *(f"{us[key] / base:.3f}" for us in parts.values()))
    sums = [sum(us[key] for key in labels) / base for us in parts.values()]
    bench.row("in all", *(f"{total:.1f}" for total in sums))
    bench.row("in all, the paper, A100", "115.4", "9.1", "1.5")
    bench.section(["call", *(f"{chunk} MiB" for chunk in parts)], "Microseconds of the host")
    for key in (*labels, "set_access_at_once", "unmap", "unmap_at_once", "release", "unreserve"):
        bench.row(key, *(f"{us[key]:.1f}" for us in parts.values()))
    for key, value in found[0]["us"].items():
        bench.row(f"{key} of 2 GiB", f"{value:.1f}", *["-"] * (len(parts) - 1))


def fig6(bench: Bench) -> None:
    """Blocks of 512 MiB to 2 GiB of chunks of 2 MiB to 1 GiB, beside the block taken whole."""
    chunks = [1 << power for power in range(1, 11)]
    pairs = [(block, chunk) for block in MIB_OF_BLOCKS for chunk in chunks if chunk <= block]
    us = {(one["block"] >> 20, one["chunk"] >> 20): one["us"] for one in calls(bench, pairs)}
    bench.section(["chunk", *(f"{block} MiB" for block in MIB_OF_BLOCKS)], "Microseconds")
    for chunk in chunks:
        cells = []
        for block in MIB_OF_BLOCKS:
            part = us.get((block, chunk))
            keys = ("reserve", "create", "map", "set_access")
            cells.append(f"{sum(part[key] for key in keys):.1f}" if part else "-")
        bench.row(f"{chunk} MiB", *cells)
    name = whole(us[MIB_OF_BLOCKS[0], 0])[0]
    bench.row(f"whole, {name}", *(f"{whole(us[block, 0])[1]:.1f}" for block in MIB_OF_BLOCKS))


# ---- training ----


def fig3(bench: Bench) -> None:
    """Native's efficiency of OPT-1.3B under five strategies."""
    bench.section(MEASURED)
    for name, options in STRATEGIES.items():
        bench.measured(f"OPT-1.3B {name}", f"hf.py opt-1.3b{options} --batch 16", ("native",))


def strategies(bench: Bench) -> list[tuple[str, str]]:
    """What figure 10 compares: the models with what of the strategies fits one card."""
    rows = [(f"OPT-1.3B {n}", f"hf.py opt-1.3b{o} --batch 16") for n, o in STRATEGIES.items()]
    if not bench.quick:
        for model, label in (("opt-13b", "OPT-13B"), ("llama-13b", "Vicuna-13B")):
            for name in ("LR", "LRO"):
                words = f"hf.py {model}{STRATEGIES[name]} --batch 4"
                rows.append((f"{label} {name}", words))
        rows.append(("NeoX-20B LR", f"hf.py neox-20b{STRATEGIES['LR']} --batch 4"))
    return rows


def fig10(bench: Bench) -> None:
    """Every strategy recorded and replayed; in full also under ZeRO-3 and launched."""
    rows = strategies(bench)
    if bench.wants("bytes"):
        bench.section(replayed_columns(), "Efficiency in percent, replayed")
        for label, words in rows:
            if recording := bench.record(words):
                bench.replayed(label, recording)
        bench.note("N, R and RO of the models of 13B and 20B need four cards, and are left out.")
        if not bench.quick:
            zero3(bench)
    if bench.wants("times") and not bench.quick:
        bench.section(MEASURED, "Measured")
        for label, words in rows:
            bench.measured(label, words, ("native", "gmlake", "auto"))


# As the paper has them: the models on four GPUs, each with all strategies.
ZERO3 = {
    "OPT-1.3B": "opt-1.3b --batch 16",
    "OPT-13B": "opt-13b --batch 4",
    "Vicuna-13B": "llama-13b --batch 4",
    "NeoX-20B": "neox-20b --batch 4",
}


def zero3(bench: Bench) -> None:
    """Rank 0 of four under DeepSpeed's ZeRO-3, recorded alone: whole models, every strategy."""
    if not bench.has(DEEPSPEED):
        bench.note("ZeRO-3 on four GPUs is left out: install deepspeed for it.")
        return
    bench.section(replayed_columns(), "ZeRO-3, rank 0 of 4 alone: efficiency in percent, replayed")
    for model, options in ZERO3.items():
        for name, more in STRATEGIES.items():
            words = f"zero.py {options}{more} {' '.join(RANK_STEPS)}"
            recording, said = bench.record_rank(4, 0, words)
            if recording:
                bench.replayed(f"{model} {name}, ZeRO-3", recording)
            else:
                bench.note(f"{model} {name}, ZeRO-3, failed: {said}")


def scale_out(bench: Bench, worlds: tuple[int, ...], words: str) -> None:
    """Rank 0 of jobs of FSDP2, which shards as ZeRO-3 does, recorded alone and replayed."""
    bench.section(replayed_columns(), "Efficiency in percent, replayed")
    for world in worlds:
        recording, said = bench.record_rank(world, 0, f"{words} {' '.join(RANK_STEPS)}")
        if recording:
            bench.replayed(f"{world} GPUs", recording)
        else:
            bench.note(f"{world} GPUs failed: {said}")
    bench.note("Rank 0 alone; collectives return at once, so frees that NCCL delays come sooner.")


# As many as `Bench.record` takes, for the same reason.
RANK_STEPS = ("--steps", "7", "--settled", "5")


def fig11(bench: Bench) -> None:
    """Scale-out from 1 to 16 GPUs with LoRA and recomputation."""
    worlds = (1, 4, 16) if bench.quick else (1, 2, 4, 8, 16)
    scale_out(bench, worlds, "fsdp.py llama-13b --lora --recompute --meta --batch 4")


def fig12(bench: Bench) -> None:
    """Of the platforms the one that is here."""
    scale_out(bench, (4,), "fsdp.py llama-13b --lora --recompute --meta --batch 8")
    if bench.has(DEEPSPEED):
        words = (
            f"zero.py llama-13b --lora --recompute --batch 8 --length 2048 {' '.join(RANK_STEPS)}"
        )
        recording, said = bench.record_rank(4, 0, words)
        if recording:
            bench.replayed("4 GPUs, DeepSpeed ZeRO-3", recording)
        else:
            bench.note(f"DeepSpeed failed: {said}")
    else:
        bench.note("DeepSpeed is left out: install deepspeed for it.")
    bench.note("Colossal-AI is left out: there is no program of it here.")


def fig13(bench: Bench) -> None:
    """Batches of OPT-1.3B with LoRA and recomputation, until memory or patience ends."""
    batches = (32, 128) if bench.quick else (32, 64, 96, 128, 160, 192)
    bench.section(MEASURED)
    rows = {f"batch {n}": f"hf.py opt-1.3b --lora --recompute --batch {n}" for n in batches}
    # The largest take the longest.
    allocators = ("native", "gmlake", "auto")
    bench.on_cards(list(reversed(rows)), lambda row: bench.measured(row, rows[row], allocators))
    bench.in_order(list(rows))


def limit_between(bench: Bench, words: str, part: float) -> float | None:
    """GiB of a card on which an allocator without fragmentation has room and native has not.

    `part` of the way from what native allocates to what it reserves, beyond what the process holds
    besides. None if native reserves hardly more than it allocates.
    """
    native = rank0(bench.launch("native", words))
    if native is None:
        return None
    allocated, reserved = native["allocated_peak"], native["reserved_peak"]
    if reserved - allocated < GIB // 2:
        return None
    beside = max(0, native["device_used"] - reserved)
    return float(allocated + part * (reserved - allocated) + beside) / GIB


def fig14(bench: Bench) -> None:
    """Step by step on a card that is too small for native: time, and what is reserved."""
    model = "gpt2 --batch 64" if bench.quick else "neox-20b --lora --batch 16"
    words = f"hf.py {model} --recompute --steps 9 --settled 6"
    # Half way: native's fragmentation is 15 % in GPT-2, and a view or a page of ours is far less.
    limit = limit_between(bench, words, 0.5)
    if limit is None:
        bench.note(f"Native has no fragmentation to speak of in `{words}`: nothing to show.")
        bench.has_failed = True
        return
    allocators = ALLOCATORS if not bench.quick else ("native", "gmlake", "auto")
    series: dict[str, tuple[list[float], list[int], bool]] = {}
    with smaller_card(limit, 1) as left:
        bench.note(f"`{words}`, {left}.")
        for mode in allocators:
            run = bench.launch(mode, words)
            seen = rank0(run)
            is_out = seen is None and ran_out(run)
            seen = seen or run.get("stopped") or {"step_s": [], "step_reserved": []}
            series[mode] = (seen["step_s"], seen["step_reserved"], is_out)
    bench.section(["step", *(f"{mode}: s, GiB" for mode in series)])
    for step in range(9):
        cells = []
        for seconds, reserved, is_out in series.values():
            if step < len(seconds):
                cells.append(f"{seconds[step]:.3f}, {gib(reserved[step])}")
            else:
                cells.append(OUT if is_out and step == len(seconds) else "-")
        bench.row(step, *cells)


def uncached(bench: Bench) -> None:
    """What a cache is worth: every request a cudaMalloc, beside PyTorch's cache and Girih."""
    bench.section(["allocator", "step s", "times native's", "reserved GiB", "efficiency %"])
    words = "hf.py opt-1.3b --recompute --batch 8 --steps 7 --settled 4"
    base = None
    for mode in ("native", "uncached", "profile", "stitch", "auto"):
        run = bench.launch(mode, words)
        seen = rank0(run)
        if seen is None:
            bench.row(mode, first_line(run["error"], 80), "-", "-", "-")
            continue
        base = base or seen
        ratio = f"{seen['median_step_s'] / base['median_step_s']:.3f}"
        cells = ["-", "-"]
        # Without a cache PyTorch counts nothing.
        if seen["reserved_peak"]:
            cells = [gib(seen["reserved_peak"]), percent(seen["efficiency"])]
        bench.row(mode, f"{seen['median_step_s']:.4f}", ratio, *cells)
    bench.note("The paper: 9.7 times the time of PyTorch's cache, OPT-1.3B.")


DEEPSPEED = "deepspeed"
HF, PEFT = ("transformers",), ("transformers", "peft")
GXX = ("g++",)
BYTES, BOTH = ("bytes",), ("bytes", "times")
TABLES = [
    Table(
        "gmlake",
        "table1",
        "cost of the driver's calls for 2 GiB",
        table1,
        1,
        1,
        (),
        GXX,
        times_driver=True,
    ),
    Table("gmlake", "fig6", "cost of blocks by chunk", fig6, 1, 1, (), GXX, times_driver=True),
    Table("gmlake", "native", "native against no cache", uncached, 3, 3, HF, times_driver=True),
    Table("gmlake", "fig3", "native by strategy", fig3, 3, 3, PEFT),
    Table("gmlake", "fig10", "allocators by strategy", fig10, 45, 3, PEFT, parts=BOTH),
    Table("gmlake", "fig11", "scale-out, 1 to 16 GPUs", fig11, 8, 5, PEFT, parts=BYTES),
    Table("gmlake", "fig12", "platforms", fig12, 3, 3, PEFT, parts=BYTES),
    Table("gmlake", "fig13", "batches", fig13, 10, 3, PEFT),
    Table("gmlake", "fig14", "memory over time", fig14, 8, 4, PEFT, fills_card=True),
]
