"""Settings, keys and names of files."""

import json
import os
from pathlib import Path

import pytest

from girih import _key, _paths, _settings
from girih._errors import GirihError

HOME = {"HOME": "/home/someone"}


def test_settings_go_through_the_environment_unchanged(tmp_path):
    plan = tmp_path / "file.plan"
    plan.touch()
    settings = _settings.make(
        "plan", plan=plan, conf="max_split_size_mb:64", trace="t", options={"modules": True}
    )
    environ: dict[str, str] = {}
    _settings.to_environ(settings, environ)
    assert _settings.from_environ(environ) == settings


def test_no_plan_folder_stays_none_through_the_environment():
    environ = dict(HOME)
    _settings.to_environ(_settings.make(plan_dir=False), environ)
    found = _settings.from_environ(environ)
    assert found is not None
    assert found.plan_dir is None


def test_an_environment_without_a_mode_says_nothing():
    assert _settings.from_environ({"GIRIH_CONF": "x"}) is None


def heaps_of(settings, torch: str, **environ: str):
    return json.loads(settings.for_heaps(key="k", torch=torch, environ=environ))


def test_what_was_written_for_pytorch_holds_unless_something_else_is_said():
    text = "expandable_segments:True"
    inherited = heaps_of(_settings.make(), "2.11.0", PYTORCH_CUDA_ALLOC_CONF=text)
    assert (inherited["conf"], inherited["torch_conf"]) == (None, text)
    assert heaps_of(_settings.make(conf=""), "2.11.0", PYTORCH_CUDA_ALLOC_CONF=text)["conf"] == ""


def test_a_launcher_leaves_pytorchs_settings_where_they_are():
    environ = HOME | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    _settings.to_environ(_settings.make(environ=environ), environ)
    assert "GIRIH_CONF" not in environ
    _settings.to_environ(_settings.make(conf="", environ=environ), environ)
    assert environ["GIRIH_CONF"] == ""


@pytest.mark.parametrize("torch", ["2.6.0", "2.7.1", "2.8.0", "2.9.1"])
def test_before_2_10_pytorch_looks_at_one_variable(torch):
    old = {"PYTORCH_CUDA_ALLOC_CONF": "a:1"}
    others = {"PYTORCH_HIP_ALLOC_CONF": "b:1", "PYTORCH_ALLOC_CONF": "c:1"}
    assert heaps_of(_settings.make(), torch, **old, **others)["torch_conf"] == "a:1"
    assert heaps_of(_settings.make(), torch, **others)["torch_conf"] == ""


@pytest.mark.parametrize("torch", ["2.10.0", "2.11.0+cu130", "2.15.0", "3.0"])
def test_from_2_10_on_the_oldest_name_goes_first(torch):
    names = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]
    for first in range(3):
        environ = {name: f"{name}:1" for name in names[first:]}
        found = heaps_of(_settings.make(), torch, **environ)["torch_conf"]
        assert found == f"{names[first]}:1"
    # Set to nothing it is set.
    empty = {"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "c:1"}
    assert heaps_of(_settings.make(), torch, **empty)["torch_conf"] == ""


def test_an_unknown_mode_is_refused_with_those_that_there_are():
    with pytest.raises(GirihError, match=r"atuo.*auto, plan, stitch, expandable"):
        _settings.make("atuo")


def test_the_mode_plan_follows_what_an_earlier_run_has_kept(tmp_path):
    pytest.importorskip("girih._native", reason="the extension is not built")
    settings = _settings.make("plan", plan_dir=tmp_path)
    with pytest.raises(GirihError, match='run it once in the mode "auto"'):
        settings.with_plan("key")
    (tmp_path / "3dc94a19365b10ec-0.plan").touch()
    assert settings.with_plan("key").plan == str(tmp_path / "3dc94a19365b10ec-{device}.plan")


def test_the_mode_plan_needs_a_plan_that_exists(tmp_path):
    with pytest.raises(GirihError, match="plan="):
        _settings.make("plan", plan_dir=False)
    with pytest.raises(GirihError, match=r"nothing\.plan"):
        _settings.make("plan", plan=tmp_path / "nothing.plan")


def test_options_of_python_do_not_reach_the_heaps():
    settings = _settings.make(options={"modules": True, "sim": {"capacity": 1}}, environ=HOME)
    heaps = json.loads(settings.for_heaps(key="k", torch="2.11.0"))
    assert "modules" not in heaps
    assert heaps["sim"] == {"capacity": 1}
    assert (heaps["mode"], heaps["key"], heaps["torch"]) == ("auto", "k", "2.11.0")


@pytest.mark.parametrize("rank", [None, "3"])
def test_each_gpu_has_a_plan_of_its_own_where_no_launcher_numbers_the_processes(rank, monkeypatch):
    for name in ("RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    if rank is not None:
        monkeypatch.setenv("SLURM_PROCID", rank)
    heaps = json.loads(_settings.make(environ=HOME).for_heaps(key="k", torch="2.11.0"))
    assert heaps["plans_by_gpu"] == (rank is None)


def test_a_trace_that_is_asked_for_is_recorded():
    assert _settings.make(trace="run.girih").records
    assert not _settings.make().records


def test_a_program_may_ask_for_a_recording_without_a_file():
    settings = _settings.make(options={"record": True}, environ=HOME)
    assert json.loads(settings.for_heaps(key="", torch=""))["record"] is True


@pytest.mark.parametrize("text", ["{", "[1]", '"x"'])
def test_options_that_are_no_object_are_refused_by_name(text):
    with pytest.raises(GirihError, match="GIRIH_OPTIONS"):
        _settings.from_environ({"GIRIH_MODE": "auto", "GIRIH_OPTIONS": text})


def key(**changes: object) -> str:
    known: dict[str, object] = {
        "program": "/train.py",
        "arguments": ["--layers", "4"],
        "world": "8",
        "rank": "3",
        "process": "MainProcess",
        "gpus": ["NVIDIA H200"],
        "torch_version": "2.11.0",
        "girih_version": "0.1.0",
    }
    return _key.of(**(known | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"program": "/other.py"},
        {"arguments": ["--layers", "5"]},
        {"world": "4"},
        {"rank": "2"},
        {"process": "SpawnProcess-1"},
        {"gpus": ["NVIDIA H100"]},
        {"torch_version": "2.12.0"},
        {"girih_version": "0.2.0"},
    ],
)
def test_a_key_changes_with_everything_that_a_plan_depends_on(change):
    assert key(**change) != key()


def test_a_key_does_not_change_with_where_results_go():
    arguments = ["--output-dir", "/a", "--layers", "4", "--run_name=x", "--save-interval", "5"]
    assert key(arguments=arguments) == key()
    assert key(gpus=["NVIDIA H200"] * 8) == key()


def test_an_option_without_a_value_does_not_swallow_the_next():
    assert _key.important(["--log", "--layers", "4"]) == ["--layers", "4"]


@pytest.mark.parametrize("argument", ["--layers", "--lr=1e-4", "--profile", "--renorm", "data.csv"])
def test_what_may_change_memory_is_important(argument):
    assert _key.important([argument]) == [argument]


def test_the_models_of_the_gpus_are_read_from_the_kernels_driver(tmp_path):
    for index in range(2):
        folder = tmp_path / f"0000:0{index}:00.0"
        folder.mkdir()
        (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   42\n")
    assert _key.gpu_models(tmp_path) == ["NVIDIA H200"] * 2
    assert _key.gpu_models(tmp_path / "none") == []


KERNEL = "/usr/lib/python3/site-packages/ipykernel_launcher.py"


def notebook(connection: str, **environ: str) -> str | None:
    return _key._notebook([KERNEL, "-f", f"/run/user/1000/jupyter/{connection}"], environ)


def test_a_notebook_has_the_same_name_with_every_connection(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = notebook("kernel-6e1d2b1c-2f6b.json")
    assert first == notebook("kernel-00000000-0000.json") == f"notebook {tmp_path}"
    named = {"JPY_SESSION_NAME": str(tmp_path / "train.ipynb")}
    assert notebook("kernel-1.json", **named) == f"notebook {tmp_path}/train.ipynb"
    assert notebook("kernel-2.json", **named) == notebook("kernel-3.json", **named)
    monkeypatch.chdir(tmp_path.parent)
    assert notebook("kernel-1.json") != first, "another folder, another notebook"


def test_a_program_is_no_notebook():
    for argv in (["train.py", "-f", "kernel-1.json"], ["/usr/bin/ipython"], []):
        assert _key._notebook(argv, {}) is None


def test_a_notebook_finds_its_plan_again(python):
    code = (
        "import sys, uuid\n"
        f"sys.argv = [{KERNEL!r}, '-f', f'/run/kernel-{{uuid.uuid4()}}.json']\n"
        "from girih import _key\n"
        "print(_key.of_process('2.11.0', '0.1.0'))\n"
    )
    keys = [python("-c", code).stdout for _ in range(2)]
    assert keys[0] == keys[1]
    assert len(keys[0].strip()) == 32
    code = code.replace("-f", "--layers")
    assert python("-c", code).stdout == keys[0], "the words of a kernel are Jupyter's"


def test_each_rank_and_device_has_a_file_of_its_own():
    ranks = {"RANK": "3", "WORLD_SIZE": "8"}
    assert _paths.own("/t/run.girih", 0, {}) == "/t/run.girih"
    assert _paths.own("/t/run.girih", 1, {}) == "/t/run.dev1.girih"
    assert _paths.own("/t/run.girih", 0, ranks) == "/t/run.rank3.girih"
    assert _paths.own("/t/{rank}/{device}.girih", 2, ranks) == "/t/3/2.girih"
    assert _paths.absolute("/p/{rank}.plan", ranks) == "/p/3.plan"


def test_ranks_of_every_launcher_have_files_of_their_own():
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}
    assert _paths.own("/t/run.girih", 0, slurm) == "/t/run.rank3.girih"
    assert _paths.absolute("/p/{rank}.plan", slurm) == "/p/3.plan"
    assert _paths.own("/t/run.girih", 0, {"RANK": "0", "WORLD_SIZE": "1"}) == "/t/run.girih"
    assert _paths.own("/t/run.girih", 0, {"RANK": "0"}) == "/t/run.rank0.girih", "of how many?"


def test_processes_without_a_rank_that_a_run_starts_have_files_of_their_own():
    own = {"GIRIH_PID": str(os.getpid())}
    assert _paths.own("/t/run.girih", 0, own) == "/t/run.girih"
    environ: dict[str, str] = {}
    _paths.launch(environ)
    assert environ == own
    started = {"GIRIH_PID": "1"}
    assert _paths.own("/t/run.girih", 0, started) == f"/t/run.pid{os.getpid()}.girih"
    ranked = started | {"RANK": "3", "WORLD_SIZE": "8"}
    assert _paths.own("/t/run.girih", 0, ranked) == "/t/run.rank3.girih"


def test_a_file_is_written_whole_and_a_link_stays_one(tmp_path):
    (tmp_path / "link.json").symlink_to("file.json")
    # Left by a process of this number that died, here or on another machine.
    (tmp_path / f"file.json.{os.getpid()}-0.unfinished").write_text("half")
    _paths.write_whole(str(tmp_path / "link.json"), "whole")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "file.json").read_text() == "whole"
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(OSError, match="nowhere"):
        _paths.write_whole(str(tmp_path / "nowhere" / "file"), "")
    with pytest.raises(UnicodeEncodeError):
        _paths.write_whole(str(tmp_path / "file.json"), "half\udc00")
    assert (tmp_path / "file.json").read_text() == "whole"
    assert len(list(tmp_path.iterdir())) == 3, "nothing unfinished is left"


def test_the_cache_is_where_the_user_keeps_caches():
    assert _settings.cache_dir(HOME) == Path("/home/someone/.cache/girih")
    assert _settings.cache_dir(HOME | {"XDG_CACHE_HOME": "/x"}) == Path("/x/girih")
    assert _settings.cache_dir(HOME | {"GIRIH_CACHE": "/y"}) == Path("/y")


def test_the_limit_of_gmlake_reaches_the_heaps():
    settings = _settings.make("gmlake", options={"gmlake_limit": 2 << 20}, environ=HOME)
    heaps = json.loads(settings.for_heaps(key="k", torch="2.11.0"))
    assert (heaps["mode"], heaps["gmlake_limit"]) == ("gmlake", 2 << 20)
