"""Every command of `autotm`: a call that works in the prepared study, and what its users are likely to get wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prepared_study import NETWORK, OPTIONS, PLAN

TEXT = b"not what it should be\n"
FAULT, MISUSE = 1, 2
STATIC = f"{NETWORK}/static/4to1"
SYNCHRONOUS = f"{NETWORK}/synchronous/4to1"


@dataclass(frozen=True)
class Misuse:
    """A call that must end with one message.

    Attributes:
        arguments: the command line after `autotm`.
        message: a part of the expected error message.
        status: the expected exit status.
        damaged: files of the study by path, each with its wrong content; None where the file is removed.
        is_common: whether every command of a study can be misused so, and the same code reports it.
    """

    arguments: str
    message: str
    status: int = FAULT
    damaged: Mapping[str, bytes | None] = field(default_factory=dict)
    is_common: bool = False


@dataclass(frozen=True)
class Command:
    """A command and its misuses, by kind; a text in place of the misuses of a kind says why there are none.

    Attributes:
        call: command line of a call that works.
        missing: calls that read a file which does not exist.
        wrong: calls that read or write a file of another kind.
        unknown: calls with an unknown name; the message names the nearest known one.
        needs: package without which the call does not work.
        writes: files of the study that the call writes or appends to; a call without any needs no free disk space.
        is_of_study: whether the command takes the options of a study.
    """

    call: str
    missing: Sequence[Misuse] | str
    wrong: Sequence[Misuse] | str
    unknown: Sequence[Misuse] | str
    writes: Sequence[str] = ()
    is_of_study: bool = True
    needs: str = ""

    @property
    def works_here(self) -> bool:
        """Whether what the call needs is installed."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None

    @property
    def arguments(self) -> list[str]:
        """Arguments of the call that works."""
        return self.with_options(self.call)

    @property
    def misuses(self) -> list[Misuse]:
        """Misuses of all kinds that have any."""
        kinds = (self.missing, self.wrong, self.unknown)
        return [case for kind in kinds if not isinstance(kind, str) for case in kind]

    def with_options(self, call: str) -> list[str]:
        """The arguments of a call, in the study."""
        return [*call.split(), *(OPTIONS if self.is_of_study and "--scale" not in call else ())]


def _of_study(call: str) -> dict[str, list[Misuse]]:
    """Misuses, by kind, that every command of a study can have."""
    return {
        "missing": [Misuse(f"{call} --config config/confg.yaml", "no such study file; did you mean 'config'?")],
        "wrong": [
            Misuse(f"{call} --config mlp.zip", "mlp.zip: not valid YAML"),
            Misuse(f"{call} --config config", "'config' is a directory", MISUSE),
            Misuse(f"{call} --results mlp.zip", "'mlp.zip' is a file", MISUSE),
            Misuse(call, "laptop.yaml: not valid YAML", damaged={"config/machines/laptop.yaml": b"\xff\xfe\x00"}),
        ],
        "unknown": [
            Misuse(f"{call} --machine lapto", "no such machine file; did you mean 'laptop'?"),
            Misuse(f"{call} --scale tniy", "no such scale file; did you mean 'tiny'?"),
            Misuse(f"{call} --count all", "'--counts'", MISUSE),
        ],
    }


def of_study(call: str, writes: Sequence[str] = (), **more: object) -> Command:
    """A command of a study; `more` holds further misuses by kind, and other attributes of `Command`."""
    common = {kind: [replace(case, is_common=True) for case in cases] for kind, cases in _of_study(call).items()}
    kinds = {kind: [*cases, *more.pop(kind, [])] for kind, cases in common.items()}  # type: ignore[misc]
    return Command(call, writes=writes, **kinds, **more)  # type: ignore[arg-type]


def of_network(call: str, writes: Sequence[str] = (), reads: Sequence[str] = (), **more: object) -> Command:
    """As `of_study`, for a command on the network mlp that reads files of the study."""
    unknown = [Misuse(call.replace(" mlp", " mpl", 1), "unknown network 'mpl'; did you mean 'mlp'?")]
    missing = [Misuse(call, file.rpartition("/")[2], damaged={file: None}) for file in reads]
    wrong = [Misuse(call, file.rpartition("/")[2], damaged={file: TEXT}) for file in reads]
    kinds = {"missing": missing, "wrong": wrong, "unknown": unknown}
    return of_study(call, writes, **{kind: [*more.pop(kind, []), *cases] for kind, cases in kinds.items()}, **more)  # type: ignore[misc]


def of_placement(call: str, writes: Sequence[str] = (), reads: Sequence[str] = (), **more: object) -> Command:
    """As `of_network`, for a command on the placement of the optimizer static at 4:1."""
    unknown = [
        Misuse(call.replace("static", "statik"), "unknown optimizer 'statik'; did you mean 'static'?"),
        Misuse(call.replace("4:1", "four"), "limit: 'four' is not a limit; give"),
    ]
    return of_network(call, writes, reads, unknown=[*unknown, *more.pop("unknown", [])], **more)  # type: ignore[misc]


LINKS, GRAPH, PROFILE = "results/laptop-1t/links.json", f"{NETWORK}/graph.json", f"{NETWORK}/profile.parquet"
LIBRARY = f"{NETWORK}/kernels.so"
PROFILED = (GRAPH, PROFILE, LINKS)
PLACED = (*PROFILED, f"{STATIC}/plan.json", f"{STATIC}/program.json")

COMMANDS: Mapping[str, Command] = {
    "calibrate": of_study("calibrate", [LINKS]),
    "profile": of_network("profile mlp --csv results/kernels.csv", [LIBRARY, PROFILE], [LINKS]),
    "solve": of_placement(
        "solve mlp static 4:1",
        [f"{STATIC}/plan.json"],
        PROFILED,
        wrong=[
            Misuse("solve mlp static 4:1", "graph.json", damaged={GRAPH: b""}),
            Misuse("solve mlp static 4:1 --write-mps config", "'config' is a directory", MISUSE),
            Misuse("solve mlp all-slow 1:0 --write-mps p.mps", "needs no integer program"),
        ],
    ),
    "compile": of_placement("compile mlp static 4:1", [f"{STATIC}/program.json"], PLACED[:-1]),
    "run": of_placement("run mlp static 4:1", [f"{STATIC}/record.json"], [*PLACED, LIBRARY]),
    "check": of_placement("check mlp static 4:1", reads=PLACED),
    "sweep": of_placement(
        "sweep mlp static --limits 4:1,1:1",
        [f"{STATIC}/plan.json"],
        missing=[Misuse("sweep mlp static --config config/away/config.yaml", "no such study file")],
    ),
    "explain": of_placement(
        "explain mlp static 4:1",
        reads=PLACED,
        unknown=[Misuse("explain mlp static 4:1 losss", "unknown tensor 'losss'; did you mean")],
    ),
    "compare": Command(
        f"compare {PLAN} {STATIC}/plan.json",
        missing=[Misuse(f"compare {PLAN} away.json", "away.json: no such file")],
        wrong=[
            Misuse(f"compare {PLAN} mlp.zip", "mlp.zip: neither a plan nor a record"),
            Misuse(f"compare {PLAN} {STATIC}/record.json", "compare two plans, or two records"),
            Misuse(f"compare {PLAN} results", "'results' is a directory", MISUSE),
        ],
        unknown=[Misuse(f"compare {PLAN} {PLAN} --mots 3", "Did you mean '--most'?", MISUSE)],
        is_of_study=False,
    ),
    "potential": of_network("potential mlp 4:1", reads=[*PROFILED, str(PLAN)]),
    "sensitivity": of_network(
        "sensitivity mlp --limit 4:1 --draws 2 --optimizers static",
        [f"{NETWORK}/sensitivity/4to1.json"],
        [*PROFILED, f"{STATIC}/plan.json"],
        unknown=[Misuse("sensitivity mlp --limit 4:1 --optimizers statik", "did you mean 'static'?")],
    ),
    "view": of_placement("view mlp static 4:1", [f"{STATIC}/view.html"], PLACED),
    "stays": of_placement("stays mlp static 4:1", [f"{STATIC}/stays_fast.csv"], PLACED),
    "trace": of_placement(
        "trace mlp static 4:1 --steps 2",
        [f"{STATIC}/trace.json"],
        [GRAPH, LINKS, *PLACED[3:], LIBRARY],
    ),
    "records": of_study(
        "records --csv results/runs.csv",
        ["results/runs.csv"],
        missing=[Misuse("records --results config", "records is there; make the first: snakemake")],
        wrong=[Misuse("records", "record.json: damaged record file", damaged={f"{STATIC}/record.json": TEXT})],
    ),
    "describe": of_study(
        "describe",
        wrong=[Misuse("describe", "record.json: damaged record file", damaged={f"{SYNCHRONOUS}/record.json": TEXT})],
        unknown=[Misuse("describe --workload conventionel", "did you mean 'conventional'?")],
    ),
    "remeasure": of_study(
        "remeasure",
        [f"{STATIC}/record.json"],
        wrong=[
            Misuse("remeasure", "record.json: damaged record file", damaged={f"{STATIC}/record.json": TEXT}),
            Misuse("remeasure", "profile.parquet: damaged profile file", damaged={PROFILE: TEXT}),
        ],
    ),
    "costs": of_study("costs", wrong=[Misuse("costs --logs mlp.zip", "'mlp.zip' is a file", MISUSE)]),
    "doctor": Command(
        "doctor --write here",
        missing="it reads no file",
        wrong=[
            Misuse("doctor --write here --folder mlp.zip", "'mlp.zip' is a file", MISUSE),
            Misuse("doctor --write laptop", "laptop.yaml"),
        ],
        unknown=[Misuse("doctor --wirte here", "Did you mean '--write'?", MISUSE)],
        writes=["config/machines/here.yaml"],
        is_of_study=False,
    ),
    "fits": Command(
        "fits model.py:linear",
        missing="without PyTorch nothing is read; tests/test_torch_fits.py has these",
        wrong=[Misuse("fits model.py", "'model.py' is not FILE:FUNCTION", MISUSE)],
        unknown=[Misuse("fits model.py:linear --bugdet 8GB", "'--budget'", MISUSE)],
        is_of_study=False,
        needs="torch",
    ),
    "fusion run": of_network(
        "fusion run mlp --write results/decisions.json",
        ["results/decisions.json"],
        missing=[Misuse("fusion run mlp --decisions away.json", "away.json: no such decisions file")],
        wrong=[
            Misuse(f"fusion run mlp --decisions {PLAN}", "not a decisions file"),
            Misuse("fusion run mlp --decisions a.json --policy b.json tree", "leave one out", MISUSE),
        ],
        unknown=[Misuse("fusion rnu mlp", "Did you mean 'run'?", MISUSE)],
    ),
    "fusion audit": of_network(
        "fusion audit mlp --most 0",
        ["results/laptop-1t/fusion.sqlite"],
        wrong=[Misuse("fusion audit mlp --export mlp.zip", "'mlp.zip' is a file", MISUSE)],
        unknown=[Misuse("fusion audit mlp --msot 3", "'--most'", MISUSE)],
    ),
    "fusion list": of_study("fusion list"),
    "kernels export": of_study("kernels export results/kernels.zip", ["results/kernels.zip"]),
    "kernels check": of_study("kernels check --scale tiny"),
    "kernels import": of_study(
        "kernels import kernels.zip --results results/elsewhere",
        ["results/elsewhere/laptop-1t/kernels.sqlite"],
        missing=[Misuse("kernels import away.zip", "away.zip: no such file")],
        wrong=[
            Misuse("kernels import mlp.zip", "mlp.zip: damaged kernel store export"),
            Misuse(f"kernels import {PLAN}", "damaged kernel store export"),
        ],
        unknown=[Misuse("kernels imprt kernels.zip", "Did you mean 'import'?", MISUSE)],
    ),
    "export": of_network("export mlp results/mlp.zip", ["results/mlp.zip"], missing=[
        Misuse("export mlp away.zip", "measure first: autotm profile mlp", damaged={GRAPH: None})
    ]),
    "bundle": of_placement(
        "bundle mlp static 4:1 --to results/mlp.tar.xz",
        ["results/mlp.tar.xz"],
        [f"{STATIC}/plan.json"],
        missing=[
            Misuse("bundle mlp static 4:1", "autotm compile mlp static 4:1", damaged={f"{STATIC}/program.json": None}),
            Misuse("bundle mlp static 4:1", "autotm profile mlp", damaged={GRAPH: None}),
        ],
        unknown=[Misuse("bundle mlp static 4:1 --python three", "--python three: give the version of CPython")],
    ),
    "import": Command(
        "import mlp.zip --results results/elsewhere",
        missing=[Misuse("import away.zip", "away.zip: no such file; make it with: autotm export")],
        wrong=[
            Misuse("import kernels.zip", "kernels.zip: damaged results export"),
            Misuse(f"import {PLAN}", "damaged results export"),
            Misuse("import mlp.zip", "of its files are there and differ", damaged={GRAPH: TEXT}),
        ],
        unknown=[Misuse("import mlp.zip --result x", "Did you mean '--results'?", MISUSE)],
        writes=[f"results/elsewhere/{NETWORK.relative_to('results')}/graph.json"],
        is_of_study=False,
    ),
    "schema": Command(
        "schema",
        missing="it reads no file",
        wrong="it reads no file",
        unknown=[Misuse("shcema", "Did you mean 'schema'?", MISUSE), Misuse("schema x", "unexpected extra", MISUSE)],
        is_of_study=False,
    ),
}  # fmt: skip
