"""Bytes of tensors that there are at most while something runs, as PyTorch's allocator counts."""

from torch.profiler import ProfilerActivity, profile


def peak(run):
    """The most above what there is before, and what is left of that."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    stack = list(profiled.profiler.kineto_results.experimental_event_tree())
    events = []
    while stack:
        event = stack.pop()
        if type(event.extra_fields).__name__ == "_ExtraFields_Allocation":
            events.append((event.start_time_ns, event.extra_fields.alloc_size))
        stack += event.children
    now = most = 0
    for _, size in sorted(events, key=lambda it: it[0]):
        now += size
        most = max(most, now)
    return most, now


def peaks(model, *args):
    """Of a forward and of a backward pass, above what there was before both."""
    model.zero_grad(set_to_none=True)
    losses = []
    forward, kept = peak(lambda: losses.append(model(*args).float().pow(2).mean()))
    backward, _ = peak(losses[0].backward)
    model.zero_grad(set_to_none=True)
    return forward, kept + backward
