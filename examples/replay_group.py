"""Let a group that is not running read the last hour once more."""

from datetime import UTC, datetime, timedelta

from memq import AdminClient

with AdminClient() as admin:
    print("before:", admin.committed("reports", "clicks"))
    moved = admin.reset_offsets("reports", "clicks", datetime.now(UTC) - timedelta(hours=1))
    print("after: ", moved)
