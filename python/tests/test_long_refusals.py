"""What cannot be split is left alone or refused, with the reason, and never wrong."""

import ctypes
import itertools

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from long_layers import (  # noqa: E402
    WIDTH,
    Attention,
    Chunked,
    Gated,
    Model,
    assert_same,
    check,
    gradients,
    ids,
)
from torch import nn  # noqa: E402

import girih  # noqa: E402
from girih._long import api  # noqa: E402
from girih._long.call import Call  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_change_in_place_of_what_was_kept_is_an_error():
    model = Model()
    girih.long_context(model, alpha=0)
    x = model.embedding(ids()) * 2
    y = model.layers[0](x, torch.ones(1, 301, 1))
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


class Careless(nn.Module):
    """Changes in place what was saved."""

    def __init__(self):
        super().__init__()
        self.linear, self.is_careless = nn.Linear(WIDTH, WIDTH), True

    def forward(self, x):
        y = self.linear(x)
        z = torch.sin(y)
        if self.is_careless:
            y.add_(1)
        return y + z * torch.tanh(z)


def test_a_change_in_place_within_the_layer_is_an_error_as_ever():
    model = Model(make=Careless)
    girih.long_context(model, alpha=0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(model, ids())


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.fails = nn.Linear(WIDTH, WIDTH), False

    def forward(self, x):
        y = torch.sin(self.linear(x))
        if self.fails:
            raise ZeroDivisionError("on purpose")
        return x + y * y


def test_an_exception_leaves_everything_ready():
    model = Model(make=Failing)
    expected = gradients(model, ids())
    girih.long_context(model, alpha=0)
    for fails in (False, True, False):
        model.layers[1].fails = fails
        if fails:
            with pytest.raises(ZeroDivisionError, match="on purpose"):
                gradients(model, ids())
        else:
            assert_same(expected, gradients(model, ids()))
    # No mode is left on the stack.
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


class Changing(nn.Module):
    """Does something else the second time, and no attribute says so."""

    is_deep = True

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = torch.sin(self.linear(x))
        return x + (torch.tanh(y * y) if self.is_deep else y)


def test_a_layer_that_does_something_else_is_an_error_and_not_wrong(monkeypatch):
    model = Model(make=Changing)
    girih.long_context(model, alpha=0)
    loss = model(ids(tokens=600)).pow(2).mean()
    monkeypatch.setattr(Changing, "is_deep", False)
    with pytest.raises(RuntimeError, match="not saved again"):
        loss.backward()


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cache):
        cache.seen += 1
        return torch.sin(self.linear(x))


class KeyCache:
    seen = 0


def test_a_layer_that_is_given_what_it_may_change_is_left_alone(caplog):
    layers, cache = nn.ModuleList([Cached(), Cached()]), KeyCache()
    model = nn.ModuleDict({"layers": layers})
    girih.long_context(model, alpha=0)
    x = torch.randn(1, 300, WIDTH, requires_grad=True)
    layers[1](layers[0](x, cache), cache).sum().backward()
    assert cache.seen == 2
    assert "given a KeyCache, which could see it run twice: use_cache=False" in caplog.text
    assert girih.long_context_report(model)["layers"][0]["split"] == 0


class Communicating(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        from torch.distributed import _functional_collectives as collectives

        total = collectives.all_reduce(x.detach().sum(), "sum", [0])
        return torch.sin(self.linear(x)) + total * 0


@pytest.fixture
def alone(tmp_path):
    """A job of one process."""
    if not torch.distributed.is_available():
        pytest.skip("torch is built without distributed")
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/s", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_layer_that_communicates_what_it_was_given_is_split():
    report = check(Model(make=Communicating), ids(), alphas=(0,))
    assert all(layer["kept_whole"] == [] and layer["split"] == 3 for layer in report)


class Summed(nn.Module):
    """As the second of two linear maps whose inner dimension several ranks share."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x)
        torch.distributed.all_reduce(y.detach())
        return y


class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), Summed()

    def forward(self, x):
        return x + torch.tanh(self.down(torch.sin(self.up(self.norm(x)))))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("alpha", [0, "products", 0.5])
def test_what_is_communicated_in_place_is_communicated_once(alpha):
    from long_parallel import Count

    model = Model(make=Parallel)
    expected = gradients(model, ids())
    girih.long_context(model, alpha=alpha)
    for _ in range(3):
        with Count() as count:
            assert_same(expected, gradients(model, ids()))
        assert count.names == 3 * ["allreduce_"]
    report = girih.long_context_report(model)["layers"]
    assert all(layer["kept_whole"] == [] and layer["split"] == 3 for layer in report)


class Shared(nn.Module):
    """What comes, comes into memory that all layers use one after the other."""

    buffer = torch.empty(0)

    def __init__(self):
        super().__init__()
        self.linear, self.mlp = nn.Linear(WIDTH, WIDTH), Gated()

    def forward(self, x):
        if Shared.buffer.shape != x.shape:
            Shared.buffer = torch.empty_like(x)
        torch.distributed.all_gather_into_tensor(Shared.buffer, x.detach() * 2)
        return x + self.mlp(torch.sin(self.linear(x) + Shared.buffer))


class Reused(nn.Module):
    """What came is written over when it was used."""

    def __init__(self):
        super().__init__()
        self.linear, self.mlp = nn.Linear(WIDTH, WIDTH), Gated()

    def forward(self, x):
        came = torch.empty_like(x)
        torch.distributed.all_to_all_single(came, x.detach())
        y = torch.tanh(self.linear(x) + came)
        came.mul_(3)
        y = torch.sin(y + came)
        torch.distributed.all_reduce(came)
        return x + self.mlp(torch.sigmoid(y + came))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("make", [Shared, Reused])
def test_what_came_is_kept_as_it_came(make):
    report = check(Model(make=make), ids(), alphas=(0, "products", 0.5), passes=3)
    assert all(layer["split"] == 3 and layer["kept_whole"] == [] for layer in report)


class IntoShared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if Shared.buffer.shape != x.shape:
            Shared.buffer = torch.empty_like(x)
        torch.distributed.all_gather_into_tensor(Shared.buffer, x)
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * gradient + 0 * x


class Behind(nn.Module):
    """A function communicates into memory that others read."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = IntoShared.apply(torch.sin(self.linear(x)))
        return x + torch.tanh(y + Shared.buffer)


@pytest.mark.usefixtures("alone")
def test_a_function_that_writes_elsewhere_is_not_answered():
    Shared.buffer = torch.empty(1, 301, WIDTH)
    report = check(Model(make=Behind), ids(), alphas=(0,), passes=3, splits=False)
    assert all("communicates" in layer["reason"] for layer in report), report


class Gathering(nn.Module):
    """Weights come before a module runs, as sharding by hooks has them."""

    def __init__(self):
        super().__init__()
        self.linear, self.inner = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner.register_forward_pre_hook(self.gather)

    @staticmethod
    def gather(module, _inputs):
        whole = torch.empty_like(module.weight)
        torch.distributed.all_gather_into_tensor(whole, module.weight.detach())

    def forward(self, x):
        return x + torch.sin(self.inner(torch.tanh(self.linear(x))))


@pytest.mark.usefixtures("alone")
def test_a_layer_that_gathers_weights_is_left_alone():
    report = check(Model(make=Gathering), ids(), alphas=(0,), splits=False)
    assert all("communicates what is not of its input" in layer["reason"] for layer in report)


def test_tensors_of_other_classes(tmp_path):
    tensor = pytest.importorskip("torch.distributed.tensor", reason="no DTensor")
    experimental = pytest.importorskip("torch.distributed.tensor.experimental")
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/s", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        model = Model(make=Chunked)
        data = torch.randn(1, 300, WIDTH)
        results = []
        for alpha in (None, 0):
            if alpha is not None:
                girih.long_context(model, alpha=alpha)
            model.zero_grad()
            x = tensor.distribute_tensor(data.clone().requires_grad_(), mesh, [tensor.Replicate()])
            with experimental.implicit_replication():
                for layer in model.layers:
                    x = layer(x)
                x.to_local().pow(2).mean().backward()
            gradient = [it.grad for it in model.layers.parameters()]
            results.append([getattr(it, "to_local", lambda it=it: it)() for it in gradient])
    finally:
        torch.distributed.destroy_process_group()
    assert_same(*results)
    assert "given a DTensor" in girih.long_context_report(model)["layers"][0]["reason"]


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.generator = nn.Linear(WIDTH, WIDTH), torch.Generator()

    def forward(self, x):
        self.generator.manual_seed(7)
        noise = torch.rand(x.shape, generator=self.generator)
        return torch.sin(self.linear(x)) * noise


def test_a_layer_that_draws_from_a_generator_of_its_own_is_left_alone():
    report = check(Model(make=Drawing), ids(), alphas=(0,), splits=False)
    assert all("a generator of its own" in layer["reason"] for layer in report)


class Scores(nn.Module):
    """Nothing but attention that is written out."""

    def __init__(self):
        super().__init__()
        self.attention = Attention(eager=True)

    def forward(self, x):
        return x + self.attention(x, torch.ones(1, x.shape[1], 1), None)


def test_a_layer_that_mixes_tokens_is_left_alone_or_runs_again_whole():
    model = Model(make=Scores)
    expected = gradients(model, ids(tokens=600))
    girih.long_context(model, alpha=0.5)
    for _ in range(4):
        assert_same(expected, gradients(model, ids(tokens=600)))
    report = girih.long_context_report(model)["layers"]
    assert all("nearly all that it saves is kept whole" in layer["reason"] for layer in report)
    # Found in the first pass or the second, and not looked at since.
    assert all(layer["calls"] <= 2 for layer in report)
    girih.long_context(model, alpha=0)
    for _ in range(4):
        assert_same(expected, gradients(model, ids(tokens=600)))
    report = girih.long_context_report(model)["layers"]
    assert all(layer["bytes_kept"] < 0.05 * layer["bytes_saved"] for layer in report)


class InPlace(nn.Module):
    """Changes in place what products gave, whole and in part."""

    def __init__(self):
        super().__init__()
        self.linear, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x).mul_(1.5)
        z = self.second(y)
        z[..., 3:7] += 1
        torch._foreach_add_([z[:, 5:], z[:, :2]], 0.25)
        return x + torch.sin(z) * self.third(torch.cos(z))


def test_a_product_that_is_changed_in_place_is_computed_again():
    check(Model(make=InPlace), ids(), alphas=(0, "products", 0.5))
    model = Model(make=InPlace)
    girih.long_context(model, alpha="products")
    for _ in range(3):
        gradients(model, ids())
    report = girih.long_context_report(model)["layers"]
    assert all(it["kept_whole"] == [] and it["split"] == 3 for it in report)


class Unseen(nn.Module):
    """Changes in place what products and attention gave, and no operator tells of it."""

    def __init__(self):
        super().__init__()
        self.linear, self.attention = nn.Linear(WIDTH, WIDTH), Attention()

    def forward(self, x):
        y = self.linear(x)
        scale(y)
        q = torch.sin(y).unflatten(-1, (4, -1)).transpose(1, 2)
        z = nn.functional.scaled_dot_product_attention(q, q, q)
        scale(z)
        return x + y * torch.cos(z.transpose(1, 2).flatten(2))


def scale(tensor):
    array = np.lib.stride_tricks.as_strided(
        np.ctypeslib.as_array(
            ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_float)), (tensor.numel(),)
        ),
        (tensor.numel(),),
    )
    array *= 1.5


@pytest.mark.parametrize("alpha", [0, "products", 0.5])
def test_what_is_changed_in_place_by_a_kernel_of_its_own_is_kept_as_it_was(alpha):
    model = Model(make=Unseen)
    expected = gradients(model, ids(tokens=600))
    girih.long_context(model, alpha=alpha)
    for _ in range(5):
        assert_same(expected, gradients(model, ids(tokens=600)))


TIMES = itertools.count(1)
"""Of what runs. It is no layer's, so that no replay finds it as it was."""


class Restless(nn.Module):
    """Does something else each time."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        return torch.sin(y * next(TIMES))


def test_a_layer_that_is_another_each_time_is_left_alone():
    model = Model(make=Restless)
    girih.long_context(model, alpha=0)
    gradients(model, ids())
    report = girih.long_context_report(model)["layers"]
    assert all("gives something else a second time" in it["reason"] for it in report)
    gradients(model, ids())
    assert [it["calls"] for it in girih.long_context_report(model)["layers"]] == [1] * len(report)


class Late(nn.Module):
    """Three modules that do something else each time, one found after the other."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Restless() for _ in range(3))

    def forward(self, x):
        for part in self.parts:
            x = x + part(x)
        return torch.sin(x)


def test_what_comes_after_a_difference_is_compared_before_it_is_cut():
    model = Model(layers=1, make=Late)
    girih.long_context(model, alpha=0)
    seen = []
    for _ in range(5):
        gradients(model, ids())
        (layer,) = girih.long_context_report(model)["layers"]
        seen.append((layer["checks"], len(layer["kept_whole"])))
    # The first pass had let go of what it saved, and is made anew. Each finds the next of them; the
    # first that finds nothing more is believed.
    assert seen == [(2, 2), (3, 3), (4, 3), (4, 3), (4, 3)]


def test_without_memory_to_compare_a_pass_is_kept_whole_and_the_next_is_tried_again(monkeypatch):
    model = Model()
    expected = gradients(model, ids(tokens=600))
    for alpha, tries in ((0, 1), (0.5, 2)):
        girih.long_context(model, alpha=alpha)
        told = []

        def learn(call, first, told=told):
            told.append(first)
            raise torch.OutOfMemoryError("none left")

        with monkeypatch.context() as patch:
            patch.setattr("girih._long.layer.learn", learn)
            assert_same(expected, gradients(model, ids(tokens=600)))
        # Fewer and fewer tokens run again.
        assert told[:tries] == sorted(set(told))
        report = girih.long_context_report(model)["layers"]
        assert all("no memory" in it["reason"] and it["split"] == 0 for it in report)
        assert_same(expected, gradients(model, ids(tokens=600)))
        report = girih.long_context_report(model)["layers"]
        assert all(it["reason"] == "" and it["split"] == 1 for it in report)


@pytest.mark.parametrize("alpha", [0, 0.5])
@pytest.mark.parametrize("room", [2, 4, 9])
def test_without_memory_for_a_whole_layer_it_is_put_together_in_parts(alpha, room, monkeypatch):
    model = Model()
    expected = gradients(model, ids(tokens=600))
    girih.long_context(model, alpha=alpha)
    gradients(model, ids(tokens=600))
    original, refused = Call._take, []

    def take(call, index, rows):
        if len(call.put_together) >= room and call.saves[index].storage not in call.put_together:
            refused.append(index)
            raise torch.OutOfMemoryError("none left")
        return original(call, index, rows)

    monkeypatch.setattr(Call, "_take", take)
    for turn in range(3):
        before = len(refused)
        assert_same(expected, gradients(model, ids(tokens=600)))
        # What did not fit in a pass is not tried again in the next.
        assert (len(refused) > before) == (turn == 0)
    assert all(it.parts > 1 for it in api.of(model).layers)


def test_what_is_put_together_in_part_is_not_taken_for_all_of_it(monkeypatch):
    model = Model()
    expected = gradients(model, ids(tokens=600))
    for alpha in (0, 0.5):
        girih.long_context(model, alpha=alpha)
        gradients(model, ids(tokens=600))
        original, fails = Call._take, [True]

        def take(call, index, rows, original=original, fails=fails):
            if fails[0] and len(call.put_together) == 1:
                raise ValueError("something else went wrong")
            return original(call, index, rows)

        monkeypatch.setattr(Call, "_take", take)
        model.zero_grad()
        loss = model(ids(tokens=600)).pow(2).mean()
        with pytest.raises(ValueError, match="something else"):
            loss.backward(retain_graph=True)
        fails[0] = False
        for _ in range(2):
            model.zero_grad()
            loss.backward(retain_graph=True)
            assert_same(expected[1:], [it.grad for it in model.parameters()])
        monkeypatch.undo()


def test_without_memory_for_anything_it_is_an_error(monkeypatch):
    model = Model()
    girih.long_context(model, alpha=0)
    gradients(model, ids(tokens=600))

    def take(_call, _index, _rows):
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(Call, "_take", take)
    loss = model(ids(tokens=600)).pow(2).mean()
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        loss.backward()


def test_without_memory_to_compare_again_what_was_found_holds(monkeypatch):
    model = Model()
    expected = gradients(model, ids(tokens=600))
    for alpha in (0, 0.5):
        girih.long_context(model, alpha=alpha)
        gradients(model, ids(tokens=600))
        with monkeypatch.context() as patch:

            def learn(_call, _first):
                raise torch.OutOfMemoryError("none left")

            patch.setattr("girih._long.layer.learn", learn)
            assert_same(expected, gradients(model, ids(tokens=600)))
        report = girih.long_context_report(model)["layers"]
        assert all(it["reason"] == "" and it["split"] == 2 for it in report)


def test_a_module_that_does_something_else_the_second_time_is_kept_whole():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return torch.tanh(self.linear(x) * next(TIMES))

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.linear = Counting(), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return x + torch.sigmoid(self.linear(torch.sin(x))) + self.inner(x)

    model = Model(make=Around)
    girih.long_context(model, alpha=0)
    gradients(model, ids())
    report = girih.long_context_report(model)["layers"]
    assert [it["kept_whole"] for it in report] == [["inner"]] * len(report)
    gradients(model, ids())
    report = girih.long_context_report(model)["layers"]
    assert [it["split"] for it in report[1:]] == [2] * (len(report) - 1)
