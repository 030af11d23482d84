"""The example for NVIDIA FLARE in its simulator on 127.0.0.1: a NaN site is named, the job ends."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from outvote.results.audit_log import read_audit, read_manifest

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("nvflare") is None,
        reason="NVIDIA FLARE is not installed: pip install 'outvote[nvflare]'",
    ),
]


@pytest.mark.parametrize("workflow", ["fedavg", "scatter-and-gather"])
def test_a_job_with_a_nan_site_ends_well_and_names_it(workflow, tmp_path):
    command = [sys.executable, EXAMPLE / "job.py", tmp_path / "work", "--workflow", workflow]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert float(re.search(r"largest error of a weight: (\S+)", done.stdout)[1]) < 0.1
    log = tmp_path / "work" / "server" / "simulate_job" / "audit"
    assert read_manifest(log).num_byzantine == 2
    rounds = read_audit(log)
    assert [each.round for each in rounds] == [0, 1, 2, 3]
    for each in rounds:
        assert each.is_updated
        standings = {client.client: client for client in each.clients}
        assert sorted(standings) == [f"site-{k}" for k in range(1, 9)]
        assert standings["site-2"].standing == "malformed"
        assert "NaN" in standings["site-2"].reason
        assert standings["site-4"].kept is False
    assert "site 'site-2' malformed: it holds NaN" in done.stdout + done.stderr
