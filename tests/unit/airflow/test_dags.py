"""The DAG files of `dags/`, as they are."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DAGS = Path(__file__).parents[3] / "dags"


@pytest.mark.parametrize("name", ["complete", "audit", "consumed"])
def test_whatever_fails_in_the_audit_tells_somebody(name):
    """Each task pages by itself: those behind one that failed do not run, and can tell nobody."""
    names = runpy.run_path(str(DAGS / "memq_audit.py"))

    callbacks = names["dag"].get_task(name).on_failure_callback

    assert list(callbacks) == [names["page_somebody"]]


def test_the_audit_keeps_which_hours_it_has_audited():
    """Both audits do, each for itself, so that what a run leaves out the next one audits."""
    names = runpy.run_path(str(DAGS / "memq_audit.py"))

    assert names["audit"].audited == names["consumed"].audited == names["AUDITED"]
    assert names["AUDITED"] in names["audit"].inlets
