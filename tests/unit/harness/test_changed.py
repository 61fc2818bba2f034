"""Which tests a change can break."""

from __future__ import annotations

from tests.harness import changed


def test_what_imports_a_changed_file_is_run_and_its_room():
    """Tests that import it through others are found; other rooms' integration tests are not run."""
    chosen = changed.tests_for(["memq/tables/ledger.py", "docs/audit.md"])

    assert {"tests/unit/tables/test_ledger.py", "tests/integration/tables"} <= set(chosen)
    assert "tests/unit/project" in chosen, "a page"
    assert "tests/unit/bigqueue/test_recovery.py" not in chosen
    assert changed.tests_for([]) == []
