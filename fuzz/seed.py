#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets into fuzz/corpus: small snapshots in every protocol, and
whatever is given: recordings (.pickle.gz), of which the beginning is taken, and trace files.

    python3 fuzz/seed.py [recording.pickle.gz | trace.girih ...]
"""

import gzip
import pickle
import shutil
import sys
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def entry(number: int, action: str) -> dict:
    """A trace entry as PyTorch writes it."""
    return {
        "action": action,
        "addr": 0x7F00_0000_0000 + 512 * number,
        "size": 1000 + number,
        "stream": 0,
        "time_us": 1_700_000_000_000_000 + number,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": (0, number % 2),
    }


def invented() -> dict:
    """A snapshot with one of everything."""
    frames = [{"name": "f", "filename": "a.py", "line": 3}]
    actions = "segment_alloc alloc free_requested free_completed segment_free annotate snapshot"
    block = {"address": 0, "size": 512, "requested_size": 7, "state": "inactive", "frames": frames}
    segment = {"device": 0, "address": 0, "total_size": 512, "stream": 0, "segment_type": "small",
               "segment_pool_id": (0, 0), "is_expandable": False, "blocks": [block]}
    mark = {"name": "ProfilerStep#1", "stage": "START", "device": 0, "time_us": 5}
    oom = {"action": "oom", "device_free": 1, "size": 2, "stream": 0, "time_us": 3}
    return {
        "segments": [segment],
        "device_traces": [[entry(0, a) | {"frames": frames} for a in actions.split()] + [oom]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [mark],
    }


def cut(path: str) -> dict:
    """The first entries and segments of a recording."""
    snapshot = pickle.loads(gzip.open(path).read())
    snapshot["device_traces"] = [trace[:20] for trace in snapshot["device_traces"]]
    snapshot["segments"] = snapshot["segments"][:2]
    return snapshot


def main() -> None:
    for target in ("snapshot", "trace_file"):
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
    for path in filter(lambda path: path.endswith(".girih"), sys.argv[1:]):
        shutil.copy(path, CORPUS / "trace_file")
    recordings = [path for path in sys.argv[1:] if not path.endswith(".girih")]
    for number, snapshot in enumerate([invented(), *map(cut, recordings)]):
        for protocol in range(6):
            data = pickle.dumps(snapshot, protocol)
            (CORPUS / "snapshot" / f"{number}-{protocol}").write_bytes(data)
        path = CORPUS / "snapshot" / f"{number}-gz"
        path.write_bytes(gzip.compress(data))


if __name__ == "__main__":
    main()
