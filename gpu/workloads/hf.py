"""Training of Hugging Face models on one GPU, from random weights, with fixed seeds.

python gpu/workloads/hf.py gpt2 --recompute --batch 64
python gpu/workloads/hf.py llama-2b --recompute --vary --evaluate-every 3 --batch 16
python gpu/workloads/hf.py lora-13b --recompute
python gpu/workloads/hf.py llama-2b --batch 16 --exact
python gpu/workloads/hf.py opt-13b --lora --recompute --offload
python gpu/workloads/hf.py opt-1.3b --device cpu --tiny --steps 2

With `--lora` adapters alone are trained; `lora-13b` is `llama-13b` with them. With `--offload` the
weights of the layers live on the host, and so do their gradients and the optimizer's states.
"""

import argparse
import contextlib
import dataclasses
from typing import Any

import torch
import transformers
from measure import Measure, deterministic
from offload import to_host

LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}
LLAMA_13B = {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "vocab_size": 32000,
}
OPT_ADAPTED = ("q_proj", "k_proj", "v_proj", "out_proj")
# What `--tiny` makes of a configuration, for a try on the CPU.
TINY = {
    **dict.fromkeys(("n_embd", "hidden_size", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("ffn_dim", "intermediate_size", "shared_expert_intermediate_size"), 128),
    **dict.fromkeys(("n_head", "num_attention_heads", "num_key_value_heads", "num_experts"), 4),
    **dict.fromkeys(("n_layer", "num_hidden_layers", "num_experts_per_tok"), 2),
    **dict.fromkeys(("n_positions", "max_position_embeddings", "vocab_size"), 512),
    "moe_intermediate_size": 64,
}
TINY_LENGTH = 256
"""Tokens: of a quarter to all of them are drawn where lengths vary."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A model, and what it is trained on unless the command line says otherwise."""

    family: str
    config: dict[str, int]
    length: int
    batch: int
    """That fits a card of 140 GiB with room to spare when activations are recomputed."""
    batch_kept: int
    """The same when they are kept."""
    micro: int = 1
    autocast: bool = False
    adapted: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """The linear layers that get adapters."""


MODELS = {
    "gpt2": Kind(
        "GPT2",
        {"n_embd": 1024, "n_layer": 24, "n_head": 16, "n_positions": 1024, "vocab_size": 50257},
        length=1024,
        batch=24,
        batch_kept=24,
        autocast=True,
    ),
    "llama-2b": Kind(
        "Llama",
        {**LLAMA, "num_hidden_layers": 8, "vocab_size": 32000},
        length=2048,
        batch=4,
        batch_kept=4,
        micro=4,
    ),
    "llama-7b": Kind(
        "Llama",
        {**LLAMA, "num_hidden_layers": 32, "vocab_size": 32000},
        length=2048,
        batch=2,
        batch_kept=2,
    ),
    "lora-13b": Kind("Llama", LLAMA_13B, length=2048, batch=8, batch_kept=2),
    "llama-13b": Kind("Llama", LLAMA_13B, length=2048, batch=1, batch_kept=1),
    "opt-1.3b": Kind(
        "OPT",
        {
            "hidden_size": 2048,
            "word_embed_proj_dim": 2048,
            "ffn_dim": 8192,
            "num_attention_heads": 32,
            "num_hidden_layers": 24,
            "max_position_embeddings": 2048,
            "vocab_size": 50272,
        },
        length=1024,
        batch=16,
        batch_kept=8,
        adapted=OPT_ADAPTED,
    ),
    "opt-13b": Kind(
        "OPT",
        {
            "hidden_size": 5120,
            "word_embed_proj_dim": 5120,
            "ffn_dim": 20480,
            "num_attention_heads": 40,
            "num_hidden_layers": 40,
            "max_position_embeddings": 2048,
            "vocab_size": 50272,
        },
        length=1024,
        batch=8,
        batch_kept=4,
        adapted=OPT_ADAPTED,
    ),
    "neox-20b": Kind(
        "GPTNeoX",
        {
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_attention_heads": 64,
            "num_hidden_layers": 44,
            "max_position_embeddings": 2048,
            "vocab_size": 50432,
        },
        length=1024,
        batch=8,
        batch_kept=2,
        adapted=("query_key_value", "dense"),
    ),
    "qwen-moe": Kind(
        "Qwen2Moe",
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_hidden_layers": 10,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "vocab_size": 151936,
        },
        length=1024,
        batch=4,
        batch_kept=4,
        micro=2,
    ),
}


def config_of(arguments: argparse.Namespace) -> dict[str, int]:
    """The model's, as the command line changes it."""
    config = dict(MODELS[arguments.model].config)
    if arguments.tiny:
        config |= {name: value for name, value in TINY.items() if name in config}
    if arguments.layers:
        config["n_layer" if "n_layer" in config else "num_hidden_layers"] = arguments.layers
    return config


def build(arguments: argparse.Namespace) -> torch.nn.Module:
    """The model, on the device."""
    kind = MODELS[arguments.model]
    settings = getattr(transformers, f"{kind.family}Config")(**config_of(arguments))
    settings._attn_implementation = "sdpa"
    # What is to be on the host is made there: it need not fit the card, and would be its peak.
    with torch.device("cpu" if arguments.offload else arguments.device):
        model: Any = getattr(
            transformers,
            next(
                n
                for n in (f"{kind.family}LMHeadModel", f"{kind.family}ForCausalLM")
                if hasattr(transformers, n)
            ),
        )(settings)
    if not kind.autocast:
        model = model.to(torch.bfloat16)
    layers = layers_of(model)
    if arguments.lora or arguments.model.startswith("lora"):
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=list(kind.adapted)))
        model.enable_input_require_grads()
    if arguments.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if arguments.offload:
        device = torch.device(arguments.device)
        for layer in layers:
            to_host(layer, device)
        keep = {id(parameter) for layer in layers for parameter in layer.parameters()}
        for tensor in (*model.parameters(), *model.buffers()):
            # Tied weights stay one, and what is frozen stays frozen.
            if id(tensor) not in keep:
                tensor.data = tensor.data.to(device)
    return model.train()


def layers_of(model: Any) -> list[torch.nn.Module]:
    """Its transformer layers: the longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return list(max(lists, key=len))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--lora", action="store_true", help="only adapters are trained")
    parser.add_argument("--offload", action="store_true", help="the layers' weights on the host")
    parser.add_argument("--layers", type=int, help="so many in place of the model's own")
    parser.add_argument("--vary", action="store_true", help="another length in every microbatch")
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--micro", type=int)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--settled", type=int, default=6)
    parser.add_argument("--each", action="store_true", help="what Girih did in each step, too")
    parser.add_argument("--exact", action="store_true", help="losses equal to the bit")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, for a try on the CPU")
    return parser.parse_args()


def main() -> None:
    """Trains, and prints what was measured."""
    arguments = parse()
    kind = MODELS[arguments.model]
    device, vocabulary = arguments.device, config_of(arguments)["vocab_size"]
    length = arguments.length or (TINY_LENGTH if arguments.tiny else kind.length)
    batch = arguments.batch or (kind.batch if arguments.recompute else kind.batch_kept)
    micro = arguments.micro or kind.micro
    deterministic(arguments.exact)
    torch.manual_seed(0)
    lengths = torch.Generator().manual_seed(0)
    measure = Measure(arguments.model, arguments.settled, batch * micro, device, arguments.each)
    model = build(arguments)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)

    def forward(sequences: int, tokens: int) -> torch.Tensor:
        ids = torch.randint(0, vocabulary, (sequences, tokens), device=device)
        precision = (
            torch.autocast(device, torch.bfloat16) if kind.autocast else contextlib.nullcontext()
        )
        with precision:
            loss: torch.Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
        return loss

    for step in range(arguments.steps):
        with measure.step():
            for _ in range(micro):
                tokens = length
                if arguments.vary:
                    drawn = torch.randint(length // 256, length // 64 + 1, (), generator=lengths)
                    tokens = 64 * int(drawn)
                loss = forward(batch, tokens)
                (loss / micro).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if arguments.evaluate_every and (step + 1) % arguments.evaluate_every == 0:
                model.eval()
                with torch.no_grad():
                    forward(2 * batch, length)
                model.train()
        measure.loss(loss)
    measure.print()


if __name__ == "__main__":
    main()
