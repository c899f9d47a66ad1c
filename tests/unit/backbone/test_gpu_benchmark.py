"""The GPU scripts run to their end on a CPU with tiny shapes, and one failure loses nothing else."""

import json
import subprocess
import sys

import pytest

from benchmarks.gpu import __main__ as program
from benchmarks.gpu.cases import CASES
from benchmarks.gpu.chips import chip_of
from benchmarks.gpu.models import SIZES
from tests.faults.processes import ROOT, environment


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_case_runs_with_tiny_shapes_and_writes_its_line(tmp_path):
    out = tmp_path / "gpu.jsonl"
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--only", "0.5b", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=380)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert [line["case"] for line in lines] == [case.name for case in CASES if case.size == "0.5b"]
    assert lines[0]["ok"] is True
    for line in lines[1:]:
        assert line.get("update_tokens_per_s", line.get("decode_tokens_per_s", 0)) > 0


def test_a_case_that_fails_loses_only_itself_and_time_is_kept(monkeypatch, tmp_path, capsys):
    ran = []

    def child(number, tiny, seconds):
        ran.append(number)
        return {"error": "out of memory"} if number == 1 else {"value": number}

    monkeypatch.setattr(program, "child", child)
    monkeypatch.setattr(sys, "argv", ["gpu", "--tiny", "--json", str(tmp_path / "x.jsonl")])
    assert program.main() == 1
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert ran == list(range(len(CASES)))
    assert ["error" in line for line in lines] == [n == 1 for n in range(len(CASES))]
    ran.clear()
    monkeypatch.setattr(sys, "argv", ["gpu", "--tiny", "--minutes", "0"])
    assert program.main() == 1
    assert ran == []
    assert "no time left" in capsys.readouterr().out


def test_sizes_are_the_published_ones_and_chips_are_found_by_their_devices_name():
    assert SIZES["0.5b"].matrix_parameters == pytest.approx(494e6, rel=0.01)
    assert SIZES["7b"].matrix_parameters == pytest.approx(7.07e9, rel=0.01)
    assert chip_of("NVIDIA H200").bandwidth == 4.8e12
    assert chip_of("NVIDIA H100 PCIe").bandwidth == 2.0e12
    assert chip_of("NVIDIA H100 80GB HBM3").bandwidth == 3.35e12
    assert chip_of("Radeon") is None
