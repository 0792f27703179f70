"""Python imports this at its start, in processes that a program under `python -m girih run` starts.

It imports girih, which obeys the environment, and then the `sitecustomize` that it stands before.
A Python that has no girih (another environment's) starts as if nothing were here.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (old Pythons read this)


def _run():
    try:
        import girih  # noqa: F401
    except ImportError:
        pass
    except Exception as error:  # a program must not fail for what its launcher wanted
        sys.stderr.write("girih is not enabled: %s\n" % error)  # noqa: UP031


def _run_next():
    # The other one is found by looking for the name without this folder.
    paths = sys.path[:]
    here = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [path for path in paths if os.path.abspath(path) != _HERE]  # noqa: PTH100
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        if here is not None:
            sys.modules["sitecustomize"] = here
    finally:
        sys.path[:] = paths


if os.environ.get("GIRIH_MODE"):
    _run()
_run_next()
