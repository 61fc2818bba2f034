"""What Airflow is told of this package.

Airflow imports this module whenever it starts, and `import airflow` fails when it fails. So it
imports nothing.
"""

from __future__ import annotations


def get_provider_info() -> dict[str, object]:
    """The provider's metadata, as `airflow/provider_info.schema.json` asks for."""
    return {
        "package-name": "memq",
        "name": "MemQ",
        "description": "Sensors, triggers and operators over exact ranges of MemQ offsets.",
    }
