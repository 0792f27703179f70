"""States of optimizers between steps, on a simulated GPU: who may go, and who has them back."""

import textwrap

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")

from girih import _summary

BEGIN = """
import copy, gc, json, pickle, sys, weakref
from simulated import *
from girih import _saved, _states, _native

def begin(mebibytes, **options):
    gpu = Gpu(mebibytes, **options)
    _saved.install(gpu.torch)
    return gpu, _states.install(gpu.torch)

def is_away(optimizer):
    return "state" not in vars(optimizer)

def tell(gpu, **more):
    gc.collect()
    print(json.dumps(gpu.stats() | more))
"""
# 64 MiB of states, and 64 more where a hundred are allowed.
SMALL = """
gpu, states = begin(1024, gpu_budget=200 << 20, host_budget=512 << 20)
optimizer = Optimizer(gpu, [20, 4, 8, 0.5])
def train(steps):
    for _ in range(steps):
        gpu.backward(gpu.forward(4, 2))
        gpu.free(gpu.allocate(130))
        optimizer.step()
"""


@pytest.fixture
def run(beside):
    """Runs a program; gives what it prints as JSON in its last line."""
    return lambda text: beside("-c", BEGIN + textwrap.dedent(text))[0]


def at_rest(found):
    swap = found["swap"]
    for name in ("records", "states", "host_used", "going", "away", "coming"):
        assert swap[name] == 0, (name, swap)
    assert found["allocated"] == 0


def test_states_go_where_a_temporary_needs_their_bytes_and_come_back(run):
    found = run(SMALL + "train(6)\ndel optimizer\ntell(gpu)")
    swap = found["swap"]
    assert swap["states_out"] > 0
    assert swap["states_in"] > 0
    assert swap["states_shared"] == swap["states_unseen"] == swap["states_asked"] == 0
    assert found["ooms"] == 0
    at_rest(found)


def test_they_are_named_in_the_statistics_and_the_summary(run):
    found = run(SMALL + "train(3)\ntell(gpu)")
    swap = found["swap"]
    # Those of less than a MiB have no records.
    assert (swap["states"], swap["states_bytes"]) == (6, 64 << 20)
    assert 0 < swap["states_wanted"] <= swap["states_bytes"]
    # The temporary comes after the last use, so that there is no time to come back in.
    assert swap["states_late"] == 4
    assert "MiB of that states of optimizers, 4 of them late" in _summary.line(found)
    worst = {"way": "in", "is_state": True, "size": 64 << 20, "shape": [3], "module": None}
    told = {"waits": 1, "waited_us": 0.0, "waited_for": [worst | {"saved_at": 0}]}
    assert _summary.line_of_waits(told) == (
        "waited in 1 uses, most for 64.0 MiB of shape [3], a state of an optimizer, that came back"
    )


def test_what_fits_costs_no_copy(run):
    found = run(SMALL.replace("130", "50") + "train(4)\ntell(gpu, away=is_away(optimizer))")
    assert found["away"], "they are offered all the same"
    assert (found["swap"]["states"], found["swap"]["states_out"]) == (6, 0)


@pytest.mark.parametrize(
    ("ask", "is_held"),
    [
        ("optimizer.state", True),
        ("optimizer.state['parameter 0']", True),
        ("optimizer.state['parameter 0']['mean']", True),
        ("iter(optimizer.state.values())", True),
        ("weakref.ref(optimizer.state['parameter 0']['mean'])", True),
        ("optimizer.state['parameter 0']['mean'].detach()", True),
        ("vars(optimizer)", False),
        ("copy.copy(optimizer.param_groups)", False),
    ],
)
def test_who_has_a_way_to_a_state_keeps_it_there(run, ask, is_held):
    """After a step in which somebody has it, and once nobody has any more."""
    found = run(
        SMALL
        + f"""
train(1)
held = {ask}
gpu.backward(gpu.forward(4, 2))
optimizer.step()
first = vars(optimizer).get("_girih_states")
offered = gpu.stats()["swap"]["states"]
shared = gpu.stats()["swap"]["states_shared"]
state = first.state if first else optimizer.state
# All that may go does.
gpu.free(gpu.allocate(130))
mean = state["parameter 0"]["mean"]
is_there = gpu.storages[mean.storage][1] != 0
tell(gpu, offered=offered, shared=shared, is_there=is_there)
"""
    )
    if is_held:
        assert found["offered"] < 6
        assert found["shared"] > 0
        assert found["is_there"], "it went under whoever has it"
    else:
        assert (found["offered"], found["shared"], found["is_there"]) == (6, 0, False)


def test_whoever_asks_between_steps_has_all_of_it_and_it_goes_again_after_the_next(run):
    found = run(
        SMALL
        + """
train(3)
gpu.free(gpu.allocate(150))
assert gpu.stats()["swap"]["states_away"] > 0
for own in optimizer.state.values():
    for tensor in own.values():
        assert gpu.storages[tensor.storage][1] != 0
del own, tensor
seen = [is_away(optimizer), gpu.stats()["swap"]["states"]]
train(1)
seen += [is_away(optimizer), gpu.stats()["swap"]["states"]]
tell(gpu, seen=seen)
"""
    )
    assert found["seen"] == [False, 0, True, 6]
    assert found["swap"]["states_asked"] == 1


def test_an_optimizer_that_dies_leaves_nothing_also_in_a_cycle_and_while_copies_are_under_way(run):
    found = run(
        SMALL
        + """
for _ in range(4):
    train(2)
    optimizer.own = optimizer
    optimizer = Optimizer(gpu, [20, 4, 8])
    gc.collect()
del optimizer
tell(gpu)
"""
    )
    assert found["swap"]["states_out"] > 0
    at_rest(found)


def test_states_that_do_not_fit_are_torchs_error_and_come_once_there_is_room(run):
    found = run(
        SMALL
        + """
train(2)
held, errors = gpu.allocate(175), []
for ask in (optimizer.step, lambda: optimizer.state):
    try:
        ask()
    except OutOfMemoryError as error:
        errors.append(str(error))
    assert is_away(optimizer)
gpu.free(held)
train(2)
assert len(optimizer.state) == 4
del optimizer, ask
tell(gpu, errors=errors)
"""
    )
    assert len(found["errors"]) == 2
    assert all("of states of optimizers on the host" in text for text in found["errors"])
    assert all("out of memory" in text for text in found["errors"])
    at_rest(found)


def test_other_states_and_other_dictionaries_free_what_is_away(run):
    found = run(
        SMALL
        + """
train(2)
optimizer.__setstate__({"state": collections.defaultdict(dict)})
gc.collect()
freed = [gpu.stats()["allocated"]]
train(2)
optimizer.state = collections.defaultdict(dict)
optimizer.step()
gc.collect()
tell(gpu, freed=freed, left=gpu.stats()["allocated"])
"""
    )
    assert found["freed"] == [0]
    assert found["left"] == 65 << 20
    assert found["swap"]["states"] == 6


def test_two_optimizers_step_in_turns(run):
    found = run(
        """
gpu, states = begin(1024, gpu_budget=200 << 20, host_budget=512 << 20)
pair = [Optimizer(gpu, [20, 10]), Optimizer(gpu, [12, 6])]
for step in range(8):
    gpu.backward(gpu.forward(4, 2))
    gpu.free(gpu.allocate(110))
    pair[step % 2].step()
del pair
tell(gpu)
"""
    )
    assert found["swap"]["states_out"] > 0
    assert found["ooms"] == 0
    at_rest(found)


def test_states_of_other_classes_and_in_lists_stay_and_the_first_are_counted(run):
    found = run(
        """
gpu, states = begin(1024, gpu_budget=200 << 20, host_budget=512 << 20)
class Own(Tensor):
    pass
optimizer = Optimizer(gpu, [20])
optimizer.state["parameter 0"]["mean"] = Own(gpu, 20)
optimizer.state["parameter 0"]["history"] = [Tensor(gpu, 20)]
for _ in range(2):
    optimizer.step()
tell(gpu)
"""
    )
    assert (found["swap"]["states"], found["swap"]["states_unseen"]) == (1, 2)


def test_the_local_part_of_a_sharded_state_goes(run):
    found = run(
        """
gpu, states = begin(1024, gpu_budget=100 << 20, host_budget=512 << 20)
class DTensor(Tensor):
    def __init__(self, gpu, mebibytes):
        self._local_tensor = Tensor(gpu, mebibytes)
        self.gpu, self.storage = gpu, 0
    def __del__(self):
        pass
sys.modules["torch.distributed.tensor"] = types.SimpleNamespace(DTensor=DTensor)
optimizer = Optimizer(gpu, [0])
optimizer.sizes = {}
for name in "ab":
    optimizer.state[name]["mean"] = DTensor(gpu, 24)
held = optimizer.state["b"]["mean"]._local_tensor
for _ in range(3):
    optimizer.step()
    gpu.free(gpu.allocate(50))
tell(gpu)
"""
    )
    swap = found["swap"]
    assert (swap["states"], swap["states_bytes"], swap["states_shared"]) == (1, 24 << 20, 3)
    assert swap["states_out"] > 0


def test_at_the_edge_states_go_for_a_request_without_python(run):
    found = run(
        """
gpu = Gpu(256)
hooks = _saved.install_when_wanted(gpu.torch)
_states.install(gpu.torch)
optimizer = Optimizer(gpu, [20, 20, 20])
for _ in range(4):
    gpu.free(gpu.allocate(170))
    optimizer.step()
tell(gpu)
"""
    )
    assert found["ooms"] == 0
    assert found["swap"]["averted"] > 0
    assert found["swap"]["states_out"] > 0


def test_a_process_that_ends_with_states_away_ends(run):
    found = run(SMALL + "train(2)\ngpu.allocate(150)\ntell(gpu)")
    assert found["swap"]["states_away"] > 0
