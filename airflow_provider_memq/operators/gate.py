"""`MemqQualityGateOperator`: whether a processed range is good enough to count.

All that is judged is about the range alone, and not about when it is looked at: a range that was
right stays right whenever it is processed again, and one that waited for an outage is not wrong.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.base import RANGE_OF_RUN, MemqTopicOperator
from airflow_provider_memq.launch import files
from airflow_provider_memq.links import MemqManifestLink, MemqTopicLink
from airflow_provider_memq.planning.ledger import mark_events
from airflow_provider_memq.planning.ranges import parse_key, range_key
from airflow_provider_memq.values import count_or, duration_ms_or, parse_texts
from memq.core.manifest import check_manifest, decode_manifest
from memq.core.ranges import OffsetRange
from memq.core.units import counted, format_duration_ms
from memq.errors import ConfigError, DataLossError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from memq.core.manifest import Manifest

FOOTER_BYTES = 4 << 20  # the end of a Parquet file, in which its columns stand; mostly some KiB


class _Limits(NamedTuple):
    """What a range must be like; None where it does not matter."""

    max_skipped: int | None
    min_records: int | None
    max_age_ms: int | None
    columns: dict[str, str]


class MemqQualityGateOperator(MemqTopicOperator):
    """Fails where the manifest of a range is not as it must be.

    It stands between the task that processes a range and whatever takes the range for processed,
    and has the outlets that say so: while it fails, no event is emitted, nothing is committed, and
    no DAG downstream is started. It is not tried again, for the manifest would be the same. Once
    the cause is mended, clear the task that processes the range; or clear the gate with other
    limits.

    Args:
        topic: the topic.
        manifest: file or URI of the manifest, such as
            `"{{ ti.xcom_pull('process')['manifest'] }}"`.
        range_key: the range that it must be of; by default the partition key of the
            DAG run.
        max_skipped: LogMessages at most that the job skipped.
        min_records: LogMessages at least in the files.
        max_age: how old the newest record may be when the range's last Batch was published, such as
            "1h". So it does not matter when the range is processed.
        columns: types by name that its Parquet files must have, as pyarrow names them: `{"value":
            "binary"}`, or its JSON. Others may be there, too.
        aws_conn_id: connection by which manifest and files in S3 are read; None for what boto3
            finds by itself.
        memq_conn_id: connection to the brokers.

    Returns:
        `{"range", "records", "skipped", "age_s"}`; `age_s` only with `max_age`, None without a
        record.

    Raises:
        AirflowFailException: it is not; the message names each value and its limit.
        DataLossError: there is no manifest, or it is of another range.
        ConfigError: an argument is wrong, or nothing is to be checked.
        StorageError: the manifest or a file cannot be read.
    """

    operator_extra_links = (MemqTopicLink(), MemqManifestLink())

    def __init__(
        self,
        *,
        manifest: str,
        range_key: str = RANGE_OF_RUN,
        max_skipped: int | str | None = None,
        min_records: int | str | None = None,
        max_age: str | None = None,
        columns: Mapping[str, str] | str | None = None,
        aws_conn_id: str | None = files.DEFAULT_AWS_CONN_ID,
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        super().__init__(**kwargs)
        self.manifest_url = ""

    def execute(self, context: Context) -> dict[str, Any]:
        """Read the manifest, and judge it."""
        limits = self._limits()
        self.manifest_url = self.manifest
        found = self._read(parse_key(self.range_key))
        of = OffsetRange(found.partition, found.start, found.end, found.topic_id)
        age_ms = None if limits.max_age_ms is None else self._age_ms(of)
        wrong = _too_bad(limits, found, age_ms)
        wrong += self._wrong_columns(found, limits.columns) if limits.columns else []
        if wrong:
            raise AirflowFailException(
                f"range {range_key(of)} of topic {self.topic!r} does not pass: {'; '.join(wrong)}. "
                "It does not count as processed. Mend the cause, then clear the task that "
                "processes it"
            )
        mark_events(context["outlet_events"], self.outlets, found.topic_id)
        result = {"range": range_key(of), "records": found.records}
        age_s = {} if limits.max_age_ms is None else {"age_s": age_ms and age_ms / 1000}
        return {**result, "skipped": found.skipped_records, **age_s}

    def _limits(self) -> _Limits:
        limits = _Limits(
            count_or(None, "max_skipped", self.max_skipped),
            count_or(None, "min_records", self.min_records),
            duration_ms_or(None, self.max_age),
            parse_texts("columns", self.columns),
        )
        if not any(each is not None and each != {} for each in limits):
            raise ConfigError(
                "nothing is to be checked; give max_skipped, min_records, max_age or columns"
            )
        return limits

    def _read(self, wanted: OffsetRange) -> Manifest:
        payload = files.read_if_any(self.manifest, self.aws_conn_id)
        if payload is None:
            raise DataLossError(
                f"there is no manifest at {self.manifest}: the range is not written"
            )
        found = decode_manifest(payload)
        topic_id = wanted.topic_id or found.topic_id
        check_manifest(found, self.topic, wanted._replace(topic_id=topic_id))
        return found

    def _age_ms(self, of: OffsetRange) -> int | None:
        """Tell how old the newest record was when the last Batch was published."""
        newest_us, last_ms = None, 0
        with self.hook.topic(self.topic, of.topic_id) as client:
            client.check_retained(of)
            for batch in client.batches([of]):
                last_ms = batch.timestamp_ms
                if batch.notification.records:
                    newest_us = max(newest_us or 0, batch.notification.max_timestamp_us)
        return None if newest_us is None else last_ms - newest_us // 1000

    def _wrong_columns(self, manifest: Manifest, wanted: Mapping[str, str]) -> list[str]:
        """Compare the columns of the first file: a job writes all files alike."""
        if not manifest.files:
            if not manifest.records:
                return []
            raise ConfigError(
                f"columns cannot be looked up: {self.manifest} names no file for "
                f"{counted(manifest.records, 'record')}, which were in the table before; leave "
                "columns out, for a table has its own"
            )
        name = f"{manifest.output.rstrip('/')}/{manifest.files[0]}"
        found = columns_of(name, files.read_end(name, FOOTER_BYTES, self.aws_conn_id))
        return [
            f"column {name!r} is {found.get(name, 'missing')}, columns wants {kind}"
            for name, kind in wanted.items()
            if found.get(name) != kind
        ]


def _too_bad(limits: _Limits, manifest: Manifest, age_ms: int | None) -> list[str]:
    """Say where a range fails its limits: each with value and limit."""
    wrong = []
    if limits.max_skipped is not None and manifest.skipped_records > limits.max_skipped:
        skipped = counted(manifest.skipped_records, "record")
        wrong.append(f"{skipped} skipped, max_skipped = {limits.max_skipped}")
    if limits.min_records is not None and manifest.records < limits.min_records:
        wrong.append(f"{counted(manifest.records, 'record')}, min_records = {limits.min_records}")
    if limits.max_age_ms is not None and age_ms is not None and age_ms > limits.max_age_ms:
        wrong.append(
            f"the newest record was {age_ms / 1000:.3f} s old when it was published, max_age = "
            f"{format_duration_ms(limits.max_age_ms)}"
        )
    return wrong


def columns_of(name: str, end: bytes) -> dict[str, str]:
    """Read the types of a Parquet file's columns, by name, from its last `FOOTER_BYTES`.

    Raises:
        ConfigError: it is no Parquet file.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - DAGs parse sooner

    from memq.core.format.envelope import ARROW_ERRORS  # noqa: PLC0415 - DAGs parse sooner

    try:
        schema = pq.read_schema(io.BytesIO(end))
    except ARROW_ERRORS as exc:
        raise ConfigError(
            f"columns cannot be looked up in {name}: {exc}. They are read from Parquet files; for "
            "another kind of output leave columns out"
        ) from exc
    return {field.name: str(field.type) for field in schema}
