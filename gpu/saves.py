"""What a tensor that autograd saves costs the host: torch's own hooks, and Girih's.

    python gpu/saves.py                                    # on the CPU, or on a GPU that is there
    python -m girih run --gpu-budget 20GiB gpu/saves.py    # on a GPU, with the hooks of swapping
    python gpu/saves.py --json

Chains of 200 small operators are run forward and backward, each time under other hooks: none, hooks
in C that give back what they are given (what PyTorch itself takes for hooks, which nothing that is
called from them can be below), the same in Python, and Girih's. Of each the shortest of many runs
counts, taken in turns, for machines have neighbours; a save is one tensor packed and unpacked, and
what is shown is the time above that without hooks, in ns a save. `in Python` is Girih where no shim
looks at tensors for it; on the CPU, where there is none, the part of the shim that does so is
compiled for this. Tensors are too small to have records; with `--large`, on a GPU, all have. The
second table has the two hooks alone, called from Python, for a tensor without a graph, a parameter,
and one with a graph.
"""

import argparse
import ctypes
import gc
import importlib.util
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from girih import _native, _toolchain

ROOT = Path(__file__).resolve().parents[1]
OPERATORS = 200
SAME = """
#include <Python.h>
static PyObject *same(PyObject *module, PyObject *given) {
  (void)module;
  Py_INCREF(given);
  return given;
}
static PyMethodDef methods[] = {{"same", same, METH_O, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "same_in_c", 0, -1, methods};
PyMODINIT_FUNC PyInit_same_in_c(void) { return PyModule_Create(&module); }
"""
LEND = """
#include "tensors.cpp"
namespace { uint64_t no_stream(int32_t) { return 0; } }
extern "C" __attribute__((visibility("default"))) void lend() { girih::lend_tensors(&no_stream); }
"""
Hooks = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def compiled(name: str, text: str, options: list[str], folder: Path) -> Path:
    """A shared object of some source."""
    source, output = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(text)
    command = [*_toolchain.find_compiler().command, str(source), "-O2", "-shared", "-fPIC"]
    subprocess.run([*command, *options, "-o", str(output)], check=True)
    return output


def same_in_c(folder: Path) -> Callable[[Any], Any]:
    """A function that gives back what it is given."""
    include = sysconfig.get_paths()["include"]
    path = compiled("same_in_c", SAME, [f"-I{include}", "-fpermissive", "-w"], folder)
    spec = importlib.util.spec_from_file_location("same_in_c", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    same: Callable[[Any], Any] = module.same
    return same


def lend(folder: Path) -> None:
    """Has Girih look at tensors without Python, as its shim does, where it has no shim."""
    here = _toolchain.torch_of(torch)
    shim = ROOT / "crates/girih-torch"
    options = _toolchain.compile_flags(here, [shim / "include", shim / "shim"])
    options += [f"-L{here.folder / 'lib'}", "-lc10", f"-Wl,-rpath,{here.folder / 'lib'}"]
    path = compiled("lend", LEND, options, folder)
    # Its girih_* are the extension's.
    ctypes.CDLL(_native.__file__, mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(path)).lend()


def chains(device: str, width: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Forward passes, by name."""
    make = torch.nn.Parameter
    weights = [make(torch.randn(width, width, device=device)) for _ in range(OPERATORS)]
    biases = [make(torch.randn(width, device=device)) for _ in range(OPERATORS)]
    first = torch.randn(width, width, device=device, requires_grad=True)

    def chain(operator: Callable[[torch.Tensor, int], torch.Tensor]) -> torch.Tensor:
        x = first
        for k in range(OPERATORS):
            x = operator(x, k)
        return x.sum()

    return {
        "linear": lambda: chain(lambda x, k: functional.linear(x, weights[k], biases[k])),
        "matmul": lambda: chain(lambda x, k: torch.mm(x, weights[k])),
        "tanh": lambda: chain(lambda x, _k: torch.tanh(x)),
        "product": lambda: chain(lambda x, _k: x * first),
    }


def synchronize(device: str) -> None:
    """Waits for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def shortest(run: Callable[[], Any], device: str, count: int) -> float:
    """The shortest of some runs, forward and backward, in seconds."""
    best = float("inf")
    for _ in range(count):
        synchronize(device)
        start = time.perf_counter()
        run().backward()
        best = min(best, time.perf_counter() - start)
    return best


def under(hooks: Hooks | None, work: Callable[[], Any]) -> Any:
    """Does something under hooks, or under none."""
    autograd = torch._C._autograd
    if hooks is None:
        return work()
    autograd._push_saved_tensors_default_hooks(*hooks)
    try:
        return work()
    finally:
        autograd._pop_saved_tensors_default_hooks()


def saves_of(run: Callable[[], Any]) -> int:
    """How many tensors are saved."""
    count = [0]

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        return tensor

    under((pack, lambda tensor: tensor), lambda: run().backward())
    return count[0]


def alone(
    hooks: Hooks, tensors: dict[str, torch.Tensor], rounds: int, count: int = 5000
) -> dict[str, tuple[float, float]]:
    """Seconds of one call of each hook, the shortest of all rounds."""
    found = {}
    for name, tensor in tensors.items():
        given = []
        for hook, argument in zip(hooks, (tensor, hooks[0](tensor)), strict=True):
            clock = timeit.Timer("hook(argument)", globals={"hook": hook, "argument": argument})
            given.append(min(clock.repeat(rounds, count)) / count)
        found[name] = (given[0], given[1])
    return found


def measure(
    runs: dict[str, Callable[[], Any]], ways: dict[str, Hooks | None], device: str, rounds: int
) -> dict[str, dict[str, float]]:
    """Seconds of each chain under each way, the shortest of all rounds."""
    best = {name: dict.fromkeys(ways, float("inf")) for name in runs}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, run in runs.items():
            for way, hooks in ways.items():
                found = under(hooks, lambda run=run: shortest(run, device, 10))
                best[name][way] = min(best[name][way], found)
    gc.enable()
    return best


def main() -> int:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--large", action="store_true", help="tensors of 1 MiB, with records")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    autograd = torch._C._autograd
    # Those that Girih has set by itself.
    while autograd._top_saved_tensors_default_hooks(True) is not None:
        autograd._pop_saved_tensors_default_hooks()
    runs = chains(device, 512 if options.large else 4)
    counts = {name: saves_of(run) for name, run in runs.items()}
    ours = (_native.pack, _native.unpack)
    parameter = torch.nn.Parameter(torch.randn(4, 4, device=device))
    tensors = {"no graph": parameter.detach(), "parameter": parameter, "graph": parameter * 2}
    calls = {}
    with tempfile.TemporaryDirectory() as folder:
        same = same_in_c(Path(folder))
        ways: dict[str, Hooks | None] = {
            "none": None,
            "C": (same, same),
            "Python": (lambda tensor: tensor, lambda tensor: tensor),
        }
        in_python: dict[str, Hooks | None] = {"none": None, "in Python": ours}
        before = {}
        if device == "cpu":
            before = measure(runs, in_python, device, options.rounds)
            calls["in Python"] = alone(ours, tensors, options.rounds)
            lend(Path(folder))
        calls |= {"C": alone((same, same), tensors, options.rounds)}
        calls |= {"girih": alone(ours, tensors, options.rounds)}
        found = measure(runs, ways | {"girih": ours}, device, options.rounds)
    rows = {}
    for name, count in counts.items():
        base = found[name].pop("none")
        row = {way: 1e9 * (seconds - base) / count for way, seconds in found[name].items()}
        if name in before:
            own = before[name]
            row["in Python"] = 1e9 * (own["in Python"] - own["none"]) / count
        rows[name] = {"saves": count, "step_us": 1e6 * base, "ns": row}
    if options.json:
        known = {"torch": torch.__version__, "device": device, "rows": rows, "calls_s": calls}
        print(json.dumps(known))
        return 0
    columns = list(next(iter(rows.values()))["ns"])
    print(f"{'chain':<9} {'saves':>6} {'us':>8} " + " ".join(f"{way:>10}" for way in columns))
    for name, row in rows.items():
        said = " ".join(f"{row['ns'][way]:>10.0f}" for way in columns)
        print(f"{name:<9} {row['saves']:>6} {row['step_us']:>8.0f} {said}")
    print(
        f"\n{'hooks':<10} " + " ".join(f"{name:>12}" for name in tensors) + "   pack + unpack, ns"
    )
    for way, each in calls.items():
        said = (f"{1e9 * pack:.0f} + {1e9 * unpack:.0f}" for pack, unpack in each.values())
        print(f"{way:<10} " + " ".join(f"{text:>12}" for text in said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
