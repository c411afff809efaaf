"""A bundle unpacked: a bare Python without a compiler, a path or a home runs and profiles what is in it.

A start of it takes seconds, since it keeps no bytecode. So what its commands answer is asked of them in this process,
which has imported the same modules.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import small_step
import yaml

import autotm.profile.host_commands
from autotm.cli.main import main
from autotm.memory.calibration import Effort, calibrate_links
from autotm.model.files import load, save
from autotm.model.profile import read_profile
from autotm.model.record import Record
from autotm.profile import copies

CONFIG = Path(__file__).parents[3] / "config"
STUDY = ("--config", "config/config.yaml", "--scale", "tiny", "--threads", "1", "--results", "results")
PLANNED = ("mlp", "synchronous", "4:1")
NETWORK = Path("laptop-1t", "tiny", "mlp")
MOST_BYTES = 30_000_000


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A study that does not wait for its neighbours on this machine to leave."""
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(CONFIG, home / "config")
    file = home / "config" / "config.yaml"
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    for stage in ("profile", "run"):
        config[stage]["patience_s"] = 0.0
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        yield home


@pytest.fixture(scope="module")
def results(home: Path) -> Path:
    """A profiled and planned mlp; its links are made up."""
    results = home / "results"
    save(results / "laptop-1t" / "links.json", "links", small_step.links(), {})
    for command in (("profile", "mlp"), ("solve", *PLANNED), ("compile", *PLANNED)):
        assert main([*command, *STUDY]) == 0
    return results


@pytest.fixture(scope="module")
def archive(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert results.exists()
    file = tmp_path_factory.mktemp("sent") / "mlp.tar.xz"
    assert main(["bundle", *PLANNED, "--to", str(file), *STUDY]) == 0
    return file


@pytest.fixture(scope="module")
def host(archive: Path) -> Path:
    """The folder of the unpacked bundle."""
    with tarfile.open(archive) as opened:
        opened.extractall(archive.parent, filter="data")
    return archive.parent / "mlp-synchronous-4to1"


def called(bundle: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The bundle on a computer that has nothing: no compiler on the path, no cache, no library but Python's own."""
    python = Path(sys.base_exec_prefix, "bin", f"python{sysconfig.get_python_version()}")
    interpreter = str(python if python.exists() else Path(sys.executable).resolve())
    command = [interpreter, "-S", str(bundle), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PATH": "/nowhere", "HOME": "/nowhere"}
    )


def test_it_is_small_and_has_no_compiler(archive: Path, host: Path) -> None:
    assert archive.stat().st_size < MOST_BYTES
    names = {path.name for path in host.rglob("*")}
    assert "libtvm_runtime.so" in names
    assert "libtvm_compiler.so" not in names
    packages = {path.parent.name for path in (host / "site" / "autotm").glob("*/__init__.py")}
    assert not packages & {"zoo", "lower", "solve", "stages", "study", "cli", "api"}


def test_every_file_is_listed_under_its_hash_with_a_licence_for_every_library(host: Path) -> None:
    manifest = json.loads((host / "manifest.json").read_text())
    files = {path.relative_to(host).as_posix() for path in host.rglob("*") if path.is_file()}
    written = {name for name in files if "__pycache__" in name}
    assert files - written == {*manifest["files"], "manifest.json"}
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((host / name).read_bytes()).hexdigest() == digest
    for folder in (host / "site").glob("*.dist-info"):
        assert any(path.name.upper().startswith(("LICEN", "NOTICE", "COPYING")) for path in folder.rglob("*")), folder


@pytest.fixture
def hosted(host: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """A command of the bundle in this process."""
    monkeypatch.chdir(home)  # Commands change the folder; this takes it back.
    return lambda *arguments: autotm.profile.host_commands.main(host, arguments, "python bundle")


def test_a_program_equals_the_plain_step_bit_for_bit(
    hosted: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert hosted("check") == 0
    assert capsys.readouterr().out == (
        "mlp, synchronous at 4:1: 2 steps equal the plain step bit for bit in all 9 results, on 1 threads\n"
    )


def test_a_record_of_the_host_comes_home(host: Path, results: Path, tmp_path: Path) -> None:
    done = called(host, "run", "--to", str(tmp_path / "run.zip"))
    assert done.returncode == 0, done.stderr
    there = tmp_path / "results"
    assert main(["import", str(tmp_path / "run.zip"), "--results", str(there)]) == 0
    found = there / NETWORK / "synchronous" / "4to1"
    record = load(found / "record.json", "record", Record)
    assert (record.network, str(record.limit), record.verified_steps) == ("mlp", "4:1", 2)
    same = ("plan.json", "program.json")
    home = results / NETWORK / "synchronous" / "4to1"
    assert all((found / name).read_bytes() == (home / name).read_bytes() for name in same)
    assert main(["check", *PLANNED, *STUDY[:-1], str(there)]) == 0


def is_solved_at_home(profile: Path, results: Path, there: Path) -> None:
    """What the host profiled has the same kernels and options, and its own links."""
    assert main(["import", str(profile), "--results", str(there)]) == 0
    measured, before = (read_profile(folder / NETWORK / "profile.parquet") for folder in (there, results))
    assert measured.timings.keys() == before.timings.keys()
    assert measured.provenance["options_hash"] == before.provenance["options_hash"]
    assert (there / "laptop-1t" / "links.json").read_bytes() != (results / "laptop-1t" / "links.json").read_bytes()
    assert main(["solve", *PLANNED, *STUDY[:-1], str(there)]) == 0


def test_what_the_host_profiled_is_solved_at_home(
    hosted: Callable[..., int], results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibrated on two sizes of copies, each made once."""
    quick = functools.partial(calibrate_links, sizes_bytes=(1 << 12, 1 << 16), effort=Effort(1, 1))
    monkeypatch.setattr(copies, "calibrate_links", quick)
    assert hosted("profile", "--to", str(tmp_path / "profile.zip")) == 0
    monkeypatch.chdir(results.parent)
    is_solved_at_home(tmp_path / "profile.zip", results, tmp_path / "results")


@pytest.mark.slow
def test_a_host_that_has_nothing_calibrates_and_profiles(host: Path, results: Path, tmp_path: Path) -> None:
    done = called(host, "profile", "--to", str(tmp_path / "profile.zip"))
    assert done.returncode == 0, done.stderr
    is_solved_at_home(tmp_path / "profile.zip", results, tmp_path / "results")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("step/kernels.so", b"\x7fELF", "step/kernels.so is not what was packed"),
        ("step/plan.json", None, "step/plan.json cannot be read"),
        ("manifest.json", b"{", "manifest.json cannot be read"),
        ("manifest.json", b'{"format": 0}', "files of two bundles lie in"),
    ],
)
def test_damage_is_one_message(host: Path, tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    copied = Path(shutil.copytree(host, tmp_path / "copied", copy_function=_linked))
    (copied / name).unlink()
    if content is not None:
        (copied / name).write_bytes(content)
    done = called(copied, "check")
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def _linked(source: str, destination: str) -> None:
    Path(destination).hardlink_to(source)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "COMMAND"),
        (("chekc",), "invalid choice: 'chekc'"),
        (("check", "--threads", "0"), "'0' is no number of threads"),
    ],
)
def test_a_wrong_command_line_is_told_with_the_usage(
    hosted: Callable[..., int], arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        hosted(*arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "--threads", "100000"), "threads: 100000"),
        (("run", "--to", "/proc/run.zip"), "/proc: "),
    ],
)
def test_what_cannot_be_is_one_message(
    hosted: Callable[..., int], arguments: Sequence[str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert hosted(*arguments) == 1
    (said,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert message in said.getMessage()


def test_a_python_that_is_none_is_refused(results: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "mlp.tar.xz"
    assert results.exists()
    assert main(["bundle", *PLANNED, "--to", str(file), "--python", "three", *STUDY]) == 1
    assert "--python three: give the version of CPython on the host" in caplog.text
    assert not file.exists()
