"""What settings do that a program changes while it runs: rounding, limits, kinds of segments.

Each check has a process of its own: settings stay until the end.
"""

from __future__ import annotations

import threading

import torch

from checks.child import release
from checks.limited import is_refused, only
from checks.registry import MIB, Skip, alone, blank, equal
from checks.settings import shown

change = torch.cuda.memory._set_allocator_settings


def granted(size: int) -> int:
    """Bytes that are in use for a request of that many."""
    before = torch.cuda.memory_allocated()
    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    taken = torch.cuda.memory_allocated() - before
    del block
    torch.cuda.empty_cache()
    return taken


def rounded_up(size: int, divisions: int) -> int:
    """A size in the steps that divide the distance from one power of two to the next."""
    power = 1 << (size - 1).bit_length()
    if power == size or divisions <= 1:
        return power
    step = power // 2 // divisions
    return -(-size // step) * step


@alone
def rounding_by_powers() -> None:
    """roundup_power2_divisions, one number or a list, rounds up; the next text forgets it."""
    large, larger = 84 * MIB, 400 * MIB
    for text, expected in (
        ("", (large, larger)),
        ("roundup_power2_divisions:4", (rounded_up(large, 4), rounded_up(larger, 4))),
        ("garbage_collection_threshold:0.5", (large, larger)),
        (
            "roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]",
            (rounded_up(large, 8), rounded_up(larger, 2)),
        ),
        ("max_split_size_mb:40", (large, larger)),
    ):
        change(text)
        for size, bytes_ in zip((large, larger), expected, strict=True):
            equal(granted(size), bytes_, f"bytes for {size} with `{text}`")
    requested = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
    change("roundup_power2_divisions:4")
    granted(large)
    after = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
    equal(after - requested, large, "bytes that count as requested")


@alone
def wrong_settings() -> None:
    """What is wrong raises, and the settings before it hold on."""
    wrong = [
        "foo:1,bar:2",
        "garbage_collection_threshold:1.2",
        "max_split_size_mb:2",
        "roundup_power2_divisions:3",
        "expandable_segments:maybe",
    ]
    if release() >= (2, 10):
        wrong += [
            "release_lock_on_cudamalloc:none",
            "pinned_use_cuda_host_register:none",
            "pinned_num_register_threads:none",
            "pinned_num_register_threads:1024",
        ]
    change("")
    is_expandable = shown()["expandable_segments"]
    for text in wrong:
        try:
            change(text)
        except (ValueError, RuntimeError):
            pass
        else:
            raise AssertionError(f"`{text}` was accepted")
        equal(granted(84 * MIB), 84 * MIB, f"bytes for 84 MiB after `{text}`")
    equal(shown()["expandable_segments"], is_expandable, "expandable_segments")


@alone
def kinds_of_segments_while_it_runs() -> None:
    """A program turns expandable segments on and off: tensors of all times keep their bytes."""
    held: list[tuple[torch.Tensor, int]] = []
    for turn in range(12):
        change(f"expandable_segments:{turn % 3 != 0},max_split_size_mb:{64 + turn}")
        equal(shown()["max_split_size"], (64 + turn) * MIB, "max_split_size")
        for mebibytes in (0.001, 1, 5, 40, 200):
            held.append((blank(mebibytes).fill_(turn), turn))
        del held[:: 2 + turn % 3]
        if turn % 4 == 3:
            torch.cuda.empty_cache()
        for tensor, value in held:
            assert bool((tensor == value).all()), f"a tensor of turn {value} was overwritten"
    held.clear()
    del tensor
    torch.cuda.empty_cache()
    equal(torch.cuda.memory_allocated(), 0, "bytes in use in the end")


@alone
def limit_over_both_kinds() -> None:
    """A limit counts segments of both kinds; what is free of both makes room for a large one."""
    with only(120):
        blocks = []
        for word in (False, True, False):
            change(f"expandable_segments:{word},max_split_size_mb:40")
            blocks.append(blank(40))
        equal(is_refused(40), True, "that a fourth block is refused")
        blocks.clear()
        whole = blank(120)
        equal(whole.fill_(1).cpu().unique().tolist(), [1], "the block over all")


@alone
def collection_over_both_kinds() -> None:
    """Garbage collection with free segments of both kinds leaves room for a request."""
    with only(120):
        blocks = []
        for word in (False, True):
            change(f"expandable_segments:{word},garbage_collection_threshold:0.5")
            blocks.append(blank(40))
        blocks.clear()
        whole = blank(80)
        equal(whole.fill_(1).cpu().unique().tolist(), [1], "the block after it")


@alone
def lock_is_let_go_of() -> None:
    """release_lock_on_cudamalloc changes no size; threads that ask at once get their own."""
    change("release_lock_on_cudamalloc:True")
    equal(granted(84 * MIB), 84 * MIB, "bytes for 84 MiB")
    wrong: list[int] = []

    def work(value: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                tensor = blank(30 + value).fill_(value)
                if not bool((tensor == value).all()):
                    wrong.append(value)
                del tensor
                torch.cuda.empty_cache()

    threads = [threading.Thread(target=work, args=(value,)) for value in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(wrong, [], "threads whose tensor was overwritten")


@alone
def split_limit_and_out_of_memory() -> None:
    """With max_split_size_mb what has no memory fails as ever; half the card is had again."""
    change("max_split_size_mb:1024")
    total = torch.cuda.mem_get_info()[1]
    for elements in (1 << 40, 1 << 42):
        equal(is_refused(elements // MIB), True, f"that {elements} bytes are refused")
    half = int(0.5 * total / MIB)
    for _ in range(2):
        block = blank(half)
        equal(is_refused(half), True, "that the other half is refused")
        del block


@alone
def pinned_settings() -> None:
    """The keys of pinned memory are PyTorch's, and work: registered pages, threads, emptying."""
    if not hasattr(torch._C, "_host_emptyCache"):
        raise Skip("this release cannot empty the cache of pinned memory")
    for text in (
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
        "pinned_use_cuda_host_register:False",
        "pinned_use_background_threads:True" if release() >= (2, 8) else "",
    ):
        change(text)
        for elements in (20, 1 << 21, 1 << 24):
            host = torch.ones(elements).pin_memory()
            assert host.is_pinned(), f"{elements} floats are not pinned with `{text}`"
            there = host.to("cuda", non_blocking=True)
            equal(there.sum().item(), float(elements), f"the sum with `{text}`")
            del host, there
        torch._C._host_emptyCache()
