"""What Airflow is told of this package: the file `provider.json`.

Airflow imports this module whenever it starts, and `import airflow` fails when it fails. So it
imports nothing but the standard library.
"""

from __future__ import annotations

import json
from pathlib import Path


def get_provider_info() -> dict[str, object]:
    """Return the provider's metadata, as `airflow/provider_info.schema.json` asks for."""
    path = Path(__file__).with_name("provider.json")
    found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return found
