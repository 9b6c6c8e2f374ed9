"""How the API server is reached: from a kubeconfig, or from a pod's account."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes
from ridgeline_contracts.errors import SettingsError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ApiAccess:
    url: str
    tls: ssl.SSLContext | bool
    headers: Callable[[], Mapping[str, str]]
    """Asked for every request: an account's token is replaced while we run."""
    client_certificate: tuple[str, str] | None = None
    authority: str | None = None
    """File of the certificates that the server's is checked by."""


def access_from_pod(host: str, port: str, account: Path = _ACCOUNT) -> ApiAccess:
    """Of the pod's service account. Raises SettingsError without one."""
    token, authority = account / "token", account / "ca.crt"
    if not token.is_file():
        raise SettingsError(f"no cluster is configured: neither KUBECONFIG is set, nor is {token} there")
    shown = f"[{host}]" if ":" in host else host
    return ApiAccess(
        url=f"https://{shown}:{port}",
        tls=ssl.create_default_context(cafile=str(authority)),
        headers=lambda: {"Authorization": f"Bearer {token.read_text().strip()}"},
        authority=str(authority),
    )


def access_from_kubeconfig() -> ApiAccess:
    """Of the current context. Raises SettingsError where the kubeconfig cannot be used."""
    configuration: Any = kubernetes.client.Configuration()
    load: Callable[..., None] = kubernetes.config.load_kube_config
    try:
        load(client_configuration=configuration)
    except kubernetes.config.ConfigException as error:
        raise SettingsError(
            f"no cluster is configured ({error}): set KUBECONFIG, or run this in a pod with a service account"
        ) from error
    tls: ssl.SSLContext | bool = False
    if configuration.verify_ssl:
        tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    certificate = (
        (configuration.cert_file, configuration.key_file)
        if configuration.cert_file and configuration.key_file
        else None
    )

    def headers() -> Mapping[str, str]:
        if configuration.refresh_api_key_hook is not None:
            configuration.refresh_api_key_hook(configuration)
        token = configuration.get_api_key_with_prefix("authorization") or configuration.api_key.get(
            "BearerToken"
        )
        return {"Authorization": token} if token else {}

    return ApiAccess(configuration.host, tls, headers, certificate, configuration.ssl_ca_cert)
