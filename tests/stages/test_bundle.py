"""A bundle: which modules and libraries it holds, what its launcher refuses, and what it does once unpacked.

A bare Python without a compiler, a path or a home runs and profiles what is in it. A start of it takes seconds, since
it keeps no bytecode. So what its commands answer is asked of them in this process, which has imported the same modules.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import small_step
import yaml
from planned_streams import Planned, on_threads, planned_step

import autotm
from autotm.cli.main import main
from autotm.memory.calibration import Effort, calibrate_links
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import hash_of, load, save
from autotm.model.graph import Tier, all_fast
from autotm.model.limit import Counts
from autotm.model.profile import read_profile
from autotm.model.program import KernelStep
from autotm.model.record import Record
from autotm.profile import copies, host_commands
from autotm.profile.kernel_timing import ProfileOptions
from autotm.runtime.streams.schedule import device_bytes
from autotm.runtime.verify import VerificationError, plain_program
from autotm.stages.bundle_files import downloaded_files, is_needed, modules_of, newest_glibc, require_installed
from autotm.stages.bundle_launcher import (
    UnfitError,
    is_standard,
    own_modules_only,
    require_computer,
    require_driver,
    require_python,
)

# Imports are followed wherever they stand, but for those that only type checkers read.

FILES = {
    "__init__.py": "from importlib import import_module\n",
    "entry.py": "from own.near import thing\ndef f():\n    from own.far.late import x\n",
    "near/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from own.never import y\n",
    "far/__init__.py": "",
    "far/late.py": "import importlib\nfrom own.far import kinds\nimportlib.import_module('own.far.kinds.one')\n",
    "far/kinds/__init__.py": "",
    "far/kinds/one.py": "import own.far.other\n",
    "far/other.py": "",
    "never.py": "",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "own"


def test_imports_are_followed(package: Path) -> None:
    files = {path.relative_to(package).as_posix() for path in modules_of(package, "own.entry")}
    assert files == FILES.keys() - {"never.py"}
    (package / "far" / "other.py").unlink()
    with pytest.raises(AutotmError, match=r"own\.far\.other is imported and not there"):
        modules_of(package, "own.entry")


def test_running_needs_every_kind_of_memory_and_nothing_that_plans() -> None:
    package = Path(autotm.__file__).parent
    files = {path.relative_to(package).as_posix() for path in modules_of(package, "autotm.runtime.run")}
    assert {f"memory/kinds/{path.name}" for path in (package / "memory" / "kinds").glob("*.py")} <= files
    assert {name.partition("/")[0] for name in files} <= {
        "__init__.py", "kernels", "layout", "memory", "model", "runtime"
    }  # fmt: skip
    kernels = {name.removeprefix("kernels/") for name in files if name.startswith("kernels/")}
    assert kernels <= {"__init__.py", "library.py", "compute_rates.py"}


def test_what_runs_nothing_is_left_out() -> None:
    needed = {
        "numpy/linalg/_umath.so", "tvm/lib/libtvm_runtime.so", "tvm/3rdparty/x/LICENSE", "numpy-2.0.dist-info/METADATA",
        "numpy-2.0.dist-info/licenses/LICENSE.txt",
    }  # fmt: skip
    others = {
        "numpy/tests/test_all.py", "tvm/lib/libtvm_compiler.so", "numpy-2.0.dist-info/RECORD", "../../bin/f2py",
    }  # fmt: skip
    assert {name for name in needed | others if is_needed(name)} == needed


def test_the_newest_version_of_the_c_library_counts() -> None:
    files = {"a.so": b"\x7fELF GLIBC_2.9 GLIBC_2.34", "b.so": b"\x7fELF GLIBC_2.17", "text": b"GLIBC_9.9"}
    assert newest_glibc(files) == (2, 34)


def test_libraries_that_are_not_to_be_had_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(BadInputError, match=r"--python 3\.12: pip could not download numpy==.* for CPython 3\.12"):
        list(downloaded_files(["numpy"], "3.12", tmp_path))
    with pytest.raises(AutotmError, match="bundle: autotm-of-no-one is not installed here: pip install"):
        require_installed(["numpy", "autotm-of-no-one"])


# What the launcher refuses before anything of a bundle is loaded: each with what is wrong and the remedy.

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
FITS = {
    "python": HERE, "machine": platform.machine(), "glibc": "2.17", "cpu_flags": [], "compiled_for": "znver9",
    "target": "cpu",
}  # fmt: skip


@pytest.mark.parametrize(
    ("require", "change", "message"),
    [
        (require_python, {"python": "3.8"}, "for CPython 3.8, this is CPython"),
        (require_python, {"python": "3.8"}, f"autotm bundle ... --python {HERE}"),
        (require_computer, {"machine": "riscv64"}, "for Linux on riscv64, this is Linux on"),
        (require_computer, {"glibc": "9.1"}, "needs glibc 9.1 or newer, this computer has glibc 2."),
        (require_computer, {"cpu_flags": ["avx99"]}, "compiled for znver9; this processor lacks avx99: name it as"),
        (require_driver, {"target": "cuda"}, "no driver of NVIDIA's is here (libcuda.so.1): install it"),
    ],
)
def test_what_does_not_fit_is_refused(require: Callable[..., None], change: dict[str, object], message: str) -> None:
    require(FITS)
    options = {"library": "libcuda_of_no_one.so.1"} if require is require_driver else {}
    with pytest.raises(UnfitError) as refused:
        require({**FITS, **change}, **options)
    assert message in str(refused.value)


def test_modules_come_from_the_bundle_and_from_python_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = next(path for path in sys.path if path.endswith(f"python{HERE}"))
    others = ["", str(tmp_path), f"{library}/site-packages", "/usr/lib/python3/dist-packages"]
    monkeypatch.setattr(sys, "path", [*others, library, f"{library}/lib-dynload"])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    own_modules_only(tmp_path)
    assert sys.path == [str(tmp_path / "site"), library, f"{library}/lib-dynload"]
    assert not is_standard("", set())


# A bundle unpacked.

CONFIG = Path(__file__).parents[2] / "config"
STUDY = ("--config", "config/config.yaml", "--scale", "tiny", "--threads", "1", "--results", "results")
PLANNED = ("mlp", "synchronous", "4:1")
NETWORK = Path("laptop-1t", "tiny", "mlp")
MOST_BYTES = 30_000_000


@pytest.fixture(scope="module")
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
    return lambda *arguments: host_commands.main(host, arguments, "python bundle")


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
    folder = there / NETWORK / "synchronous" / "4to1"
    record = load(folder / "record.json", "record", Record)
    assert (record.network, str(record.limit), record.verified_steps) == ("mlp", "4:1", 2)
    same = ("plan.json", "program.json")
    home = results / NETWORK / "synchronous" / "4to1"
    assert all((folder / name).read_bytes() == (home / name).read_bytes() for name in same)
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
    copied = Path(shutil.copytree(host, tmp_path / "copied", copy_function=os.link))
    (copied / name).unlink()
    if content is not None:
        (copied / name).write_bytes(content)
    done = called(copied, "check")
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "COMMAND"), (("chekc",), "choice: 'chekc'"), (("check", "--threads", "0"), "'0' is no number of threads")],
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
    [(("check", "--threads", "100000"), "threads: 100000"), (("run", "--to", "/proc/run.zip"), "/proc: ")],
)
def test_what_cannot_be_is_one_message(
    hosted: Callable[..., int], arguments: Sequence[str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert hosted(*arguments) == 1
    (said,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert message in said.getMessage()


# The commands of a GPU's bundle on threads that play the device: programs compared, kernels and copies timed.

COUNTS = Counts.INTERMEDIATES


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> Planned:
    return planned_step("mlp", tmp_path_factory.mktemp("mlp"), objects)


@pytest.mark.parametrize("optimizer", ["synchronous", "asynchronous"])
def test_a_program_equals_the_plain_step(planned: Planned, optimizer: str) -> None:
    program = planned.programs[optimizer]
    assert host_commands.compared(planned.graph, program, COUNTS, 1, 2, on_threads(planned.library)) == len(
        planned.expected
    )
    assert len(host_commands.step_seconds(planned.graph, program, COUNTS, 1, 3, on_threads(planned.library))) == 3


def test_a_program_is_compared_kernel_by_kernel_where_the_plain_step_does_not_fit(planned: Planned) -> None:
    graph, program = planned.graph, planned.programs["synchronous"]
    needed = device_bytes(graph, graph, program)
    assert needed < device_bytes(graph, graph, plain_program(graph))
    opened = on_threads(planned.library, most_bytes=needed)
    assert host_commands.compared(graph, program, COUNTS, 1, 2, opened) == len(planned.expected)
    late = replace(program, steps=tuple(step for step in program.steps if getattr(step, "tensor", None) is None))
    with pytest.raises(VerificationError, match="differs from the plain step"):
        host_commands.compared(graph, late, COUNTS, 1, 2, opened)
    with pytest.raises(AutotmError, match=r"alone take .* 64 bytes are free"):
        host_commands.compared(graph, program, COUNTS, 1, 2, on_threads(planned.library, most_bytes=64))


def test_a_program_that_reads_elsewhere_is_told(planned: Planned) -> None:
    program = planned.programs["synchronous"]
    first = next(step for step in program.steps if isinstance(step, KernelStep))
    places = [place for place, address in enumerate(first.addresses) if address.offset is not None]
    moved = list(first.addresses)
    moved[places[0]] = replace(moved[places[0]], offset=(moved[places[0]].offset or 0) + 64)
    wrong = replace(
        program,
        fast_bytes=program.fast_bytes + 64,
        steps=tuple(replace(step, addresses=tuple(moved)) if step is first else step for step in program.steps),
    )
    with pytest.raises(VerificationError, match="step 1 differs from the plain step in"):
        host_commands.compared(planned.graph, wrong, COUNTS, 1, 2, on_threads(planned.library))


def test_every_kernel_and_copy_is_timed(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_commands, "COPIED_BYTES", host_commands.COPIED_BYTES[:3])
    options = ProfileOptions(min_repeats=3, max_repeats=6, step_s=0.0)
    opened, came_from = on_threads(planned.library), {"machine": "played"}
    profile, links = host_commands.profiled(planned.graph, COUNTS, options, opened, came_from)
    assert profile.graph_hash == hash_of(planned.graph)
    for kernel in planned.graph.kernels:
        timing = profile.timing(kernel, all_fast(kernel))
        assert timing is not None
        assert timing.repeats == options.min_repeats
        assert timing.median_ns >= 0
    assert (profile.provenance["machine"], profile.provenance["gpu"]) == ("played", "threads")
    assert [link.destination for link in (links.to_fast, links.to_slow)] == [Tier.FAST, Tier.SLOW]
    assert [size for size, _ in links.to_slow.points] == list(host_commands.COPIED_BYTES)
    assert links.asynchronous is None
    assert links.contraction_flop_per_s > 0
