"""The loss without logits is the loss."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn import functional  # noqa: E402

import girih  # noqa: E402
from girih._long import api, fused  # noqa: E402
from girih._long import loss as tiles  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def both(hidden, weight, bias, target, **kwargs):
    """Loss and gradients of PyTorch's way, and of ours."""
    results = []
    for is_ours in (False, True):
        own = [None if it is None else it.clone().requires_grad_() for it in (hidden, weight, bias)]
        if is_ours:
            value = girih.linear_cross_entropy(*own[:2], target, bias=own[2], **kwargs)
        else:
            logits = functional.linear(*own[:2], own[2])
            value = functional.cross_entropy(logits.float(), target, **kwargs)
        (value * 3.3).backward()
        results.append([value.detach(), *(None if it is None else it.grad for it in own)])
    return results


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("tile_bytes", [1, 1 << 20])
def test_loss_and_gradients(dtype, has_bias, tile_bytes, monkeypatch):
    monkeypatch.setattr(fused, "TILE_BYTES", tile_bytes)
    monkeypatch.setattr(fused, "ALIGNED", 16)
    chance = torch.Generator().manual_seed(1)
    for rows, classes, width in ((1, 1, 1), (203, 97, 24), (64, 1031, 16)):
        hidden = torch.randn(rows, width, generator=chance).to(dtype)
        weight = torch.randn(classes, width, generator=chance).to(dtype)
        bias = torch.randn(classes, generator=chance).to(dtype) if has_bias else None
        target = torch.randint(0, classes, (rows,), generator=chance)
        target[rows // 2 :: 5] = -100
        for reduction in ("mean", "sum"):
            expected, found = both(hidden, weight, bias, target, reduction=reduction)
            near = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
            if dtype == torch.float32:
                near = {"rtol": 1e-4, "atol": 1e-5}
            for one, other in zip(expected, found, strict=True):
                if one is not None:
                    assert one.dtype == other.dtype
                    torch.testing.assert_close(one, other, equal_nan=True, **near)


def test_the_weights_gradient_is_no_worse_than_one_products(monkeypatch):
    monkeypatch.setattr(fused, "TILE_BYTES", 1)
    chance = torch.Generator().manual_seed(2)
    hidden, weight = (torch.randn(it, 32, generator=chance) for it in (4096, 50))
    target = torch.randint(0, 50, (4096,), generator=chance)
    exact = both(hidden.double(), weight.double(), None, target)[0][2]
    whole, ours = both(hidden.bfloat16(), weight.bfloat16(), None, target)
    errors = [(it[2].double() - exact).norm() for it in (whole, ours)]
    assert errors[1] < 1.1 * errors[0]


def test_logits_are_never_whole(monkeypatch):
    monkeypatch.setattr(fused, "TILE_BYTES", 128 * 4 * 1000)
    most = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            given = out if isinstance(out, tuple) else (out,)
            most.extend(it.numel() for it in given if isinstance(it, torch.Tensor))
            return out

    hidden, weight = (torch.randn(it, 8, requires_grad=True) for it in (1000, 1000))
    target = torch.zeros(1000, dtype=torch.long)
    with Sizes():
        girih.linear_cross_entropy(hidden, weight, target).backward()
    assert max(most) == 128 * 1000


def test_autocast():
    hidden, weight = (torch.randn(it, 8) for it in (70, 30))
    target = torch.randint(0, 30, (70,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, found = both(hidden, weight, None, target)
    for one, other in zip(expected, found, strict=True):
        if one is not None:
            assert one.dtype == other.dtype == torch.float32
            torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("hidden", "weight", "target", "kwargs", "words"),
    [
        ((4, 3), (7, 3), (5,), {}, "as many targets"),
        ((4, 3), (7, 2), (4,), {}, r"weight of \[classes, 3\]"),
        ((4, 3), (7,), (4,), {}, r"weight of \[classes, 3\]"),
        ((4, 3), (7, 3), (4,), {"reduction": "none"}, "mean or sum"),
    ],
)
def test_what_it_does_not_do_is_refused(hidden, weight, target, kwargs, words):
    with pytest.raises(ValueError, match=words):
        girih.linear_cross_entropy(
            torch.zeros(hidden), torch.zeros(weight), torch.zeros(target).long(), **kwargs
        )


def tiny(*, is_tied=False, kind="Llama", **more):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    settings = getattr(transformers, f"{kind}Config")(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=97,
        tie_word_embeddings=is_tied,
        **more,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(settings).train()


def passes(model, **more):
    """Loss, logits if they are there, and gradients."""
    ids = torch.randint(0, 97, (2, 150), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :70] = -100
    model.zero_grad()
    given = model(input_ids=ids, labels=labels, use_cache=False, **more)
    given.loss.backward()
    return given, [given.loss.detach(), *(it.grad.clone() for it in model.parameters())]


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("items", [None, 511, torch.tensor(511)])
def test_a_model_of_hugging_face_makes_no_logits(is_tied, items, monkeypatch):
    monkeypatch.setattr(fused, "TILE_BYTES", 1)
    model = tiny(is_tied=is_tied)
    more = {} if items is None else {"num_items_in_batch": items}
    _, expected = passes(model, **more)
    made = []
    whole = fused.Logits.whole
    monkeypatch.setattr(fused.Logits, "whole", lambda self: made.append(self) or whole(self))
    girih.long_context(model, alpha=0, loss_in_tiles="fused")
    given, found = passes(model, **more)
    assert made == []
    report = girih.long_context_report(model)["loss"]
    assert report == {"in_tiles": True, "fused": True, "reason": ""}
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert tuple(given.logits.shape) == (2, 150, 97)
    assert given.logits.dtype == torch.float32
    assert made == []
    # Whoever asks for them has them.
    logits = given.logits.detach()
    assert type(logits) is torch.Tensor
    assert len(made) == 1
    api.remove(model)
    assert "forward" not in vars(model.lm_head)
    assert model.loss_function not in (fused.fused_loss, tiles.causal_lm_loss)
    given, again = passes(model, **more)
    assert torch.equal(given.logits, logits)
    assert all(torch.equal(*pair) for pair in zip(expected, again, strict=True))


def test_what_is_done_with_logits_is_done_with_them():
    model = tiny()
    ids = torch.randint(0, 97, (1, 40))
    girih.long_context(model, alpha=0, loss_in_tiles="fused")
    logits = model(input_ids=ids, labels=ids, use_cache=False).logits
    assert isinstance(logits, fused.Logits)
    late = logits.float()
    assert isinstance(late, fused.Logits)
    expected = functional.linear(logits.hidden, model.lm_head.weight)
    for one in (
        logits + 0,
        torch.add(0, logits),
        late[:, :],
        logits.clone(),
        torch.stack([late])[0],
    ):
        assert type(one) is torch.Tensor
        assert torch.equal(one, expected)
    assert repr(logits) == repr(expected)
    model.zero_grad()
    logits.pow(2).mean().backward()
    gradient = model.lm_head.weight.grad.clone()
    model.zero_grad()
    api.remove(model)
    model(input_ids=ids, use_cache=False).logits.pow(2).mean().backward()
    torch.testing.assert_close(gradient, model.lm_head.weight.grad)


def test_a_model_that_changes_its_logits_has_them():
    model = tiny(kind="Gemma2", final_logit_softcapping=30.0)
    _, expected = passes(model)
    girih.long_context(model, alpha=0, loss_in_tiles="fused")
    _, found = passes(model)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


def test_passes_without_labels_or_gradients_are_as_ever():
    model = tiny()
    ids = torch.randint(0, 97, (1, 40))
    girih.long_context(model, alpha=0, loss_in_tiles="fused")
    assert type(model(input_ids=ids).logits) is torch.Tensor
    with torch.no_grad():
        assert type(model(input_ids=ids, labels=ids).logits) is torch.Tensor
    with pytest.raises((AttributeError, TypeError)):
        model(input_ids="text", labels=ids)
    # A pass that broke off is no matter to the next.
    assert type(model(input_ids=ids).logits) is torch.Tensor


def test_a_last_layer_that_is_not_known_is_left_alone():
    model = tiny()

    class Own(torch.nn.Linear):
        pass

    model.lm_head.__class__ = Own
    girih.long_context(model, alpha=0, loss_in_tiles="fused")
    report = girih.long_context_report(model)["loss"]
    assert (report["in_tiles"], report["fused"]) == (True, False)
    assert "is a Own" in report["reason"]
    model.lm_head.__class__ = torch.nn.Linear
    model.lm_head.register_forward_hook(lambda *_: None)
    girih.long_context(model, alpha=0, loss_in_tiles="fused")
    assert "somebody's own" in girih.long_context_report(model)["loss"]["reason"]
    with pytest.raises(girih.GirihError, match="loss_in_tiles as True"):
        girih.long_context(model, alpha=0, loss_in_tiles="tiles")
