"""`MemqSparkSubmitOperator`: run a Spark program over one exact range by `spark-submit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_memq.extras import from_extra
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.launch.range_job import RangeJobMixin
from airflow_provider_memq.launch.submitting import prepare

with from_extra("spark"):
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context


class MemqSparkSubmitOperator(RangeJobMixin, SparkSubmitOperator):
    """Submits a Spark program that reads exactly one range, and checks its result manifest.

    The program gets the arguments of `spark_apps/range_to_parquet.py`: `--bootstrap --topic
    --incarnation --partition --start --end --output --manifest --job --mode`, and `--token-env`
    when the connection has a token, which travels in the environment of `spark-submit`: a driver in
    a cluster does not get it from there (see `submitting`). What is checked before the submit and
    after it: see `range_job`. Killing the task kills the submitted program.

    Args:
        application: the program (templated).
        default_master: the Spark master where there is no connection `conn_id`, such as
            "local[2]" (templated); without one that is an error, and not YARN.
        durable: False submits in each try, and when the task is cleared; what an earlier try left
            running in a cluster may run beside it, and does no harm. True, the default of
            `SparkSubmitOperator`, waits for that instead; but when it has succeeded, a task that is
            cleared takes its manifest for good and submits nothing.
        **kwargs: as `RangeJobMixin` and `SparkSubmitOperator`, but for `application_args`.

    Returns:
        As `RangeJobMixin.end`.

    Raises:
        Exception: as `RangeJobMixin.begin`, `RangeJobMixin.end`, and `SparkSubmitOperator`.
    """

    template_fields = ("default_master",)

    def __init__(
        self,
        *,
        application: str,
        default_master: str | None = None,
        durable: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", "memq-range")
        super().__init__(application=application, durable=durable, **kwargs)
        self.default_master = default_master

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit, wait, and check the manifest."""
        run = self.begin()
        self.application_args = self.arguments(run)
        super().execute(context)
        return self.end(context, run._replace(earlier=None) if self.durable else run)

    def _get_hook(self) -> SparkSubmitHook:
        settings = MemqHook(self.memq_conn_id).settings()
        hook = super()._get_hook()
        prepare(hook, settings, self.default_master)
        return hook
