"""The real small model, converted by the product, against transformers' own reading of the same GGUF file.

Weights are compared bit by bit with what transformers loads as bfloat16; logits, computed in fp32 from either
set of weights by the same code, must then agree to 1e-4 of logits of size 10 to 30 (they are equal in practice,
the tolerance is for a matrix product that is split differently).
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from ridgeline_cli.model.catalogue import CATALOGUE
from ridgeline_contracts.model_folder import ModelFolder, load_model_folder
from ridgeline_testing.smollm2 import smollm2_folder, smollm2_gguf
from safetensors.torch import load_file
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

LOGIT_TOLERANCE = 1e-4

# The first use on a machine downloads the model; on a busy one transformers alone takes two minutes to read it.
pytestmark = pytest.mark.timeout(600)

PLAIN_TEXTS = [
    "",
    " ",
    "hello",
    "Hello, world! How's it going?",
    "  leading and trailing spaces   ",
    "tabs\tand\nnew\r\nlines\n\n\n",
    "I'll we've you're don't IT'S",
    "snake_case camelCase kebab-case x+=y**2; // comment",
    "def f(x):\n    return [i for i in range(x) if i % 2]\n",
    "Grüße aus Köln, señor; naïve café",
    "Ελληνικά, русский, עברית, العربية, हिन्दी, ไทย",
    "日本語と中文混在テスト、한국어도",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 and e\u0301 combining",
    "\u00a0nbsp\u200bzero width\ufeffbom\u2028line",
    "\x00\x01\x7f control",
    "in 1999 we had 3 apples, 3.14159 and 1,000,000",
    "v1.2.3-rc4 at 10:45, 50% off",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b<repo_name>c<|im_end|><|im_end|>",
    "<|im_start |> <|IM_START|> <| im_end|> are not special",
    "supercalifragilisticexpialidocious " * 20,
]
DIGITS_AFTER_SPACES = [
    "a  1",
    "x   42 y",
    "\n\n3",
    "\t\t7\t\t8",
    "1  2   3",
    "日 １２３ ½ Ⅷ ²³",
    "line\n\n2023-01-01",
    "  0",
]


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return load_model_folder(smollm2_folder())


@pytest.fixture(scope="module")
def ours(folder: ModelFolder) -> Tokenizer:
    return Tokenizer.from_file(str(folder.tokenizer_path))


@pytest.fixture(scope="module")
def gguf_path() -> Path:
    return smollm2_gguf()


@pytest.fixture(scope="module")
def reference_tokenizer(gguf_path: Path) -> Any:
    return AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)


@pytest.fixture(scope="module")
def digit_splitting_reference(reference_tokenizer: Any) -> Tokenizer:
    """Transformers' reading, with the first step of the pre-tokenizer that the file names (smollm) put back.

    Transformers does not know the name and leaves out the step that takes each digit by itself, which shows where
    two or more spaces or line ends come before a digit.
    """
    reference = Tokenizer.from_str(reference_tokenizer.backend_tokenizer.to_str())
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), reference.pre_tokenizer]
    )
    return reference


@pytest.fixture(scope="module")
def reference_weights(gguf_path: Path) -> Mapping[str, torch.Tensor]:
    """Transformers' bfloat16 reading, widened to fp32."""
    model = AutoModelForCausalLM.from_pretrained(
        gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.bfloat16
    )
    return {name: tensor.float() for name, tensor in model.state_dict().items()}


def test_the_weights_have_the_pinned_hash(folder: ModelFolder) -> None:
    by_name = {file.name: file.sha256 for file in folder.files}
    assert by_name["model.safetensors"] == CATALOGUE["smollm2-135m-instruct"].weights_sha256


def test_every_weight_is_bit_equal(
    folder: ModelFolder, reference_weights: Mapping[str, torch.Tensor]
) -> None:
    found = load_file(folder.weight_paths[0])
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    # Tied: the output matrix is the embedding matrix, and is not stored twice.
    assert reference_weights.keys() - found.keys() == {"lm_head.weight"}
    assert found.keys() <= reference_weights.keys()
    for name, tensor in found.items():
        # As integers, so that 0.0 and -0.0 differ.
        assert torch.equal(tensor.float().view(torch.int32), reference_weights[name].view(torch.int32)), name


@pytest.mark.parametrize("text", PLAIN_TEXTS)
def test_token_ids_are_equal(ours: Tokenizer, reference_tokenizer: Any, text: str) -> None:
    assert ours.encode(text).ids == reference_tokenizer(text).input_ids


@pytest.mark.parametrize("text", PLAIN_TEXTS + DIGITS_AFTER_SPACES)
def test_token_ids_are_equal_where_the_reference_splits_digits_as_the_file_says(
    ours: Tokenizer, digit_splitting_reference: Tokenizer, text: str
) -> None:
    assert ours.encode(text).ids == digit_splitting_reference.encode(text).ids


@pytest.mark.parametrize("text", PLAIN_TEXTS + DIGITS_AFTER_SPACES)
def test_decoding_gives_the_text_back(ours: Tokenizer, text: str) -> None:
    assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_transformers_reads_our_folder_as_we_do(folder: ModelFolder, ours: Tokenizer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder.path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (folder.bos_token_id, folder.eos_token_ids[0])
    messages = [{"role": "user", "content": "How many legs has a spider?"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer(rendered).input_ids == ours.encode(rendered).ids


def test_the_end_tokens_are_those_that_end_a_turn_or_a_text(folder: ModelFolder, ours: Tokenizer) -> None:
    assert [ours.id_to_token(id_) for id_ in folder.eos_token_ids] == ["<|im_end|>", "<|endoftext|>"]
    assert folder.add_bos is False


def test_logits_are_equal(
    folder: ModelFolder, ours: Tokenizer, reference_weights: Mapping[str, torch.Tensor]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32)
    reference = copy.deepcopy(model)
    reference.load_state_dict(reference_weights)
    assert list(model.generation_config.eos_token_id) == list(folder.eos_token_ids)
    for text in (
        "The capital of France is",
        "<|im_start|>user\nCount to 10.<|im_end|>\n",
        "日本語 123 " * 20,
    ):
        ids = torch.tensor([ours.encode(text).ids])
        with torch.inference_mode():
            found, expected = model(ids).logits, reference(ids).logits
        assert float((found - expected).abs().max()) <= LOGIT_TOLERANCE
