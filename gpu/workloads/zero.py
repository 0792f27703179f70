"""DeepSpeed's ZeRO-3 over an OPT, a Llama, or a NeoX, with adapters and with the host.

    torchrun --nproc-per-node 2 gpu/workloads/zero.py opt-1.3b --recompute --batch 8
    python -m girih record --world 4 --rank 0 gpu/workloads/zero.py llama-13b --lora --recompute

Parameters are never whole but where a layer runs. No operator of DeepSpeed's own is compiled: the
optimizer is torch's, with `--offload` on the host too.
"""

import argparse
import os
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import transformers
from measure import Measure, deterministic
from transformers.integrations import HfDeepSpeedConfig

# Family, width, width of a feed-forward layer, layers, heads, vocabulary.
MODELS: dict[str, tuple[str, int, int, int, int, int]] = {
    "opt-1.3b": ("OPT", 2048, 8192, 24, 32, 50272),
    "opt-13b": ("OPT", 5120, 20480, 40, 40, 50272),
    "llama-13b": ("Llama", 5120, 13824, 40, 40, 32000),
    "neox-20b": ("GPTNeoX", 6144, 24576, 44, 64, 50432),
}
ADAPTED = {
    "OPT": ["q_proj", "v_proj"],
    "Llama": ["q_proj", "v_proj"],
    "GPTNeoX": ["query_key_value"],
}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS, nargs="?", default="opt-1.3b")
    parser.add_argument("--layers", type=int, help="so many in place of the model's own")
    parser.add_argument("--lora", action="store_true", help="only adapters are trained")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--offload", action="store_true", help="weights and optimizer on the host")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--settled", type=int, default=6)
    parser.add_argument("--exact", action="store_true", help="losses equal to the bit")
    return parser.parse_args()


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """DeepSpeed's."""
    zero: dict[str, Any] = {"stage": 3, "overlap_comm": True}
    if arguments.offload:
        host = {"device": "cpu", "pin_memory": True}
        zero |= {"offload_param": host, "offload_optimizer": host}
    return {
        "train_micro_batch_size_per_gpu": arguments.batch,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        # Its own would be compiled on the spot.
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
        "zero_force_ds_cpu_optimizer": False,
    }


def build(arguments: argparse.Namespace, zero: dict[str, Any]) -> Any:
    """The model, split as it is made."""
    family, hidden, ffn, layers, heads, vocabulary = MODELS[arguments.model]
    ffn_name = "ffn_dim" if family == "OPT" else "intermediate_size"
    config = getattr(transformers, f"{family}Config")(
        hidden_size=hidden,
        num_hidden_layers=arguments.layers or layers,
        num_attention_heads=heads,
        vocab_size=vocabulary,
        max_position_embeddings=max(2048, arguments.length),
        **{ffn_name: ffn},
    )
    if family == "OPT":
        config.word_embed_proj_dim = hidden
    config._attn_implementation = "sdpa"
    # As long as it lives transformers splits parameters as it makes them.
    splits = HfDeepSpeedConfig(zero)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if arguments.lora:
        import peft

        # Adapters are small: they are made whole, and split with the engine.
        adapters = peft.LoraConfig(r=16, target_modules=ADAPTED[family])
        model = peft.get_peft_model(model, adapters)
    del splits
    model.config.use_cache = False
    if arguments.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if arguments.lora:
            model.enable_input_require_grads()
    model.train()
    return model, vocabulary


def main() -> None:
    """Trains, and prints what was measured."""
    arguments = parse()
    deterministic(arguments.exact)
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    deepspeed.init_distributed("nccl")
    zero = settings(arguments)
    torch.manual_seed(1234)
    samples = arguments.batch * dist.get_world_size()
    measure = Measure(f"zero3-{arguments.model}", arguments.settled, samples)
    model, vocabulary = build(arguments, zero)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=zero)
    seeded = torch.Generator(device="cuda").manual_seed(7)
    shape = (arguments.batch, arguments.length)
    for _ in range(arguments.steps):
        ids = torch.randint(0, vocabulary, shape, device="cuda", generator=seeded)
        with measure.step():
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
        measure.loss(loss.detach())
    if dist.get_rank() in (0, dist.get_world_size() - 1):
        measure.print()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
