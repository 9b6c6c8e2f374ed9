"""A model's text side: messages to ids, text to ids, ids to text. Made from the tokenizer files of a worker."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline_contracts.errors import InvalidRequest, SettingsError, Unsupported
from tokenizers import Tokenizer

from ridgeline_gateway.chat_template import ChatTemplate, Message
from ridgeline_gateway.control_text import ControlPatterns, GuardedTokenizer, choose_mark, load_tokenizer
from ridgeline_gateway.token_table import TokenTable, added_tokens, token_table

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TextFiles:
    """What a model's text side is made from, verified against the hashes that the worker offers."""

    tokenizer_json: bytes
    tokenizer_config: Mapping[str, Any]
    chat_template: str | None


class TextModel:
    """Encodes prompts and knows what tokens mean. Immutable after construction; safe to use from several threads.

    Raises SettingsError when the files cannot be used.
    """

    def __init__(
        self,
        files: TextFiles,
        *,
        random_bytes: Callable[[int], bytes],
        strftime_now: Callable[[str], str],
    ) -> None:
        parsed = json.loads(files.tokenizer_json)
        added = added_tokens(parsed)
        names = _special_names(files.tokenizer_config)
        self.table: TokenTable = token_table(files.tokenizer_json)
        self._template = (
            None
            if files.chat_template is None
            else ChatTemplate(files.chat_template, names, strftime_now=strftime_now)
        )
        special = {entry.content for entry in added if entry.special}
        # Added tokens that are not special but that the template writes mark turns or reasoning just the same. An
        # assistant's own earlier text may hold them rightly.
        control = special | {entry.content for entry in added if self._writes(entry.content)}
        self._special_patterns = ControlPatterns(special)
        self._control_patterns = ControlPatterns(control)
        self._control_ids = {entry.token: entry.content for entry in added if entry.content in control}
        self._encoder = load_tokenizer(files.tokenizer_json)
        self._plain_encoder = load_tokenizer(files.tokenizer_json)
        self._plain_encoder.encode_special_tokens = True
        self._guarded = _Lazy(lambda: GuardedTokenizer(files.tokenizer_json, control, random_bytes))
        self._bos = _bos_id(self._encoder, files.tokenizer_config, parsed, names)

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template."""
        return self._template is not None

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The prompt's ids, ending where the assistant speaks. `content` of each message must be a str.

        The template writes its own beginning-of-sequence token; none is added. Raises Unsupported for a model
        without a template, InvalidRequest when the template refuses the messages.
        """
        if self._template is None:
            raise Unsupported("this model has no chat template: use /v1/completions", param="messages")
        mark = choose_mark([message["content"] for message in messages])
        marked = [{**message, "content": self._marked(message, mark)} for message in messages]
        rendered = self._template.render(marked)
        if mark not in rendered:
            ids: list[int] = self._encoder.encode(rendered, add_special_tokens=False).ids
            # A normaliser could turn look-alike letters into a control token behind our back.
            written = self._control_patterns.counts(rendered)
            found = Counter(self._control_ids[token] for token in ids if token in self._control_ids)
            if found <= written:
                return ids
        guarded = self._guarded.get()
        return guarded.encode(self._control_patterns.unbroken(rendered, guarded.rename).replace(mark, ""))

    def encode_text(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the model's beginning-of-sequence token if it wants one. Special tokens
        in `text` stay text.
        """
        ids: list[int] = self._plain_encoder.encode(text, add_special_tokens=False).ids
        return ids if self._bos is None else [self._bos, *ids]

    def _marked(self, message: Message, mark: str) -> str:
        patterns = self._special_patterns if message["role"] == "assistant" else self._control_patterns
        return patterns.mark(message["content"], mark)

    def _writes(self, text: str) -> bool:
        return self._template is not None and self._template.mentions(text)


class _Lazy:
    """Made when first needed: most processes never see a control token in a user's text."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], GuardedTokenizer]) -> None:
        self._make = make
        self._made: GuardedTokenizer | None = None

    def get(self) -> GuardedTokenizer:
        # Two threads may both make one; either is good.
        if self._made is None:
            self._made = self._make()
        return self._made


def check_token_ids(ids: Sequence[int], *, vocab_tokens: int, param: str) -> None:
    """Raises InvalidRequest for an id outside the model's vocabulary."""
    for token in ids:
        if not 0 <= token < vocab_tokens:
            raise InvalidRequest(
                f"{param} holds token {token}; the vocabulary has {vocab_tokens}", param=param
            )


def _special_names(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _bos_id(
    encoder: Tokenizer, config: Mapping[str, Any], parsed: Mapping[str, Any], names: Mapping[str, str]
) -> int | None:
    stated = config.get("add_bos_token")
    if stated is False:
        return None
    from_template = _template_bos(parsed.get("post_processor"))
    if stated is None or "bos_token" not in names:
        return from_template
    token: int | None = encoder.token_to_id(names["bos_token"])
    if token is None:
        raise SettingsError(
            f"tokenizer_config.json names bos_token {names['bos_token']!r}, unknown to tokenizer.json"
        )
    return token


def _template_bos(processor: Mapping[str, Any] | None) -> int | None:
    """The special token that tokenizer.json's post-processor puts first, if it does."""
    for step in (processor or {}).get("processors", [processor] if processor else []):
        first = step["single"][0] if step["type"] == "TemplateProcessing" and step["single"] else {}
        if "SpecialToken" in first:
            return int(step["special_tokens"][first["SpecialToken"]["id"]]["ids"][0])
    return None
