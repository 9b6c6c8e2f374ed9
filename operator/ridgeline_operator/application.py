"""The operator's process: lead, watch, work off the queue, and end when leadership ends."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import kopf
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import PeerError, RidgelineError
from ridgeline_contracts.resources.kinds import API_VERSION, MODEL, WORKER_POOL

from ridgeline_operator.api import Gone, KubeApi, Stale
from ridgeline_operator.credentials import ApiAccess
from ridgeline_operator.handlers import operator_settings, registry
from ridgeline_operator.leader import Leader, LeadershipLost
from ridgeline_operator.model_reconciler import ModelReconciler
from ridgeline_operator.pool_reconciler import PoolReconciler
from ridgeline_operator.settings import OperatorSettings
from ridgeline_operator.work_queue import MODEL_STATUS, Key, WorkQueue

_WORKERS = 4
"""Objects that are worked on at once; one object never twice."""
_log = logging.getLogger(__name__)


class OperatorApplication:
    def __init__(self, access: ApiAccess, settings: OperatorSettings, clock: Clock, *, identity: str) -> None:
        self._access = access
        self._settings = settings
        self._api = KubeApi(access, identity=identity)
        self._queue = WorkQueue(clock)
        self._leader = Leader(
            self._api,
            clock,
            namespace=settings.release_namespace,
            identity=identity,
            lease_ms=settings.lease_ms,
        )
        pools = PoolReconciler(self._api, self._leader, settings, clock)
        models = ModelReconciler(self._api, self._leader, clock, self._queue.add)
        self._reconcilers = {
            WORKER_POOL.name: pools.reconcile,
            MODEL.name: models.reconcile,
            MODEL_STATUS: models.tell,
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises LeadershipLost, after which the process must end at once."""
        try:
            if not await _first(self._leader.acquire(), stop):
                return
            _log.info("leading")
            await self._lead(stop)
            await self._leader.release()
        finally:
            await self._api.close()

    async def _lead(self, stop: asyncio.Event) -> None:
        running = [
            asyncio.create_task(each)
            for each in (
                self._leader.keep(),
                self._watch(stop),
                self._resync(),
                *(self._work() for _ in range(_WORKERS)),
            )
        ]
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if isinstance(task.exception(), LeadershipLost):
                # Ends here, without a wait for the others: nothing may be written from now on.
                raise LeadershipLost(str(task.exception()))
        for task in (*running, stopped):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in done:
            task.result()

    async def _watch(self, stop: asyncio.Event) -> None:
        """Returns when Kopf ends: it takes over the signals, and so hears of a SIGTERM first."""
        await kopf.operator(
            registry=registry(self._queue.add, self._access),
            settings=operator_settings(),
            clusterwide=True,
            standalone=True,
            stop_flag=stop,
        )

    async def _resync(self) -> None:
        """Every object again, whatever was missed; at once at the start."""
        while True:
            for kind in (MODEL, WORKER_POOL):
                try:
                    found = await self._api.items(API_VERSION, kind.name, "")
                except RidgelineError as error:
                    _log.warning("resync of %s: %s", kind.plural, error)
                    continue
                for each in found:
                    metadata = each["metadata"]
                    self._queue.add(Key(kind.name, metadata.get("namespace", ""), metadata["name"]))
            await asyncio.sleep(self._settings.resync_ms / 1000)

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            failed = True
            try:
                again_s = await self._reconcilers[key.kind](key)
                failed = False
                if again_s is not None:
                    self._queue.add(key, after_ms=again_s * 1000)
            except LeadershipLost:
                raise
            except (Stale, Gone):
                # Somebody else wrote while we planned: read again.
                _log.debug("%s changed meanwhile", key)
            except PeerError as error:
                _log.warning("%s: %s", "/".join(key), error)
            except (RidgelineError, KeyError, ValueError, TypeError) as error:
                # One object that cannot be handled must not stop the others; it comes back later and later.
                _log.exception("%s: %s", "/".join(key), error)
            finally:
                self._queue.done(key, failed=failed)


async def _first(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Whether `work` ended before `stop` was set."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            return True
        return False
    finally:
        for each in (task, stopped):
            each.cancel()
