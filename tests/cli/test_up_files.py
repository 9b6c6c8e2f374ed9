"""The files that `up` leaves for others: keys, the ready file, the lock."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ridgeline_cli.up.data_dir import key_files, locked_data_dir, open_admin_key
from ridgeline_cli.up.private_files import read_private, write_private
from ridgeline_cli.up.ready_file import Pids, Ready, read_ready, write_ready
from ridgeline_contracts.errors import Conflict, NotFound, SettingsError

READY = Ready(
    base_url="http://127.0.0.1:8000/v1",
    api_key="rl-000000000000-secret",
    admin_url="http://127.0.0.1:8001",
    admin_key="admin-secret",
    pids=Pids(gateway=11, router=12, workers=(13, 14)),
)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_ready_file_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ready.json"
    write_ready(path, READY)
    assert _mode(path) == 0o600
    assert read_ready(path) == READY
    assert json.loads(path.read_text()) == {
        "base_url": "http://127.0.0.1:8000/v1",
        "api_key": "rl-000000000000-secret",
        "admin_url": "http://127.0.0.1:8001",
        "admin_key": "admin-secret",
        "pids": {"gateway": 11, "router": 12, "workers": [13, 14]},
    }


def test_rewriting_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_private(path, "an old and much longer text")
    before = path.open()
    write_private(path, "new")
    assert path.read_text() == "new"
    assert before.read() == "an old and much longer text", "a reader that had it open keeps what it saw"
    before.close()
    assert [found.name for found in tmp_path.iterdir()] == ["ready.json"]


def test_no_ready_file_means_that_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="ridgeline up"):
        read_ready(tmp_path / "ready.json")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"base_url": "x"}'])
def test_a_strange_ready_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ready.json"
    write_private(path, text)
    with pytest.raises(SettingsError, match="is no ready file"):
        read_ready(path)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_private(path, "secret")
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_private(path)


def test_keys_are_made_once_and_kept(tmp_path: Path) -> None:
    files = key_files(tmp_path)
    first = open_admin_key(files)
    pepper = files.pepper.read_text()
    assert open_admin_key(files) == first
    assert files.pepper.read_text() == pepper
    assert len(pepper.strip()) == 64
    assert {_mode(files.pepper), _mode(files.admin_key)} == {0o600}


def test_an_empty_key_file_is_named(tmp_path: Path) -> None:
    files = key_files(tmp_path)
    write_private(files.admin_key, "\n")
    with pytest.raises(SettingsError, match="is empty"):
        open_admin_key(files)


def test_a_second_run_in_the_same_folder_is_refused_and_told_the_first_ones_pid(tmp_path: Path) -> None:
    with (
        locked_data_dir(tmp_path),
        pytest.raises(Conflict, match=f"pid {os.getpid()}"),
        locked_data_dir(tmp_path),
    ):
        pass
    with locked_data_dir(tmp_path):
        pass


def test_the_death_of_its_owner_frees_the_folder(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from ridgeline_cli.up.data_dir import locked_data_dir\n"
        "with locked_data_dir(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        with pytest.raises(Conflict), locked_data_dir(tmp_path):
            pass
        owner.kill()
        owner.wait()
    with locked_data_dir(tmp_path):
        pass
