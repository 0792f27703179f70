"""The edge of out of memory, on a simulated GPU: from the heap's call for hooks to what is said."""

import textwrap

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")

from girih import _stats, _summary

BEGIN = """
import contextlib, gc, json, sys, time, warnings
from simulated import *
from girih import _saved, _native

def settle(gpu, is_done):
    # What a heap leaves for the main thread comes between two instructions of it.
    until = time.monotonic() + 20
    while not is_done() and time.monotonic() < until:
        time.sleep(0.001)
    assert is_done()
"""


@pytest.fixture
def run(beside):
    """Runs a program; gives what it prints as JSON in its last line, and what is on stderr."""
    return lambda text, *words: beside(*words, "-c", BEGIN + textwrap.dedent(text))


STEPS = """
hooks = _saved.install_when_wanted(gpu.torch)
weights = gpu.allocate(60)
for step in range(6):
    gpu.mark("step")
    hooks.set_if_wanted()
    gpu.backward(gpu.forward(LAYERS, 4))
    time.sleep(0.01)
gc.collect()
settle(gpu, lambda: not gpu.waiting)
print(json.dumps(gpu.stats() | {"hooks": len(gpu.autograd.stack)}))
"""


def test_a_run_that_would_end_in_out_of_memory_goes_on_and_says_so_once(run):
    found, said = run("gpu, LAYERS = Gpu(256), 80" + STEPS)
    swap = found["swap"]
    assert found["hooks"] == 1
    assert swap["averted"] > 0
    assert found["ooms"] == 0, "the program was refused nothing"
    assert swap["bytes_out"] == swap["bytes_in"] + swap["away"] > 0
    assert swap["at_the_edge"]
    assert 0 < swap["gpu_room"] < 256 << 20
    assert said.count("the GPU's memory was full") == 1
    assert "of saved tensors went to the host" in said
    assert swap["records"] == swap["host_used"] == 0, "all of it was given up"


def test_a_run_that_uses_less_than_half_of_the_gpu_has_neither_hooks_nor_records(run):
    found, said = run("gpu, LAYERS = Gpu(1024), 80" + STEPS)
    assert (found["hooks"], found["swap"], said) == (0, None, "")


def test_a_run_that_fits_copies_nothing_and_takes_no_memory_of_the_host(run):
    found, said = run("gpu, LAYERS = Gpu(600), 80" + STEPS)
    swap = found["swap"]
    assert found["hooks"] == 1
    assert (swap["copies_out"], swap["host_pinned"], swap["gpu_room"], said) == (0, 0, None, "")


def test_off_is_off(run):
    found, said = run(
        """
        gpu = Gpu(256, swap="off")
        hooks = _saved.install_when_wanted(gpu.torch)
        weights, error = gpu.allocate(60), None
        try:
            gpu.forward(80, 4)
        except OutOfMemoryError as raised:
            error = str(raised)
        print(json.dumps(gpu.stats() | {"hooks": len(gpu.autograd.stack), "error": error}))
        """
    )
    assert (found["hooks"], found["swap"], said) == (0, None, "")
    assert "Swapping" not in found["error"]


def test_where_warnings_are_errors_nothing_is_raised_in_the_midst_of_a_program(run):
    _, said = run("gpu, LAYERS = Gpu(256), 80" + STEPS, "-W", "error")
    assert said.count("girih: device 0: the GPU's memory was full") == 1


def test_hooks_of_the_program_are_not_mixed_with_ours(run):
    """A heap calls while they are in force: ours are set after they were taken away."""
    found, _ = run(
        """
        gpu = Gpu(256)
        hooks = _saved.install_when_wanted(gpu.torch)
        own = (lambda tensor: tensor, lambda tensor: tensor)
        seen = []
        gpu.autograd._push_saved_tensors_default_hooks(*own)
        saved = gpu.forward(40, 4)
        settle(gpu, _native.wants_hooks)
        hooks.set_if_wanted()
        seen.append([len(gpu.autograd.stack), gpu.autograd.stack[-1] == own])
        gpu.autograd._pop_saved_tensors_default_hooks()
        seen.append([len(gpu.autograd.stack), False])
        hooks.set_if_wanted()
        seen.append([len(gpu.autograd.stack), hooks.are_innermost()])
        hooks.set_if_wanted()
        seen.append([len(gpu.autograd.stack), hooks.are_innermost()])
        print(json.dumps(seen))
        """
    )
    assert found == [[1, True], [0, False], [1, True], [1, True]]


def test_transforms_that_bear_no_hooks_have_none_before_ours_come_and_after(run):
    found, _ = run(
        """
        gpu = Gpu(256)
        hooks = _saved.install_when_wanted(gpu.torch)
        seen = []
        for _ in range(2):
            with gpu.torch.autograd.graph.disable_saved_tensors_hooks("none of these"):
                saved = gpu.forward(40, 4)
                settle(gpu, _native.wants_hooks)
                hooks.set_if_wanted()
                seen.append(len(gpu.autograd.stack))
                saved.clear()
            hooks.set_if_wanted()
            seen.append(len(gpu.autograd.stack))
        print(json.dumps(seen))
        """
    )
    assert found == [0, 1, 0, 1]


def test_what_fits_on_neither_side_is_an_error_that_names_bytes_and_costs_nothing(run):
    found, _ = run(
        """
        gpu = Gpu(256, host_budget=8 << 20)
        hooks = _saved.install_when_wanted(gpu.torch)
        weights, error = gpu.allocate(60), None
        for _ in range(3):
            hooks.set_if_wanted()
            try:
                saved = gpu.forward(80, 4)
            except OutOfMemoryError as raised:
                error = str(raised)
            saved = None
            gc.collect()
        print(json.dumps(gpu.stats() | {"error": error}))
        """
    )
    assert "that it may have there" in found["error"]
    assert "MiB" in found["error"]
    swap = found["swap"]
    assert swap["records"] == swap["host_used"] == 0
    assert found["allocated"] == 60 << 20


def test_many_tensors_that_the_program_holds_do_not_hide_those_that_may_go(run):
    found, _ = run(
        """
        gpu = Gpu(1024, gpu_budget=500 << 20)
        hooks = _saved.install(gpu.torch)
        held = [Tensor(gpu, 1) for _ in range(300)]
        saved = [gpu.save(tensor) for tensor in held]
        saved += gpu.forward(250, 1)
        gpu.backward(saved)
        print(json.dumps(gpu.stats()))
        """
    )
    assert found["swap"]["copies_out"] > 50
    assert found["ooms"] == 0


def test_graphs_that_live_beside_each_other_and_parts_that_are_never_run(run):
    found, _ = run(
        """
        gpu = Gpu(256, gpu_budget=200 << 20)
        hooks = _saved.install(gpu.torch)
        for _ in range(4):
            first, second = gpu.forward(30, 4), gpu.forward(30, 4)
            never = gpu.forward(10, 4)
            gpu.backward(first)
            third = gpu.forward(20, 4)
            gpu.backward(second)
            gpu.backward(third)
            with gpu.working():
                never.clear()
        print(json.dumps(gpu.stats()))
        """
    )
    swap = found["swap"]
    assert swap["copies_out"] > 0
    assert not swap["at_the_edge"]
    assert swap["records"] == swap["host_used"] == swap["away"] == found["allocated"] == 0


def test_an_exception_in_the_forward_pass_leaves_nothing_behind(run):
    found, _ = run(
        """
        gpu = Gpu(256, gpu_budget=200 << 20)
        hooks = _saved.install(gpu.torch)

        def broken():
            saved = gpu.forward(70, 4)
            raise ValueError("the program's own")

        for _ in range(3):
            with contextlib.suppress(ValueError):
                broken()
            gc.collect()
            gpu.backward(gpu.forward(70, 4))
        print(json.dumps(gpu.stats()))
        """
    )
    swap = found["swap"]
    assert swap["copies_out"] > 0
    assert swap["records"] == swap["host_used"] == found["allocated"] == 0


def test_who_was_waited_for_is_named_first_in_the_summary():
    worst = {
        "way": "in",
        "is_state": False,
        "size": 64 << 20,
        "shape": [8, 1024, 4096],
        "module": "layers.3",
        "saved_at": 12,
    }
    swap = {"waits": 7, "waited_us": 12_345.0, "waited_for": [worst]}
    assert _summary.line_of_waits(swap) == (
        "waited for 12.3 ms in 7 uses, most for 64.0 MiB of shape [8, 1024, 4096] of layers.3, "
        "saved by operator 12 of a step, that came back"
    )
    untimed = swap | {"waited_us": 0.0, "waited_for": [worst | {"module": None, "way": "out"}]}
    assert _summary.line_of_waits(untimed) == (
        "waited in 7 uses, most for 64.0 MiB of shape [8, 1024, 4096], saved by operator 12 of a "
        "step, that went"
    )


def test_the_summary_says_what_links_were_measured_to_carry_and_nothing_of_others():
    none = {"links_out": None, "links_in": None, "links_both": None}
    assert _stats.links(none) == ""
    assert _stats.links(none | {"links_in": 41.26}) == "41.3 in GB/s"
    every = {"links_out": 55.04, "links_in": 41.26, "links_both": 80.0}
    assert _stats.links(every) == "55.0 out, 41.3 in, 80.0 both at once GB/s"


def test_a_device_on_which_all_copies_are_over_at_once_is_waited_for_by_nobody(run):
    """And what swapping says of itself is in the summary and in the printed statistics."""
    found, _ = run(
        """
        from girih import _stats, _summary
        gpu = Gpu(256, gpu_budget=200 << 20)
        hooks = _saved.install(gpu.torch)
        gpu.backward(gpu.forward(60, 4))
        stats = gpu.stats()
        rows = dict(_stats.rows(stats))
        print(json.dumps([stats["swap"], _summary.line(stats), rows]))
        """
    )
    swap, line, rows = found
    assert (swap["waits"], swap["waited_us"], swap["waited_for"]) == (0, 0, [])
    # It does not tell the time, so that nothing is measured.
    assert (swap["links_out"], swap["links_in"], swap["links_both"]) == (None, None, None)
    assert "links" not in rows
    assert "swapped " in line
    assert "the GPU was full" not in line
    assert rows["swapped"].endswith("MiB in")
    assert rows["waited"] == "0.0 ms in 0 uses"
