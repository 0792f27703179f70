"""One process as one rank of a job of any size: torch.distributed without the others.

torch has a process group for this, `fake`: its collectives return at once, and what they give is
this rank's own. Here a program gets it whatever it asks for, and the places at which the absence of
the others would show before any memory does are mended:

```text
 init_process_group("nccl")  ─► fake, of this rank and world; nothing is waited for
 new_group(backend="gloo")   ─► fake
 all_gather_object, ...      ─► every rank says what this one says
 all_to_all_single           ─► this rank receives what it sends
 DistributedDataParallel     ─► takes its buckets for reduced
```

What a collective asks of the GPU's memory is what it asks under NCCL: its tensors are the program's
own, and what PyTorch asks for besides is asked for here too (`_nccl_memory`). NCCL's buffers are
not the allocator's, with other ranks or without.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from girih import _ranks
from girih._errors import GirihError
from girih._imports import when_imported
from girih._nccl_memory import Asked, Memory

log = logging.getLogger("girih")

# Nobody listens there; programs that look for a launcher want to see one.
_ADDRESS, _PORT = "127.0.0.1", "29500"


def settle(
    rank: int,
    world: int,
    *,
    per_machine: int = 1,
    environ: MutableMapping[str, str] = os.environ,
) -> None:
    """Says in the environment what a launcher says to the process of this rank.

    There is one GPU, so it is the first of its machine whatever the rank. `per_machine` is what the
    program is told of the processes on it.
    """
    if not 0 <= rank < world:
        raise GirihError(f"give --rank 0 to {world - 1}: {rank} is no rank of a world of {world}")
    if not 1 <= per_machine <= world or world % per_machine:
        raise GirihError(
            f"give --per-machine a number that divides {world}: a world of {world} is not made of "
            f"machines with {per_machine}"
        )
    environ.update(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(per_machine),
            "GROUP_RANK": str(rank // per_machine),
            "MASTER_ADDR": _ADDRESS,
            "MASTER_PORT": _PORT,
            _ranks.RECORDED_ALONE: "1",
        }
    )


def when_torch_comes(rank: int, world: int) -> None:
    """Has the world faked once the program imports torch."""
    when_imported("torch", lambda torch: fake(torch, rank, world))


def fake(torch: Any, rank: int, world: int) -> None:
    """Fakes the world in this process.

    Raises:
        GirihError: if this torch has no fake process group.
    """
    if not torch.distributed.is_available():
        raise GirihError(f"install a torch with torch.distributed: {torch.__version__} has none")
    try:
        fake_pg = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    except ImportError as error:
        raise GirihError(
            f"use torch 2.6 or later: {torch.__version__} has no fake process group ({error})"
        ) from error
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    memory = Memory(torch)
    asked = Asked()
    wrappers = _wrappers(c10d, fake_pg.FakeStore, rank, world, asked)
    wrappers |= _memory_wrappers(c10d, memory, asked)
    for name, make in wrappers.items():
        original = getattr(c10d, name, None)
        if original is None:
            log.debug("torch %s has no %s", torch.__version__, name)
            continue
        _replace(original, functools.wraps(original)(make(original)))
    _reduce_alone(torch)


def _reduce_alone(torch: Any) -> None:
    """Has `DistributedDataParallel` take its buckets for reduced.

    It looks into what work gives, and that of the fake group gives nothing.
    Buckets are reduced in place, so memory is asked for as without this.
    """
    parallel = torch.nn.parallel.DistributedDataParallel
    construct, register = parallel.__init__, parallel.register_comm_hook

    def reduced(_state: object, bucket: Any) -> Any:
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    # Torch refuses annotations that are not its own classes, and those here are texts.
    reduced.__annotations__.clear()

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        register(self, None, reduced)

    @functools.wraps(register)
    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        """There is one already, and the program's own would wait for nobody."""

    parallel.__init__ = __init__
    parallel.register_comm_hook = register_comm_hook


def _replace(original: Any, wrapper: Any) -> None:
    """Puts a function where another one is, in all modules of torch.distributed that have it."""
    for name, module in list(sys.modules.items()):
        if name == "torch.distributed" or name.startswith("torch.distributed."):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, wrapper)


def _wrappers(
    c10d: Any, store: Callable[[], Any], rank: int, world: int, asked: Asked
) -> dict[str, Callable[[Any], Any]]:
    """By the name of a function, what makes its replacement of it."""

    def init(original: Any) -> Any:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(original).bind(*args, **kwargs)
            timeout = bound.arguments.get("timeout")
            asked.world(bound.arguments.get("backend"))
            return original(
                backend="fake", store=store(), rank=rank, world_size=world, timeout=timeout
            )

        return init_process_group

    def helper(original: Any) -> Any:
        signature = inspect.signature(original)

        def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments
            asked.group(given.get("group_name", ""), given.get("backend"))
            given["backend"] = c10d.Backend("fake")
            # Those of another backend.
            for options in ("backend_options", "pg_options"):
                bound.arguments.pop(options, None)
            return original(*bound.args, **bound.kwargs)

        return _new_process_group_helper

    def gather_object(original: Any) -> Any:
        def gather_object(
            obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any
        ) -> None:
            if object_gather_list is not None:
                object_gather_list[:] = [obj] * len(object_gather_list)

        return gather_object

    def scatter_object_list(original: Any) -> Any:
        def scatter_object_list(
            scatter_object_output_list: list[Any],
            scatter_object_input_list: list[Any] | None = None,
            *_: Any,
            **__: Any,
        ) -> None:
            given = scatter_object_input_list
            if given:
                scatter_object_output_list[0] = given[rank % len(given)]

        return scatter_object_list

    def all_to_all_single(original: Any) -> Any:
        def all_to_all_single(output: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(output, input, *args, **kwargs)
            # Sizes are told that way, and a program must not read of a size what nobody has
            # written.
            count = min(output.numel(), input.numel())
            if output.is_contiguous() and input.is_contiguous():
                given = input.detach().view(-1)[:count]
                output.detach().view(-1)[:count].copy_(given)
            return done

        return all_to_all_single

    def monitored_barrier(original: Any) -> Any:
        def monitored_barrier(*_: Any, **__: Any) -> None:
            """Nobody is late."""

        return monitored_barrier

    return {
        "init_process_group": init,
        "_new_process_group_helper": helper,
        "gather_object": gather_object,
        "scatter_object_list": scatter_object_list,
        "all_to_all_single": all_to_all_single,
        "monitored_barrier": monitored_barrier,
    }


def _memory_wrappers(c10d: Any, memory: Memory, asked: Asked) -> dict[str, Callable[[Any], Any]]:
    """The same of those that ask for memory beyond their tensors."""

    def is_nccl(group: Any) -> bool:
        group = group or c10d._get_default_group()
        return asked.nccl_alone(c10d._world.pg_names.get(group))

    def all_gather_object(original: Any) -> Any:
        def all_gather_object(
            object_list: list[Any], obj: Any, group: Any = None, *_: Any, **__: Any
        ) -> None:
            object_list[:] = [obj] * len(object_list)
            if is_nccl(group):
                memory.gather_objects(obj, len(object_list))

        return all_gather_object

    def broadcast_object_list(original: Any) -> Any:
        signature = inspect.signature(original)

        def broadcast_object_list(*args: Any, **kwargs: Any) -> None:
            """What this rank has is what the source has."""
            given = signature.bind(*args, **kwargs).arguments
            if is_nccl(given.get("group")) and given.get("device") is None:
                memory.broadcast_objects(given["object_list"])

        return broadcast_object_list

    def barrier(original: Any) -> Any:
        signature = inspect.signature(original)

        def barrier(*args: Any, **kwargs: Any) -> Any:
            if is_nccl(signature.bind(*args, **kwargs).arguments.get("group")):
                memory.barrier()
            return original(*args, **kwargs)

        return barrier

    def of_list(name: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            signature = inspect.signature(original)

            def collective(*args: Any, **kwargs: Any) -> Any:
                given = signature.bind(*args, **kwargs).arguments
                is_outside = c10d._rank_not_in_group(given.get("group"))
                held = None if is_outside else memory.side_by_side(given[name])
                done = original(*args, **kwargs)
                del held
                return done

            return collective

        return make

    return {
        "all_gather": of_list("tensor_list"),
        "all_gather_object": all_gather_object,
        "barrier": barrier,
        "broadcast_object_list": broadcast_object_list,
        "reduce_scatter": of_list("input_list"),
    }
