"""Writes the CRDs into the chart, and docs/resources.md, from the typed classes."""

from pathlib import Path

from ridgeline_contracts.resources.files import resource_files

_ROOT = Path(__file__).parent.parent


def main() -> None:
    """Overwrites what it makes, and nothing else."""
    for name, content in resource_files().items():
        path = _ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
