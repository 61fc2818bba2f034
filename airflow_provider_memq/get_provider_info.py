"""What Airflow is told of this package.

Airflow imports this module whenever it starts, and `import airflow` fails when it fails. So it
imports nothing.
"""

from __future__ import annotations

CONN_TYPE = "memq"

# A broker that is restarted is back within 2 s; a wrong address is reported after this.
REQUEST_TIMEOUT_S = 10
MAX_REQUEST_TIMEOUT_S = 3600

EXTRAS: dict[str, object] = {
    "bootstrap": {
        "label": "More brokers",
        "description": "Comma separated host:port of brokers to ask beside the host above.",
        "schema": {"type": ["string", "null"]},
    },
    "request_timeout_s": {
        "label": "Request timeout",
        "description": "Seconds that brokers are tried before a call fails.",
        "schema": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "maximum": MAX_REQUEST_TIMEOUT_S,
        },
    },
    "admin_url": {
        "label": "Admin URL",
        "description": "A broker's admin HTTP, for links; http://<host>:6368 when empty.",
        "schema": {"type": ["string", "null"]},
    },
    "aws_conn_id": {
        "label": "AWS connection",
        "description": "Connection with which tasks read Batches in S3; may be empty.",
        "schema": {"type": ["string", "null"]},
    },
    "cluster": {
        "label": "Cluster name",
        "description": "As in assets memq://NAME/topic; lineage has the first broker when empty.",
        "schema": {"type": ["string", "null"]},
    },
}
"""The extra fields of a connection, which `airflow_provider_memq.settings` reads."""

_INTEGRATION = "MemQ"


def get_provider_info() -> dict[str, object]:
    """The provider's metadata, as `airflow/provider_info.schema.json` asks for."""
    return {
        "package-name": "airflow-provider-memq",
        "name": "MemQ",
        "description": "Sensors, triggers and operators over exact ranges of MemQ offsets.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "hooks": [_modules("airflow_provider_memq.hooks.memq")],
        "sensors": [_modules("airflow_provider_memq.sensors.memq")],
        "operators": [_modules("airflow_provider_memq.operators.memq")],
        "triggers": [
            _modules(
                "airflow_provider_memq.triggers.aws",
                "airflow_provider_memq.triggers.memq",
                "airflow_provider_memq.triggers.watch",
            )
        ],
        "connection-types": [_connection_type()],
        "asset-uris": [
            {
                "schemes": ["memq"],
                "handler": "airflow_provider_memq.assets.sanitize_uri",
                "factory": "airflow_provider_memq.assets.create_asset",
                "to_openlineage_converter": (
                    "airflow_provider_memq.assets.convert_asset_to_openlineage"
                ),
            }
        ],
        "queues": ["airflow_provider_memq.queues.memq.MemqMessageQueueProvider"],
        "extra-links": [
            "airflow_provider_memq.links.MemqTopicLink",
            "airflow_provider_memq.links.MemqManifestLink",
        ],
        "notifications": ["airflow_provider_memq.notifications.memq.MemqNotifier"],
        "plugins": [
            {"name": "memq", "plugin-class": "airflow_provider_memq.plugins.memq.MemqPlugin"}
        ],
        "config": {"memq": _config()},
    }


def _modules(*modules: str) -> dict[str, object]:
    return {"integration-name": _INTEGRATION, "python-modules": list(modules)}


def _connection_type() -> dict[str, object]:
    """The connection and its form."""
    return {
        "connection-type": CONN_TYPE,
        "hook-class-name": "airflow_provider_memq.hooks.memq.MemqHook",
        "hook-name": "MemQ",
        "ui-field-behaviour": {
            "hidden-fields": ["login", "schema"],
            "relabeling": {"password": "Token"},
            "placeholders": {
                "host": "broker-1",
                "port": "6367",
                "password": "empty where the brokers ask for none",
                "bootstrap": "broker-2:6367,broker-3:6367",
                "request_timeout_s": str(REQUEST_TIMEOUT_S),
                "admin_url": "http://broker-1:6368",
                "aws_conn_id": "aws_default",
                "cluster": "prod",
            },
        },
        "conn-fields": EXTRAS,
    }


def _config() -> dict[str, object]:
    """The section of airflow.cfg."""
    return {
        "description": "How the MemQ provider watches topics.",
        "options": {
            "poll_interval": {
                "description": (
                    "Seconds between two looks of a trigger that watches a topic and is given no "
                    "interval of its own."
                ),
                "version_added": "0.1.0",
                "type": "float",
                "example": "1.0",
                "default": "5.0",
            }
        },
    }
