"""What a process does from `import torch` on: nothing on the device before it is asked to.

Each check starts processes, which Girih reaches through the environment.
"""

from __future__ import annotations

from checks.child import child, printed, release
from checks.registry import Skip, check, equal


@check
def import_leaves_cuda_alone() -> None:
    """import torch does not start the driver, and what devices there are is asked later."""
    code = """
import ctypes, torch
count = ctypes.c_int(-1)
print(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)))
"""
    equal(printed(code), "3", "what cuDeviceGetCount gives (3 is not initialized)")
    code = """
import os, torch
os.environ["CUDA_VISIBLE_DEVICES"] = "32"
print(torch.cuda.device_count(), torch.cuda.is_initialized())
"""
    equal(printed(code), "0 False", "the devices behind a number that there is not")


@check
def import_leaves_triton_alone() -> None:
    """A first tensor does not import Triton, which is slow."""
    code = "import sys, torch; torch.rand(2, device='cuda'); print('triton' in sys.modules)"
    equal(printed(code), "False", "that Triton is imported")


@check
def forked_after_a_look() -> None:
    """A process that has only looked for pinned memory forks, and its child uses CUDA."""
    code = """
import multiprocessing, torch

def work(answers):
    try:
        answers.put(torch.ones(10, device="cuda")[0].item())
    except Exception as error:
        answers.put(repr(error))

torch.randn(10).is_pinned()
context = multiprocessing.get_context("fork")
answers = context.SimpleQueue()
process = context.Process(target=work, args=(answers,))
process.start()
print(answers.get())
process.join()
"""
    equal(printed(code), "1.0", "what the child found")


@check
def another_backend_in_a_child() -> None:
    """A program that names cudaMallocAsync before it imports torch has that, and nothing else."""
    name = "PYTORCH_CUDA_ALLOC_CONF" if release() < (2, 10) else "PYTORCH_ALLOC_CONF"
    code = f"""
import os
os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
os.environ[{name!r}] = "backend:cudaMallocAsync"
import torch
torch.cuda.init()
print(torch.cuda.get_allocator_backend(), torch.ones(1000, device="cuda").sum().item())
"""
    equal(printed(code), "cudaMallocAsync 1000.0", "the backend, and a sum")


@check
def fraction_of_the_environment() -> None:
    """per_process_memory_fraction of the environment holds from the start; a wrong one raises."""
    if release() < (2, 10):
        raise Skip("this release does not have it")
    code = "import torch; print(torch.cuda.get_per_process_memory_fraction(0))"
    setting = "per_process_memory_fraction"
    for share in (0.0, 0.5, 1.0):
        found = printed(code, PYTORCH_CUDA_ALLOC_CONF=f"{setting}:{share}")
        equal(found, str(share), "the share")
    for share in (-0.1, 1.1):
        result = child(code, PYTORCH_CUDA_ALLOC_CONF=f"{setting}:{share}")
        assert result.returncode != 0, f"{share} was taken: {result.stdout}"
        assert f"{setting} is invalid" in result.stderr, result.stderr[-500:]


@check
def assertion_on_the_device() -> None:
    """A failed assertion of a kernel is what a later request or its use says, and an exit of 1."""
    code = """
import sys, torch
values = torch.arange(10, device="cuda")
values[torch.tensor([11], device="cuda")]
try:
    torch.cuda.synchronize()
except RuntimeError:
    pass
try:
    # Memory may be had still: the driver creates and maps pages, as of expandable segments.
    held = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
    held[0].fill_(1)
    torch.cuda.synchronize()
except RuntimeError as error:
    print("device-side assert triggered" in str(error), getattr(error, "error_code", 710))
raise KeyError("me")
"""
    result = child(code)
    equal(result.returncode, 1, f"the exit status ({result.stderr.strip()[-300:]})")
    assert "KeyError: 'me'" in result.stderr, result.stderr[-500:]
    equal(result.stdout.strip(), "True 710", "what the error says")
