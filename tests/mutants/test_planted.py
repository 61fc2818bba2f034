"""The mutants fit the code, so that `make mutants` can plant them."""

from __future__ import annotations

import subprocess

import pytest

from tests.mutants.copies import ROOT
from tests.mutants.planted import PATCHES, read_mutant


@pytest.mark.parametrize("path", sorted(PATCHES.glob("*.patch")), ids=lambda path: path.stem)
def test_a_mutant_fits_the_code(path):
    """A patch says what it breaks and which tests are nearest to it, and can be applied."""
    mutant = read_mutant(path)
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test
    subprocess.run(["git", "apply", "--check", str(path)], cwd=ROOT, check=True)
