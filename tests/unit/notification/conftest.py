"""Assertions inside the shared contract are explained like those of a test module."""

import pytest

pytest.register_assert_rewrite("tests.contracts.queue")
