"""Builds tokenizer.json and tokenizer_config.json from the vocabulary that a GGUF file carries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline_contracts.errors import SettingsError, Unsupported
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as InOrder
from tokenizers.processors import TemplateProcessing

_CONTROL, _USER_DEFINED = 3, 4
_END_MARKERS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "</s>",
)
"""Control tokens that end a turn or a text in the byte-level families, whichever the metadata name."""

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True)
class _Splitting:
    """How text falls into words before merges apply."""

    pre_tokenizer: Callable[[], PreTokenizer]
    composes_unicode: bool = False
    whole_words_first: bool = False
    """A word that is in the vocabulary is taken whole, without asking the merges."""


def _by_digit() -> PreTokenizer:
    return InOrder([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


def _by_pattern(pattern: str) -> Callable[[], PreTokenizer]:
    return lambda: InOrder(
        [Split(Regex(pattern), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )


_SPLITTINGS: Mapping[str, _Splitting] = {
    "smollm": _Splitting(_by_digit),
    "starcoder": _Splitting(_by_digit),
    "refact": _Splitting(_by_digit),
    "gpt-2": _Splitting(lambda: ByteLevel(add_prefix_space=False)),
    "llama-bpe": _Splitting(_by_pattern(_LLAMA3_WORDS), whole_words_first=True),
    "qwen2": _Splitting(_by_pattern(_QWEN2_WORDS), composes_unicode=True),
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokenizer part of a GGUF file's metadata."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str]
    splitting: str
    special_ids: Mapping[str, int]
    """bos, eos, eot, eom, unknown, padding: those that the file names."""
    add_bos: bool
    chat_template: str | None

    @property
    def eos_token_ids(self) -> list[int]:
        """All ids that end a sequence: the file's own, then every well-known end marker, without repeats.

        Raises SettingsError if there is none at all.
        """
        named = [self.special_ids[key] for key in ("eos", "eot", "eom") if key in self.special_ids]
        control = {token: id_ for id_, token in enumerate(self.tokens) if self.kinds[id_] == _CONTROL}
        found = list(
            dict.fromkeys([*named, *(control[marker] for marker in _END_MARKERS if marker in control)])
        )
        if not found:
            raise SettingsError("the GGUF file names no end-of-sequence token: it cannot be served")
        return found

    def ids_for_config(self) -> dict[str, int]:
        """bos_token_id, eos_token_id and pad_token_id as config.json names them, those that are known."""
        named = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
        return {key: self.special_ids[name] for key, name in named.items() if name in self.special_ids}


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises Unsupported if the tokenizer is not byte-level BPE, SettingsError for parts that do not fit."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise Unsupported(
            f"GGUF tokenizer {model!r} cannot be converted, only byte-level BPE (gpt2): "
            "take the model's Hugging Face folder"
        )
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not tokens or len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise SettingsError(
            f"the GGUF vocabulary does not fit together: {len(tokens)} tokens, {len(set(tokens))} distinct, "
            f"{len(kinds)} kinds"
        )
    keys = ("bos", "eos", "eot", "eom", "unknown", "padding")
    special = {key: metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys}
    outside = {key: id_ for key, id_ in special.items() if id_ is not None and not 0 <= id_ < len(tokens)}
    if outside:
        raise SettingsError(
            f"special tokens of the GGUF file lie outside its {len(tokens)} tokens: {outside}"
        )
    return Vocabulary(
        tokens=tokens,
        kinds=kinds,
        merges=metadata.get("tokenizer.ggml.merges") or [],
        splitting=metadata.get("tokenizer.ggml.pre", "gpt-2"),
        special_ids={key: id_ for key, id_ in special.items() if id_ is not None},
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer whose `to_str()` is tokenizer.json. Raises Unsupported for an unknown pre-tokenizer."""
    if vocabulary.splitting not in _SPLITTINGS:
        raise Unsupported(
            f"GGUF pre-tokenizer {vocabulary.splitting!r} is not known (known: {', '.join(_SPLITTINGS)}): "
            "take the model's Hugging Face folder"
        )
    splitting = _SPLITTINGS[vocabulary.splitting]
    tokenizer = Tokenizer(
        BPE(
            vocab={token: id_ for id_, token in enumerate(vocabulary.tokens)},
            merges=[_pair(merge) for merge in vocabulary.merges],
            ignore_merges=splitting.whole_words_first,
        )
    )
    if splitting.composes_unicode:
        tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(_added(vocabulary, _CONTROL))
    tokenizer.add_tokens(_added(vocabulary, _USER_DEFINED))
    if vocabulary.add_bos and "bos" in vocabulary.special_ids:
        bos_id = vocabulary.special_ids["bos"]
        bos = vocabulary.tokens[bos_id]
        tokenizer.post_processor = TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, bos_id)]
        )
    return tokenizer


def tokenizer_config(vocabulary: Vocabulary, context_tokens: int) -> dict[str, Any]:
    """The content of tokenizer_config.json, chat template included."""
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    special = vocabulary.special_ids
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_tokens,
        "add_bos_token": vocabulary.add_bos,
        "clean_up_tokenization_spaces": False,
        **{key: vocabulary.tokens[special[name]] for key, name in names.items() if name in special},
    }
    if vocabulary.chat_template is not None:
        config["chat_template"] = vocabulary.chat_template
    return config


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise SettingsError(f"the GGUF file has a merge that is not two tokens: {merge!r}")
    return left, right


def _added(vocabulary: Vocabulary, kind: int) -> list[AddedToken]:
    return [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, token_kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        if token_kind == kind
    ]
