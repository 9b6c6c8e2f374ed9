"""`python -m ridgeline_testing.mutation [GROUP ...]`: prints how many mutants of each module were killed."""

import os
import sys
import tempfile
from pathlib import Path

from ridgeline_testing.mutation.groups import GROUPS, group_named
from ridgeline_testing.mutation.runner import Score, run


def row(group: str, score: Score) -> str:
    return f"| {group} | `{score.module}` | {score.mutants} | {score.killed} | {score.ratio:.0%} |"


def main(names: list[str]) -> None:
    print("| group | module | mutants | killed | ratio |\n| --- | --- | --- | --- | --- |", flush=True)
    for group in [group_named(name) for name in names] or GROUPS:
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            scores = run(group, Path(folder), processes=len(os.sched_getaffinity(0)))
        for score in scores:
            print(row(group.name, score), flush=True)
        for survivor in (each for score in scores for each in score.survivors):
            print(f"survived: {survivor}", file=sys.stderr, flush=True)


main(sys.argv[1:])
