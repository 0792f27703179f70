"""FSDP2 over a Llama of 16 layers, or another: several streams, and frees that wait for them.

torchrun --nproc-per-node 2 gpu/workloads/fsdp.py --recompute --batch 12
python -m girih record --world 64 --rank 0 gpu/workloads/fsdp.py qwen2.5-72b --meta --recompute

With `--meta` nothing is whole anywhere: each rank fills its own shards. Without, every rank makes
the whole model first, and that is its peak where the model is large. With `--offload` shards,
gradients and the optimizer are the host's (`CPUOffloadPolicy`), and so is the optimizer's step.
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
import transformers
from measure import Measure, deterministic
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard


def llama(hidden: int, ffn: int, layers: int, heads: int) -> tuple[str, dict[str, int]]:
    """A Llama of the second generation."""
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers}
    return "Llama", {**sizes, "num_attention_heads": heads, "vocab_size": 32000}


def qwen(
    hidden: int, ffn: int, layers: int, heads: int, groups: int = 8
) -> tuple[str, dict[str, int]]:
    """A Qwen2.5, whose heads share keys and values in groups."""
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": groups}
    return "Qwen2", {**sizes, **heads_of, "vocab_size": 152064}


# Family and configuration.
MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "llama": llama(4096, 11008, 16, 32),
    "llama-7b": llama(4096, 11008, 32, 32),
    "llama-13b": llama(5120, 13824, 40, 40),
    "qwen2.5-7b": qwen(3584, 18944, 28, 28, groups=4),
    "qwen2.5-14b": qwen(5120, 13824, 48, 40),
    "qwen2.5-32b": qwen(5120, 27648, 64, 40),
    "qwen2.5-72b": qwen(8192, 29568, 80, 64),
}
ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj"]


def config_of(arguments: argparse.Namespace) -> Any:
    """The model's, as the command line changes it."""
    family, sizes = MODELS[arguments.model]
    settings = getattr(transformers, f"{family}Config")(**sizes)
    if arguments.layers:
        settings.num_hidden_layers = arguments.layers
    settings._attn_implementation = "sdpa"
    return settings


def fill(model: Any, settings: Any, device: str) -> None:
    """Gives a model without memory its own, shard by shard, and weights drawn anew."""
    model.to_empty(device=device)
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", "layernorm.weight")):
            torch.nn.init.ones_(parameter)
        else:
            torch.nn.init.normal_(parameter, std=settings.initializer_range)
    # Frequencies of positions are no weights, and were never made.
    inner = next(m for m in model.modules() if hasattr(m, "rotary_emb"))
    with torch.device("cuda"):
        inner.rotary_emb = type(inner.rotary_emb)(settings)


def build(arguments: argparse.Namespace) -> torch.nn.Module:
    """The model, sharded layer by layer."""
    settings = config_of(arguments)
    family = MODELS[arguments.model][0]
    with torch.device("meta" if arguments.meta else "cuda"):
        model = getattr(transformers, f"{family}ForCausalLM")(settings)
    model = model.to(torch.bfloat16)
    layers = model.model.layers
    if arguments.lora:
        import peft

        with torch.device("meta" if arguments.meta else "cuda"):
            model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=ADAPTED))
        # A group that is sharded together is of one type.
        model = model.to(torch.bfloat16)
        model.enable_input_require_grads()
    if arguments.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy: dict[str, Any] = {"mp_policy": precision}
    if arguments.offload:
        policy["offload_policy"] = CPUOffloadPolicy()
    for layer in layers:
        fully_shard(layer, **policy)
    fully_shard(model, **policy)
    if arguments.meta:
        fill(model, settings, "cpu" if arguments.offload else "cuda")
    return model


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS, nargs="?", default="llama")
    parser.add_argument("--layers", type=int, help="so many in place of the model's own")
    parser.add_argument("--lora", action="store_true", help="only adapters are trained")
    parser.add_argument("--meta", action="store_true", help="each rank makes its shards alone")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--offload", action="store_true", help="shards are the host's; with --meta")
    parser.add_argument("--cap", type=float, default=0, help="GiB that each rank may use")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--settled", type=int, default=6)
    parser.add_argument("--exact", action="store_true", help="losses equal to the bit")
    return parser.parse_args()


def main() -> None:
    """Trains, and prints what was measured."""
    arguments = parse()
    deterministic(arguments.exact)
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    # Gradients on the host are summed there.
    backend = "cpu:gloo,cuda:nccl" if arguments.offload else "nccl"
    dist.init_process_group(backend, device_id=torch.device("cuda", local))
    if arguments.cap:
        total = torch.cuda.get_device_properties(local).total_memory
        torch.cuda.set_per_process_memory_fraction(arguments.cap * (1 << 30) / total)
    torch.manual_seed(dist.get_rank())
    measure = Measure("fsdp2", arguments.settled, arguments.batch * dist.get_world_size())
    model = build(arguments)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    vocabulary = MODELS[arguments.model][1]["vocab_size"]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    for _ in range(arguments.steps):
        with measure.step():
            shape = (arguments.batch, arguments.length)
            ids = torch.randint(0, vocabulary, shape, device="cuda")
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        measure.loss(loss)
    if dist.get_rank() == 0:
        measure.print()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
