"""Prove every hour that nothing was lost: produced against stored against consumed.

`memq_audit` runs for each hour. It waits until the topic's watermark has passed the end of the
hour, and then compares what producers reported with what is stored, and what is stored with what
consumer groups and Spark jobs reported. When something is lost, damaged, duplicated or left out,
the task `audit` fails and names the producer, the sequences and how many LogMessages. Consumers
have some more time: an hour later the task `consumed` looks at the hour again, and fails when one
of `audit_consumers` has not come to its end. That is when somebody should be told: name your
notifiers below. They are also told when a task fails in another way: when the watermark has not
passed the end of an hour within `audit_wait`, or brokers do not answer.

No hour goes unaudited. Hours that wait for the watermark, in an outage, cost no worker slot, and
are audited when it moves on. One whose wait or audit failed, and one that passed while Airflow was
down or the DAG was paused, is audited by the next run whose own hour is complete, back to the first
hour that a run began to audit. The record is in the state store of the asset
`memq_audited.<topic>`.

All findings are kept as a table (CSV), one file per window. To audit another stretch of time,
trigger the DAG with `last` (such as `6h`) or with `start` and `end`; with `deep` Spark reads every
byte again, not only the indexes of the Batches, and adds its findings to a Parquet table as well.

What to set up: a connection `memq_default` to a broker (`memq dev` is enough), and the topic, which
`memq.yaml` beside this file names. Spark runs on this machine unless there is a connection
`memq_spark`.
"""

from pathlib import Path

from airflow_provider_memq.pipeline import MemqPipeline

SETTINGS = Path(__file__).with_name("memq.yaml")
NOTIFIERS = []  # who is told, such as [SmtpNotifier(to="oncall@example.org", …)]

dags = MemqPipeline.from_yaml(SETTINGS, notifiers=NOTIFIERS).audit(doc_md=__doc__)
