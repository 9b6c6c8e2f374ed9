"""`Model`: where weights come from, and in which formats GPU generations may serve them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from ridgeline_contracts.resources.field_rules import Rule, Schema, count, object_name, text
from ridgeline_contracts.resources.status import ConditionObject


class Generation(StrEnum):
    CPU = "cpu"
    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"


class WeightFormat(StrEnum):
    """Names of `ridgeline plan`."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"


class KvFormat(StrEnum):
    BF16 = "bf16"
    FP8 = "fp8"
    FP32 = "fp32"


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One key of a Secret in the resource's own namespace."""

    name: Annotated[str, object_name("Name of the Secret.")]
    key: Annotated[str, text("Key in the Secret.")]


@dataclass(frozen=True, slots=True)
class HuggingFaceSource:
    """A repository of the Hugging Face hub."""

    repository: Annotated[
        str, text("owner/name.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")
    ]
    token_secret: Annotated[SecretKey | None, Schema("Token for a gated repository.")] = None


@dataclass(frozen=True, slots=True)
class PvcSource:
    """A folder on a volume that exists."""

    claim_name: Annotated[str, object_name("Name of the PersistentVolumeClaim, in the pool's namespace.")]
    path: Annotated[str, text("Folder on the volume that holds config.json.", pattern=r"^[^/].*$", most=1024)]


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An OCI image or artifact, mounted read-only (needs image volumes, Kubernetes 1.31 or newer)."""

    reference: Annotated[str, text("Image reference; a digest makes it immutable.", most=512)]
    path: Annotated[str, text("Folder in the image that holds config.json.", pattern=r"^[^/].*$", most=1024)]


@dataclass(frozen=True, slots=True)
class S3Source:
    """A prefix of a bucket."""

    bucket: Annotated[str, text("Name of the bucket.", most=63, least=3)]
    prefix: Annotated[str, text("Prefix under which config.json lies.", most=1024)]
    endpoint: Annotated[
        str | None, text("Address of the service, if it is not AWS.", pattern=r"^https?://.+$")
    ] = None
    region: Annotated[str | None, text("Region of the bucket.", most=63)] = None
    credentials_secret: Annotated[
        str | None, object_name("Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")
    ] = None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the weights are: exactly one of these."""

    hf: Annotated[HuggingFaceSource | None, Schema("From the Hugging Face hub.")] = None
    pvc: Annotated[PvcSource | None, Schema("From a volume.")] = None
    image: Annotated[ImageSource | None, Schema("From an OCI image volume.")] = None
    s3: Annotated[S3Source | None, Schema("From an object store.")] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.hf), has(self.pvc), has(self.image), has(self.s3)].filter(x, x).size() == 1",
            "source names one place: give exactly one of hf, pvc, image and s3",
        ),
    )


@dataclass(frozen=True, slots=True)
class QualityGate:
    """Whether a format's answers were found good enough."""

    passed: Annotated[bool, Schema("A pool serves a format only when this is true.")]
    evidence: Annotated[str, text("Where the comparison is written down, or its figures.", most=1024)]


@dataclass(frozen=True, slots=True)
class GenerationFormat:
    """In what one GPU generation may serve the model."""

    generation: Annotated[Generation, Schema("GPU generation; a GPU class says of which it is.")]
    weights: Annotated[WeightFormat, Schema("Format of the matrices.")]
    gate: Annotated[QualityGate, Schema("The format's quality gate.")]
    kv: Annotated[KvFormat, Schema("Format of the KV cache.")] = KvFormat.BF16

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(self.weights == 'nvfp4' && self.generation != 'blackwell')",
            "weights nvfp4 need generation blackwell: give fp8 or int4 for older GPUs",
            ".weights",
        ),
        Rule(
            "!(self.weights == 'fp8' && self.generation in ['ampere', 'cpu'])",
            "weights fp8 need generation ada, hopper or blackwell: give int8 or bf16",
            ".weights",
        ),
        Rule(
            "!(self.kv == 'fp8' && self.generation in ['ampere', 'cpu'])",
            "kv fp8 needs generation ada, hopper or blackwell: give bf16",
            ".kv",
        ),
    )


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter, beside the model's own files."""

    name: Annotated[str, object_name("Asked for as MODEL:NAME.")]
    path: Annotated[str, text("Folder of the adapter in the source.", pattern=r"^[^/].*$", most=1024)]
    rank: Annotated[int, count("Its rank, for the memory ledger.", most=1024)]


@dataclass(frozen=True, slots=True)
class ModelSpecResource:
    """What a Model asks for."""

    source: Annotated[ModelSource, Schema("Where the weights come from.")]
    revision: Annotated[str, text("Commit, tag or digest; what pods load does not change under it.")]
    formats: Annotated[
        tuple[GenerationFormat, ...],
        Schema(
            "Per GPU generation; a pool of a generation that is not listed is refused.",
            min_items=1,
            max_items=5,
            key="generation",
        ),
    ]
    served_name: Annotated[str | None, text("What tenants ask for; default: the Model's name.", most=128)] = (
        None
    )
    catalogue_id: Annotated[
        str | None,
        text(
            "Id of `ridgeline plan`'s catalogue. The memory ledger is drawn up from it until the weights' own shape "
            "is in the status.",
            most=63,
        ),
    ] = None
    adapters: Annotated[
        tuple[Adapter, ...], Schema("LoRA adapters that may be asked for.", max_items=64, key="name")
    ] = ()


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What is known of the weights."""

    observed_generation: Annotated[int | None, Schema("Of the spec that this status tells of.")] = None
    config: Annotated[
        Mapping[str, Any] | None, Schema("The weights' config.json, as the verifying Job read it.")
    ] = None
    weights_bytes: Annotated[int | None, Schema("Size of the weight files.", minimum=0)] = None
    verified_revision: Annotated[str | None, text("Revision that was verified.")] = None
    pools: Annotated[int | None, Schema("WorkerPools that name this Model.", minimum=0)] = None
    conditions: Annotated[
        tuple[ConditionObject, ...], Schema("Verified, Ready.", max_items=8, key="type")
    ] = ()
