"""The size of a folder that another process is at work in."""

import os
from pathlib import Path
from typing import Any

import pytest
from ridgeline_cli.model.sizes import bytes_below


def _tree(folder: Path) -> None:
    for name, count in (("a", 3), ("sub/b", 5), ("sub/deep/c", 7)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * count)


def test_all_files_count_and_links_as_themselves(tmp_path: Path) -> None:
    _tree(tmp_path / "t")
    assert bytes_below(tmp_path / "t") == 3 + 5 + 7
    (tmp_path / "t" / "link").symlink_to("a")
    assert bytes_below(tmp_path / "t") == 3 + 5 + 7 + len("a")
    assert bytes_below(tmp_path / "none") == 0


def test_a_folder_that_goes_while_we_look_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tree(tmp_path)
    scandir, doomed = os.scandir, tmp_path / "sub" / "deep"

    def gone_by_then(path: Any) -> Any:
        if os.fspath(path) == str(doomed) and doomed.exists():
            (doomed / "c").unlink()
            doomed.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", gone_by_then)
    assert bytes_below(tmp_path) == 3 + 5


def test_a_file_that_goes_while_we_look_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tree(tmp_path)
    lstat = os.lstat

    def gone_by_then(path: Any) -> os.stat_result:
        if Path(path).name == "b":
            os.unlink(path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", gone_by_then)
    assert bytes_below(tmp_path) == 3 + 7
