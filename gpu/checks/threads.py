"""Several threads in one process, on one device."""

from __future__ import annotations

import threading

import torch

from checks.registry import blank, check, equal


@check
def threads() -> None:
    """8 threads allocate, write, compare and free; no byte is given to two."""
    errors: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        held: list[tuple[torch.Tensor, int]] = []
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(300):
                size = int(torch.randint(1, 1 << 20, (), generator=generator))
                value = (seed * 1000 + turn) % 251
                held.append((torch.full((size,), value, dtype=torch.uint8, device="cuda"), value))
                if len(held) > 16:
                    tensor, value = held.pop(turn % len(held))
                    if not bool((tensor == value).all()):
                        errors.append(f"thread {seed}, turn {turn}")
        torch.cuda.synchronize()

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, f"overwritten: {errors[:3]}"


@check
def freed_on_another_thread() -> None:
    """A tensor may die on any thread."""
    before = torch.cuda.memory_allocated()
    held = [blank(2) for _ in range(16)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    equal(torch.cuda.memory_allocated(), before, "memory_allocated")
