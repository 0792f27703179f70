"""A Llama of any shape, trained on as much as fits and more: the workload of `gpu/swap.py`.

python gpu/workloads/longer.py --layers 5 --batch 8 --length 4096 --way plain
python gpu/workloads/longer.py --way recompute
python -m girih run --gpu-budget 40GiB gpu/workloads/longer.py --way plain
python gpu/workloads/longer.py --device cpu --tiny --split products    # only to try it

A way is what the program itself does with its activations: `plain` keeps them, `recompute` is
Hugging Face's checkpointing of every layer, `save_on_cpu` PyTorch's hooks with pinned memory,
`streams` the same on streams of their own, as fine-tuning libraries do it, `selective` keeps what
matrix products and attention give and recomputes the rest. What is printed are losses, times and
peaks, and a digest of all gradients of the first step and of the last.
"""

import argparse
import collections
import contextlib
import functools
import hashlib
import importlib
import json
import resource
import time
from typing import Any

import torch
import transformers
from measure import Measure, deterministic
from torch.autograd import graph
from torch.utils import checkpoint

WAYS = ("plain", "recompute", "save_on_cpu", "streams", "selective")
TINY = {"hidden": 128, "ffn": 352, "heads": 4, "vocabulary": 512}


class OnStreams(graph.saved_tensors_hooks):
    """Every saved tensor of some size goes to pinned memory at once, on a stream of its own.

    It comes back when backward asks for it, and the stream of the computation waits then.
    """

    LEAST = 1 << 20

    def __init__(self, parameters: set[int]) -> None:
        self.parameters = parameters
        self.out = torch.cuda.Stream()
        self.back = torch.cuda.Stream()
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor: torch.Tensor) -> Any:
        """Copies it out; what is small, or a parameter's, stays."""
        if tensor.nbytes < self.LEAST or tensor.untyped_storage().data_ptr() in self.parameters:
            return tensor
        self.out.wait_stream(torch.cuda.current_stream())
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        with torch.cuda.stream(self.out):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.out)
        return (host,)

    def unpack(self, saved: Any) -> torch.Tensor:
        """Copies it in."""
        if isinstance(saved, torch.Tensor):
            return saved
        self.back.wait_stream(self.out)
        with torch.cuda.stream(self.back):
            tensor = saved[0].to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.back)
        tensor.record_stream(torch.cuda.current_stream())
        return tensor


def keep_products(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> Any:
    """What selective checkpointing keeps."""
    aten = torch.ops.aten
    kept = {
        aten.mm.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }
    policy = checkpoint.CheckpointPolicy
    return policy.MUST_SAVE if operator in kept else policy.PREFER_RECOMPUTE


class Kernels:
    """What the GPU does in a step: microseconds by kernel, those of copies, and idle ones."""

    def __enter__(self) -> None:
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self.profile.__enter__()
        self.start = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        torch.cuda.synchronize()
        whole = time.perf_counter() - self.start
        self.profile.__exit__(None, None, None)
        by_name: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0.0])
        by_stream: dict[int, list[tuple[int, int, str]]] = collections.defaultdict(list)
        for event in self.profile.profiler.kineto_results.events():
            if event.device_type() != torch.autograd.DeviceType.CUDA:
                continue
            begin, name = event.start_ns(), event.name()
            by_stream[event.device_resource_id()].append((begin, begin + event.duration_ns(), name))
        # The stream with the most kernels is that of the computation.
        main = max(by_stream.values(), key=len)
        copies: dict[str, float] = collections.defaultdict(float)
        for stream in by_stream.values():
            if stream is main:
                continue
            for begin, end, name in stream:
                copies[name] += (end - begin) / 1e3
        main.sort()
        at, idle = main[0][0], []
        for begin, end, name in main:
            if begin > at:
                idle.append(((begin - at) / 1e3, name[:60]))
            at = max(at, end)
            by_name[name][0] += 1
            by_name[name][1] += (end - begin) / 1e3
        seen = {
            "step_us": 1e6 * whole,
            "busy_us": sum(us for _, us in by_name.values()),
            "idle_us": sum(us for us, _ in idle),
            "longest_idle": sorted(idle, reverse=True)[:20],
            "other_streams_us": dict(copies),
            "kernels": {name: by_name[name] for name in by_name},
        }
        print("WHERE " + json.dumps(seen), flush=True)


def build(arguments: argparse.Namespace) -> Any:
    """The model, on the device."""
    settings = transformers.LlamaConfig(
        hidden_size=arguments.hidden,
        intermediate_size=arguments.ffn,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        vocab_size=arguments.vocabulary,
        max_position_embeddings=max(arguments.length, 4096),
    )
    settings._attn_implementation = "sdpa"
    with torch.device(arguments.device):
        model: Any = transformers.LlamaForCausalLM(settings)
    model = model.to(torch.bfloat16).train()
    if arguments.way == "recompute":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if arguments.way == "selective":
        context = functools.partial(checkpoint.create_selective_checkpoint_contexts, keep_products)
        for layer in model.model.layers:
            layer.forward = functools.partial(
                checkpoint.checkpoint, layer.forward, use_reentrant=False, context_fn=context
            )
    if arguments.split is not None:
        split = [it if it == "products" else float(it) for it in arguments.split.split(",")]
        alpha = split[0] if len(split) == 1 else split
        importlib.import_module("girih").long_context(
            model, alpha=alpha, mlp_in_tiles=arguments.tile or False
        )
    return model


def digest(model: Any) -> str:
    """Of every gradient, to the bit."""
    sums = hashlib.sha256()
    for parameter in model.parameters():
        if parameter.grad is not None:
            bits = parameter.grad.contiguous().view(torch.int16).to(torch.int64)
            weights = torch.arange(1, bits.numel() + 1, device=bits.device) % 65521
            sums.update(str(int((bits.flatten() * weights).sum())).encode())
            del bits, weights
    return sums.hexdigest()[:16]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, default="plain")
    for name, value in {
        "layers": 5,
        "hidden": 4096,
        "ffn": 11008,
        "heads": 32,
        "vocabulary": 32000,
        "batch": 4,
        "length": 4096,
        "steps": 12,
        "settled": 6,
        "skip-every": 0,
        "validate-every": 0,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of no size, to try it")
    parser.add_argument(
        "--split", metavar="ALPHA", help="split by tokens, where nothing else says so: on a CPU"
    )
    parser.add_argument(
        "--tile", type=int, default=0, help="of `--split`: perceptrons in tiles of so many tokens"
    )
    parser.add_argument("--warm", type=int, default=0, help="a pass of so many tokens before all")
    parser.add_argument(
        "--ready",
        action="store_true",
        help="with the optimizer's states from the beginning: one step has all of a run's peak",
    )
    parser.add_argument("--whole-loss", action="store_true", help="of all tokens, not of the last")
    parser.add_argument(
        "--fused-loss", action="store_true", help="of all tokens, by Girih, without logits"
    )
    parser.add_argument(
        "--profiler", action="store_true", help="under torch.profiler, with shapes and stacks"
    )
    parser.add_argument(
        "--where", action="store_true", help="what the GPU did in the last step but one"
    )
    parser.add_argument("--exact", action="store_true", help="gradients equal to the bit")
    parser.add_argument("--each", action="store_true", help="what Girih did in each step, too")
    parser.add_argument(
        "--constant",
        action="append",
        default=[],
        metavar="MODULE:NAME=NUMBER",
        help="another value of one of Girih's constants, for ablations",
    )
    arguments = parser.parse_args()
    if arguments.ready and not arguments.warm:
        parser.error("--ready takes its gradients from the pass of --warm: give that, too")
    for name, value in TINY.items() if arguments.tiny else ():
        setattr(arguments, name, value)
    set_constants(arguments.constant)
    return arguments


def set_constants(given: list[str]) -> None:
    """Each is `MODULE:NAME=NUMBER`."""
    for words in given:
        module, _, setting = words.partition(":")
        name, _, value = setting.partition("=")
        place = importlib.import_module(module)
        setattr(place, name, type(getattr(place, name))(value))


def main() -> None:
    """Trains, and prints what was measured."""
    arguments = parse()
    deterministic(arguments.exact)
    torch.manual_seed(0)
    tokens = arguments.batch * arguments.length
    device = arguments.device
    measure = Measure(arguments.way, arguments.settled, tokens, device, arguments.each)
    model = build(arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ways: dict[str, Any] = {
        "save_on_cpu": functools.partial(graph.save_on_cpu, pin_memory=device == "cuda"),
        "streams": functools.partial(
            OnStreams, {p.untyped_storage().data_ptr() for p in model.parameters()}
        ),
    }
    way = ways.get(arguments.way, contextlib.nullcontext)
    digests = []

    girih: Any = importlib.import_module("girih") if arguments.fused_loss else None

    def forward(length: int = arguments.length) -> torch.Tensor:
        shape = (arguments.batch, length)
        ids = torch.randint(0, arguments.vocabulary, shape, device=device)
        if arguments.whole_loss:
            # Hugging Face's own: logits in 32 bits are most of the memory.
            return model(input_ids=ids, labels=ids, use_cache=False).loss
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
        if arguments.fused_loss:
            labels = torch.nn.functional.pad(ids, (0, 1), value=-100)[..., 1:]
            return girih.linear_cross_entropy(
                states.flatten(0, 1), model.lm_head.weight, labels.flatten()
            )
        # The loss of the last tokens alone.
        logits = model.lm_head(states[:, -256:]).float()
        labels = ids[:, -256:]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def kernels(step: int) -> Any:
        is_one = arguments.where and step == arguments.steps - 2
        return Kernels() if is_one else contextlib.nullcontext()

    profile = functools.partial(
        torch.profiler.profile, record_shapes=True, profile_memory=True, with_stack=True
    )
    profiler: Any = profile if arguments.profiler else contextlib.nullcontext
    if arguments.warm:
        forward(arguments.warm).backward()
        if arguments.ready:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    for step in range(arguments.steps):
        # A profile of every step: that of a whole run would hardly fit the host.
        with measure.step(), profiler(), kernels(step):
            with way():
                loss = forward()
            loss.backward()
            is_skipped = arguments.skip_every and (step + 1) % arguments.skip_every == 0
            if step in (0, arguments.steps - 1):
                digests.append(digest(model))
            if not is_skipped:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if arguments.validate_every and (step + 1) % arguments.validate_every == 0:
                model.eval()
                with torch.no_grad():
                    forward()
                model.train()
        measure.loss(loss)
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print("SEEN " + json.dumps({"digests": digests, "host_peak": host}), flush=True)
    measure.print()


if __name__ == "__main__":
    main()
