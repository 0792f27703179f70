"""Control and C interface are one library: what is asked through one is seen through the other.

A simulated device stands in for the GPU, and ctypes for the shim.
"""

import json

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")

LOOP = """
import ctypes, json, os, sys
from girih import _native

_native.configure(json.dumps({
    "mode": "expandable", "record": True, "key": "k", "torch": "2.11.0",
    "sim": {"capacity": 1 << 30},
}))
heaps = ctypes.CDLL(_native.__file__, mode=os.RTLD_NOW | os.RTLD_GLOBAL)


class Pool(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


heaps.girih_alloc.argtypes = [
    ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, Pool, ctypes.POINTER(ctypes.c_void_p)
]
heaps.girih_free.argtypes = [ctypes.c_void_p]


def allocate(size):
    address = ctypes.c_void_p()
    assert heaps.girih_alloc(0, size, 0, Pool(0, 0), ctypes.byref(address)) == 0
    return address


assert heaps.girih_init(1) == 0
weights = [allocate(8 << 20) for _ in range(4)]
for step in range(4):
    _native.mark("step", str(step))
    activations = [allocate((layer + 1) << 20) for layer in range(16)]
    for address in reversed(activations):
        assert heaps.girih_free(address) == 0
"""


def test_the_report_counts_what_was_asked_through_the_c_interface(python):
    result = python("-c", LOOP + "print(_native.report())")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    (device,) = report["devices"]
    assert report["mode"] == "expandable"
    assert device["allocated"] == 4 * (8 << 20)
    assert device["allocated_peak"] == (4 * 8 + sum(range(1, 17))) << 20
    assert device["reserved_peak"] >= device["allocated_peak"]


def test_what_was_recorded_becomes_a_trace_and_a_plan(python, tmp_path):
    code = LOOP + (
        "print(_native.save_trace(0, 'run.girih'))\nprint(_native.plan(0, 'run.plan'))\n"
    )
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    events, plan = result.stdout.splitlines()
    assert int(events) >= 4 + 4 * 16 * 2
    summary = json.loads(plan)
    # Of the iteration, with what stays.
    assert summary["persistent_bytes"] == 4 * (8 << 20)
    assert summary["peak"] == summary["lower_bound"] == (4 * 8 + sum(range(1, 17))) << 20
    assert summary["gap"] == 0
    assert (tmp_path / "run.girih").stat().st_size > 0
    assert (tmp_path / "run.plan").stat().st_size > 0


def test_the_summary_of_a_run_is_one_line(python):
    code = LOOP + (
        "from girih import _summary\n"
        "print(_summary.line(json.loads(_native.report())['devices'][0]))\n"
    )
    result = python("-c", code)
    assert result.stdout.startswith("girih expandable, cuda:0: peak 168.0 MiB allocated of ")
    assert "efficiency" in result.stdout, result.stderr


def test_a_mark_of_no_known_kind_is_an_annotation(python):
    assert python("-c", "from girih import _native; _native.mark('anything')").returncode == 0


def test_a_gpu_without_virtual_memory_is_native_and_the_user_is_warned_once(python):
    code = (
        LOOP.replace('"expandable"', '"auto"').replace(
            "1 << 30", '1 << 30, "virtual_memory": False'
        )
        + "from girih import _process\n"
        "_process.show_warnings(); _process.show_warnings()\n"
        "(device,) = json.loads(_native.report())['devices']\n"
        "print(device['mode'], device['stage'], 'map' in device['calls'])\n"
    )
    result = python("-c", code)
    assert result.stdout == "native caching False\n", result.stderr
    assert result.stderr.count("GirihWarning") == 1
    assert "the mode `auto` is not possible, and `native` serves" in result.stderr
