"""A GPU without contents, and as much of torch as swapping touches, for programs in processes.

The heaps are Girih's, over their simulated device; storages, tensors and autograd's hooks are
Python's here. What a real program does between saves and uses is left out: `forward` saves a
tensor for each layer, `backward` uses them in the reverse order.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

MIB = 1 << 20

_ADDRESS = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)
_OF_TENSOR = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64))
_GIVE = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)


class _Pool(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("second", ctypes.c_uint64))


class OutOfMemoryError(RuntimeError):
    """As torch's."""


class Autograd:
    """`torch._C._autograd`: a stack of hooks, which can be forbidden."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, Any]] = []
        self.forbidden: str | None = None

    def _push_saved_tensors_default_hooks(self, pack: Any, unpack: Any) -> None:
        if self.forbidden is not None:
            raise RuntimeError(self.forbidden)
        self.stack.append((pack, unpack))

    def _pop_saved_tensors_default_hooks(self) -> None:
        self.stack.pop()

    def _top_saved_tensors_default_hooks(self, _ignores_tracing: bool) -> tuple[Any, Any] | None:
        return self.stack[-1] if self.stack else None

    def _saved_tensors_hooks_disable(self, message: str) -> None:
        self.forbidden = message
        if self.stack:
            raise RuntimeError(message)

    def _saved_tensors_hooks_enable(self) -> None:
        self.forbidden = None

    def _saved_tensors_hooks_is_enabled(self) -> bool:
        return self.forbidden is None


class Gpu:
    """Device 0 of this process."""

    def __init__(self, mebibytes: int, **options: Any) -> None:
        from girih import _native

        self.native = _native
        self.autograd = Autograd()
        self.storages: dict[int, list[int]] = {}  # owners, address, size
        self.tensors: dict[int, int] = {}
        self.next = 1
        self.busy = 0
        self.waiting: list[Callable[[], None]] = []
        self.symbols = ctypes.CDLL(_native.__file__)
        self.symbols.girih_free.argtypes = [ctypes.c_void_p]
        self.symbols.girih_last_error.restype = ctypes.c_char_p
        self.symbols.girih_alloc.argtypes = [
            ctypes.c_int32,
            ctypes.c_uint64,
            ctypes.c_uint64,
            _Pool,
            ctypes.POINTER(ctypes.c_void_p),
        ]
        settings = {"mode": "stitch", "sim": {"capacity": mebibytes * MIB}} | options
        _native.configure(json.dumps(settings))
        self._lend()
        assert self.symbols.girih_init(1) == 0
        sys.modules["torch"] = self.torch = self._torch()
        call = _native.when_called
        _native.when_called = lambda function: call(lambda: self.come(function))

    def _lend(self) -> None:
        def of_tensor(tensor: int, size: Any) -> int:
            size[0] = self.storages[self.tensors[tensor]][2]
            return self.tensors[tensor]

        def take(storage: int) -> int:
            address, self.storages[storage][1] = self.storages[storage][1], 0
            return address

        def give(storage: int, address: int) -> None:
            self.storages[storage][1] = address

        self.functions = (
            _OF_TENSOR(of_tensor),
            _ADDRESS(lambda storage: self.storages[storage][0]),
            _ADDRESS(lambda storage: self.storages[storage][1]),
            _ADDRESS(take),
            _GIVE(give),
        )
        self.symbols.girih_set_storages(*self.functions)

    def _torch(self) -> types.ModuleType:
        torch = types.ModuleType("torch")
        core = types.ModuleType("torch._C")
        core._autograd = self.autograd
        core._cuda_getCurrentRawStream = lambda _device: 0
        graph = types.SimpleNamespace(disable_saved_tensors_hooks=self._forbid)
        torch._C, torch.OutOfMemoryError = core, OutOfMemoryError
        torch.nn = types.SimpleNamespace(Parameter=type("Parameter", (), {}))
        torch.autograd = types.SimpleNamespace(graph=graph)
        torch.__version__ = "2.11.0"
        torch.Tensor, torch.empty = Tensor, lambda _count: types.SimpleNamespace(_use_count=int)
        torch.optim = types.SimpleNamespace(Optimizer=Optimizer)
        torch.compiler = types.SimpleNamespace(is_compiling=lambda: False)
        optim: Any = types.ModuleType("torch.optim.optimizer")
        optim.register_optimizer_step_pre_hook = Optimizer.pre_hooks.append
        optim.register_optimizer_step_post_hook = Optimizer.post_hooks.append
        sys.modules["torch.optim.optimizer"] = optim
        return torch

    @contextlib.contextmanager
    def _forbid(self, message: str) -> Iterator[None]:
        try:
            self.autograd._saved_tensors_hooks_disable(message)
            yield
        finally:
            self.autograd._saved_tensors_hooks_enable()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Nobody comes in while the heap is at work: the functions above are Python here."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            while self.waiting and not self.busy:
                self.waiting.pop(0)()

    def come(self, function: Callable[[], None]) -> None:
        """A heap calls for the program."""
        if self.busy:
            self.waiting.append(function)
        else:
            function()

    def allocate(self, mebibytes: float) -> int:
        """Bytes of the GPU, by their address."""
        address = ctypes.c_void_p()
        size = int(mebibytes * MIB)
        with self.working():
            status = self.symbols.girih_alloc(0, size, 0, _Pool(0, 0), ctypes.byref(address))
            text = self.symbols.girih_last_error().decode()
        if status == 1:
            raise OutOfMemoryError(text)
        assert status == 0, text
        return address.value or 0

    def free(self, address: int) -> None:
        with self.working():
            assert self.symbols.girih_free(address) == 0

    def stats(self) -> dict[str, Any]:
        """What the heap says of itself."""
        with self.working():
            found: dict[str, Any] = json.loads(self.native.report(0))
        return found

    def mark(self, kind: str) -> None:
        with self.working():
            self.native.mark(kind)

    def save(self, tensor: Tensor) -> Any:
        """What autograd keeps of a tensor."""
        if not self.autograd.stack:
            return tensor
        with self.working():
            return self.autograd.stack[-1][0](tensor)

    def use(self, saved: Any) -> Tensor:
        """What autograd gives of what it kept."""
        if isinstance(saved, Tensor):
            return saved
        with self.working():
            return self.native.unpack(saved)

    def forward(self, layers: int, mebibytes: float) -> list[Any]:
        """Each layer saves its output, which the next one lets go of."""
        saved, before = [], None
        for _ in range(layers):
            output = Tensor(self, mebibytes)
            saved.append(self.save(output))
            before = output
        del before
        return saved

    def backward(self, saved: list[Any]) -> None:
        """Uses what was saved, the last first; the bytes are there each time."""
        while saved:
            tensor = self.use(saved[-1])
            assert self.storages[tensor.storage][1] != 0, "a saved tensor has no bytes"
            self.free(self.allocate(1))
            del tensor
            with self.working():
                saved.pop()


class Tensor:
    """A tensor over a storage of its own, or another's."""

    is_cuda = True
    is_leaf = False
    requires_grad = False
    dtype = "float32"
    shape = (1,)
    _version = 0
    _base = None
    # Until it has one: a request may be refused.
    storage = 0

    def __init__(self, gpu: Gpu, mebibytes: float = 0, storage: int | None = None) -> None:
        self.gpu = gpu
        if storage is None:
            address = gpu.allocate(mebibytes)
            storage, gpu.next = gpu.next, gpu.next + 1
            gpu.storages[storage] = [0, address, int(mebibytes * MIB)]
        self.storage = storage
        self._cdata, gpu.next = gpu.next, gpu.next + 1
        gpu.tensors[self._cdata] = storage
        gpu.storages[storage][0] += 1

    def __del__(self) -> None:
        owned = self.gpu.storages.get(self.storage)
        if owned is None:
            return
        owned[0] -= 1
        del self.gpu.tensors[self._cdata]
        if owned[0] == 0:
            del self.gpu.storages[self.storage]
            if owned[1]:
                self.gpu.free(owned[1])

    def detach(self) -> Tensor:
        """Another tensor over the same bytes."""
        return Tensor(self.gpu, storage=self.storage)

    @property
    def nbytes(self) -> int:
        return self.gpu.storages[self.storage][2]

    def _use_count(self) -> int:
        return 0

    def get_device(self) -> int:
        return 0

    def dim(self) -> int:
        return 1

    def element_size(self) -> int:
        return 4


class Optimizer:
    """As torch's: two states for each parameter, which its steps use."""

    pre_hooks: ClassVar[list[Callable[..., None]]] = []
    post_hooks: ClassVar[list[Callable[..., None]]] = []

    def __init__(self, gpu: Gpu, mebibytes: list[float]) -> None:
        self.gpu = gpu
        self.state: Any = collections.defaultdict(dict)
        self.sizes = {f"parameter {at}": size for at, size in enumerate(mebibytes)}
        self.param_groups = [{"params": list(self.sizes)}]

    def __getstate__(self) -> dict[str, Any]:
        return {"state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def step(self) -> None:
        """The states are there, be they new."""
        for hook in self.pre_hooks:
            hook(self, (self,), {})
        self._step()
        self.gpu.mark("step")
        for hook in self.post_hooks:
            hook(self, (self,), {})

    def _step(self) -> None:
        for name, size in self.sizes.items():
            own = self.state[name]
            for moment in ("mean", "square"):
                if moment not in own:
                    own[moment] = Tensor(self.gpu, size)
                assert self.gpu.storages[own[moment].storage][1] != 0, "a state has no bytes"
