"""Links from a task in the UI to what it worked on."""

from __future__ import annotations

from typing import Any

import attrs
from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.settings import DEFAULT_CONN_ID
from memq.errors import MemqError


@attrs.define()
class MemqTopicLink(BaseOperatorLink):
    """To the offsets and the watermark of the task's topic, as a broker shows them."""

    @property
    def name(self) -> str:
        """What the button says."""
        return "Topic offsets"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the address; empty when the connection is wrong, which the task itself reports."""
        conn_id = getattr(operator, "memq_conn_id", DEFAULT_CONN_ID)
        try:
            settings = MemqHook(conn_id).settings()
        except (MemqError, AirflowNotFoundException):
            return ""
        return f"{settings.admin_url}/topics/{operator.topic}"


@attrs.define()
class MemqManifestLink(BaseOperatorLink):
    """To the result manifest of the task's range, for operators that know where it lies.

    The operator has it in an attribute `manifest_url` when it ends.
    """

    @property
    def name(self) -> str:
        """What the button says."""
        return "Range manifest"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the address; empty where the task did not get as far as a manifest."""
        return str(getattr(operator, "manifest_url", "") or "")
