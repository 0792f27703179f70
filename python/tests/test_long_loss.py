"""Cross entropy in tiles is cross entropy, to the bit."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn import functional  # noqa: E402

import girih  # noqa: E402
from girih._long import loss as tiles  # noqa: E402


def both(logits, target, **kwargs):
    """Loss and gradient of PyTorch's way and of ours."""
    results = []
    for function in (lambda it: functional.cross_entropy(it.float(), target, **kwargs), None):
        own = logits.clone().requires_grad_()
        value = function(own) if function else girih.cross_entropy(own, target, **kwargs)
        (value * 3.3).backward()
        results.append((value.detach(), own.grad))
    return results


@pytest.mark.parametrize("classes", [1, 7, 1025, 4096])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("tile_bytes", [1, 1 << 17, 1 << 30])
def test_loss_and_gradient_are_equal_to_the_bit(classes, dtype, tile_bytes, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_BYTES", tile_bytes)
    chance = torch.Generator().manual_seed(classes)
    for rows in (1, 16, 203):
        for ignore_index in (-100, 0, 3):
            logits = (torch.randn(rows, classes, generator=chance) * 4).to(dtype)
            target = torch.randint(0, classes, (rows,), generator=chance)
            target[rows // 2 :: 5] = ignore_index
            for reduction in ("mean", "sum"):
                kwargs = {"ignore_index": ignore_index, "reduction": reduction}
                if ignore_index >= classes:
                    target = torch.where(target >= classes, -100, target)
                    kwargs.pop("ignore_index")
                expected, found = both(logits, target, **kwargs)
                for one, other in zip(expected, found, strict=True):
                    assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))


def test_only_a_tile_is_there_in_32_bits(monkeypatch):
    monkeypatch.setattr(tiles, "TILE_BYTES", 16 * 4 * 1000)
    most = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for it in out if isinstance(out, tuple) else (out,):
                if isinstance(it, torch.Tensor) and it.dtype == torch.float32:
                    most.append(it.numel())
            return out

    logits = torch.randn(200, 1000).bfloat16().requires_grad_()
    with Sizes():
        girih.cross_entropy(logits, torch.zeros(200, dtype=torch.long)).backward()
    assert max(most) == 16 * 1000
    assert logits.grad.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("logits", "target", "kwargs", "words"),
    [
        ((4, 3), (5,), {}, "as many targets"),
        ((2, 4, 3), (4,), {}, "as many targets"),
        ((4, 3), (4,), {"reduction": "none"}, "mean or sum"),
    ],
)
def test_what_it_does_not_do_is_refused(logits, target, kwargs, words):
    with pytest.raises(ValueError, match=words):
        girih.cross_entropy(torch.zeros(logits), torch.zeros(target, dtype=torch.long), **kwargs)
    with pytest.raises(ValueError, match="of a floating type"):
        girih.cross_entropy(torch.zeros(2, 3).long(), torch.zeros(2, dtype=torch.long))


def test_a_target_that_is_no_class_is_an_error():
    with pytest.raises((IndexError, RuntimeError)):
        girih.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))


def tiny():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    settings = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=97,
    )
    return transformers.LlamaForCausalLM(settings).bfloat16().train()


@pytest.mark.usefixtures("one_thread")
def test_a_model_of_hugging_face_computes_its_loss_in_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "TILE_BYTES", 4 * 97 * 32)
    model = tiny()
    ids = torch.randint(0, 97, (2, 300), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :70] = -100
    results = []
    for is_ours in (False, True, False):
        if is_ours:
            girih.long_context(model, alpha=0)
            report = girih.long_context_report(model)["loss"]
            assert report == {"in_tiles": True, "fused": False, "reason": ""}
            assert model.loss_function is tiles.causal_lm_loss
        elif results:
            girih.long_context(model, alpha=0, loss_in_tiles=False)
            assert "_loss_function" not in vars(model)
        for items in (None, 511):
            model.zero_grad()
            kwargs = {} if items is None else {"num_items_in_batch": items}
            loss = model(input_ids=ids, labels=labels, use_cache=False, **kwargs).loss
            loss.backward()
            results.append([loss.detach(), *(it.grad.clone() for it in model.parameters())])
    for pair in ((0, 2), (1, 3), (0, 4), (1, 5)):
        one, other = (results[index] for index in pair)
        assert all(torch.equal(*two) for two in zip(one, other, strict=True))


def test_a_loss_that_is_not_known_is_left_alone():
    model = tiny()

    def own(logits, labels, vocab_size, **_):
        return logits.float().logsumexp(-1).mean()

    model.loss_function = own
    girih.long_context(model, alpha=0)
    assert model.loss_function is own
    assert not girih.long_context_report(model)["loss"]["in_tiles"]


def test_another_version_that_computes_something_else_is_left_alone(monkeypatch):
    model = tiny()
    from transformers.loss import loss_utils

    before = loss_utils.ForCausalLMLoss

    def later(*args, **kwargs):
        return before(*args, **kwargs) * 1.5

    monkeypatch.setattr(loss_utils, "ForCausalLMLoss", later)
    model.loss_function = later
    girih.long_context(model, alpha=0)
    assert model.loss_function is later
    assert "something else" in girih.long_context_report(model)["loss"]["reason"]
