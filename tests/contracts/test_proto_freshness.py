"""The generated stubs are what the .proto files say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTO = Path("ridgeline_contracts/proto")
STUBS = sorted(path.name for path in (ROOT / "core" / PROTO).glob("*_pb2*"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What scripts/proto.sh makes of the .proto files now, by the generator of this environment."""
    out = tmp_path_factory.mktemp("stubs")
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "proto.sh"), str(out)],
        env={**os.environ, "PYTHON": sys.executable, "PATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out / PROTO


def test_every_proto_file_has_its_stubs() -> None:
    names = {path.stem for path in (ROOT / "core" / PROTO).glob("*.proto")}
    assert {f"{name}_pb2{end}" for name in names for end in (".py", ".pyi", "_grpc.py", "_grpc.pyi")} == set(
        STUBS
    )


@pytest.mark.parametrize("stub", STUBS)
def test_a_stub_is_fresh(generated: Path, stub: str) -> None:
    checked_in = (ROOT / "core" / PROTO / stub).read_text()
    assert checked_in == (generated / stub).read_text(), f"{stub} is stale: run scripts/proto.sh"
