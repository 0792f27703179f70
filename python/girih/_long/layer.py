"""A layer of the model: its forward, and what was learnt of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from girih._long import communicate, probe, tiles
from girih._long.cache import Passing
from girih._long.call import Call, Unplanned
from girih._long.layout import PLAIN, WHOLE, Layout
from girih._long.learn import learn
from girih._long.own import Own, Storages
from girih._long.part import Held
from girih._long.picture import Picture
from girih._long.placed import Forward
from girih._long.replay import Replay, generator_state, set_generator_state
from girih._long.share import Share, rounded
from girih._long.trace import Trace

log = logging.getLogger("girih")

# What may be among the arguments of a layer besides tensors. Anything else may change while the
# layer runs (a cache of keys and values does), and must not see it run twice.
HARMLESS = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)
# At the end of the reason why a pass with a cache ran as it is.
UNCACHED = ": use_cache=False"
# What it saves is counted, and what is kept differs from pass to pass.
CHECKPOINT = "torch.utils.checkpoint"
# Of what would be saved if all of the other tokens could be computed again. What is less is not
# worth running the layer again.
LEAST_GAIN = 0.05
NO_MEMORY = "there was no memory to find out what of it can be cut"
# Why something must not run twice.
DOES = {
    "dynamic": "has shapes that depend on data",
    "collective": "communicates what is not of its input",
    "hook": "has a hook that changes what it is shown",
    "generator": "draws from a generator of its own",
}
CHANGES = "it changes what it has"
# Plans of one layer: by the shapes of what it saves, but for the tokens.
PLANS_MAX = 16
# Other lengths of a replay than before that are compared before the next are believed: kernels are
# chosen by the number of rows, and might round another way.
LENGTHS = 8
# Parts of the tokens that are tried for a comparison, as long as there is no memory for more.
TRIED = (1 / 2, 1 / 8, 1 / 32)


@dataclasses.dataclass
class Seen:
    """What a layer did."""

    calls: int = 0
    """Passes that could have been split."""
    split: int = 0
    """Passes that were."""
    checks: int = 0
    """Passes that were run twice, and compared."""
    replays: int = 0
    bytes_saved: int = 0
    """Of the last pass: what autograd saved, the layer's own parameters apart."""
    bytes_kept: int = 0
    """Of the last pass: what of that is kept, with what the replay needs."""
    tokens: int = 0
    kept: int = 0
    """Of the last pass: tokens, and those whose rows are kept."""
    astray: int = 0
    """Replays of a part that met another way through the layer, and had to be of all of it."""
    in_tiles: list[str] = dataclasses.field(default_factory=list)
    """Of the last pass: modules that ran over some tokens after others."""
    hooks: int = 0
    """Of the last pass: hooks of the program's within it, which ran once, whatever ran again. Such
    a pass holds all that it saves until it has ended."""
    wrote: int = 0
    """Of the last pass: tensors of its own that it wrote into, and replays write into and undo."""
    anew: int = 0
    """Passes that began anew, since what they had let go of did not come again."""
    reason: str = ""
    """Why it is not split, or not whole; empty if there is nothing to say."""


@dataclasses.dataclass
class Known:
    """Modules within a layer, by name. Layers of a class share what is known of them."""

    opaque: set[str] = dataclasses.field(default_factory=set)
    """They do what must not be done twice: a replay is answered with what they gave."""
    mixing: set[str] = dataclasses.field(default_factory=set)
    """They do not work token by token: they run again over all tokens or not at all."""
    communicates: bool | None = None
    """Whether anything was seen to; None before the first pass."""
    tiled: dict[Any, probe.Plan | str] = dataclasses.field(default_factory=dict)
    """How a module runs in tiles, or why it does not."""


class Layer:
    """One layer, whose forward was put in place of its own."""

    def __init__(
        self,
        module: Any,
        name: str,
        index: int,
        *,
        share: Share,
        token_dim: int,
        known: Known,
        tile: int | None = None,
    ) -> None:
        self.module = module
        self.name = name
        self.index = index
        self.share = share
        self.token_dim = token_dim
        self.known = known
        self.tile = tile
        """Tokens of a tile of perceptrons, 0 for as many as are good; None: there are no tiles."""
        self.seen = Seen()
        self.is_refused = False
        self.parts = 1
        """In so many it is put together: as many as there was memory for."""
        self.plans: dict[Any, list[Layout | None]] = {}
        self.notes: dict[Any, int] = {}
        """Of passes that keep products: how many of their notes a replay needs."""
        self.traces: dict[Any, Trace] = {}
        """Where what it saves comes from, by the same keys as plans."""
        self.lengths: set[tuple[int, int]] = set()
        """Tokens, and the first that ran again, of passes that were compared."""
        self.held = Held()
        self.storages: Storages = {}
        """Of what the last pass found."""
        self.context: Any = None
        """What it is a layer of: that lives as long as one of its layers does."""
        self.thread = threading.local()
        self.original = module.forward
        self.forwards = [
            Forward(it, self._inner(inner, it) if inner else self.forward)
            for inner, it in module.named_modules()
        ]

    def remove(self) -> None:
        """Gives the module its own forward back."""
        for forward in reversed(self.forwards):
            forward.remove()
        self.forwards.clear()

    # ---- what runs in place of the module's own forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's."""
        if communicate.is_there():
            args, kwargs = tree_map(communicate.waited, (args, kwargs))
        tokens = self._tokens(args, kwargs)
        if tokens is None:
            return self.original(*args, **kwargs)
        self.seen.calls += 1
        part = self.share.part(self.index, tokens, self.held)
        if part.first >= tokens:
            self.seen.tokens = self.seen.kept = tokens
            return self.original(*args, **kwargs)
        call = Call(self, args, kwargs, tokens, part)
        state = generator_state(call.device) if call.lets_go else None
        device = call.device
        with contextlib.suppress(Unplanned):
            outputs = self._run(call, args, kwargs)
            if self._close(call):
                return outputs
            del outputs
        # What was let go of does not come again as it was: from the start, and all is held.
        call.own.begin_anew()
        self.seen.anew += 1
        del call
        set_generator_state(device, state)
        call = Call(self, args, kwargs, tokens, part, lets_go=False)
        outputs = self._run(call, args, kwargs)
        self._close(call)
        return outputs

    def _run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.thread.call, self.thread.running = call, []
        try:
            with call.recording():
                return self.original(*args, **kwargs)
        finally:
            self.thread.call = None

    def _inner(self, name: str, module: Any) -> Callable[..., Any]:
        original = module.forward
        may_be_tiled = self.tile is not None and probe.may_be_one(module)

        def forward(*args: Any, **kwargs: Any) -> Any:
            replay: Replay | None = getattr(self.thread, "replay", None)
            if replay is not None:
                return replay.module(name, original, args, kwargs)
            call: Call | None = getattr(self.thread, "call", None)
            if call is None:
                return original(*args, **kwargs)
            self.thread.running.append(name)
            try:
                if name in call.opaque_names:
                    return call.opaque(name, lambda: original(*args, **kwargs))
                if may_be_tiled and not kwargs and len(args) == 1:
                    with self._aside(call):
                        tiled = self._tiled(call, name, module, original, args[0])
                        if tiled is not None:
                            outputs = call.tiled(name, *tiled, args[0])
                            if outputs is not None:
                                return outputs
                            self.known.tiled[self._tiled_key(name, module)] = CHANGES
                return original(*args, **kwargs)
            finally:
                self.thread.running.pop()

        return forward

    def _tiled(
        self, call: Call, name: str, module: Any, run: Callable[[Any], Any], x: Any
    ) -> tuple[tiles.Tiled, Callable[[str], None] | None] | None:
        """A module that is to run in tiles, with whom to tell if its gradients are others there."""
        is_kept = bool(call.first or call.keeps_products or call.is_in_opaque)
        is_of_tokens = type(x) is torch.Tensor and x.ndim > self.token_dim + 1
        if is_kept or call.is_in_function or not is_of_tokens or not x.is_floating_point():
            return None
        assert self.tile is not None
        tile = tiles.tile_of(x, self.token_dim, self.tile)
        # What parameters are computed of, gradients that are derived again must come to.
        is_computed = not all(it.is_leaf for it in module.parameters())
        if x.shape[self.token_dim] != call.tokens or tile >= call.tokens or is_computed:
            return None
        known = self.known.tiled
        key = self._tiled_key(name, module)
        if key not in known:
            before = Picture(module)
            try:
                known[key] = probe.probe(module, run, x, self.token_dim)
            except Exception as error:
                # Whatever a few tokens make a module raise.
                known[key] = next(iter(str(error).splitlines()), type(error).__name__)
            if before.restore():
                known[key] = CHANGES
        plan = known[key]
        if isinstance(plan, str):
            return None
        tiled = tiles.Tiled(module, run, self.token_dim, plan, tile)
        if not self.is_to_learn(call):
            return tiled, None
        with torch.no_grad(), torch.autocast(**call.autocast):
            if tiles.gives_the_same(tiled, x):
                return tiled, functools.partial(known.__setitem__, key)
        known[key] = "in tiles it gives others"
        return None

    def _tiled_key(self, name: str, module: Any) -> Any:
        return name, module.training, tuple(it.requires_grad for it in module.parameters())

    @contextlib.contextmanager
    def _aside(self, call: Call) -> Iterator[None]:
        """Around what is Girih's own, while a pass runs."""
        self.thread.call = None
        try:
            with call.aside():
                yield
        finally:
            self.thread.call = call

    def listens(self) -> bool:
        """Whether it is looked for what a layer communicates."""
        return self.known.communicates is not False and communicate.is_there()

    def opaque_names(self, first: int) -> frozenset[str]:
        """Modules that do not run again in a replay from the token `first` on."""
        return frozenset(self.known.opaque | self.known.mixing if first else self.known.opaque)

    def plan_of(self, call: Call) -> Trace | None:
        """What is known of such a pass; None if it is not known, or is to be found out again."""
        if call.first or self.is_to_learn(call):
            return None
        return self.traces.get(self._key(call))

    def lets_go(self, call: Call) -> bool:
        """Whether a pass may let go of what it saves before it has ended.

        Of a pass that is to be compared digests are enough, unless another way is found of what it
        saved, and then it runs once more: not where it does what must not be done twice, and where
        the program has hooks, which may hold on to what they were shown.
        """
        if call.first or call.has_hooks:
            return False
        if self.is_to_learn(call):
            return not self.listens() and not call.opaque_names
        return self._key(call) in self.plans

    def is_to_learn(self, call: Call) -> bool:
        """Whether the pass is to run twice and be compared.

        Again at the 2nd, 4th, 8th ... pass: what was equal may have been so by chance, as where a
        weight begins at zero.
        """
        length, calls = (call.tokens, call.first), self.seen.calls
        is_new = length not in self.lengths and len(self.lengths) < LENGTHS
        return is_new or not calls & (calls - 1)

    def notes_wanted(self, call: Call) -> int:
        """How many of a pass's notes a replay needs; more than there are, if that is not known."""
        return self.notes.get(self._key(call), 1 << 30) if call.first == 0 else 1 << 30

    def running(self) -> str:
        """The innermost module that runs; empty for the layer itself."""
        running = getattr(self.thread, "running", None)
        return running[-1] if running else ""

    @contextlib.contextmanager
    def replaying(self, replay: Replay) -> Iterator[None]:
        """Around a replay on this thread: opaque modules are answered."""
        before = getattr(self.thread, "replay", None)
        self.thread.replay = replay
        self.seen.replays += 1
        try:
            yield
        finally:
            self.thread.replay = before

    def own(self, given: list[Any]) -> Own:
        """What it has of its own as a pass begins, which is given these tensors."""
        found = Own(self.module, given, self.storages)
        self.storages = found.storages
        return found

    # ---- arguments

    def _tokens(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """How many tokens the layer is given; None if it is to run as ever."""
        is_replay = getattr(self.thread, "replay", None) is not None
        is_off = self.is_refused or is_replay or not torch.is_grad_enabled()
        # Transforms of functions (torch.func) have no hooks of what autograd saves.
        is_transformed = torch._C._are_functorch_transforms_active()
        if is_off or is_transformed or torch.compiler.is_compiling():
            return None
        leaves, _ = tree_flatten((args, kwargs))
        first = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), None)
        if first is None or first.ndim <= self.token_dim or not first.is_floating_point():
            return None
        # A graph that is captured runs again without us, and nothing in it can be compared.
        is_captured = first.is_cuda and torch.cuda.is_current_stream_capturing()
        for leaf in leaves:
            if type(leaf) not in PLAIN and not isinstance(leaf, (*HARMLESS, Passing)):
                reason = f"it is given a {type(leaf).__name__}, which could see it run twice"
                if "ache" in type(leaf).__name__:
                    # Of this pass. The next may go without.
                    self._leave(reason + UNCACHED)
                else:
                    self._refuse(reason)
                return None
        around = torch._C._autograd._top_saved_tensors_default_hooks(True)
        is_checkpointed = getattr(around and around[0], "__module__", "") == CHECKPOINT
        if is_checkpointed:
            self.seen.reason = "a checkpoint around it computes it again whole"
        elif self.seen.reason.endswith(UNCACHED):
            self.seen.reason = ""
        tokens = int(first.shape[self.token_dim])
        is_worth_it = self.share.is_worth_it(self.index, tokens)
        return tokens if is_worth_it and not is_checkpointed and not is_captured else None

    def token_dims(self, tensor: Any, tokens: int) -> list[int]:
        """The dimensions of an input that run over tokens."""
        dims = [dim for dim, size in enumerate(tensor.shape) if size == tokens]
        if self.token_dim in dims and tensor.ndim == 3:
            return [self.token_dim]
        return dims

    # ---- the end of a pass

    def _close(self, call: Call) -> bool:
        """Cuts what can be cut. False if what was let go of cannot be computed again."""
        if call.origins is not None:
            self.known.communicates = bool(self.known.communicates or call.origins.is_heard)
        layouts: list[Layout | None] | None = [None] * len(call.saves)
        before = len(self.known.opaque), len(self.known.mixing)
        if self._may_run_twice(call):
            layouts = self._layouts(call)
            if call.is_lost:
                return False
        call.close(layouts or [None] * len(call.saves))
        self._note(call)
        after = len(self.known.opaque), len(self.known.mixing)
        if layouts is not None and before == after and not self.is_refused:
            self._judge(call)
        return True

    def _judge(self, call: Call) -> None:
        """Leaves the layer alone from now on if that saves next to nothing."""
        saved, kept = call.sizes
        if saved - kept < LEAST_GAIN * saved * (1 - call.first / call.tokens):
            little = "nearly all that it saves is kept whole, or needed to run it again"
            self._refuse(f"{self.seen.reason}; {little}" if self.seen.reason else little)

    def _may_run_twice(self, call: Call) -> bool:
        may = True
        for kind, name, module in call.met:
            if kind == "dynamic" and call.first == 0:
                # The same data has the same shapes.
                continue
            may = False
            if kind == "collective" and call.origins is None:
                # Other passes did not. What it is of is known in the next.
                self.known.communicates = True
                continue
            does = DOES[kind]
            if module:
                # From the next pass on; layers of this class that are still to come know it, too.
                (self.known.mixing if kind == "dynamic" else self.known.opaque).add(module)
                self.seen.reason = f"{module} is kept whole: it {does} ({name})"
            else:
                self._refuse(f"it {does} ({name})")
        return may

    def _layouts(self, call: Call) -> list[Layout | None] | None:
        """What of a pass can be cut; None if that could not be found out."""
        key = self._key(call)
        free = [index for index, save in enumerate(call.saves) if not save.is_fixed]
        plan = self.plans.get(key)
        if plan is not None and not self.is_to_learn(call):
            call.trace = self.traces.get(key)
            return self._planned(call, plan)
        learnt = self._learn(call)
        if learnt is not None and call.first == 0:
            self.notes[key] = max(self.notes.get(key, 0), call.notes_answered)
        if learnt is None and plan is not None:
            call.trace = self.traces.get(key)
            return self._planned(call, plan)
        if learnt is None:
            self.seen.reason = NO_MEMORY
            call.is_lost = call.lets_go
            return None
        if self.seen.reason == NO_MEMORY:
            self.seen.reason = ""
        layouts, differs, error = learnt
        self.seen.checks += 1
        if differs is not None:
            self._differs(call, differs, error)
            call.is_lost = call.lets_go
        if len(self.lengths) < LENGTHS:
            self.lengths.add((call.tokens, call.first))
        self._remember(call, key, [layouts[index] for index in free], is_all=differs is None)
        return layouts

    def _remember(self, call: Call, key: Any, plan: list[Layout | None], *, is_all: bool) -> None:
        if len(self.plans) >= PLANS_MAX:
            self.plans.clear()
            self.traces.clear()
        self.traces.pop(key, None)
        if call.trace is not None:
            self.traces[key] = call.trace
        if call.first:
            self.plans[key] = plan
        elif is_all:
            self.plans[key] = []
        else:
            # What comes after the difference was not compared: the next pass is.
            self.plans.pop(key, None)

    def _planned(self, call: Call, plan: list[Layout | None]) -> list[Layout | None]:
        free = [index for index, save in enumerate(call.saves) if not save.is_fixed]
        layouts: list[Layout | None] = [None] * len(call.saves)
        for index, layout in zip(free, plan if call.first else repeat(WHOLE), strict=False):
            layouts[index] = layout
        if call.plan is not None:
            for place in call.plan.keeping.places & set(free):
                layouts[place] = None
        return layouts

    def _learn(self, call: Call) -> tuple[list[Layout | None], str | None, str | None] | None:
        """Runs it again from the first token that will be; if there is no memory, fewer tokens."""
        firsts = [call.first]
        if call.first:
            parts = [rounded((1 - part) * call.tokens, call.tokens) for part in TRIED]
            firsts += sorted({part for part in parts if call.first < part < call.tokens})
        for first in firsts:
            learnt = -1
            while learnt < len(call.learnt):
                learnt = len(call.learnt)
                with contextlib.suppress(torch.OutOfMemoryError):
                    return learn(call, first)
        return None

    def forget(self, call: Call) -> None:
        """What was known of where its tensors come from was of another way through the layer."""
        self.seen.astray += 1
        self.traces = {key: it for key, it in self.traces.items() if it is not call.trace}

    def _differs(self, call: Call, module: str, error: str | None) -> None:
        why = f" ({error})" if error else ""
        does = (
            "does not work token by token" if call.first else "gives something else a second time"
        )
        self.seen.reason = f"{module or 'the layer itself'} {does}{why}: it is kept whole"
        if module:
            (self.known.mixing if call.first else self.known.opaque).add(module)
        elif call.first == 0:
            self._refuse(f"it gives something else a second time{why}")
        elif error is not None:
            self._refuse(f"it cannot run over a part of its tokens: {error}")

    def _key(self, call: Call) -> tuple[Any, ...]:
        autocast = call.autocast["enabled"], call.autocast["dtype"]
        if call.first == 0:
            # All of it, whatever its shapes.
            return autocast, self.module.training, call.keeps_products

        def sizes(shape: tuple[int, ...]) -> tuple[Any, ...]:
            return tuple(
                (size // call.tokens,) if size % call.tokens == 0 else size for size in shape
            )

        # What an opaque module saves may be more or less from pass to pass, and is kept whole.
        free = (save for save in call.saves if not save.is_fixed)
        saves = tuple((save.tensor.dtype, sizes(save.shape)) for save in free)
        notes = tuple(note.name for note in call.notes)
        return saves, autocast, notes, self.module.training

    def _note(self, call: Call) -> None:
        seen = self.seen
        seen.tokens = call.tokens
        seen.kept = call.first if call.is_cut else call.tokens
        seen.split += seen.kept < seen.tokens
        seen.bytes_saved, seen.bytes_kept = call.sizes
        seen.in_tiles = sorted(call.in_tiles)
        seen.hooks, seen.wrote = call.hooks, len(call.own.undo.was)
        if call.is_cut and call.first == 0:
            kept = seen.bytes_kept / call.tokens
            if call.keeps_products:
                self.held.products = max(self.held.products, kept)
            else:
                self.held.nothing = max(self.held.nothing, kept)
            self.held.whole = max(self.held.whole, seen.bytes_saved / call.tokens)

    def _refuse(self, reason: str) -> None:
        self.is_refused = True
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        """This pass runs as it is. Said once."""
        if reason != self.seen.reason:
            log.warning("%s is not split by tokens: %s", self.name, reason)
        self.seen.reason = reason
