"""Which tests a change can break."""

from pathlib import Path

from tests.harness import changed
from tests.harness.rooms import ROOT, rooms_of
from tests.harness.scheduling import FIRST


def test_what_imports_a_changed_file_is_run_and_its_room():
    """Tests that import it through others are found; other rooms' integration tests are not run."""
    chosen = changed.tests_for(["memq/tables/ledger.py", "docs/audit.md"])

    assert {"tests/unit/tables/test_ledger.py", "tests/integration/tables"} <= set(chosen)
    assert "tests/unit/project" in chosen, "a page"
    assert "tests/unit/bigqueue/test_recovery.py" not in chosen
    assert changed.tests_for([]) == []


def test_a_folder_of_tests_that_is_named_is_there():
    """What begins first in `make test` has not moved, and each room of the product has tests."""
    assert [path for path in FIRST if not (ROOT / path).exists()] == []
    rooms = rooms_of(Path("memq/storage/local.py"))
    assert list(map(str, rooms)) == ["tests/unit/storage", "tests/integration/storage"]
