"""Scripts in bench/ are no package: their folder goes on the path, as it does when one of them is run."""

import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
if str(BENCH) not in sys.path:
    sys.path.insert(0, str(BENCH))
