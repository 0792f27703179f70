"""Megatron-core: GPT-2 345M, Llama2-7B, Qwen2.5 of 7B to 72B and Qwen1.5-MoE-A2.7B, from random
weights, with tensor, pipeline, virtual pipeline and expert parallelism.

    P="torchrun --nproc-per-node 4 gpu/workloads/megatron_gpt.py"
    $P gpt2 --tensor 2 --pipeline 2 --batch 64 --recompute
    $P qwen-moe --tensor 2 --pipeline 2 --expert 2 --batch 4
    R="python -m girih record --world 64 --rank 0 gpu/workloads/megatron_gpt.py"
    $R qwen2.5-72b --tensor 8 --pipeline 4 --batch 1 --recompute

It needs no Transformer Engine and no Apex: layers are Megatron's local ones, attention is
PyTorch's own.
"""

import argparse
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from measure import Measure, deterministic
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer import torch_norm
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

GATED: dict[str, Any] = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": F.silu,
    "add_bias_linear": False,
}


def qwen(
    hidden: int, ffn: int, layers: int, heads: int, groups: int = 8
) -> tuple[dict[str, Any], int, int]:
    """A Qwen2.5, whose heads share keys and values in groups."""
    sizes = {"num_layers": layers, "hidden_size": hidden, "ffn_hidden_size": ffn}
    heads_of = {"num_attention_heads": heads, "num_query_groups": groups}
    return {**GATED, **sizes, **heads_of, "add_qkv_bias": True}, 152064, 4096


# Configuration, vocabulary, sequence length.
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "gpt2": ({"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}, 50304, 1024),
    "llama-7b": (
        {
            **GATED,
            "num_layers": 32,
            "hidden_size": 4096,
            "ffn_hidden_size": 11008,
            "num_attention_heads": 32,
        },
        32000,
        4096,
    ),
    "qwen2.5-7b": qwen(3584, 18944, 28, 28, groups=4),
    "qwen2.5-14b": qwen(5120, 13824, 48, 40),
    "qwen2.5-32b": qwen(5120, 27648, 64, 40),
    "qwen2.5-72b": qwen(8192, 29568, 80, 64),
    "qwen-moe": (
        {
            **GATED,
            "num_layers": 24,
            "hidden_size": 2048,
            "ffn_hidden_size": 5632,
            "num_attention_heads": 16,
            "add_qkv_bias": True,
            "num_moe_experts": 60,
            "moe_router_topk": 4,
            "moe_ffn_hidden_size": 1408,
            "moe_shared_expert_intermediate_size": 5632,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "aux_loss",
            "moe_aux_loss_coeff": 1e-3,
            "expert_tensor_parallel_size": 1,
        },
        151936,
        2048,
    ),
}


def attention(self: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> torch.Tensor:
    """Causal attention by PyTorch's kernels.

    Takes [tokens, batch, heads, width], gives [tokens, batch, heads * width].
    """
    heads = query.size(2) // key.size(2)
    if heads > 1:
        key, value = (x.repeat_interleave(heads, dim=2) for x in (key, value))
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    context = context.permute(2, 0, 1, 3)
    return context.reshape(context.size(0), context.size(1), -1)


def norm(_: Any, config: Any, hidden_size: int, eps: float = 1e-5, **__: Any) -> torch.nn.Module:
    """PyTorch's normalizations in place of Apex's."""
    kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
    module = kind(hidden_size, eps=eps)
    for parameter in module.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return module


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--expert", type=int, default=1)
    # Not `--virtual`: torchrun takes that for one of its own.
    parser.add_argument("--interleaved", action="store_true", help="a virtual pipeline")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--distributed-optimizer", action="store_true")
    parser.add_argument(
        "--offload-optimizer", action="store_true", help="its states and its work on the host"
    )
    parser.add_argument("--layers", type=int, help="so many in place of the model's own")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--micro", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--settled", type=int, default=5)
    parser.add_argument("--exact", action="store_true", help="losses equal to the bit")
    return parser.parse_args()


def transformer_config(arguments: argparse.Namespace) -> TransformerConfig:
    """The settings of the model and of its parallelism."""
    settings = dict(MODELS[arguments.model][0])
    if arguments.layers:
        settings["num_layers"] = arguments.layers
    settings.update(
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=arguments.tensor,
        pipeline_model_parallel_size=arguments.pipeline,
        expert_model_parallel_size=arguments.expert,
        virtual_pipeline_model_parallel_size=2 if arguments.interleaved else None,
        sequence_parallel=arguments.tensor > 1,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        deallocate_pipeline_outputs=True,
        batch_p2p_comm=True,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        # The embedding by an index, whose backward pass has a fixed order.
        deterministic_mode=arguments.exact,
    )
    if arguments.recompute:
        settings.update(
            recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1
        )
    return TransformerConfig(**settings)


def build(arguments: argparse.Namespace, config: TransformerConfig) -> list[Any]:
    """This rank's part of the model: one chunk, or two with virtual pipeline."""
    settings, vocabulary, length = MODELS[arguments.model]
    layers = get_gpt_layer_local_spec(
        num_experts=settings.get("num_moe_experts"),
        moe_grouped_gemm=False,
        normalization=settings.get("normalization"),
    )
    is_gpt2 = arguments.model == "gpt2"
    reduction = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=arguments.distributed_optimizer,
        overlap_grad_reduce=False,
    )
    chunks = []
    for stage in range(2) if arguments.interleaved else [None]:
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage)
        model = GPTModel(
            config,
            layers,
            vocabulary,
            length,
            pre_process=first,
            post_process=last,
            vp_stage=stage,
            share_embeddings_and_output_weights=is_gpt2,
            **({} if is_gpt2 else {"position_embedding_type": "rope"}),
        )
        chunks.append(
            DistributedDataParallel(config, reduction, Float16Module(config, model.cuda()))
        )
    return chunks


def offloaded(arguments: argparse.Namespace) -> dict[str, Any]:
    """The optimizer's settings where its states live on the host."""
    if not arguments.offload_optimizer:
        return {}
    return {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}


def main() -> None:
    """Trains, and prints what was measured."""
    arguments = parse()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    deterministic(arguments.exact)
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    DotProductAttention.forward = attention
    torch_norm.WrappedTorchNorm.__new__ = norm
    # Releases that ask whether Transformer Engine's product is there have no name where it is not.
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    experts = arguments.model == "qwen-moe"
    parallel_state.initialize_model_parallel(
        arguments.tensor,
        arguments.pipeline,
        2 if arguments.interleaved else None,
        expert_model_parallel_size=arguments.expert,
        expert_tensor_parallel_size=1 if experts else None,
    )
    # Positions are drawn on the CPU, all else by Megatron's own generators on the GPU.
    torch.manual_seed(1234)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    config = transformer_config(arguments)
    samples = arguments.batch * arguments.micro * parallel_state.get_data_parallel_world_size()
    measure = Measure(f"megatron-{arguments.model}", arguments.settled, samples)
    chunks = build(arguments, config)
    settings = OptimizerConfig(
        optimizer="adam",
        lr=1e-5,
        bf16=True,
        params_dtype=torch.bfloat16,
        clip_grad=1.0,
        use_distributed_optimizer=arguments.distributed_optimizer,
        **offloaded(arguments),
    )
    optimizer = get_megatron_optimizer(settings, chunks)
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    _, vocabulary, length = MODELS[arguments.model]
    seeded = torch.Generator(device="cuda").manual_seed(7)
    positions = torch.arange(length, device="cuda").expand(arguments.batch, -1)

    def batches() -> Iterator[torch.Tensor]:
        shape = (arguments.batch, length)
        while True:
            yield torch.randint(0, vocabulary, shape, device="cuda", generator=seeded)

    def reduce(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = output.float().mean()
        return loss, {"loss": loss.detach()}

    def forward(data: Iterator[torch.Tensor], model: Any) -> Any:
        ids = next(data)
        return model(ids, positions, None, labels=ids), reduce

    run = schedules.get_forward_backward_func()
    for _ in range(arguments.steps):
        with measure.step():
            for chunk in chunks:
                chunk.zero_grad_buffer()
            optimizer.zero_grad()
            reports = run(
                forward_step_func=forward,
                data_iterator=[batches() for _ in chunks] if arguments.interleaved else batches(),
                model=chunks if arguments.interleaved else chunks[0],
                num_microbatches=arguments.micro,
                seq_length=length,
                micro_batch_size=arguments.batch,
                forward_only=False,
            )
            optimizer.step()
        if reports:
            measure.loss(sum(report["loss"] for report in reports) / len(reports))
    # The first and the last stage differ most.
    if dist.get_rank() in (0, dist.get_world_size() - 1):
        measure.print()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
