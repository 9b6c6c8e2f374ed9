"""A model that exists only as tokenizer files: what a fake worker offers to gateways."""

import json
from dataclasses import dataclass
from hashlib import sha256

from ridgeline_contracts.model_folder import tokenizer_hash
from ridgeline_contracts.proto import worker_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

MODEL = "fake-model"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
_CORPUS = (
    "the quick brown fox jumps over the lazy dog",
    "hello world, hello there",
    "naïve café, 日本語, 🎉🎉",
)


def small_tokenizer() -> Tokenizer:
    """Byte-level BPE of some 300 tokens; ids 0, 1, 2 are ChatML's special tokens, the last is a plain added one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


@dataclass(frozen=True, slots=True)
class FakeModelFiles:
    """What a worker offers of a model."""

    files: dict[str, bytes]
    tokenizer: Tokenizer

    @property
    def hashes(self) -> dict[str, str]:
        return {name: sha256(content).hexdigest() for name, content in self.files.items()}

    @property
    def variant(self) -> worker_pb2.Variant:
        template = self.files["chat_template.jinja"].decode()
        return worker_pb2.Variant(
            model=MODEL,
            weights_revision="weights-1",
            tokenizer_hash=tokenizer_hash(self.files["tokenizer.json"], template),
            template_hash=sha256(template.encode()).hexdigest(),
        )


def fake_model_files() -> FakeModelFiles:
    tokenizer = small_tokenizer()
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": False}
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "chat_template.jinja": TEMPLATE.encode(),
    }
    return FakeModelFiles(files, tokenizer)
