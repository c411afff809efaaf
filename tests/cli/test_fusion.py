"""`autotm fusion audit` from the command line: what it answers, and the scripts that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_study import run

from autotm.fusion import audit
from autotm.fusion.dataflow import Live
from autotm.model.fusion import AuditedFusion, FusionAudit, FusionTimes, RegroupedStep, Verdict
from autotm.model.graph import ScheduleKind

TIMES = FusionTimes(1e-3, 2e-3, 0.5, 0.001, 1.0, 0.001, 0.0, disturbed=False)
STEP = RegroupedStep(22, 1000, TIMES)
SHAPES = ((16, 256),) * 3


def fusion(*operators: str, verdict: Verdict, remedy: str = "") -> AuditedFusion:
    return AuditedFusion(
        operators, SHAPES, 3, 3e-5, 1e-5, None, (), True, 64, ScheduleKind.GENERATED, STEP, None, None, verdict, remedy
    )


@pytest.fixture
def audited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An audit that measures nothing; how many whole steps were asked for."""
    asked = []
    harmful = fusion("matmul.0", "add.1", "relu.2", verdict=Verdict.HARMFUL, remedy="off")
    helpful = fusion("matmul.3", "add.4", "relu.5", verdict=Verdict.HELPFUL)

    def made(*_: object, most: int, **__: object) -> tuple[FusionAudit, dict[int, Live]]:
        asked.append(most)
        own = FusionAudit("mlp", "tiny", True, "0", 45, 21, 1000, 9, (helpful, harmful), STEP)
        return own, {1: Live((0, 1, 2), (2,))}

    monkeypatch.setattr(audit, "audited", made)
    return asked


def test_an_audit_answers_in_words_and_in_json(
    audited: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "fusion", "audit", "mlp", "--most", "4") == 0
    assert audited == [4]
    text = capsys.readouterr().out
    assert "matmul + add + relu: harmful, best off\n  3 times, first at matmul.0 [16, 256]" in text
    assert "step, off: 0.500 +- 0.001 of TVM's fusion's time" in text
    assert "harmful: 1, helpful: 1, no difference: 0, step not measured: 0" in text
    assert run(tmp_path, "fusion", "audit", "mlp", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in answer["fusions"]] == ["helpful", "harmful"]
    assert answer["mended"]["times"]["ratio"] == 0.5


@pytest.mark.usefixtures("audited")
def test_a_script_is_written_for_each_harmful_fusion_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    assert run(tmp_path, "fusion", "audit", "mlp", "--export", str(folder)) == 0
    (script,) = folder.iterdir()
    assert script.name == "2-matmul-add-relu.py"
    text = script.read_text(encoding="utf-8")
    compile(text, str(script), "exec")
    assert "mlp at tiny, training: 45 operators" in text
    assert "operator_2" in text
    assert "operator_3" not in text
