"""Credentials and place of S3, from an Airflow connection of type `aws`.

Airflow's own `S3Hook` resolves them: keys, a profile, a role to assume, or what the machine has.
They become options of the storage, as readers take them. They are resolved once for each call and
not renewed during it: those of a role end with its session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.log import mask_secret

from airflow_provider_memq.extras import PROVIDER
from memq.core.named_values import NO_VALUES, NamedValues, parse_storage_options
from memq.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from airflow_provider_memq.settings import ClientSettings


def s3_hook(aws_conn_id: str | None) -> Any:
    """Airflow's hook for S3.

    Args:
        aws_conn_id: connection of type `aws`; None for what boto3 finds by itself.

    Raises:
        ConfigError: the provider that has it is not installed.
    """
    try:
        from airflow.providers.amazon.aws.hooks.s3 import S3Hook  # noqa: PLC0415 - DAGs parse sooner
    except ImportError as exc:
        raise ConfigError(
            f"connections of type aws need Airflow's provider for them ({exc}): "
            f'pip install "{PROVIDER}[amazon]"'
        ) from exc
    return S3Hook(aws_conn_id=aws_conn_id)


def storage_options_of(settings: ClientSettings) -> NamedValues:
    """Return the storage options of the `aws` connection that a connection names, if it names one.

    Secrets among them are masked in the log of the task.

    Raises:
        ConfigError: the connection holds no credentials, or its provider is not installed.
        StorageError: there are none now: nothing answers, or the role may not be assumed.
        AirflowNotFoundException: there is no such connection.
    """
    conn_id = settings.aws_conn_id
    if not conn_id:
        return NO_VALUES
    hook = s3_hook(conn_id)
    hook.get_connection(conn_id)  # the hook goes on without one that is not there
    try:
        session = hook.get_session()
        found = session.get_credentials()
        keys = None if found is None else found.get_frozen_credentials()
    except Exception as exc:  # each way to sign in has errors of its own
        raise StorageError(
            f"connection {conn_id!r} gives no credentials: {type(exc).__name__}: {exc}"
        ) from exc
    if keys is None:
        raise ConfigError(
            f"connection {conn_id!r} has no credentials, and neither has this machine; fill in its "
            "login and password, or the role or the profile in its extra"
        )
    for secret in (keys.secret_key, keys.token):
        if secret:
            mask_secret(secret)
    options = {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "session_token": keys.token,
        "region": session.region_name,
        "endpoint": hook.conn_config.get_service_endpoint_url("s3"),
        "ca_certificate": hook.verify if isinstance(hook.verify, str) else None,
        "allow_invalid_certificates": hook.verify is False,
    }
    return parse_storage_options({name: value for name, value in options.items() if value})
