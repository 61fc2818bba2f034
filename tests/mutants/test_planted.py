"""The mutants fit the code, so that `make mutants` can plant them."""

import subprocess

import pytest

from tests.mutants.copies import ROOT
from tests.mutants.planted import PATCHES, read_mutant


@pytest.mark.parametrize("path", sorted(PATCHES.glob("*.patch")), ids=lambda path: path.stem)
def test_a_mutant_fits_the_code(path):
    """A patch says what it breaks, can be applied, and there are tests to notice it."""
    tests = [test for tests in read_mutant(path).tests for test in tests]
    assert tests
    assert [test for test in tests if not (ROOT / test).exists()] == []
    subprocess.run(["git", "apply", "--check", str(path)], cwd=ROOT, check=True)
