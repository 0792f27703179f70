"""DDP over GPT-2 345M: gradients of several microbatches are added up before they are reduced.

torchrun --nproc-per-node 2 gpu/workloads/ddp.py --batch 12 --micro 4
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import transformers
from measure import Measure, deterministic
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 50257


def build(recompute: bool, local: int) -> DistributedDataParallel:
    """The model, a copy on each GPU."""
    settings = transformers.GPT2Config(n_embd=1024, n_layer=24, n_head=16, n_positions=1024)
    settings._attn_implementation = "sdpa"
    with torch.device("cuda"):
        model = transformers.GPT2LMHeadModel(settings)
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return DistributedDataParallel(model.train(), device_ids=[local], gradient_as_bucket_view=True)


def main() -> None:
    """Trains, and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--micro", type=int, default=4, help="microbatches of a step")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--settled", type=int, default=6)
    parser.add_argument("--exact", action="store_true", help="losses equal to the bit")
    arguments = parser.parse_args()
    deterministic(arguments.exact)
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    torch.manual_seed(dist.get_rank())
    samples = arguments.batch * arguments.micro * dist.get_world_size()
    measure = Measure("ddp", arguments.settled, samples)
    model = build(arguments.recompute, local)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    shape = (arguments.batch, arguments.length)
    for _ in range(arguments.steps):
        with measure.step():
            for micro in range(arguments.micro):
                ids = torch.randint(0, VOCABULARY, shape, device="cuda")
                is_last = micro == arguments.micro - 1
                with (
                    contextlib.nullcontext() if is_last else model.no_sync(),
                    torch.autocast("cuda", torch.bfloat16),
                ):
                    loss = model(input_ids=ids, labels=ids, use_cache=False).loss / arguments.micro
                    loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        measure.loss(loss)
    if dist.get_rank() == 0:
        measure.print()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
