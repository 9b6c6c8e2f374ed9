"""The weights file: rounding, format, and going on after a cut at any byte."""

from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from ridgeline_cli.model.safetensors_file import ResumableWriter, file_bytes, to_bfloat16_bits
from safetensors import safe_open

SHAPES: dict[str, tuple[int, ...]] = {"a": (3,), "b": (2, 5), "c": (4, 4), "d": (1,)}


def bits_of(name: str) -> npt.NDArray[np.uint16]:
    random = np.random.default_rng(ord(name))
    return random.integers(0, 2**16, SHAPES[name], dtype=np.uint16)


def writer_in(folder: Path, *, origin: str = "x") -> ResumableWriter:
    return ResumableWriter(folder / "w.safetensors", SHAPES, journal_path=folder / "journal", origin=origin)


def write_all(writer: ResumableWriter) -> bytes:
    for name in writer.remaining():
        writer.append(name, bits_of(name))
    writer.finish()
    return writer.path.read_bytes()


@given(hnp.arrays(np.float32, 32, elements=st.floats(width=32)))
def test_rounding_equals_the_reference_bfloat16(values: npt.NDArray[np.float32]) -> None:
    with np.errstate(over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16)
    ours = to_bfloat16_bits(values).view(ml_dtypes.bfloat16)
    is_number = ~np.isnan(values)
    assert np.array_equal(ours[is_number].view(np.uint16), expected[is_number].view(np.uint16))
    assert np.isnan(ours[~is_number].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        pytest.param(1.00390625, 0x3F80, id="tie-to-even-down"),
        pytest.param(1.01171875, 0x3F82, id="tie-to-even-up"),
        pytest.param(3.4e38, 0x7F80, id="too-large-becomes-infinite"),
        pytest.param(-0.0, 0x8000, id="minus-zero-stays"),
    ],
)
def test_rounding_is_to_nearest_even(value: float, bits: int) -> None:
    assert to_bfloat16_bits(np.array([value], dtype=np.float32)).tolist() == [bits]


def test_the_file_is_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    data = write_all(writer_in(tmp_path))
    assert len(data) == file_bytes(SHAPES)
    with safe_open(tmp_path / "w.safetensors", framework="numpy") as opened:
        assert opened.metadata() == {"format": "pt"}
        for name in SHAPES:
            assert np.array_equal(opened.get_tensor(name).view(np.uint16), bits_of(name))


def test_a_new_writer_goes_on_after_the_last_whole_tensor(tmp_path: Path) -> None:
    first = writer_in(tmp_path)
    for name in ("a", "b"):
        first.append(name, bits_of(name))
    assert writer_in(tmp_path).remaining() == ("c", "d")


def test_a_cut_anywhere_in_either_file_ends_in_the_same_bytes(tmp_path: Path) -> None:
    whole = write_all(writer_in(tmp_path))
    weights, journal = tmp_path / "w.safetensors", tmp_path / "journal"
    journal_text = journal.read_bytes()
    for cut in range(0, len(whole), 7):
        weights.write_bytes(whole[:cut])
        journal.write_bytes(journal_text)
        assert write_all(writer_in(tmp_path)) == whole
    for cut in range(0, len(journal_text), 7):
        weights.write_bytes(whole)
        journal.write_bytes(journal_text[:cut])
        assert write_all(writer_in(tmp_path)) == whole


def test_a_changed_byte_is_written_again(tmp_path: Path) -> None:
    whole = write_all(writer_in(tmp_path))
    changed = bytearray(whole)
    changed[-40] ^= 1
    (tmp_path / "w.safetensors").write_bytes(changed)
    writer = writer_in(tmp_path)
    assert writer.remaining()
    assert write_all(writer) == whole


def test_tensors_of_another_origin_are_not_taken_over(tmp_path: Path) -> None:
    write_all(writer_in(tmp_path))
    assert writer_in(tmp_path, origin="y").remaining() == tuple(SHAPES)


def test_a_link_in_the_way_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"somebody's weights")
    (tmp_path / "w.safetensors").symlink_to(precious)
    write_all(writer_in(tmp_path))
    assert precious.read_bytes() == b"somebody's weights"
