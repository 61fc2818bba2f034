"""The failures of a contract suite are explained as those of a test module are."""

import pytest

pytest.register_assert_rewrite("tests.contracts.coordination")
