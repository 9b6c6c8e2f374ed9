"""From a model's name to all that a request for it needs."""

import asyncio
import logging
from dataclasses import dataclass

from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.errors import NotFound, PeerError
from ridgeline_contracts.ids import ModelName
from ridgeline_contracts.proto import worker_pb2

from ridgeline_gateway.directory import KnownModel, WorkerDirectory
from ridgeline_gateway.tenants import Tenant
from ridgeline_gateway.text_model import TextModel
from ridgeline_gateway.text_models import TextModels
from ridgeline_gateway.worker_links import WorkerLinks

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: ModelName
    variant: worker_pb2.Variant
    capabilities: Capabilities
    text: TextModel


class ServedModels:
    """Resolves models for tenants."""

    def __init__(self, directory: WorkerDirectory, links: WorkerLinks, texts: TextModels) -> None:
        self._directory = directory
        self._links = links
        self._texts = texts

    def list_for(self, tenant: Tenant) -> dict[ModelName, KnownModel]:
        """The models that a tenant may use, by name."""
        return {
            name: known for name, known in sorted(self._directory.models().items()) if tenant.may_use(name)
        }

    def known(self, tenant: Tenant, name: str) -> KnownModel:
        """Raises NotFound for a model that does not exist or that the tenant may not use: the two look alike."""
        if not tenant.may_use(ModelName(name)):
            raise NotFound(
                f"the model {name!r} does not exist: GET /v1/models lists those that do", param="model"
            )
        return self._directory.model(ModelName(name))

    async def resolve(self, tenant: Tenant, name: str) -> ServedModel:
        """Raises NotFound as `known` does, PeerError while no worker serves it."""
        known = self.known(tenant, name)
        capabilities = self._links.capabilities(known.variant)
        text = await self._texts.get(
            known.variant.tokenizer_hash, known.tokenizer_files, self._links.serving(known.variant)
        )
        return ServedModel(ModelName(name), known.variant, capabilities, text)

    async def keep_loaded(self) -> None:
        """Loads the tokenizer of each model as soon as a worker serves it, before a request needs it. Runs for ever."""
        while True:
            change = asyncio.create_task(self._links.change())
            try:
                await self.load_all()
                await change
            finally:
                change.cancel()

    async def load_all(self) -> None:
        """Loads the tokenizers of the models that are served now; one that cannot be had is logged."""
        for known in self._directory.models().values():
            await self._load(known)

    async def _load(self, known: KnownModel) -> None:
        links = self._links.serving(known.variant)
        if not links:
            return
        try:
            await self._texts.get(known.variant.tokenizer_hash, known.tokenizer_files, links)
        except PeerError as error:
            # Requests for this model get the same answer; the next change of a worker tries again.
            _log.warning("tokenizer.not_loaded model=%s reason=%s", known.variant.model, error.message)
