"""Memory in one handle: pools and scopes as torch has them, over heaps on simulated devices."""

import pytest

import girih

pytest.importorskip("girih._native", reason="the extension is not built")

# What of torch the package calls, over the C interface that torch's shim calls.
PROGRAM = """
import contextlib, ctypes, json, os, sys, threading, types

from girih import GirihError, _native, _process
import girih

MIB = 1 << 20
_native.configure(json.dumps(
    {"mode": MODE, "torch": TORCH, "sim": {"capacity": 1 << 30}, "plan": "/nowhere/at.all"}
))
heaps = ctypes.CDLL(_native.__file__, mode=os.RTLD_NOW | os.RTLD_GLOBAL)


class Id(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


heaps.girih_alloc.argtypes = [
    ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, Id, ctypes.POINTER(ctypes.c_void_p)
]
heaps.girih_free.argtypes = [ctypes.c_void_p]
heaps.girih_empty_cache.argtypes = [Id]
for name in ("create", "release"):
    getattr(heaps, f"girih_pool_{name}").argtypes = [ctypes.c_int32, Id]
for name in ("begin", "end"):
    getattr(heaps, f"girih_pool_{name}").argtypes = [ctypes.c_int32, Id, ctypes.c_bool]
assert heaps.girih_init(2) == 0

here = threading.local()


class MemPool:
    made = 0

    def __init__(self):
        MemPool.made += 1
        self.id = (0, MemPool.made)
        self.device = here.device
        assert heaps.girih_pool_create(self.device, Id(*self.id)) == 0


@contextlib.contextmanager
def device(number):
    before, here.device = cuda.current_device(), number
    yield
    here.device = before


@contextlib.contextmanager
def use_mem_pool(pool, number=None):
    assert pool.device == number, "a pool is of one device"
    before, here.pool = getattr(here, "pool", None), pool
    assert heaps.girih_pool_begin(number, Id(*pool.id), True) == 0
    yield
    assert heaps.girih_pool_end(number, Id(*pool.id), True) == 0
    assert heaps.girih_pool_release(number, Id(*pool.id)) == 0
    here.pool = before


def allocate(size, number=0):
    address = ctypes.c_void_p()
    pool = getattr(here, "pool", None)
    own = Id(*pool.id) if pool and pool.device == number else Id(0, 0)
    assert heaps.girih_alloc(number, size, 0, own, ctypes.byref(address)) == 0
    return address


def free(address):
    assert heaps.girih_free(address) == 0


def calls(number=0):
    return json.loads(_native.report(number))["calls"]


capturing = False
cuda = types.SimpleNamespace(
    MemPool=MemPool, use_mem_pool=use_mem_pool, device=device, init=lambda: None,
    current_device=lambda: getattr(here, "device", 0),
    is_current_stream_capturing=lambda: capturing,
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
_process._enabled = types.SimpleNamespace(
    door=DOOR, settings=types.SimpleNamespace(mode=MODE), pid=0
)
"""


def program(mode="stitch", *, torch="2.11.0", door="shim"):
    return f"MODE, TORCH, DOOR = {mode!r}, {torch!r}, {door!r}\n" + PROGRAM


def run(python, code):
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_without_girih_the_scope_does_nothing():
    with girih.one_handle() as pool:
        assert pool is None


@pytest.mark.parametrize(
    "mode", ["native", "expandable", "stitch", "gmlake", "profile", "phantom", "plan", "auto"]
)
def test_a_request_inside_is_one_allocation_of_the_device_in_every_mode(python, mode):
    code = program(mode) + (
        "before = allocate(40 * MIB)\n"
        "was = calls()\n"
        "with girih.one_handle() as pool:\n"
        "    inside = allocate(100 * MIB)\n"
        "now = calls()\n"
        "print(now.get('create', 0) - was.get('create', 0),\n"
        "      now.get('alloc', 0) - was.get('alloc', 0), pool is not None)\n"
        "free(inside); free(before)\n"
    )
    assert run(python, code) == "0 1 True\n"


def test_after_the_scope_requests_are_as_before_and_another_thread_never_notices(python):
    code = program() + (
        "with girih.one_handle():\n"
        "    thread = threading.Thread(target=lambda: allocate(40 * MIB))\n"
        "    thread.start(); thread.join()\n"
        "print(calls().get('alloc', 0))\n"
        "allocate(80 * MIB)\n"
        "print(calls().get('alloc', 0), calls()['create'] > 0)\n"
    )
    assert run(python, code) == "0\n0 True\n"


def test_a_device_has_one_pool_whose_memory_serves_scope_after_scope(python):
    code = program() + (
        "pools, places = set(), set()\n"
        "for _ in range(5):\n"
        "    with girih.one_handle() as pool:\n"
        "        with girih.one_handle(0) as inner:\n"
        "            block = allocate(100 * MIB)\n"
        "    pools |= {pool.id, inner.id}\n"
        "    places.add(block.value)\n"
        "    free(block)\n"
        "with girih.one_handle(1) as other:\n"
        "    free(allocate(100 * MIB, 1))\n"
        "print(len(pools), len(places), calls()['alloc'], other.id in pools, calls(1)['alloc'])\n"
    )
    assert run(python, code) == "1 1 1 False 1\n"


@pytest.mark.parametrize("torch", ["2.6.0", "2.12.0", "2.13.0"])
def test_what_is_free_in_the_pool_goes_back_when_the_cache_is_emptied(python, torch):
    code = program(torch=torch) + (
        "with girih.one_handle():\n"
        "    free(allocate(100 * MIB))\n"
        "reserved = lambda: json.loads(_native.report(0))['reserved'] // MIB\n"
        "print(reserved())\n"
        "assert heaps.girih_empty_cache(Id(0, 0)) == 0\n"
        "print(reserved())\n"
        "with girih.one_handle():\n"
        "    allocate(100 * MIB)\n"
        "print(reserved())\n"
    )
    assert run(python, code) == "100\n0\n100\n"


def test_during_a_capture_and_without_the_shim_it_is_refused(python):
    refused = (
        "try:\n"
        "    with girih.one_handle():\n"
        "        print('inside')\n"
        "except GirihError as error:\n"
        "    print(error)\n"
    )
    assert "before the capture of a graph" in run(
        python, program() + "capturing = True\n" + refused
    )
    assert "doctor" in run(python, program(door="plug") + refused)
