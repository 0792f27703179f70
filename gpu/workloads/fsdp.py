"""FSDP2 over a Llama of 16 layers: several streams, and frees that wait for them.

torchrun --nproc-per-node 2 gpu/workloads/fsdp.py --recompute --batch 12
"""

import argparse
import os

import torch
import torch.distributed as dist
import transformers
from measure import Measure, deterministic
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(recompute: bool) -> torch.nn.Module:
    """The model, sharded layer by layer."""
    settings = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=16,
        num_attention_heads=32,
        vocab_size=32000,
    )
    settings._attn_implementation = "sdpa"
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(settings)
    model = model.to(torch.bfloat16)
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=precision)
    fully_shard(model, mp_policy=precision)
    return model


def main() -> None:
    """Trains, and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--settled", type=int, default=6)
    parser.add_argument("--exact", action="store_true", help="losses equal to the bit")
    arguments = parser.parse_args()
    deterministic(arguments.exact)
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    torch.manual_seed(dist.get_rank())
    measure = Measure("fsdp2", arguments.settled, arguments.batch * dist.get_world_size())
    model = build(arguments.recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(arguments.steps):
        with measure.step():
            shape = (arguments.batch, arguments.length)
            ids = torch.randint(0, 32000, shape, device="cuda")
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
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
