"""Writes docs/plan from the topics of `ridgeline plan`."""

from pathlib import Path

from ridgeline_cli.plan.pages import pages

_FOLDER = Path(__file__).parent.parent / "docs" / "plan"


def main() -> None:
    """Overwrites the pages; what no topic makes (step-model.md, say) is left alone."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (_FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
