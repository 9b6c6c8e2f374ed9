"""Reading GGUF: what a good file says, and what a damaged one is told."""

import contextlib
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ridgeline_cli.model.gguf_file import GgufFile
from ridgeline_contracts.errors import NotFound, SettingsError
from ridgeline_testing.tiny_gguf import tiny_config, tiny_tensors, write_tiny_gguf


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config()
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return write_tiny_gguf(path, config, tiny_tensors(config), matrix_format="Q8_0")


def test_it_reads_what_the_reference_reader_reads(gguf_path: Path) -> None:
    reference = gguf.GGUFReader(gguf_path)
    with GgufFile(gguf_path) as ours:
        theirs = {
            key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")
        }
        assert ours.metadata == theirs
        assert list(ours.tensors) == [tensor.name for tensor in reference.tensors]
        for tensor in reference.tensors:
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(ours.read(ours.tensors[tensor.name]), expected)


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        pytest.param("a", -5, gguf.GGUFValueType.INT8, id="int8"),
        pytest.param("b", 2**63, gguf.GGUFValueType.UINT64, id="uint64"),
        pytest.param("c", 0.5, gguf.GGUFValueType.FLOAT64, id="float64"),
        pytest.param("d", True, gguf.GGUFValueType.BOOL, id="bool"),
        pytest.param("e", "héllo", gguf.GGUFValueType.STRING, id="string"),
        pytest.param("f", [1, 2, 3], gguf.GGUFValueType.ARRAY, id="numbers"),
        pytest.param("g", ["x", ""], gguf.GGUFValueType.ARRAY, id="strings"),
        pytest.param("general.alignment", 64, gguf.GGUFValueType.UINT32, id="alignment"),
    ],
)
def test_metadata_of_every_kind_is_read(
    tmp_path: Path, key: str, value: object, kind: gguf.GGUFValueType
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "kinds.gguf", "llama")
    writer.add_key_value(key, value, kind)
    if key == "general.alignment":
        writer.data_alignment = 64
    writer.add_tensor("odd", np.arange(3, dtype=np.float32))
    writer.add_tensor("even", np.arange(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile(tmp_path / "kinds.gguf") as ours:
        assert ours.metadata[key] == value
        assert ours.read(ours.tensors["even"]).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        pytest.param(lambda data: b"", "is empty", id="empty"),
        pytest.param(lambda data: b"PK\x03\x04" + data[4:], "does not start with", id="not-gguf"),
        pytest.param(lambda data: data[:4] + b"\x63\0\0\0" + data[8:], "version 99", id="version"),
        pytest.param(lambda data: data[:20], "within its header", id="cut-in-the-counts"),
        pytest.param(lambda data: data[:2000], "within its header", id="cut-in-the-vocabulary"),
        pytest.param(lambda data: data[:-1000], "before the end of tensor", id="cut-in-the-tensors"),
        pytest.param(lambda data: data[:8] + b"\xff" * 8 + data[16:], "GGUF file", id="absurd-count"),
    ],
)
def test_a_damaged_file_is_one_clear_error(
    tmp_path: Path, gguf_path: Path, damage: object, says: str
) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damage(gguf_path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(SettingsError, match=f"damaged.gguf.*{says}"):
        GgufFile(path)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no GGUF file at"):
        GgufFile(tmp_path / "absent.gguf")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 6000), byte=st.integers(0, 255))
def test_a_changed_byte_in_the_header_never_crashes_the_reader(
    tmp_path: Path, gguf_path: Path, at: int, byte: int
) -> None:
    data = bytearray(gguf_path.read_bytes())
    data[at] = byte
    path = tmp_path / "changed.gguf"
    path.write_bytes(data)
    # Either it still reads as a GGUF file, or it is refused by name; any other exception fails the test.
    with contextlib.suppress(SettingsError), GgufFile(path) as ours:
        assert ours.path == path
