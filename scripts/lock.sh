#!/usr/bin/env bash
# Writes requirements/ci.lock: what CI installs, for every Python from 3.11 on, with versions and hashes.
# Versions stay as they are unless pyproject.toml asks for more; `scripts/lock.sh --upgrade` takes the newest.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/python" -m pip install -qq --disable-pip-version-check 'uv>=0.13.9'

"$tools/bin/uv" pip compile pyproject.toml \
  --extra gateway --extra router --extra worker --extra operator --extra dev \
  --constraints requirements/torch.txt --no-emit-package torch \
  --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-annotate \
  --custom-compile-command 'make lock' \
  --quiet --output-file requirements/ci.lock "$@"

echo "requirements/ci.lock: $(grep -c '^[a-z0-9]' requirements/ci.lock) packages"
