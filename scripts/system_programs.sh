#!/usr/bin/env bash
# Names each system program that is missing, in one loud line, and as root on Debian installs it.
#   scripts/system_programs.sh [--required] PROGRAM...
# Without --required it always ends well: what is missing then costs the tests that need it, and they say so.
set -euo pipefail

required=no
if [ "${1:-}" = --required ]; then required=yes; shift; fi

debian_package() {
  case "$1" in
    cc) echo gcc ;;
    prometheus | promtool) echo prometheus ;;
    *) echo "$1" ;;
  esac
}

present() {
  if [ "$1" = python3-venv ]; then
    "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null
  else
    command -v "$1" >/dev/null
  fi
}

missing=()
for program in "$@"; do
  present "$program" || missing+=("$program")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  packages=()
  for program in "${missing[@]}"; do
    packages+=("$(debian_package "$program")")
    echo "system: $program is missing: installing Debian's $(debian_package "$program")"
  done
  export DEBIAN_FRONTEND=noninteractive
  # Runlevel 1 keeps a freshly installed server from being started: tests start their own.
  log=$(mktemp)
  if ! { apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${packages[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 15 "$log" >&2
  fi
  rm -f "$log"
fi

status=0
for program in "${missing[@]}"; do
  hash -r
  present "$program" && continue
  status=1
  if [ "$required" = yes ]; then
    echo "system: MISSING $program. Debian and Ubuntu: apt-get install $(debian_package "$program")" >&2
  else
    echo "system: MISSING $program: the tests that need it are skipped." \
      "Debian and Ubuntu: apt-get install $(debian_package "$program")" >&2
  fi
done
[ "$required" = no ] || exit "$status"
