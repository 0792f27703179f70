"""A machine with one card that is not there: what would be run on it is answered.

Command lines are parsed by the programs' own parsers, and what they would have printed is made up.
"""

import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "corpus/mlp_stacks.pickle.gz"
GIB = 1 << 30
CARD_MIB = 143_000
TOKENS_MOST = 300_000
"""Of a sequence on the card of the stand-in."""


class Anything(type):
    """A class of which every attribute is one more."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives modules that have everything, so that a workload's parser can be had without them."""

    NAMES = ("torch", "transformers", "megatron", "peft", "deepspeed")

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: Anything(name, (), {})
        return module

    def exec_module(self, module):
        pass


def parsed(workload, words):
    """What a workload's own parser makes of its words."""
    argv, sys.argv = sys.argv, [workload["__name__"], *words]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return workload["parse"]()
    except SystemExit:
        raise AssertionError(f"{words}: {said.getvalue()}") from None
    finally:
        sys.argv = argv


def result(options, *, seconds, reserved):
    """What a workload prints at its end."""
    steps = options.steps
    return {
        "rank": 0,
        "losses": ["1.0"] * steps,
        "exact_losses": ["0x1p+0"] * steps,
        "allocated_peak": 10 * GIB,
        "reserved_peak": reserved,
        "efficiency": 10 * GIB / reserved,
        "settled_efficiency": 10 * GIB / reserved,
        "device_used": reserved + GIB // 2,
        "first_step_s": 2 * seconds,
        "median_step_s": seconds,
        "step_s": [seconds] * steps,
        "step_reserved": [reserved] * steps,
        "settled_from": options.settled,
        "samples": 64,
        "retries": 0,
        "ooms": 0,
        "settled_steps": steps - options.settled,
        "settled_changes": {"swap.bytes_out": 10**9},
    }


class StandIn:
    """A machine with one card: answers what would be run on it."""

    def __init__(self, parsers, limit=None):
        self.parsers = parsers
        self.real = subprocess.run
        self.limit = limit
        self.launched = []
        self.lock = threading.Lock()

    def __call__(self, command, **options):
        words = [str(word) for word in command]
        if words[0] == "nvidia-smi":
            is_free = "--query-gpu=memory.free" in words
            return self.done(f"{CARD_MIB}\n" if is_free else "NVIDIA H200, 580.159\n")
        if words[0] == "g++":
            Path(words[words.index("-o") + 1]).write_text("")
            return self.done("")
        if words[0].endswith("/calls"):
            return self.done("".join(self.calls(words[2:])))
        if words[0] == "cargo":
            page = (ROOT / "bench/results/seeds/recordings.md").read_text()
            return self.done(page)
        program = next((word for word in words if "workloads/" in word), None)
        if program is None or words[0] == "git":
            return self.real(command, **options)
        return self.workload(program, words)

    @staticmethod
    def done(text, status=0, said=""):
        return subprocess.CompletedProcess([], status, text, said)

    def workload(self, program, words):
        place = len(words) - 1 - words[::-1].index(program)
        name, rest = Path(program).stem, words[place + 1 :]
        if name == "marked":
            name, rest = Path(rest[0]).stem, rest[1:]
        if name == "recorded":
            name, rest = Path(words[place + 2]).stem, words[place + 3 :]
        # It looks at the words of the whole process.
        with self.lock:
            options = parsed(self.parsers[name], rest)
        is_native = "girih" not in words
        self.launched.append((name, is_native, options))
        for option in ("--trace", "-o"):
            if option in words[:place]:
                shutil.copy(RECORDING, words[words.index(option) + 1])
        reserved = 12 * GIB if is_native else 10 * GIB
        tokens = getattr(options, "length", None) or 0
        if tokens > TOKENS_MOST or (self.limit and reserved > self.limit * GIB):
            said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
            return self.done('STOPPED {"step_s": [0.5], "step_reserved": [0]}', 1, said)
        seconds = 0.5 if is_native else 0.51
        seen = json.dumps({"digests": ["a", "b"], "host_peak": 0})
        printed = json.dumps(result(options, seconds=seconds, reserved=reserved))
        return self.done(f"SEEN {seen}\nRESULT {printed}\n")

    @staticmethod
    def calls(words):
        """A microsecond for each chunk, ten for a block."""
        blocks = set()
        for block, chunk in zip(words[::2], words[1::2], strict=True):
            sizes = {"block": int(block) << 20}
            if block not in blocks:
                blocks.add(block)
                us = {"cudaMalloc": 10.0, "cudaFree": 5.0, "cuMemAlloc": 9.0, "cuMemFree": 4.0}
                yield json.dumps(sizes | {"chunk": 0, "us": us}) + "\n"
            count = float(int(block) // int(chunk))
            names = ("create", "map", "set_access", "unmap", "release")
            once = ("reserve", "unreserve", "set_access_at_once", "unmap_at_once")
            us = dict.fromkeys(names, count) | dict.fromkeys(once, 1.0)
            yield json.dumps(sizes | {"chunk": int(chunk) << 20, "us": us}) + "\n"
