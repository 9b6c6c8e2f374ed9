"""What Kopf brings: watches, sign-in, life cycle. Its handlers only add keys to the queue.

Only `on.event` is used: it writes nothing, neither annotations nor finalizers, on what it watches.
"""

from collections.abc import Callable, Mapping
from typing import Any

import kopf
from ridgeline_contracts.resources.kinds import GROUP, MODEL, VERSION, WORKER_POOL

from ridgeline_operator.credentials import ApiAccess
from ridgeline_operator.pool_reconciler import CHILD_KINDS
from ridgeline_operator.render.facts import MANAGED_BY, MANAGED_LABEL, POOL_LABEL
from ridgeline_operator.work_queue import MODEL_STATUS, Key

_CHILDREN = (*CHILD_KINDS, ("v1", "Pod"))


def registry(wake: Callable[[Key], None], access: ApiAccess) -> kopf.OperatorRegistry:
    """Of an operator that tells `wake` what has changed."""
    found = kopf.OperatorRegistry()

    @kopf.on.login(registry=found)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return connection(access)

    async def model(namespace: str | None, name: str, **_: Any) -> None:
        wake(Key(MODEL.name, namespace or "", name))

    async def pool(namespace: str | None, name: str, spec: Mapping[str, Any], **_: Any) -> None:
        wake(Key(WORKER_POOL.name, namespace or "", name))
        reference = spec.get("modelRef", {})
        if named := reference.get("name"):
            wake(Key(MODEL_STATUS, reference.get("namespace", namespace or ""), named))

    async def child(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        if owner := labels.get(POOL_LABEL):
            wake(Key(WORKER_POOL.name, namespace or "", owner))

    kopf.on.event(GROUP, VERSION, MODEL.plural, registry=found, id=MODEL.plural)(model)
    kopf.on.event(GROUP, VERSION, WORKER_POOL.plural, registry=found, id=WORKER_POOL.plural)(pool)
    for api_version, kind_name in _CHILDREN:
        group, _, version = api_version.rpartition("/")
        plural = "networkpolicies" if kind_name == "NetworkPolicy" else f"{kind_name.lower()}s"
        kopf.on.event(group, version, plural, registry=found, id=plural, labels={MANAGED_LABEL: MANAGED_BY})(
            child
        )
    return found


def connection(access: ApiAccess) -> kopf.ConnectionInfo:
    """For Kopf's own client, from the same access as ours."""
    header = access.headers().get("Authorization", "")
    scheme, _, token = header.partition(" ")
    return kopf.ConnectionInfo(
        server=access.url,
        insecure=access.tls is False,
        ca_path=access.authority,
        scheme=scheme or None,
        token=token or None,
        certificate_path=access.client_certificate[0] if access.client_certificate else None,
        private_key_path=access.client_certificate[1] if access.client_certificate else None,
    )


def operator_settings() -> kopf.OperatorSettings:
    """No peering, no events of its own, no scanning of the whole cluster; short waits after a lost watch."""
    found = kopf.OperatorSettings()
    found.peering.standalone = True
    found.posting.enabled = False
    found.scanning.disabled = True
    found.watching.server_timeout = 300
    found.watching.client_timeout = 330
    found.watching.reconnect_backoff = 0.5
    found.networking.error_backoffs = [0.2, 0.5, 1, 2]
    return found
