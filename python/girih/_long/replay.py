"""A layer that runs again, and what a pass over some of the rows cannot compute: noted in forward.

- Attention looks at all tokens. Its output and log-sum-exp are kept, and the replay is answered
  with rows of them.
- Random numbers are drawn for all tokens at once. The state of their generator is noted, and the
  replay draws all of them again and takes its rows.
- Communication gives what it gave (`communicate.py`).
- Modules that were found not to work token by token (`opaque`) give what they gave.

What must not be done twice is noted too: shapes that depend on the data, communication that is not
of the layer's input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_unflatten

from girih._long import communicate, hooks, notes
from girih._long.communicate import is_within_shapes, is_wrapper, received
from girih._long.layout import address, candidates, close_up, narrow
from girih._long.notes import (
    Note,
    ReplayError,
    first_shape,
    is_kept,
    is_worth_keeping,
    kind_of,
    name_of,
)
from girih._long.own import Undo, as_it_was, leave
from girih._long.packed import Packed
from girih._long.tiles import Tiled
from girih._long.trace import (
    Group,
    Made,
    OutOfStep,
    Shape,
    Trace,
    Unwritten,
    gives_its_own,
    start_of,
    tensors,
    writes,
    written,
)

Take = Callable[[int, Any], bool]
"""Is given the index of a tensor that a replay saves, and the tensor; true if it wants the next."""


class Done(BaseException):
    """The replay has what it needs. No exception that a program's handlers could take."""


def generator_state(device: Any) -> Any:
    """Of the device's generator, and of the processor's: a layer may draw from both."""
    own = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), own


def set_generator_state(device: Any, state: Any) -> None:
    """Likewise."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Notes what a replay will need, while the layer runs for the first time."""

    supports_higher_order_operators = True

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs the operator."""
        kwargs, call = kwargs or {}, self.call
        kind = kind_of(func)
        if kind == "passes" or is_within_shapes():
            return func(*args, **kwargs)
        if call.is_aside:
            call.own.writes(func, args, kwargs)
            outputs = func(*args, **kwargs)
            call.own.made.note(func, outputs)
            return outputs
        if kind != "attention" and any(is_wrapper(it) for it in types):
            # What it does with the plain tensors that it holds comes here.
            return NotImplemented
        changed: list[Any] = []
        if kind == "collective":
            changed = received(func, name_of(func), args, kwargs)
        else:
            call.own.writes(func, args, kwargs)
            if call.looks_at_changes and writes(func):
                changed = written(func, args, kwargs)
        if changed:
            call.changes(changed)
        outputs = self._record(func, kind, args, kwargs)
        call.own.made.note(func, outputs)
        if call.origins is not None:
            call.origins.note((args, kwargs), outputs, changed)
        return outputs

    def _record(self, func: Any, kind: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        if kind == "collective" and self.call.is_in_hook:
            # Weights, most likely, which a replay that goes past the hook would not have.
            self.call.hears(name_of(func), args, kwargs)
            self.call.met.append((kind, name_of(func), self.call.layer.running()))
        if not kind or self.call.is_in_opaque:
            return func(*args, **kwargs)
        if kind == "product":
            return self._product(func, args, kwargs)
        if kind == "sum":
            return self._sum(func, args, kwargs)
        has_generator = kwargs.get("generator") is not None
        if kind == "collective" and self.call.hears(name_of(func), args, kwargs):
            return self._collective(func, args, kwargs)
        if has_generator or kind in ("collective", "dynamic"):
            self.call.meets("generator" if has_generator else kind, name_of(func))
            return func(*args, **kwargs)
        note = Note(name_of(func), first_shape(args))
        if kind == "random":
            note.state = generator_state(self.call.device)
        outputs = func(*args, **kwargs)
        if kind == "attention":
            note.outputs = tree_map(self.call.keep, outputs)
        self.call.notes.append(note)
        return outputs

    def _collective(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        outputs = func(*args, **kwargs)
        if not self.call.is_in_function:
            # What comes may still be on its way: it is held, and looked at when the pass has ended.
            gave = received(func, name_of(func), args, kwargs) or tensors(outputs)
            note = Note(name_of(func), first_shape(tuple(gave)), communicates=True)
            note.outputs = [self.call.hold(it) for it in gave]
            note.given = [tuple(it.shape) for it in tensors(args[:1])]
            self.call.notes.append(note)
        return outputs

    def _product(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        output = func(*args, **kwargs)
        name = name_of(func)
        if is_kept("product", self.call) and is_worth_keeping(name, args):
            note = Note(name, tuple(output.shape))
            self._keep_output(note, output)
            self.call.notes.append(note)
        return output

    def _keep_output(self, note: Note, output: Any) -> None:
        """With its note; where no replay wants it, what it looks like."""
        if self.call.wants_note(len(self.call.notes)):
            note.outputs = self.call.keep(output)
        else:
            note.like = Shape.of(output)

    def _sum(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        output = func(*args, **kwargs)
        if not is_kept("sum", self.call):
            return output
        # Each has a note, so that a replay need not know which are kept.
        note = Note(name_of(func), tuple(output.shape))
        if args[0].numel() >= notes.TERMS * output.numel() and kwargs.get("out") is None:
            self._keep_output(note, output)
        self.call.notes.append(note)
        return output


class Replayer(TorchDispatchMode):  # type: ignore[misc]
    """Answers what was noted, while the layer runs over the tokens from `first` on."""

    supports_higher_order_operators = True

    def __init__(self, call: Any, first: int) -> None:
        super().__init__()
        self.call = call
        self.first = first
        self.at = 0
        """Notes that were come to."""
        self.operators = 0
        """Likewise."""
        self.is_done = False
        """Nothing that comes is needed."""
        self.is_aside = False
        """What runs now is not of the layer."""
        self.is_learning = False
        """The layer is not known yet: it is answered with copies. A kernel that no operator tells
        of may change them in place, and what is kept would be another then."""
        self.learns: Trace | None = None
        """What is found out of it."""
        self.traced: Trace | None = None
        """What is known of it, where only a part runs."""
        self.group: Group | None = None
        """That part."""
        self.unwritten = Unwritten(is_proof=False)
        self.made = Made(())
        self.undo = Undo(keeps_versions=True)
        """What it writes into that was there before."""
        self.stale: set[int] = set()
        """Storages of the layer's own that are others than in the forward pass."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs the operator, or gives what it gave."""
        kwargs = kwargs or {}
        if self.is_aside or is_within_shapes():
            return func(*args, **kwargs)
        if self.is_done:
            raise Done
        kind, name = kind_of(func), name_of(func)
        if kind == "passes":
            # There is nothing to wait for.
            return args[0] if name.endswith("wait_tensor") else func(*args, **kwargs)
        if kind != "attention" and any(is_wrapper(it) for it in types):
            return NotImplemented
        if self.traced is not None:
            return self._in_part(func, name, args, kwargs)
        outputs, is_answered = self._run(func, name, args, kwargs)
        self.made.note(func, outputs)
        if self.learns is not None:
            into = received(func, name, args, kwargs) if kind == "collective" else None
            product = self.at - 1 if is_answered and kind in ("product", "sum") else -1
            self.learns.note(
                func,
                args,
                kwargs,
                outputs,
                is_answered=is_answered,
                name=name,
                product=product,
                into=into,
            )
        return outputs

    def _in_part(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Runs it if it is one of those that the wanted tensors come from."""
        assert self.traced is not None
        assert self.group is not None
        index = self.operators
        self.operators += 1
        if index >= len(self.traced.operators) or self.traced.operators[index].name != name:
            raise OutOfStep
        operator = self.traced.operators[index]
        is_wanted = index in self.group.operators
        is_left_out = operator.is_pure and not is_wanted
        outputs, is_answered = self._run(func, name, args, kwargs, is_left_out=is_left_out)
        self.made.note(func, outputs)
        if is_answered != operator.is_answered:
            raise OutOfStep
        if is_answered and not is_left_out:
            self.unwritten.forget((args[0], outputs) if operator.is_received else outputs)
        if is_answered or is_left_out:
            return outputs
        has_schema = getattr(func, "_schema", None) is not None
        changed = written(func, args, kwargs) if has_schema else []
        if self.unwritten.spreads((args, kwargs), outputs, changed) and is_wanted:
            raise OutOfStep
        return outputs

    def _run(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: Any, *, is_left_out: bool = False
    ) -> tuple[Any, bool]:
        """What an operator gives, and whether that was noted and it did not run."""
        kind = kind_of(func)
        is_ours = is_kept(kind, self.call)
        if is_ours and (kind == "sum" or is_worth_keeping(name, args)):
            note = self.next(name)
            # Without either it runs: nothing that is wanted comes of it, but all runs again.
            like = self.unwritten.like(note.like) if is_left_out and note.like is not None else None
            if note.outputs is not None or like is not None:
                kept = note.outputs
                rows = like if kept is None else self.rows(kept, None, is_left_out=is_left_out)
                return rows, True
        elif kind == "attention":
            note = self.next(name)
            query = tuple(args[0].shape)
            differing = [dim for dim, size in enumerate(query) if size != note.shape[dim]]
            like = differing[0] if differing else None
            return tree_map(
                lambda it: self.rows(it, like, is_left_out=is_left_out), note.outputs
            ), True
        elif kind == "collective":
            return self._communicated(func, name, args, kwargs), True
        elif kind == "random":
            note = self.next(name)
            if not is_left_out:
                return self._random(func, note, args, kwargs), False
        if is_left_out:
            return self.unwritten.instead(func, args, kwargs), False
        if self.stale and gives_its_own(func):
            for tensor in tensors((args, kwargs)):
                if address(tensor) is not None and start_of(tensor) in self.stale:
                    raise self.call.own.changed(tensor)
        for tensor in self.made.others(func, args, kwargs) if writes(func) else ():
            self.undo.before(tensor)
        return func(*args, **kwargs), False

    def _communicated(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        """What came the first time. Nothing is sent."""
        note, into = self.next(name), received(func, name, args, kwargs)
        if note.outputs is None or not note.communicates:
            raise ReplayError(f"{name} comes where it did not come in the forward pass")
        if into or name in communicate.SENDS:
            for tensor, packed in zip(into, note.outputs, strict=True):
                tensor.copy_(self.rows_for(packed, tuple(tensor.shape)))
            return communicate.returned(func, args, into)
        whole = [self.call.kept(packed).detach() for packed in note.outputs]
        if self.first > 0:
            shapes = communicate.shapes_of(name, args, note)
            whole = [self.rows_for(*it) for it in zip(note.outputs, shapes, strict=True)]
        elif self.is_learning:
            whole = [it.clone() for it in whole]
        is_one = str(func._schema.returns[0].type) == "Tensor"
        return whole[0] if is_one else whole

    def rows_for(self, packed: Any, shape: tuple[int, ...]) -> Any:
        """The replay's rows of what came, where they are of this shape."""
        whole, tokens = self.call.kept(packed).detach(), self.call.tokens
        if tuple(whole.shape) == shape:
            return whole
        for layout in candidates(tuple(whole.shape), shape, tokens, tokens - self.first):
            rows = layout.rows(whole, self.first, tokens, tokens)
            return close_up(layout.together(rows), whole)
        raise ReplayError(f"what communication gave has no rows of the shape {list(shape)}")

    def next(self, name: str) -> Note:
        """What was noted next. It must be of that name."""
        notes = self.call.notes
        if self.at >= len(notes) or notes[self.at].name != name:
            raise ReplayError(f"{name} comes where it did not come in the forward pass")
        self.at += 1
        note: Note = notes[self.at - 1]
        return note

    def rows(self, output: Any, like: int | None, *, is_left_out: bool = False) -> Any:
        """The replay's rows of an output; of one that is left out, of bytes that nobody wrote."""
        if is_left_out and isinstance(output, Packed) and output.like.dtype.is_floating_point:
            output = self.unwritten.like(output.like)
        else:
            output = self.call.kept(output)
        if not isinstance(output, torch.Tensor):
            return output
        # Autograd gives what it is answered a history: never to the tensor that is kept.
        output = output.detach()
        if self.is_learning:
            output = output.clone()
        if self.first == 0:
            return output
        rows = close_up(narrow(output, self.call.tokens, self.first, like), output)
        if is_left_out:
            self.unwritten.starts.add(start_of(rows))
        return rows

    def _random(self, func: Any, note: Note, args: tuple[Any, ...], kwargs: Any) -> Any:
        set_generator_state(self.call.device, note.state)
        first = args[0]
        if first_shape(args) == note.shape:
            return func(*args, **kwargs)
        if not isinstance(first, torch.Tensor):
            return tree_map(self._rows_of_drawn, func(list(note.shape), *args[1:], **kwargs))
        if func._schema.is_mutable:
            whole = torch.empty(note.shape, dtype=first.dtype, device=first.device)
            func(whole, *args[1:], **kwargs)
            return first.copy_(self._rows_of_drawn(whole))
        whole = torch.ones(note.shape, dtype=first.dtype, device=first.device)
        drawn = func(whole, *args[1:], **kwargs)
        if name_of(func) != "aten::native_dropout":
            return tree_map(self._rows_of_drawn, drawn)
        mask = self._rows_of_drawn(drawn[1]).contiguous()
        scale = 0.0 if args[1] == 1 else 1.0 / (1.0 - args[1])
        precise = torch.promote_types(first.dtype, torch.float32)
        return ((first.to(precise) * mask * scale).to(first.dtype), mask)

    def _rows_of_drawn(self, whole: Any) -> Any:
        return narrow(whole, self.call.tokens, self.first)


class Replay:
    """The layer once more, over the tokens from `first` on."""

    def __init__(self, call: Any, first: int, wanted: set[int], take: Take) -> None:
        self.call = call
        self.first = first
        self.wanted = wanted
        self.take = take
        """Is given each of those that are wanted, as it is saved; True if it wants the next."""
        self.found: set[int] = set()
        self.replayer = Replayer(call, first)
        self.place = 0
        """How many saves there were."""
        self.error: BaseException | None = None
        """What taking a tensor raised."""
        self.is_over = not wanted
        """Nothing that comes is wanted."""
        self.running: list[str] = []
        """Modules within the layer, the innermost last."""
        self.functions = 0
        """Functions of autograd that were come to, outermost ones alone."""
        self.is_in_function = False

    def only(self, trace: Trace, group: Group, *, is_proof: bool) -> None:
        """Is to run what is needed for a group, and no more."""
        self.replayer.traced, self.replayer.group = trace, group
        self.replayer.unwritten = Unwritten(is_proof=is_proof)

    def run(self) -> None:
        """Hands over what autograd saves of those that are wanted.

        Raises:
            OutOfStep: if only a part was to run, and what is known of the layer is of another way
                through it.
            ReplayError: if it does something else than in the forward pass.
        """
        call = self.call
        args, kwargs = tree_unflatten(
            [self._rows_of_input(leaf) for leaf in call.leaves], call.spec
        )
        # What is saved stays in the hooks: the innermost hold.
        packs = torch.autograd.graph.saved_tensors_hooks(self._pack, _never)
        replayer, module = self.replayer, call.layer.module
        replayer.made = Made(tensors((args, kwargs)))
        replayer.stale = call.own.stale()
        if replayer.learns is not None:
            replayer.learns.undone = replayer.undo.was
        try:
            with (
                as_it_was(module, call.own, replayer.undo),
                hooks.replaced(module, lambda name, _: lambda *_, **__: self.answer(name)),
                torch.enable_grad(),
                torch.autocast(**call.autocast),
                call.layer.replaying(self),
                call.watched(self.function),
                packs,
                replayer,
            ):
                call.layer.original(*args, **kwargs)
        except Done:
            pass
        if self.error is not None:
            # Not held on to: it knows the frames that it came through, and they the tensors.
            error, self.error = self.error, None
            raise error
        if not self.is_over:
            missing = len(self.wanted) - len(self.found)
            raise ReplayError(f"{missing} of the tensors that it saved are not saved again")

    def module(
        self, name: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a module within the layer, or gives what it gave."""
        if name in self.call.opaque_names:
            return self.answer(name)
        if name in self.call.in_tiles:
            return self.tiled(name, self.call.in_tiles[name], *args)
        # Not in `finally`: what an error leaves here is where it came up.
        self.running.append(name)
        outputs = run(*args, **kwargs)
        self.running.pop()
        return outputs

    def answer(self, name: str) -> Any:
        """What an opaque module gave."""
        if self.replayer.is_done:
            raise Done
        note = self.replayer.next(name)
        self.place = note.saves
        self.replayer.is_aside = True
        try:
            outputs = tree_map(self._answered, note.outputs)
            leave(note.effects, self.replayer.undo)
        finally:
            self.replayer.is_aside = False
        self.replayer.unwritten.forget(outputs)
        return outputs

    def tiled(self, name: str, tiled: Tiled, x: Any) -> Any:
        """What a module that ran in tiles gave. It saves what it is given."""
        replayer, notes = self.replayer, self.call.notes
        if replayer.is_done:
            raise Done
        at = replayer.at
        if at >= len(notes) or notes[at].name != name or not notes[at].is_tiled:
            raise ReplayError(f"{name} comes where it did not come in the forward pass")
        for place in notes[at].own:
            self.place = place
            self._pack(x)
        if replayer.is_done:
            raise Done
        if notes[at].outputs is not None:
            return self.answer(name)
        # It was written into: once more.
        replayer.next(name)
        self.place = notes[at].saves
        if replayer.unwritten.is_among(x):
            raise OutOfStep
        replayer.is_aside = True
        try:
            with torch.no_grad():
                outputs = tiled.forward(x)
        finally:
            replayer.is_aside = False
        return outputs.requires_grad_(x.requires_grad)

    def function(self, name: str, run: Callable[[], Any], given: list[Any]) -> Any:
        """What a function of autograd gave, if it communicates; else it is applied."""
        replayer = self.replayer
        if self.is_in_function or replayer.is_aside:
            return run()
        if replayer.is_done:
            raise Done
        count, notes, at = self.functions, self.call.notes, replayer.at
        self.functions += 1
        if at >= len(notes) or notes[at].function != count:
            self.is_in_function = True
            try:
                return run()
            finally:
                self.is_in_function = False
        return self._answer_function(replayer.next(name), given)

    def _answer_function(self, note: Note, given: list[Any]) -> Any:
        replayer = self.replayer
        if note.outputs is None:
            raise ReplayError(f"{note.name} comes where it did not come in the forward pass")
        replayer.is_aside = True
        try:
            outputs = tree_map(self._answered, note.outputs)
            with torch.no_grad():
                for index, packed in note.changed.items():
                    given[index].copy_(replayer.rows_for(packed, tuple(given[index].shape)))
        finally:
            replayer.is_aside = False
        replayer.unwritten.forget((outputs, [given[index] for index in note.changed]))
        for place, index in note.own.items():
            self.place = place
            self._pack(given[index])
        self.place = note.saves
        return outputs

    def _pack(self, tensor: Any) -> None:
        tensor, _ = communicate.unwrapped(tensor)
        place = self.place
        self.place += 1
        if place not in self.wanted or self.is_over:
            return
        self.found.add(place)
        if self.replayer.learns is not None:
            self.replayer.learns.saves(place, tensor)
        # Never out of here: torch (2.11) leaks the hooks of a save whose hook raises.
        self.replayer.is_aside = True
        try:
            if self.replayer.unwritten.is_among(tensor):
                raise OutOfStep
            with torch.no_grad():
                rows = tensor.detach()
                # What it wrote into that was there before is as it was when it has run.
                goes_on = self.take(place, rows.clone() if self._is_undone(rows) else rows)
        except BaseException as error:
            self.error, goes_on = error, False
        finally:
            self.replayer.is_aside = False
        self.is_over = self.replayer.is_done = not goes_on or len(self.found) == len(self.wanted)

    def _is_undone(self, tensor: Any) -> bool:
        undo = self.replayer.undo.was
        return bool(undo) and address(tensor) is not None and start_of(tensor) in undo

    def _rows_of_input(self, leaf: Any) -> Any:
        if not isinstance(leaf, Packed):
            return leaf
        tensor = rows = leaf.get()
        for dim in self.call.layer.token_dims(tensor, self.call.tokens):
            rows = rows.narrow(dim, self.first, self.call.tokens - self.first)
        return close_up(rows, tensor).detach().requires_grad_(leaf.requires_grad)

    def _answered(self, output: Any) -> Any:
        if not isinstance(output, Packed):
            return output
        rows = self.replayer.rows(output, self.call.layer.token_dim)
        return rows.detach().requires_grad_(output.requires_grad)


def _never(_: None) -> Any:
    raise ReplayError("nothing goes backward in a replay")
