"""Warn before retention removes what was not processed.

`memq_retention` looks every hour how much of what the topic holds is planned and processed. It
fails, and so tells your notifiers, when retention has removed Batches that were not processed, or
will do so soon. The task's result shows every read partition.

What to set up: what `memq_ranges` needs.
"""

from pathlib import Path

from airflow_provider_memq.pipeline import MemqPipeline

SETTINGS = Path(__file__).with_name("memq.yaml")
NOTIFIERS = []  # who is told, such as [SmtpNotifier(to="oncall@example.org", …)]

dags = MemqPipeline.from_yaml(SETTINGS, notifiers=NOTIFIERS).retention(doc_md=__doc__)
