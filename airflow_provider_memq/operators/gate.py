"""`MemqQualityGateOperator`: whether a processed range is good enough to count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.base import (
    RANGE_OF_RUN,
    MemqTopicOperator,
)
from airflow_provider_memq.launch import files
from airflow_provider_memq.links import MemqManifestLink, MemqTopicLink
from airflow_provider_memq.planning.ledger import mark_events
from airflow_provider_memq.planning.ranges import parse_key, range_key
from airflow_provider_memq.quality import FOOTER_BYTES, QualityLimits, columns_of, too_bad
from airflow_provider_memq.values import count_or, duration_ms_or, parse_texts
from memq.core.ranges import OffsetRange
from memq.core.units import counted
from memq.errors import ConfigError, DataLossError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from memq.core.manifest import Manifest


class MemqQualityGateOperator(MemqTopicOperator):
    """Fails where the manifest of a range is not as it must be.

    It stands between the task that processes a range and whatever takes the range for processed,
    and has the outlets that say so: while it fails, no event is emitted, nothing is committed, and
    no DAG downstream is started. It is not tried again, for the manifest would be the same. Once
    the cause is mended, clear the task that processes the range; or clear the gate with other
    limits.

    Args:
        topic: the topic (templated).
        manifest: file or URI of the manifest (templated), such as
            `"{{ ti.xcom_pull('process')['manifest'] }}"`.
        range_key: the range that it must be of (templated); by default the partition key of the
            DAG run.
        max_skipped: LogMessages at most that the job skipped (templated, as all limits).
        min_records: LogMessages at least in the files.
        max_age: how old the newest record may be when the range's last Batch was published, such as
            "1h". So it does not matter when the range is processed.
        columns: types by name that its Parquet files must have, as pyarrow names them: `{"value":
            "binary"}`, or its JSON. Others may stand beside them.
        aws_conn_id: connection by which manifest and files in S3 are read; None for what boto3
            finds by itself.
        memq_conn_id: connection to the brokers (templated).

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
    template_fields: Sequence[str] = (
        *MemqTopicOperator.template_fields,
        "manifest",
        "range_key",
        "max_skipped",
        "min_records",
        "max_age",
        "columns",
    )

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
        super().__init__(**kwargs)
        self.manifest = manifest
        self.range_key = range_key
        self.max_skipped = max_skipped
        self.min_records = min_records
        self.max_age = max_age
        self.columns = columns
        self.aws_conn_id = aws_conn_id
        self.manifest_url = ""

    def execute(self, context: Context) -> dict[str, Any]:
        """Read the manifest, and judge it."""
        limits = self._limits()
        self.manifest_url = self.manifest
        wanted = parse_key(self.range_key)
        found = self._read(wanted)
        of = OffsetRange(found.partition, found.start, found.end, found.incarnation)
        age_ms = None if limits.max_age_ms is None else self._age_ms(of)
        columns = self._columns(found) if limits.columns else None
        wrong = too_bad(limits, found, age_ms=age_ms, columns=columns)
        if wrong:
            raise AirflowFailException(
                f"range {range_key(of)} of topic {self.topic!r} does not pass: {'; '.join(wrong)}. "
                "It does not count as processed. Mend the cause, then clear the task that "
                "processes it"
            )
        mark_events(context["outlet_events"], self.outlets, found.incarnation)
        result = {"range": range_key(of), "records": found.records}
        age_s = {} if limits.max_age_ms is None else {"age_s": age_ms and age_ms / 1000}
        return {**result, "skipped": found.skipped_records, **age_s}

    def _limits(self) -> QualityLimits:
        def given(value: int) -> int | None:
            return None if value < 0 else value

        limits = QualityLimits(
            given(count_or(-1, "max_skipped", self.max_skipped)),
            given(count_or(-1, "min_records", self.min_records)),
            given(duration_ms_or(-1, self.max_age)),
            parse_texts("columns", self.columns),
        )
        if not any(each is not None and each != {} for each in limits):
            raise ConfigError(
                "nothing is to be checked; give max_skipped, min_records, max_age or columns"
            )
        return limits

    def _read(self, wanted: OffsetRange) -> Manifest:
        from memq.core.manifest import check_manifest, decode_manifest  # noqa: PLC0415 - as above

        payload = files.read_if_any(self.manifest, self.aws_conn_id)
        if payload is None:
            raise DataLossError(
                f"there is no manifest at {self.manifest}: the range is not written"
            )
        found = decode_manifest(payload)
        incarnation = wanted.incarnation or found.incarnation
        check_manifest(found, self.topic, wanted._replace(incarnation=incarnation))
        return found

    def _age_ms(self, of: OffsetRange) -> int | None:
        """How old the newest record was when the last Batch was published."""
        newest_us, last_ms = None, 0
        with self.hook.topic(self.topic, of.incarnation) as client:
            client.check_retained(of)
            for batch in client.batches([of]):
                last_ms = batch.timestamp_ms
                if batch.notification.records:
                    newest_us = max(newest_us or 0, batch.notification.max_timestamp_us)
        return None if newest_us is None else last_ms - newest_us // 1000

    def _columns(self, manifest: Manifest) -> dict[str, str] | None:
        """Of its first file: a job writes all of them alike."""
        if not manifest.files:
            if not manifest.records:
                return None
            raise ConfigError(
                f"columns cannot be looked up: {self.manifest} names no file for "
                f"{counted(manifest.records, 'record')}, which were in the table before; leave "
                "columns out, for a table has its own"
            )
        name = f"{manifest.output.rstrip('/')}/{manifest.files[0]}"
        return columns_of(name, files.read_end(name, FOOTER_BYTES, self.aws_conn_id))
