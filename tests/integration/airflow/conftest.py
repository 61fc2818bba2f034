"""Settings of the tests of the Airflow provider against a broker in the test process."""

from __future__ import annotations

import tests.unit.airflow.conftest  # noqa: F401 - keeps Airflow out of the user's own folder
