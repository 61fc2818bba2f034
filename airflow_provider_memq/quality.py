"""What a processed range must be like: limits, and where a manifest fails them.

All of it is about the range alone, and not about when it is looked at: a range that was right is
right whenever it is processed again, and one that waited for an outage to end is not wrong.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

from memq.core.units import counted, format_duration_ms
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.core.manifest import Manifest

FOOTER_BYTES = 4 << 20  # the end of a Parquet file, in which its columns stand; mostly some KiB


class QualityLimits(NamedTuple):
    """What a range must be like; None where it does not matter.

    Attributes:
        max_skipped: LogMessages at most that a permissive job left out, damaged or gone.
        min_records: LogMessages at least in the files.
        max_age_ms: how old the newest record may be when the range's last Batch is published.
        columns: types by name, as pyarrow writes them, that the files must have beside others.
    """

    max_skipped: int | None = None
    min_records: int | None = None
    max_age_ms: int | None = None
    columns: Mapping[str, str] | None = None


def too_bad(
    limits: QualityLimits,
    manifest: Manifest,
    *,
    age_ms: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[str]:
    """Where a range fails its limits: each with value and limit.

    Args:
        limits: of the range.
        manifest: of the range.
        age_ms: how old its newest record was when its last Batch was published; None where it has
            no record, or none is asked for.
        columns: of its files; None where it has no file, or none is asked for.
    """
    wrong = []
    if limits.max_skipped is not None and manifest.skipped_records > limits.max_skipped:
        wrong.append(
            f"{counted(manifest.skipped_records, 'record')} skipped, max_skipped = "
            f"{limits.max_skipped}"
        )
    if limits.min_records is not None and manifest.records < limits.min_records:
        wrong.append(f"{counted(manifest.records, 'record')}, min_records = {limits.min_records}")
    if limits.max_age_ms is not None and age_ms is not None and age_ms > limits.max_age_ms:
        wrong.append(
            f"the newest record was {age_ms / 1000:.3f} s old when it was published, max_age = "
            f"{format_duration_ms(limits.max_age_ms)}"
        )
    if limits.columns and columns is not None:
        wrong += [
            f"column {name!r} is {columns.get(name, 'missing')}, columns wants {kind}"
            for name, kind in limits.columns.items()
            if columns.get(name) != kind
        ]
    return wrong


def columns_of(name: str, end: bytes) -> dict[str, str]:
    """The types of a Parquet file's columns, by name, from its last `FOOTER_BYTES`.

    Raises:
        ConfigError: it is no Parquet file.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - DAGs parse sooner

    from memq.core.format.envelope import ARROW_ERRORS  # noqa: PLC0415 - likewise

    try:
        schema = pq.read_schema(io.BytesIO(end))
    except ARROW_ERRORS as exc:
        raise ConfigError(
            f"columns cannot be looked up in {name}: {exc}. They are read from Parquet files; for "
            "another kind of output leave columns out"
        ) from exc
    return {field.name: str(field.type) for field in schema}
