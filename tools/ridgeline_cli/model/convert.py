"""Turns a GGUF file into a Hugging Face folder: weights in bfloat16, config, tokenizer, chat template."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.model_folder import (
    CONFIG_FILE,
    GENERATION_CONFIG_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    ModelFile,
    hash_files,
    model_file_names,
)

from ridgeline_cli.model.architectures import Shape, hugging_face_config, hugging_face_name, read_shape
from ridgeline_cli.model.gguf_file import GgufFile
from ridgeline_cli.model.manifest import CONVERTER_VERSION, write_json, write_text
from ridgeline_cli.model.progress import Progress
from ridgeline_cli.model.safetensors_file import ResumableWriter, file_bytes, to_bfloat16_bits
from ridgeline_cli.model.tokenizer_json import Vocabulary, build_tokenizer, read_vocabulary, tokenizer_config

_TOKENIZER_BYTES_PER_TOKEN = 100
"""Generous: the tokenizer files of known models take 30 to 60 bytes a token."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What is to be written, worked out from the GGUF file's header before a byte is."""

    shape: Shape
    vocabulary: Vocabulary
    gguf_names: dict[str, str]
    """Hugging Face tensor name -> GGUF tensor name, in the order of the output file."""
    shapes: dict[str, tuple[int, ...]]

    @property
    def output_bytes(self) -> int:
        """Upper estimate of the finished folder's size."""
        return file_bytes(self.shapes) + _TOKENIZER_BYTES_PER_TOKEN * len(self.vocabulary.tokens)


def plan_conversion(gguf: GgufFile) -> Conversion:
    """Checks that the whole file can be converted. Raises Unsupported or SettingsError saying why not."""
    shape = read_shape(gguf.metadata, {name: tensor.shape for name, tensor in gguf.tensors.items()})
    vocabulary = read_vocabulary(gguf.metadata)
    if len(vocabulary.tokens) > shape.vocabulary_tokens:
        raise SettingsError(
            f"the file has {len(vocabulary.tokens)} tokens, embeddings for {shape.vocabulary_tokens} only"
        )
    by_new_name = dict(sorted((hugging_face_name(name), name) for name in gguf.tensors))
    shapes = {new_name: gguf.tensors[name].shape for new_name, name in by_new_name.items()}
    return Conversion(shape, vocabulary, by_new_name, shapes)


def convert(
    gguf: GgufFile,
    plan: Conversion,
    *,
    gguf_sha256: str,
    folder: Path,
    journal_path: Path,
    progress: Progress,
) -> tuple[ModelFile, ...]:
    """Writes the model into `folder`, after the last whole tensor of an earlier run; returns its files.

    Equal input gives equal bytes however often the run is cut. Raises what GgufFile.read raises.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = ResumableWriter(
        folder / WEIGHTS_FILE,
        plan.shapes,
        journal_path=journal_path,
        origin=f"{gguf_sha256} converter {CONVERTER_VERSION}",
    )
    with progress.stage("convert to bfloat16", file_bytes(plan.shapes)) as advance:
        for new_name in writer.remaining():
            values = gguf.read(gguf.tensors[plan.gguf_names[new_name]])
            writer.append(new_name, to_bfloat16_bits(_hugging_face_rows(values, plan, new_name)))
            advance(writer.done_bytes)
        writer.finish()
    _write_small_files(folder, plan)
    with progress.stage("hash", file_bytes(plan.shapes)):
        return hash_files(folder, model_file_names(folder))


def _hugging_face_rows(
    values: npt.NDArray[np.float32], plan: Conversion, new_name: str
) -> npt.NDArray[np.float32]:
    heads = plan.shape.interleaved_heads(plan.gguf_names[new_name])
    return values if heads is None else rows_by_halves(values, heads=heads)


def rows_by_halves(values: npt.NDArray[np.float32], *, heads: int) -> npt.NDArray[np.float32]:
    """Rows (heads * dim, ...) in pairs that rope turns together -> by head, all firsts, then all seconds."""
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _write_small_files(folder: Path, plan: Conversion) -> None:
    vocabulary = plan.vocabulary
    ids = vocabulary.ids_for_config()
    generation = {**ids, "eos_token_id": vocabulary.eos_token_ids}
    write_json(folder / CONFIG_FILE, hugging_face_config(plan.shape, ids))
    write_json(folder / GENERATION_CONFIG_FILE, generation)
    write_json(folder / TOKENIZER_CONFIG_FILE, tokenizer_config(vocabulary, plan.shape.context_tokens))
    write_text(folder / TOKENIZER_FILE, build_tokenizer(vocabulary).to_str())
