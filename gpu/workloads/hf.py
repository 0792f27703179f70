"""Training of Hugging Face models on one GPU, from random weights, with fixed seeds.

python gpu/workloads/hf.py gpt2 --recompute --batch 64
python gpu/workloads/hf.py llama-2b --recompute --vary --evaluate-every 3 --batch 16
python gpu/workloads/hf.py lora-13b --recompute
python gpu/workloads/hf.py llama-2b --batch 16 --exact
"""

import argparse
import contextlib
import dataclasses
from typing import Any

import torch
import transformers
from measure import Measure, deterministic

LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}


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
    "lora-13b": Kind(
        "Llama",
        {
            "hidden_size": 5120,
            "intermediate_size": 13824,
            "num_attention_heads": 40,
            "num_hidden_layers": 40,
            "vocab_size": 32000,
        },
        length=2048,
        batch=8,
        batch_kept=2,
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


def build(arguments: argparse.Namespace) -> torch.nn.Module:
    """The model, on the device."""
    kind = MODELS[arguments.model]
    settings = getattr(transformers, f"{kind.family}Config")(**kind.config)
    settings._attn_implementation = "sdpa"
    with torch.device("cuda"):
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
    if arguments.model.startswith("lora"):
        import peft

        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
        model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=targets))
        model.enable_input_require_grads()
    if arguments.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--vary", action="store_true", help="another length in every microbatch")
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--micro", type=int)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--settled", type=int, default=6)
    parser.add_argument("--exact", action="store_true", help="losses equal to the bit")
    return parser.parse_args()


def main() -> None:
    """Trains, and prints what was measured."""
    arguments = parse()
    kind = MODELS[arguments.model]
    length = arguments.length or kind.length
    batch = arguments.batch or (kind.batch if arguments.recompute else kind.batch_kept)
    micro = arguments.micro or kind.micro
    deterministic(arguments.exact)
    torch.manual_seed(0)
    lengths = torch.Generator().manual_seed(0)
    measure = Measure(arguments.model, arguments.settled, batch * micro)
    model = build(arguments)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)

    def forward(sequences: int, tokens: int) -> torch.Tensor:
        ids = torch.randint(0, kind.config["vocab_size"], (sequences, tokens), device="cuda")
        precision = (
            torch.autocast("cuda", torch.bfloat16) if kind.autocast else contextlib.nullcontext()
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
