#!/usr/bin/env bash
# Regenerates the gRPC stubs next to the .proto files, or into the folder given as $1 (the freshness test does that).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-core}
python=${PYTHON:-python3}
"$python" -m grpc_tools.protoc -I core --python_out="$out" --mypy_out="quiet:$out" --grpc_python_out="$out" --mypy_grpc_out="quiet:$out" \
  core/ridgeline_contracts/proto/worker.proto core/ridgeline_contracts/proto/router.proto
