"""Machines on which something is missing: the program runs as if Girih were not there, and is told.

Neither torch nor a driver is needed: both are made up, as a package and as a library on the paths.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import girih

native = pytest.importorskip("girih._native", reason="the extension is not built")

# As much of torch's outside as is looked at before Girih is put under it. A torch without CUDA has
# no name of CUDA's in `_C`.
TORCH = """
import types

__version__ = {version!r}
version = types.SimpleNamespace(cuda={cuda!r}, hip=None)


class _C:
    pass


def _backend():
    return _C._cuda_getAllocatorBackend()


cuda = types.SimpleNamespace(
    is_initialized=lambda: False, _is_in_bad_fork=lambda: False, get_allocator_backend=_backend
)
"""
USE = "import torch; print('trains on', torch.__version__)\n"
RUNS = "trains on {}\n"


class Machine:
    """What is installed on a machine: folders for Python and for the dynamic linker."""

    def __init__(self, root: Path) -> None:
        self._site, self._lib = root / "site", root / "lib"
        for folder in (self._site, self._lib):
            folder.mkdir()

    def install_torch(self, version: str, cuda: str | None) -> None:
        (self._site / "torch.py").write_text(TORCH.format(version=version, cuda=cuda))

    def remove_torch(self) -> None:
        """Hides a torch that the tests' Python may have."""
        text = 'raise ModuleNotFoundError("No module named \'torch\'", name="torch")\n'
        (self._site / "torch.py").write_text(text)

    def install_driver(self) -> None:
        """Any library under the driver's name: nothing in it is called."""
        (self._lib / "libcuda.so.1").symlink_to(native.__file__)

    def remove_driver(self) -> None:
        """Hides a driver that the machine of the tests may have: this one cannot be loaded."""
        (self._lib / "libcuda.so.1").touch()

    @property
    def environ(self) -> dict[str, str]:
        paths = [str(self._site), *filter(None, [os.environ.get("PYTHONPATH")])]
        libraries = [str(self._lib), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {
            "PYTHONPATH": os.pathsep.join(paths),
            "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(params=["torch without CUDA", "torch without a driver"])
def poor(request: pytest.FixtureRequest, machine: Machine) -> tuple[Machine, str, str]:
    """A machine on which torch works and Girih cannot; torch's version; what is missing."""
    if request.param == "torch without CUDA":
        machine.install_torch("2.11.0+cpu", None)
        machine.install_driver()
        return machine, "2.11.0+cpu", "torch 2.11.0+cpu is built without CUDA"
    machine.install_torch("2.11.0+cu130", "13.0")
    machine.remove_driver()
    return machine, "2.11.0+cu130", "no NVIDIA driver"


def test_under_run_the_program_goes_on_and_is_told(python, poor):
    machine, version, missing = poor
    result = python("-m", "girih", "run", "-c", USE, **machine.environ)
    assert (result.returncode, result.stdout) == (0, RUNS.format(version)), result.stderr
    assert result.stderr.count("GirihWarning") == 1
    assert missing in result.stderr


def test_a_program_that_enables_girih_itself_goes_on_and_is_told(python, poor):
    machine, version, missing = poor
    code = (
        "import girih\ngirih.enable('auto')\ngirih.enable('auto')\n" + USE + "girih.mark('here')\n"
        "with girih.step(), girih.one_handle(): pass\n"
        "print(girih.is_enabled(), girih.stats()['mode'], girih.stats()['off'])\n"
    )
    result = python("-c", code, **machine.environ)
    lines = result.stdout.splitlines()
    assert lines[0] == RUNS.format(version).strip(), result.stderr
    assert lines[1].startswith("False off "), result.stderr
    assert missing in lines[1]
    assert result.stderr.count("GirihWarning") == 1
    assert missing in result.stderr


def test_what_cannot_be_written_without_girih_is_an_error_that_says_why(python, poor):
    machine, _, missing = poor
    code = "import girih\ngirih.enable()\ngirih.trace('t.girih', 0)\n"
    result = python("-c", code, **machine.environ)
    assert result.returncode == 1
    assert "GirihError: Girih is off in this process" in result.stderr
    assert missing in result.stderr.splitlines()[-1]


def test_the_variable_alone_does_no_harm_either(python, poor):
    machine, version, missing = poor
    code = "import girih\n" + USE
    result = python("-c", code, GIRIH_MODE="auto", **machine.environ)
    assert (result.returncode, result.stdout) == (0, RUNS.format(version)), result.stderr
    assert missing in result.stderr


def test_the_doctor_says_what_is_missing(python, poor):
    machine, _, missing = poor
    result = python("-m", "girih", "doctor", "--json", **machine.environ)
    found = json.loads(result.stdout)
    bad = [finding["text"] for finding in found["findings"] if finding["verdict"] == "bad"]
    assert (found["works"], result.returncode) == (False, 1)
    # The made-up driver cannot be called, which is another bad finding.
    assert any(missing.partition(" ")[2] in text for text in bad), bad


def test_a_driver_without_torch_is_told_by_enable_and_by_the_doctor(python, machine):
    machine.install_driver()
    machine.remove_torch()
    code = "import girih\ngirih.enable()\nprint(girih.is_enabled(), girih.stats()['off'])\n"
    result = python("-c", code, **machine.environ)
    off = "False install torch for CUDA, it cannot be imported: No module named 'torch'\n"
    assert (result.returncode, result.stdout) == (0, off), result.stderr
    assert "GirihWarning" in result.stderr
    doctor = python("-m", "girih", "doctor", **machine.environ)
    assert doctor.returncode == 1
    assert "BAD  torch" in doctor.stdout


def test_a_report_that_is_asked_for_is_written_where_girih_is_off(python, poor, tmp_path):
    machine, _, missing = poor
    words = ("-m", "girih", "run", "--report", "r.json", "-c", USE)
    assert python(*words, **machine.environ).returncode == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["mode"], report["devices"]) == ("off", [])
    assert missing in report["off"]
    assert report["settings"]["mode"] == "auto"


def test_a_report_of_a_program_without_torch_says_so(python, tmp_path):
    result = python("-m", "girih", "run", "--report", "r.json", "-c", "import os; os.fork()")
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["off"] == "the program did not import torch"
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"], "written whole, once"


def test_an_extension_that_does_not_load_keeps_nobody_from_importing_torch(python, machine):
    machine.install_torch("2.11.0+cu130", "13.0")
    machine.install_driver()
    code = "import sys; sys.modules['girih._native'] = None\n" + USE
    result = python("-m", "girih", "run", "-c", code, **machine.environ)
    assert (result.returncode, result.stdout) == (0, RUNS.format("2.11.0+cu130")), result.stderr
    assert "the extension of Girih cannot be loaded" in result.stderr


def test_what_nobody_thought_of_keeps_nobody_from_importing_torch(python, machine):
    """A torch with CUDA whose inside is not as we know it."""
    machine.install_torch("9.99.0+cu990", "99.0")
    machine.install_driver()
    result = python("-m", "girih", "run", "-c", USE, **machine.environ)
    assert (result.returncode, result.stdout) == (0, RUNS.format("9.99.0+cu990")), result.stderr
    assert "_cuda_getAllocatorBackend" in result.stderr
    assert "a bug of Girih" in result.stderr


def test_being_off_is_not_being_enabled():
    assert not girih.is_enabled()
