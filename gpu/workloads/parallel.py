"""A Llama whose sequence several GPUs share, split by tokens or not.

torchrun --nproc-per-node 2 gpu/workloads/parallel.py --kind ulysses --alpha 0
torchrun --nproc-per-node 4 gpu/workloads/parallel.py --kind ring --length 262144
torchrun --nproc-per-node 2 gpu/workloads/parallel.py --device cpu --tiny --alpha 0   # to try it

`--length` is of the whole sequence, of which each GPU has as many tokens in a row; of the last two
kinds, which are PyTorch's `context_parallel`, as many of its first as of its last half.

    ulysses         heads are exchanged for tokens
    ring            keys and values go round
    context         PyTorch's: keys and values of all come to each
    context-ring    PyTorch's: they go round

The decoder layers are Hugging Face's: attention is a function that is registered with them. Without
`--alpha` nothing is split; with `--recompute` layers are Hugging Face's checkpoints. Printed are
losses, times and peaks of the first GPU, and a digest of its gradients.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import transformers
from measure import Measure, deterministic

KINDS = ("ulysses", "ring", "context", "context-ring")
TINY = {"hidden": 128, "ffn": 352, "heads": 4}


def attend_block(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a block of keys gives, and its log-sum-exp."""
    aten = torch.ops.aten
    on_gpu = q.is_cuda
    flash = aten._scaled_dot_product_flash_attention
    out, lse, *_ = (flash if on_gpu else aten._scaled_dot_product_flash_attention_for_cpu)(
        q, k, v, is_causal=is_causal
    )
    return out, lse


def attend_back(
    gradient: torch.Tensor, given: tuple[torch.Tensor, ...], is_causal: bool
) -> tuple[torch.Tensor, ...]:
    """Gradients of `given`'s queries, keys and values; then come output and log-sum-exp of all."""
    aten, length = torch.ops.aten, given[0].shape[2]
    if not gradient.is_cuda:
        back = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return back(gradient, *given, 0.0, is_causal)
    seed = torch.zeros((), dtype=torch.uint64, device=gradient.device)
    own = (None, None, length, length, 0.0, is_causal, seed, seed)
    return aten._scaled_dot_product_flash_attention_backward(gradient, *given, *own)


class Exchange(torch.autograd.Function):  # type: ignore[misc]
    """Parts of the first dimension go to one rank each."""

    @staticmethod
    def forward(_ctx: Any, sent: torch.Tensor) -> torch.Tensor:
        """One exchange."""
        came = torch.empty_like(sent)
        dist.all_to_all_single(came, sent.contiguous())
        return came

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """The same again."""
        return Exchange.forward(None, gradient.contiguous())


def to_heads(x: torch.Tensor) -> torch.Tensor:
    """From all heads of the tokens here to all tokens of some heads."""
    ranks, (batch, heads, tokens, width) = dist.get_world_size(), x.shape
    x = x.reshape(batch, ranks, heads // ranks, tokens, width).transpose(0, 1).contiguous()
    x = Exchange.apply(x).permute(1, 2, 0, 3, 4)
    return x.reshape(batch, heads // ranks, ranks * tokens, width)


def to_tokens(x: torch.Tensor) -> torch.Tensor:
    """The way back."""
    ranks, (batch, heads, tokens, width) = dist.get_world_size(), x.shape
    x = x.reshape(batch, heads, ranks, tokens // ranks, width).permute(2, 0, 1, 3, 4)
    x = Exchange.apply(x.contiguous()).transpose(0, 1)
    return x.reshape(batch, ranks * heads, tokens // ranks, width)


def onward(x: torch.Tensor) -> torch.Tensor:
    """To the next rank; gives what the one before had."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    came = torch.empty_like(x)
    going = dist.P2POp(dist.isend, x.contiguous(), (rank + 1) % ranks)
    coming = dist.P2POp(dist.irecv, came, (rank - 1) % ranks)
    for work in dist.batch_isend_irecv([going, coming]):
        work.wait()
    return came


class Ring(torch.autograd.Function):  # type: ignore[misc]
    """Keys and values go round; what each gives is put together by its log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal: of what others have, only what comes before."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        pair, made, total = torch.stack((k, v)), None, None
        for step in range(ranks):
            source = (rank - step) % ranks
            if source <= rank:
                out, lse = attend_block(q, pair[0], pair[1], is_causal=source == rank)
                if made is None or total is None:
                    made, total = out.float(), lse
                else:
                    both = torch.logaddexp(total, lse)
                    made = made * (total - both).exp()[..., None]
                    made, total = made + out * (lse - both).exp()[..., None], both
            if step < ranks - 1:
                pair = onward(pair)
        assert made is not None
        y = made.to(q.dtype)
        ctx.save_for_backward(q, k, v, y, total)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Sums of gradients of keys and values go round with them."""
        q, k, v, y, total = ctx.saved_tensors
        rank, ranks = dist.get_rank(), dist.get_world_size()
        pair = torch.stack((k, v))
        sums, dq = torch.zeros_like(pair, dtype=torch.float32), torch.zeros_like(q).float()
        for step in range(ranks):
            source = (rank - step) % ranks
            if source <= rank:
                given = (q, pair[0], pair[1], y, total)
                parts = attend_back(gradient, given, is_causal=source == rank)
                dq, sums = dq + parts[0], sums + torch.stack(parts[1:3])
            pair, sums = onward(pair), onward(sums)
        return dq.to(q.dtype), sums[0].to(k.dtype), sums[1].to(v.dtype)


def attention(kind: str) -> Any:
    """As Hugging Face's layers call it."""

    def attend(
        _module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, None]:
        # The function is another within `context_parallel`.
        function = torch.nn.functional.scaled_dot_product_attention
        if kind == "ring":
            y = Ring.apply(q, k, v)
        elif kind == "ulysses":
            q, k, v = to_heads(q), to_heads(k), to_heads(v)
            y = to_tokens(function(q, k, v, is_causal=True))
        else:
            y = function(q, k, v, is_causal=True)
        return y.transpose(1, 2).contiguous(), None

    return attend


def build(arguments: argparse.Namespace) -> Any:
    """The model, the same on every rank."""
    settings = transformers.LlamaConfig(
        hidden_size=arguments.hidden,
        intermediate_size=arguments.ffn,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        vocab_size=32000,
        max_position_embeddings=arguments.length,
    )
    transformers.AttentionInterface.register(arguments.kind, attention(arguments.kind))
    settings._attn_implementation = arguments.kind
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = transformers.LlamaForCausalLM(settings).to(torch.bfloat16).train()
    if arguments.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


class Shared:
    """Sequences of which every rank has its part."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.kind, self.device, self.length = arguments.kind, arguments.device, arguments.length
        self.is_pytorchs = self.kind.startswith("context")
        self.chance = torch.Generator(self.device).manual_seed(0)
        if self.is_pytorchs:
            self.context: Any = importlib.import_module("context")
            self.context.choose("alltoall" if self.kind == "context-ring" else "allgather")
            if self.device == "cpu":
                self.context.name_kernel_of_cpus()

    @contextlib.contextmanager
    def next(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The tokens of this rank, and where they stand. Around both passes of a step."""
        ids = torch.randint(0, 32000, (1, self.length), device=self.device, generator=self.chance)
        positions = torch.arange(self.length, device=self.device)[None]
        if not self.is_pytorchs:
            rank, tokens = dist.get_rank(), self.length // dist.get_world_size()
            yield tuple(it[:, rank * tokens : (rank + 1) * tokens] for it in (ids, positions))
            return
        kernel = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION)
        with kernel, self.context.shared([ids, positions], self.device):
            yield ids, positions


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kind", choices=KINDS, default="ulysses")
    parser.add_argument(
        "--alpha", help="a part of the tokens, or products; unset: nothing is split"
    )
    parser.add_argument(
        "--recompute", action="store_true", help="Hugging Face's checkpointing of every layer"
    )
    sizes = {"layers": 4, "hidden": 4096, "ffn": 11008, "heads": 32, "length": 131072}
    for name, value in {**sizes, "steps": 8, "settled": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--exact", action="store_true", help="deterministic kernels")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of no size, to try it")
    arguments = parser.parse_args()
    for name, value in TINY.items() if arguments.tiny else ():
        setattr(arguments, name, value)
    return arguments


def main() -> int:
    """Trains, and prints what was measured. 2 if there are not two ranks with a GPU each."""
    arguments = parse()
    ranks, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = arguments.device == "cuda"
    if ranks < 2 or (on_gpu and torch.cuda.device_count() < ranks):
        sys.stderr.write(
            "start it by torchrun --nproc-per-node N on a machine with N GPUs, at least 2: here "
            f"are {ranks} processes and {torch.cuda.device_count()} GPUs\n"
        )
        return 2
    if arguments.length % (2 * ranks) or arguments.heads % ranks:
        sys.stderr.write(
            f"give a --length that is a multiple of {2 * ranks}, and --heads of {ranks}: here are "
            f"{arguments.length} tokens and {arguments.heads} heads\n"
        )
        return 2
    deterministic(arguments.exact)
    if on_gpu:
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    else:
        dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build(arguments)
    if arguments.alpha is not None:
        alpha = arguments.alpha if arguments.alpha == "products" else float(arguments.alpha)
        importlib.import_module("girih").long_context(model, alpha=alpha)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    device = arguments.device
    measure = Measure(arguments.kind, arguments.settled, arguments.length, device)
    sequences, sums = Shared(arguments), []
    for step in range(arguments.steps):
        with measure.step(), sequences.next() as (ids, positions):
            states = model.model(input_ids=ids, position_ids=positions, use_cache=False)
            logits = model.lm_head(states.last_hidden_state[:, -256:]).float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[0, -256:])
            loss.backward()
            if step == 0:
                sums = [float(it.grad.double().sum()) for it in model.parameters()]
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        measure.loss(loss)
    if rank == 0:
        sys.stdout.write("SEEN " + json.dumps({"sums": sums}) + "\n")
        measure.print()
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
