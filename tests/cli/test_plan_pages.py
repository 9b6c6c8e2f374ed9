"""docs/plan shows what the command prints."""

from pathlib import Path

import pytest
from ridgeline_cli.plan.pages import pages
from ridgeline_roofline.plan.registry import TOPIC_NAMES

_FOLDER = Path(__file__).parents[2] / "docs" / "plan"
_PAGES = pages()


@pytest.mark.parametrize("name", sorted(_PAGES))
def test_a_page_is_what_its_topic_says_now(name: str) -> None:
    assert (_FOLDER / name).read_text(encoding="utf-8") == _PAGES[name], "run: make pages"


def test_every_topic_has_a_page_with_its_formula_and_limits() -> None:
    for name in TOPIC_NAMES:
        text = _PAGES[f"{name}.md"]
        assert all(
            part in text
            for part in ("## The formula", "Source: ", "## A worked example", "## Where it breaks")
        )
