"""Our floor beside aiconfigurator's estimates, for Qwen3 32B in BF16 on H100 SXM and B200, in one run.

    python bench/aiconfigurator_check.py [--json] [--venv DIR] [--write FILE]

The floor must lie below every estimate, and B200 / H100 in tokens/s a GPU at a TPOT of 30 ms must be within 35% of
its ratio; exit code 1 where either does not hold. aiconfigurator is installed into a virtual environment of its own
(--venv; made where it is missing, about 1 GB).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ridgeline_roofline.plan.cross_check import Cell, cells, ratios

VERSION = "0.12.0"
WITHIN = 0.35
_DRIVER = Path(__file__).with_name("_aiconfigurator_driver.py")


def python_of(venv: Path) -> Path:
    """The environment's Python; installs what is missing."""
    python = venv / "bin" / "python"
    if not python.is_file():
        print(f"installing aiconfigurator {VERSION} into {venv}", file=sys.stderr)
        subprocess.run((sys.executable, "-m", "venv", str(venv)), check=True)
        subprocess.run((str(python), "-m", "pip", "install", "-q", f"aiconfigurator=={VERSION}"), check=True)
    return python


def estimates(python: Path) -> dict[str, Any]:
    done = subprocess.run((str(python), str(_DRIVER)), capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _line(cell: Cell) -> str:
    split = " ".join(f"{name} {ms:.2f}" for name, ms in cell.split_ms.items() if ms > 0.005)
    place = f"{cell.system:<9} tp{cell.tp} {cell.phase:<8}{cell.batch:>4} x {cell.tokens:>6}"
    return f"{place}  floor {cell.floor_ms:>9.2f} ms  estimate {cell.estimate_ms:>9.2f} ms  {cell.ratio:.2f}  ({split})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path.home() / ".cache" / "ridgeline" / "bench" / f"aiconfigurator-{VERSION}"
    parser.add_argument("--venv", type=Path, default=default, help="virtual environment of aiconfigurator")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--write", type=Path, help="keep the estimates in this file, as the test's data")
    given = parser.parse_args()
    found = estimates(python_of(given.venv))
    if given.write:
        given.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    compared, ratio = cells(found), ratios(found)
    above = [cell for cell in compared if cell.ratio >= 1]
    holds = not above and abs(ratio.apart) <= WITHIN
    if given.json:
        rows = [
            {"place": _line(cell), "floor_ms": cell.floor_ms, "estimate_ms": cell.estimate_ms}
            for cell in compared
        ]
        print(
            json.dumps(
                {
                    "bench": "aiconfigurator_check",
                    "holds": holds,
                    "rows": rows,
                    "ours": ratio.ours,
                    "theirs": ratio.theirs,
                }
            )
        )
        return 0 if holds else 1
    for cell in compared:
        print(_line(cell))
    for phase in ("decode", "prefill"):
        shares = sorted(cell.ratio for cell in compared if cell.phase == phase)
        print(
            f"{phase}: floor / estimate {shares[0]:.2f} to {shares[-1]:.2f}, median {shares[len(shares) // 2]:.2f}"
        )
    print(
        f"B200 / H100 in tokens/s a GPU: ours {ratio.ours:.2f}, "
        f"{found['source']} {ratio.theirs:.2f}, {ratio.apart:+.0%} apart"
    )
    print("holds" if holds else f"does not hold: {len(above)} floors above the estimate, limit {WITHIN:.0%}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
