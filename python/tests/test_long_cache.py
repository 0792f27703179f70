"""Models of Hugging Face that keep keys and values though nobody asked for them."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import girih  # noqa: E402
from girih import GirihError  # noqa: E402
from girih._long import api, found  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 99}
SMALL |= {"num_attention_heads": 4}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, num_key_value_heads=2))


def gpt2():
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99)
    return transformers.GPT2LMHeadModel(config)


def t5():
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=99
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def made(make):
    torch.manual_seed(1)
    return make().train()


def ids(batch=2, tokens=301):
    return torch.randint(1, 99, (batch, tokens), generator=torch.Generator().manual_seed(3))


def gradients(model, seed=0, **kwargs):
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    out = model(input_ids=ids(), labels=ids(), **kwargs)
    out.loss.backward()
    return [out.loss.detach(), *(it.grad for it in model.parameters())]


def assert_same(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def splits(model):
    return [layer["split"] for layer in girih.long_context_report(model)["layers"]]


@pytest.mark.parametrize("make", [llama, gpt2, t5])
@pytest.mark.parametrize("alpha", [0, 0.25, "products"])
def test_a_model_as_it_comes_is_split_and_learns_the_same(make, alpha):
    model = made(make)
    expected = [gradients(model, seed) for seed in range(2)]
    girih.long_context(model, alpha=alpha)
    for seed in range(2):
        assert_same(gradients(model, seed), expected[seed])
    assert all(count > 0 for count in splits(model)[-2:])
    reasons = [it["reason"] for it in girih.long_context_report(model)["layers"]]
    assert not any("Cache" in reason for reason in reasons)


def test_who_reads_the_cache_that_was_not_kept_is_told():
    model = made(llama)
    plain = model(input_ids=ids(), labels=ids())
    girih.long_context(model, alpha=0)
    out = model(input_ids=ids(), labels=ids())
    assert list(out) == list(plain), "what comes after the cache has its place"
    name = next(it for it in ("past_key_values", "cache") if it in plain)
    with pytest.raises(GirihError, match="use_cache=True"):
        model(input_ids=ids(tokens=1), **{name: out[name]})
    for read in (len, list, lambda it: it[0], lambda it: it.get_seq_length()):
        with pytest.raises(GirihError, match="use_cache=True"):
            read(out[name])


def test_a_cache_that_is_asked_for_is_kept_and_the_next_pass_is_split():
    model = made(llama)
    expected, without = gradients(model, use_cache=True), gradients(model)
    girih.long_context(model, alpha=0)
    assert_same(gradients(model, use_cache=True), expected)
    assert splits(model) == [0, 0]
    out = model(input_ids=ids(), use_cache=True)
    name = next(it for it in ("past_key_values", "cache") if it in out)
    assert out[name].get_seq_length() == 301
    # Given to the next pass.
    further = model(input_ids=ids(), **{name: out[name]})
    assert further[name].get_seq_length() == 602
    assert splits(model) == [0, 0]
    assert_same(gradients(model), without)
    assert splits(model) == [1, 1]


def test_what_does_not_learn_keeps_its_cache():
    model = made(llama)
    girih.long_context(model, alpha=0)
    with torch.no_grad():
        out = model(input_ids=ids())
    name = next(it for it in ("past_key_values", "cache") if it in out)
    assert out[name].get_seq_length() == 301
    words = model.eval().generate(ids(tokens=8), max_new_tokens=5, do_sample=False)
    assert words.shape[1] <= 13
    assert model(input_ids=ids())[name].get_seq_length() == 301
    out = model.train()(input_ids=ids(), labels=ids(), return_dict=False)
    assert out[0].requires_grad
    api.remove(model)
    assert model(input_ids=ids())[name].get_seq_length() == 301


def test_a_pass_that_breaks_off_leaves_the_next_as_it_was():
    model = made(llama)
    expected = gradients(model)
    girih.long_context(model, alpha=0)
    with pytest.raises(IndexError):
        model(input_ids=ids() + 99, labels=ids())
    assert_same(gradients(model), expected)
    name = next(it for it in ("past_key_values", "cache") if it in model(input_ids=ids()))
    with torch.no_grad():
        assert model(input_ids=ids())[name].get_seq_length() == 301


def test_a_program_that_says_nothing_is_split_from_its_first_pass(monkeypatch):
    model = made(llama)
    expected = gradients(model)
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    before = dict(hooks)
    found.install(0, None)
    try:
        assert_same(gradients(model), expected)
        assert splits(model) == [1, 1]
    finally:
        hooks.clear()
        hooks.update(before)
