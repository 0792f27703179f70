"""GPU memory without gaps for people who train with PyTorch.

    import girih
    girih.enable()          # before CUDA starts; or: python -m girih run train.py

From then on PyTorch takes its GPU memory from Girih. In the mode `auto` it watches the first
iterations, plans where every tensor of an iteration goes, and follows the plan. Everything that
PyTorch says and does about memory stays as it is.

There is no way back: memory that was given cannot change hands, so a process that was enabled stays
so until its end. `GIRIH_MODE=off` keeps Girih out of a process whose program enables it.

With `GIRIH_MODE` in the environment, `import girih` is enough: Girih is enabled as soon as torch is
imported. A program that does not import girih is not touched by the variable alone, for a library
that changes processes which never asked for it is a surprise; `python -m girih run` asks for the
program and for every Python process that it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from girih import _bootstrap, _one_handle, _process, _settings, _stats, _why
from girih._errors import GirihError, GirihWarning
from girih._steps import Authority
from girih._version import VERSION as __version__

__all__ = [
    "GirihError",
    "GirihWarning",
    "__version__",
    "cross_entropy",
    "enable",
    "is_enabled",
    "linear_cross_entropy",
    "long_context",
    "long_context_report",
    "mark",
    "one_handle",
    "plan",
    "stats",
    "step",
    "trace",
    "why",
]


def enable(
    mode: str = "auto",
    *,
    plan: str | os.PathLike[str] | None = None,
    plan_dir: str | os.PathLike[str] | bool | None = None,
    conf: str | None = None,
    trace: str | os.PathLike[str] | None = None,
    gpu_budget: int | str | None = None,
    host_budget: int | str | None = None,
    **options: Any,
) -> None:
    """Makes Girih the allocator of this process. Call it before CUDA starts.

    Args:
        mode: `auto`, `plan`, `stitch`, `expandable`, `native`, `profile`, `phantom`; `gmlake`, a
            baseline to measure against; `off` does nothing.
        plan: the plan file that the mode `plan` follows; if None, the one that a run of the same
            program in the mode `auto` has kept in `plan_dir`.
        plan_dir: where `auto` keeps plans for later runs; the user's cache if None, nowhere if
            False.
        conf: settings in the words of PYTORCH_CUDA_ALLOC_CONF; that variable's if None.
        trace: where the recording of the run is written at its end.
        gpu_budget: what may be held of each GPU, as bytes or like "60GiB": saved tensors that do
            not fit go to the host, and come back before they are used. If None, the GPU itself is
            the budget: nothing goes before a request would end in out of memory.
        host_budget: what they may take there, pinned; half of what is available if None.
        options: `record=True` records for `girih.trace` and `girih.plan`; `modules=True` marks the
            passes of the model's first two levels; `hooks=False` sets no hooks at all; `swap="off"`
            lets nothing go to the host; `live=False` keeps `python -m girih top` from seeing this
            process; `gmlake_limit=BYTES` is the fragmentation limit of the mode `gmlake`; others go
            to the heaps.

    A second call with the same arguments does nothing. If the program was started by
    `python -m girih run`, or with `GIRIH_MODE` set, the arguments given there hold.

    Where there is no NVIDIA driver, no torch, or a torch without CUDA, a `GirihWarning` says so
    and the program goes on with torch's own allocator: `is_enabled` is False then, and `stats` says
    why.

    Raises:
        GirihError: if CUDA has started already, if Girih is enabled with other arguments, or if
            an argument is wrong. The text says what to do.
    """
    budgets = {"gpu_budget": gpu_budget, "host_budget": host_budget}
    settings = _settings.make(
        mode, plan=plan, plan_dir=plan_dir, conf=conf, trace=trace, options=options | budgets
    )
    _process.enable(settings)


def is_enabled() -> bool:
    """True if this process takes its GPU memory from Girih."""
    process = _process.enabled()
    return process is not None and process.settings.mode != "off"


def stats(device: int | None = None) -> _stats.Stats:
    """What Girih did and holds: of one device, or of all under `devices`. Bytes and counts.

    It is a dict. Printed, it is a table of the most important of it; in a notebook it draws itself.

    Where Girih is off, `mode` is `off`, and `off` says why.

    PyTorch's own numbers are in `torch.cuda.memory_stats()`, as ever.

    Raises:
        GirihError: if Girih is not enabled, or the device was not used.
    """
    found = _process.report(device)
    if is_enabled():
        _process.show_warnings()
    return _stats.Stats(found)


def trace(path: str | os.PathLike[str], device: int | None = None) -> int:
    """Writes what has been recorded so far to a trace file, for the command `girih`.

    The modes `profile` and `phantom` record, and every mode does with `record=True` or `trace=` of
    `enable`. Without `device`, the current one. Returns the number of events.

    Raises:
        GirihError: if nothing is recorded, or the file cannot be written.
    """
    _require_on()
    from girih import _native

    try:
        return _native.save_trace(_device(device), str(Path(path).absolute()))
    except RuntimeError as error:
        raise GirihError(str(error)) from error


def plan(path: str | os.PathLike[str] | None = None, device: int | None = None) -> dict[str, Any]:
    """Plans from what has been recorded so far, and says what the plan amounts to.

    With `path`, the plan is written there, for the mode `plan`. Without `device`, the current one.

    Raises:
        GirihError: if nothing is recorded, or the file cannot be written.
    """
    _require_on()
    from girih import _native

    with contextlib.ExitStack() as stack:
        if path is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="girih-"))
            path = Path(folder) / "plan"
        try:
            text = _native.plan(_device(device), str(Path(path).absolute()))
        except RuntimeError as error:
            raise GirihError(str(error)) from error
    summary: dict[str, Any] = json.loads(text)
    return summary


def why(
    recording: str | os.PathLike[str] | None = None,
    *,
    error: BaseException | None = None,
    device: int | None = None,
) -> _why.Answer:
    """Why memory ran out: what `girih why` says, of this process or of a recording.

        torch.cuda.memory._record_memory_history(stacks="python")   # before the model is built
        try:
            train()
        except torch.OutOfMemoryError as error:
            print(girih.why(error=error))
            raise

    Girih need not be enabled. Printed, the answer is text; it is a dict with the fields of
    `girih why --json` (`verdict`, `sentence`, `would_fit`, `lines`, `advice`, ...). `error` is what
    was raised, whose text says how large the card is; without it, the error that is handled.
    Without `device`, the one with the most events.

    Raises:
        GirihError: if there is no history, or the recording cannot be read. The text says what to
            do.
    """
    if recording is not None:
        return _why.of_file(Path(recording), device)
    return _why.of_process(error, device)


def long_context(
    model: Any,
    *,
    alpha: float | str | Sequence[float | str] | None = None,
    gpu_budget: int | str | None = None,
    host_budget: int | str | None = None,
    least_tokens: int = 0,
    layers: str | None = None,
    token_dim: int = 1,
    loss_in_tiles: bool | str = True,
    mlp_in_tiles: bool | int = False,
) -> Any:
    """Keeps only some tokens of what the model's layers save for the backward pass.

        model = girih.long_context(model)           # fills the GPU, computes the rest again
        model = girih.long_context(model, alpha=0.25)

    Of each layer the input, attention's output and the first tokens of everything else are kept;
    the rows of the other tokens are computed again just before the layer's backward pass, without
    attention. Gradients are those of the model as it is, to the bit: what does not come out equal
    when the layer is run again is kept whole (docs/long-contexts.md). The model is changed in
    place, layer by layer, and given back. Girih need not be enabled; if it swaps, what is kept may
    go to the host.

    Args:
        model: any `torch.nn.Module` with a list of layers.
        alpha: the part of the tokens that is kept, 0 to 1: of all layers, or a list with that of
            each. Or "products": what products of matrices give is kept of all tokens, and the rest
            is computed again, which takes little more time than reading it. If None it is found:
            two steps keep nothing, then it is what the budget holds. Where Girih swaps within a
            budget, nothing, products and everything are kept for four steps each, on the GPU or on
            the host, and the fastest stays.
        gpu_budget: what tensors may take of the GPU, in bytes or like "60GiB", where alpha is not
            given; the whole of it if None.
        host_budget: where Girih swaps, what layers may have on the host at most of all that they
            keep; what swapping has of it if None. Ways that need more are not tried.
        least_tokens: shorter passes run as they are.
        layers: name of the list of layers; by default the largest list of modules of one class.
        token_dim: the dimension of a layer's input that runs over tokens (0 for Megatron's).
        loss_in_tiles: computes the loss of Hugging Face's causal models by `girih.cross_entropy`.
            "fused": by `girih.linear_cross_entropy`, so that logits are never made. What adds them
            up then does so in another order: the last layer's gradient is not that to the bit.
        mlp_in_tiles: where nothing of a layer is kept, its perceptron runs over some tokens after
            others, forward and backward: what it holds in its backward pass is less by half and
            more, for two more of its products. True, or how many tokens a tile has.

    Raises:
        GirihError: if an argument is wrong, or the model has no such list. The text says what to
            do.
    """
    from girih import _sizes
    from girih._long import api

    budget = None if gpu_budget is None else _sizes.parse("gpu_budget", gpu_budget)
    host = None if host_budget is None else _sizes.parse("host_budget", host_budget)
    api.apply(
        model,
        alpha=alpha,
        gpu_budget=budget,
        host_budget=host,
        least_tokens=least_tokens,
        layers=layers,
        token_dim=token_dim,
        loss_in_tiles=loss_in_tiles,
        mlp_in_tiles=mlp_in_tiles,
    )
    return model


def cross_entropy(
    logits: Any, target: Any, *, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    """`torch.nn.functional.cross_entropy(logits.float(), target)` without logits in 32 bits.

    A tile of the rows is made in 32 bits at a time, in forward and again in backward, so that what
    is there whole are the logits and their gradient in their own type: of bfloat16 4 bytes a value
    where PyTorch has 14. Loss and gradient are the same to the bit. `long_context` puts it under
    Hugging Face's causal models; here it is for loops that compute their loss themselves.

    Args:
        logits: `[rows, classes]`, of a floating type.
        target: `[rows]`, the class of each row.
        ignore_index: rows of this target do not count.
        reduction: `mean` or `sum`.

    Raises:
        ValueError: for another reduction, shapes that do not go together, or no floating type.
    """
    from girih._long import loss

    return loss.cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)


def linear_cross_entropy(
    hidden: Any,
    weight: Any,
    target: Any,
    *,
    bias: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    """`cross_entropy(linear(hidden, weight, bias).float(), target)`, and logits are never whole.

    A tile of the rows goes from the hidden states to the loss, and in backward from there to the
    gradients. The weight's gradient is added up tile by tile in 32 bits: not in the order in which
    one product would.

    Args:
        hidden: `[rows, width]`, of a floating type.
        weight: `[classes, width]`, of the same type.
        target: `[rows]`, the class of each row.
        bias: `[classes]`, or None.
        ignore_index: rows of this target do not count.
        reduction: `mean` or `sum`.

    Raises:
        ValueError: for another reduction, shapes that do not go together, or no floating type.
    """
    from girih._long import fused

    return fused.linear_cross_entropy(
        hidden, weight, target, bias=bias, ignore_index=ignore_index, reduction=reduction
    )


def long_context_report(model: Any) -> dict[str, Any]:
    """What `long_context` did with a model's layers in their last pass, and why not more.

    `layers` has a dict for each: `name`, `tokens` and `kept` of them, `bytes_saved` by autograd and
    `bytes_kept` of those, `checks` (passes that ran twice to be compared), `replays`, `kept_whole`
    (modules that do not work token by token), `reason`, `astray` (replays of a part of a layer that
    met another way through it, and had to be of all). `loss` says whether the loss is computed
    `in_tiles`, and `fused` with the product before it, and the `reason` if not. `found`, where
    Girih swaps and alpha was not given: the `way` that was chosen ("nothing", "products" or "whole"
    is kept, or of how many layers which; empty until then) and `us_per_token` of those tried.

    Raises:
        GirihError: if `long_context` was not called with it.
    """
    from girih._long import api

    found = api.of(model)
    if found is None:
        raise GirihError("call girih.long_context(model) first: the model is as it was")
    return found.report()


@contextlib.contextmanager
def step() -> Iterator[None]:
    """One iteration of training, for loops that no hook understands.

    Once it was used, its iterations count, and no others.
    """
    process = _process.enabled()
    if process is None:
        yield
        return
    steps = process.watch.steps
    steps.begin(Authority.USER)
    try:
        yield
    finally:
        steps.end(Authority.USER)


def mark(name: str) -> None:
    """Notes that the program has come to a point, for traces. Does nothing if not enabled."""
    process = _process.enabled()
    if process is not None:
        process.watch.mark("other", name)


@contextlib.contextmanager
def one_handle(device: int | None = None) -> Iterator[Any]:
    """Inside, this thread's requests get memory that is one piece, which one handle can name.

        with girih.one_handle():
            buffer = torch.empty(1 << 30, device="cuda")

    For libraries that share or register memory by one handle (`cudaIpcGetMemHandle`, RDMA drivers,
    NCCL's user buffers): elsewhere a tensor's memory may consist of many. It works in every mode.
    Gives the `torch.cuda.MemPool` whose memory it is, one for each device, so that memory is used
    again from scope to scope; what is free in it goes back with `torch.cuda.empty_cache()`.

    Where Girih is not enabled it does nothing and gives None. Without `device`, the current one.

    Raises:
        GirihError: if a graph is being captured, or if Girih runs without its shim.
    """
    process = _process.enabled()
    if process is None or process.settings.mode == "off":
        yield None
        return
    with _one_handle.scope(process.door, device) as pool:
        yield pool


def _require_on() -> None:
    """Raises if torch has its own allocator: nothing is recorded of that."""
    reason = _process.report().get("off")
    if reason is not None:
        raise GirihError(f"Girih is off in this process: {reason}")


def _device(device: int | None) -> int:
    """The device that is meant: the current one if it is not said."""
    if device is not None:
        return device
    import torch

    current: int = torch.cuda.current_device()
    return current


_bootstrap.obey_environment()
