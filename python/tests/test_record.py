"""`python -m girih record`: a program as one rank of a job whose other ranks are not there."""

import importlib.util
import json

import pytest

from girih import _fake_world, _paths, _ranks, _record
from girih._errors import GirihError

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
# Without a GPU: whether the program runs.
TRY = ("-m", "girih", "record", "--world", "8", "--rank", "3", "--try")


def told(result):
    """What a program printed, which is one JSON object."""
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_program_sees_its_rank_in_the_environment(python):
    code = (
        "import json, os, sys\n"
        "names = ['RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK']\n"
        "print(json.dumps([os.environ[name] for name in names] + sys.argv))\n"
    )
    assert told(python(*TRY, "-c", code, "--lr", "1")) == [
        "3",
        "8",
        "0",
        "1",
        "3",
        "-c",
        "--lr",
        "1",
    ]
    machines = told(python(*TRY, "--per-machine", "2", "--", "-c", code))
    assert machines == ["3", "8", "0", "2", "1", "-c"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--world", "8", "--rank", "8"], "give --rank 0 to 7: 8 is no rank of a world of 8"),
        (["--world", "8", "--rank", "-1"], "give --rank 0 to 7"),
        (["--world", "8", "--rank", "0", "--per-machine", "3"], "a number that divides 8"),
        (["--world", "0", "--rank", "0"], "invalid number above 0 value: '0'"),
        (["--rank", "0"], "the following arguments are required: --world"),
    ],
)
def test_what_is_no_rank_is_refused(python, words, said):
    result = python("-m", "girih", "record", "--try", *words, "-c", "print('ran')")
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_what_a_launcher_says_is_outspoken(python):
    code = "import json; from girih import _ranks; print(json.dumps(_ranks.rank().number))"
    result = python(*TRY, "-c", code, SLURM_PROCID="7", RANK="6", WORLD_SIZE="64")
    assert told(result) == 3


def test_files_of_a_rank_that_is_recorded_alone_have_the_names_they_were_given():
    environ = {}
    _fake_world.settle(5, 128, environ=environ)
    assert _ranks.rank(environ) == _ranks.Rank(5, 128, is_recorded_alone=True)
    assert _paths.own("run.girih", 0, environ) == "run.girih"
    assert _paths.own("run{rank}.girih", 1, environ) == "run5.dev1.girih"
    with pytest.raises(GirihError, match="no rank of a world of 128"):
        _fake_world.settle(128, 128, environ=environ)


def test_without_a_gpu_nothing_is_begun_and_try_is_named(python):
    from girih import _process

    if _process.has_driver():
        pytest.skip("there is a driver")
    words = ["-m", "girih", "record", "--world", "8", "--rank", "3", "-c", "print('ran')"]
    result = python(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert "record on a machine with an NVIDIA GPU, or say --try" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_words_before_the_program_are_ours():
    split = _record._run.split
    valued, plain = _record._VALUED, _record._PLAIN
    own, program = split(
        ["--world", "8", "-o", "f", "--try", "t.py", "--rank"], valued=valued, plain=plain
    )
    assert (own, program) == (["--world", "8", "-o", "f", "--try"], ["t.py", "--rank"])


COLLECTIVES = """
import json, os
import torch
import torch.distributed as dist
from torch.distributed import init_process_group

init_process_group("nccl", init_method="tcp://10.0.0.1:1234", rank=0, world_size=2)
said = {"rank": dist.get_rank(), "world": dist.get_world_size()}
x = torch.full((4,), 3.0)
dist.all_reduce(x)
dist.barrier()
gathered = torch.empty(32)
dist.all_gather_into_tensor(gathered, x)
part = torch.empty(1)
dist.reduce_scatter_tensor(part, torch.ones(8))
said["gathered"] = gathered.tolist()
objects = [None] * 8
dist.all_gather_object(objects, {"a": 1})
said["objects"] = objects
held = ["mine"]
dist.broadcast_object_list(held, src=0)
said["held"] = held
out = [None]
dist.scatter_object_list(out, list(range(8)), src=3)
said["scattered"] = out
sent = torch.arange(8)
got = torch.full((8,), -1)
dist.all_to_all_single(got, sent)
said["sizes"] = got.tolist()
half = dist.new_group([2, 3], backend="gloo")
said["half"] = [dist.get_rank(half), dist.get_world_size(half)]
said["other"] = dist.new_group([0, 1], backend="nccl") is dist.GroupMember.NON_GROUP_MEMBER
dist.send(x, dst=4)
dist.recv(torch.empty(4), src=2)
work = dist.all_reduce(x, async_op=True, group=half)
work.wait()
dist.monitored_barrier()
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 4), dist.P2POp(dist.irecv, x, 2)]):
    work.wait()
said["backend"] = dist.get_backend()
dist.destroy_process_group()
print(json.dumps(said))
"""


@needs_torch
def test_collectives_return_whatever_backend_was_asked_for(python):
    said = told(python(*TRY, "-c", COLLECTIVES))
    assert (said["rank"], said["world"], said["backend"]) == (3, 8, "fake")
    assert said["gathered"] == [3.0] * 32
    assert said["objects"] == [{"a": 1}] * 8
    assert said["held"] == ["mine"]
    assert said["scattered"] == [3]
    assert said["sizes"] == list(range(8))
    assert said["half"] == [1, 2]
    assert said["other"]


MEMORY = """
import json, pickle, sys
import torch
import torch.distributed as dist

seen, empty = [], torch.empty

def watched(*sizes, device=None, **more):
    if device == "cuda":
        seen.append([*sizes, str(more["dtype"])[6:]])
        device = None
    return empty(*sizes, device=device, **more)

torch.empty, torch.cuda.is_available = watched, lambda: True
dist.init_process_group(*sys.argv[1:])
said = {}

def told(name):
    said[name] = list(seen)
    seen.clear()

objects = [None] * 8
dist.all_gather_object(objects, "x" * 1000)
told("gathered")
dist.barrier()
told("barrier")
dist.broadcast_object_list([1, "two"], src=0)
told("broadcast")
half = dist.new_group([2, 3], backend="gloo")
other = dist.new_group([2, 3])
dist.all_gather_object([None] * 2, "x", group=half)
dist.barrier(half)
told("gloo")
dist.barrier(other)
told("its like")
said["sizes"] = [len(pickle.dumps(one)) for one in ("x" * 1000, 1, "two")]
print(json.dumps(said))
"""


@needs_torch
def test_what_nccl_asks_for_beside_its_tensors_is_asked_for(python):
    said = told(python(*TRY, "-c", MEMORY, "nccl"))
    whole, first, second = said["sizes"]
    assert said["gathered"] == [
        [whole, "uint8"],
        [1, "int64"],
        [8, "int64"],
        [8, "int64"],
        *[[1, "bool"]] * 7,
        [8 * whole, "uint8"],
        [8 * whole, "uint8"],
    ]
    assert said["barrier"] == said["its like"] == [[1, "uint8"], [1, "float32"]]
    object_and_size = [[first, "uint8"], [1, "int64"], [second, "uint8"], [1, "int64"]]
    assert said["broadcast"] == [*object_and_size, [2, "int64"], [first + second, "uint8"]]
    assert said["gloo"] == []


@needs_torch
@pytest.mark.parametrize("asked", [[], ["gloo"], ["cpu:gloo,cuda:nccl"]])
def test_where_objects_are_gloos_nothing_is_asked_for(python, asked):
    said = told(python(*TRY, "-c", MEMORY, *asked))
    assert said["gathered"] == said["barrier"] == said["broadcast"] == []


LISTS = """
import json
import torch
from girih._nccl_memory import Memory

class One:
    def __init__(self, shape, is_cuda=True):
        self.shape, self.is_cuda, self.dtype = shape, is_cuda, torch.float16
    def numel(self):
        return self.shape[0] * self.shape[1]

seen = []
torch.empty = lambda count, **more: seen.append([count, str(more["dtype"])])
memory = Memory(torch)
memory.side_by_side([One((3, 5)) for _ in range(4)])
memory.side_by_side([One((3, 5)), One((5, 3))])
memory.side_by_side([One((3, 5)), One((3, 5), is_cuda=False)])
memory.side_by_side([])
print(json.dumps(seen))
"""


@needs_torch
def test_a_list_of_equal_tensors_is_put_side_by_side(python):
    assert told(python("-c", LISTS)) == [[60, "torch.float16"]]


FSDP2 = """
import json
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(2):
    model(torch.randn(5, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
local = [parameter.to_local().shape for parameter in model.parameters()]
print(json.dumps({
    "rank": dist.get_rank(),
    "coordinate": mesh.get_coordinate(),
    "local": [list(shape) for shape in local],
    "whole": [list(parameter.shape) for parameter in model.parameters()],
}))
"""


@needs_torch
def test_sharded_training_runs_as_one_rank_of_a_mesh(python):
    said = told(python(*TRY, "-c", FSDP2))
    assert (said["rank"], said["coordinate"]) == (3, [0, 3])
    assert said["whole"] == [[64, 64], [64]] * 3
    assert said["local"] == [[16, 64], [16]] * 3


TENSOR_PARALLEL = """
import json
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module,
)

dist.init_process_group(backend="cpu:gloo,cuda:nccl")
mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
model(torch.randn(3, 16)).sum().backward()
whole = FullyShardedDataParallel(nn.Linear(16, 16), device_id=torch.device("cpu"))
whole(torch.randn(2, 16)).sum().backward()
local = [list(parameter.to_local().shape) for parameter in model.parameters()]
print(json.dumps([mesh.get_coordinate(), local]))
"""


@needs_torch
def test_tensor_parallel_training_runs_under_backends_by_device(python):
    coordinate, local = told(python(*TRY, "-c", TENSOR_PARALLEL))
    assert coordinate == [1, 1]
    assert local == [[16, 16], [16], [16, 16], [16]]


DDP = """
import json
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

dist.init_process_group()
model = DistributedDataParallel(torch.nn.Linear(8, 8))
model(torch.randn(2, 8)).sum().backward()
sampler = DistributedSampler(range(80), shuffle=False)
print(json.dumps([dist.get_rank(), list(sampler), dist.is_initialized()]))
"""


@needs_torch
def test_data_parallel_training_runs_and_gets_its_part_of_the_data(python):
    rank, indices, initialized = told(python(*TRY, "-c", DDP))
    assert (rank, indices, initialized) == (3, list(range(3, 80, 8)), True)


@needs_torch
def test_functions_of_torch_keep_their_names_and_signatures(python):
    code = (
        "import inspect, json, torch.distributed as dist\n"
        "names = ['init_process_group', 'all_gather_object', 'all_to_all_single']\n"
        "own = [getattr(dist, name) for name in names]\n"
        "print(json.dumps([[it.__name__, str(inspect.signature(it))] for it in own]))\n"
    )
    assert told(python(*TRY, "-c", code)) == told(python("-c", code))


@needs_torch
def test_the_requests_of_a_rank_are_written_to_a_trace_file(python, tmp_path):
    pytest.importorskip("girih._native", reason="the extension is not built")
    from test_run import USE

    sim = 'sim={"capacity": 1073741824}'
    words = [
        "-m",
        "girih",
        "record",
        "--world",
        "8",
        "--rank",
        "3",
        "--option",
        sim,
        "-o",
        "r.girih",
    ]
    result = python(*words, "-c", USE)
    assert result.returncode == 0, result.stderr
    assert f"girih: rank 3 of 8 is recorded in {tmp_path / 'r.girih'}" in result.stderr
    assert (tmp_path / "r.girih").stat().st_size > 0
    stats = python("-m", "girih", "stats", "r.girih", "--json")
    assert json.loads(stats.stdout)["requests"] == 1, stats.stderr


@needs_torch
def test_a_rank_that_is_larger_than_the_card_is_recorded(python):
    pytest.importorskip("girih._native", reason="the extension is not built")
    from test_run import USE

    # 64 blocks of 256 MiB on a card of 1 GiB.
    more = (
        "size = ctypes.c_uint64(256 << 20)\n"
        "for _ in range(64):\n"
        "    assert heaps.girih_alloc(0, size, stream, Pool(0, 0), ctypes.byref(address)) == 0\n"
    )
    words = ["-m", "girih", "record", "--world", "2", "--rank", "0", "-o", "r.girih"]
    sim = ["--option", 'sim={"capacity": 1073741824}', "--capacity", "64GiB"]
    result = python(*words, *sim, "-c", USE + more)
    assert result.returncode == 0, result.stderr
    stats = json.loads(python("-m", "girih", "stats", "r.girih", "--json").stdout)
    assert (stats["requests"], stats["live_peak"]) == (65, (64 << 28) + (1 << 20))
    # The same with a share of the card.
    result = python(*words, *sim, "--solid", "128MiB", "-c", USE + more)
    assert result.returncode == 0, result.stderr
    stats = json.loads(python("-m", "girih", "stats", "r.girih", "--json").stdout)
    assert stats["requests"] == 65
    result = python(*words, *sim, "--solid", "a third", "-c", USE + more)
    assert result.returncode == 2
    assert "solid" in result.stderr
    # The same on the card itself.
    result = python(*words, *sim, "--memory", "card", "-c", USE + more)
    assert result.returncode == 1
    assert "AssertionError" in result.stderr


@needs_torch
def test_a_program_that_asks_for_nothing_is_said_to_have_left_nothing(python, tmp_path):
    pytest.importorskip("girih._native", reason="the extension is not built")
    sim = 'sim={"capacity": 1073741824}'
    words = ["-m", "girih", "record", "--world", "8", "--rank", "3", "--option", sim]
    for code, why in (("import torch", "no memory of a GPU"), ("", "did not import torch")):
        result = python(*words, "-c", code or "pass")
        assert result.returncode == 1, result.stderr
        assert "girih: nothing of rank 3 of 8 was recorded: it " in result.stderr
        assert why in result.stderr
    assert not list(tmp_path.glob("*.girih"))
