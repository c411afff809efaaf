"""What others deploy the study by: the container's file, the catalog's, and the picture of its rules."""

from __future__ import annotations

import re
import shutil

import pytest
import yaml
from workplace import ROOT, TARGET, Workplace, make_workplace

DEPLOYED = """
configfile: "config/config.yaml"


module study:
    snakefile:
        "{snakefile}"
    config:
        config


use rule * from study
"""


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the container's file and what follows it."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", "")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_container_is_set_up_as_the_readme_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    wanted = set(re.search(r"sudo apt-get install ([^`]+)`", readme)[1].split())
    (installed,) = (text for word, text in instructions() if word == "RUN" and "apt-get install" in text)
    assert wanted < set(installed.split())
    # `make setup` installs the lock and nothing else; no second list of packages is in the file.
    assert [text for word, text in instructions() if word == "RUN"][1:] == ["make setup"]
    assert not re.search(r"\b(pip|uv|conda)\b", " ".join(text for _, text in instructions()))


def test_the_base_of_the_container_has_a_tag() -> None:
    (base,) = (text for word, text in instructions() if word == "FROM")
    assert re.fullmatch(r"docker\.io/library/debian:12-slim", base), (
        "Debian 12 has Python 3.11, which the Makefile takes"
    )


def test_the_container_leaves_out_what_git_leaves_out() -> None:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}
    left_out = (ROOT / ".containerignore").read_text(encoding="utf-8").split()
    large = {"results", "figures", "logs", ".snakemake", "benchmarks/out"}
    assert large <= ignored
    assert large | {".venv", ".venv-*"} <= set(left_out)


def test_the_catalog_can_read_its_file() -> None:
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text(encoding="utf-8"))["usage"]
    assert set(usage) == {"mandatory-flags", "software-stack-deployment", "report"}
    assert set(usage["mandatory-flags"]) == {"desc", "flags"}
    assert usage["software-stack-deployment"] == {
        "conda": True, "apptainer": False, "apptainer+conda": False, "report": True,
    }  # fmt: skip
    assert (ROOT / "workflow" / "Snakefile").is_file()
    described = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    for entry in (ROOT / "config").iterdir():
        assert f"`{entry.name}" in described or entry.name == "README.md", f"config/README.md: {entry.name}"


@pytest.fixture
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A folder with a config, and a Snakefile that takes all rules from elsewhere, as `snakedeploy` makes it."""
    elsewhere = make_workplace(tmp_path_factory.mktemp("deployed") / "elsewhere", stand_in=True).folder
    place = Workplace(elsewhere.with_name("place"), is_forked=True)
    (place.folder / "workflow").mkdir(parents=True)
    shutil.move(elsewhere / "config", place.folder / "config")
    snakefile = DEPLOYED.format(snakefile=elsewhere / "workflow" / "Snakefile")
    (place.folder / "workflow" / "Snakefile").write_text(snakefile, encoding="utf-8")
    place.change("figures", "fig10", "limits", value=["1:1", "0:1"])
    place.change("figures", "fig10", "optimizers", value=["static"])
    return place


def test_a_deployed_study_runs(deployed: Workplace) -> None:
    done = deployed.snakemake(TARGET, "--resources", "timing=1")
    assert done.returncode == 0, done.stdout
    assert (deployed.folder / TARGET).exists()


def test_the_picture_of_the_rules_is_current(fresh: Workplace) -> None:
    drawn = fresh.snakemake("--rulegraph", "mermaid-js", "figures").stdout
    shown = (ROOT / "docs" / "rulegraph.md").read_text(encoding="utf-8")
    assert edges(shown) == edges(drawn), "run: make rulegraph"
    assert ("run", "figure") in edges(shown)


def edges(mermaid: str) -> set[tuple[str, str]]:
    names = dict(re.findall(r"^\t(\w+)\[(\w+)\]$", mermaid, re.MULTILINE))
    return {(names[a], names[b]) for a, b in re.findall(r"^\t(\w+) --> (\w+)$", mermaid, re.MULTILINE)}
