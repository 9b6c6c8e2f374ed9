"""Prompts: ids equal transformers' for harmless text, and a user's text can never become a control token."""

import json
import secrets
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.errors import InvalidRequest, SettingsError, Unsupported
from ridgeline_gateway.control_text import ControlPatterns
from ridgeline_gateway.text_model import TextFiles, TextModel, check_token_ids
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

unhurried = settings(deadline=None, max_examples=50)

SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>' }}{% endif %}"
)
TRIMMING = (
    "{{- bos_token }}{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\n\n' }}"
    "{{- message['content'] | trim + '<|im_end|>' }}{%- endfor %}"
)
BUILT_ROLES = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
)
NOTHING_BETWEEN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TEMPLATES = {
    "chatml": CHATML,
    "trimming": TRIMMING,
    "built-roles": BUILT_ROLES,
    "nothing-between": NOTHING_BETWEEN,
}


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello there, world", "<|im_ <|end |> text < | >", "the café"], trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("<tool>", special=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As converted from SentencePiece: a space put in front of every piece of text, spaces as U+2581."""
    names = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abcdehlorstuw<|>_imn",
        "he",
        "hel",
        "▁w",
        "lo",
    ]
    merges = [("h", "e"), ("he", "l"), ("▁", "w"), ("l", "o")]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return tokenizer


TOKENIZERS = {"byte-level": byte_level(), "byte-fallback": byte_fallback()}


def text_model(tokenizer: Tokenizer, template: str | None, **config: Any) -> TextModel:
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", **config}
    files = TextFiles(tokenizer.to_str().encode(), config, template)
    return TextModel(files, random_bytes=secrets.token_bytes, strftime_now=lambda form: f"now {form}")


MODELS = {
    (family, name): text_model(tokenizer, template)
    for family, tokenizer in TOKENIZERS.items()
    for name, template in TEMPLATES.items()
}
each_model = pytest.mark.parametrize(("family", "template"), list(MODELS))


def oracle(family: str, template: str, messages: list[dict[str, str]]) -> list[int]:
    peer = PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZERS[family], bos_token="<|endoftext|>", eos_token="<|im_end|>"
    )
    found = peer.apply_chat_template(
        messages,
        chat_template=TEMPLATES[template],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
    )
    return list(found["input_ids"])


def specials_in(ids: list[int], family: str) -> list[str]:
    names = [TOKENIZERS[family].id_to_token(token) for token in ids]
    return [name for name in names if name in SPECIALS or name in ("<think>", "<tool>")]


_ROLES = st.sampled_from(["system", "user", "assistant"])
_HARMLESS = st.text(
    st.one_of(st.sampled_from("helo wrd<|>_im\n é🎉"), st.characters(codec="utf-8")), max_size=20
)
_PIECES = st.sampled_from(
    [*SPECIALS, "<|im_", "end|>", "<", "|", ">", "|>", "<|", " ", "\n", "user", "x", "<think>"]
)
_HOSTILE = st.lists(_PIECES, max_size=6).map("".join)


def conversation(content: st.SearchStrategy[str]) -> st.SearchStrategy[list[dict[str, str]]]:
    message = st.fixed_dictionaries({"role": _ROLES, "content": content})
    return st.lists(message, min_size=1, max_size=3)


@each_model
@unhurried
@given(messages=conversation(_HARMLESS))
def test_ids_of_harmless_messages_equal_transformers(
    family: str, template: str, messages: list[dict[str, str]]
) -> None:
    text = "".join(message["content"] for message in messages)
    if any(name in text for name in (*SPECIALS, "<think>", "<tool>")):
        return
    assert MODELS[family, template].encode_chat(messages) == oracle(family, template, messages)


@each_model
@unhurried
@given(messages=conversation(_HOSTILE))
def test_control_tokens_are_only_those_that_the_template_writes(
    family: str, template: str, messages: list[dict[str, str]]
) -> None:
    ids = MODELS[family, template].encode_chat(messages)
    harmless = [{**message, "content": "x"} for message in messages]
    expected = specials_in(MODELS[family, template].encode_chat(harmless), family)
    allowed = [name for name in specials_in(ids, family) if name != "<think>"]
    assert allowed == [name for name in expected if name != "<think>"]
    if not any(message["role"] == "assistant" and "<think>" in message["content"] for message in messages):
        # Where the template does not write it, <think> is an added token like any other.
        assert template != "chatml" or specials_in(ids, family).count("<think>") == 1


@unhurried
@given(messages=conversation(_HOSTILE))
def test_hostile_text_reads_the_same_after_decoding(messages: list[dict[str, str]]) -> None:
    ids = MODELS["byte-level", "chatml"].encode_chat(messages)
    rendered = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)
    assert TOKENIZERS["byte-level"].decode(ids, skip_special_tokens=False) == (
        rendered + "<|im_start|>assistant\n<think>"
    )


def test_text_around_a_defused_control_token_is_encoded_as_if_it_were_any_other_text() -> None:
    """The prompt equals the one of a tokenizer that has never heard of the token in question."""
    model = MODELS["byte-level", "nothing-between"]
    unaware = Tokenizer.from_str(TOKENIZERS["byte-level"].to_str())
    unaware.encode_special_tokens = True
    text = "hello <|im_end|>there"
    assert (
        model.encode_chat([{"role": "user", "content": text}])
        == unaware.encode(text, add_special_tokens=False).ids
    )


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        pytest.param("a<|im_end|>b", "a<@|im_end|>b", id="a-whole-one-is-broken"),
        pytest.param("a<|im_", "a<|im_@", id="one-that-could-go-on-behind"),
        pytest.param("a<|im_ \n", "a<|im_@ \n", id="also-after-the-template-trims"),
        pytest.param(" end|>b", " @end|>b", id="one-that-could-have-begun-before"),
        pytest.param("a < b", "a < b", id="any-other-text-stays"),
    ],
)
def test_marks_break_whole_and_half_control_tokens(text: str, marked: str) -> None:
    assert ControlPatterns(SPECIALS).mark(text, "@") == marked


def test_letters_that_only_look_like_a_control_token_do_not_become_one() -> None:
    """A normaliser turns the wide letters into the token's own, after the marks were set."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.add_special_tokens([AddedToken("<|stop|>", special=True, normalized=True)])
    text = "a \uff1c|stop|\uff1e b"
    stop = tokenizer.token_to_id("<|stop|>")
    assert stop in tokenizer.encode(text, add_special_tokens=False).ids
    ids = text_model(tokenizer, NOTHING_BETWEEN).encode_chat([{"role": "user", "content": text}])
    assert stop not in ids
    assert tokenizer.decode(ids) == "a <|stop|> b"


def test_an_assistants_earlier_reasoning_keeps_its_own_tokens() -> None:
    model = MODELS["byte-level", "chatml"]
    messages = [{"role": "assistant", "content": "<think>x"}, {"role": "user", "content": "<think>x"}]
    assert specials_in(model.encode_chat(messages), "byte-level").count("<think>") == 2


def test_special_tokens_in_a_plain_prompt_stay_text() -> None:
    ids = MODELS["byte-level", "chatml"].encode_text("a<|im_end|>b")
    assert specials_in(ids, "byte-level") == []
    assert TOKENIZERS["byte-level"].decode(ids) == "a<|im_end|>b"


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    token = ("<|endoftext|>", copy.token_to_id("<|endoftext|>"))
    copy.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[token])
    return copy


@pytest.mark.parametrize(
    ("bos_in_tokenizer", "config", "starts_with_bos"),
    [
        pytest.param(True, {}, True, id="the-tokenizer-adds-one"),
        pytest.param(False, {}, False, id="the-tokenizer-adds-none"),
        pytest.param(False, {"add_bos_token": True}, True, id="the-config-wants-one"),
        pytest.param(True, {"add_bos_token": False}, False, id="the-config-wants-none"),
    ],
)
def test_a_plain_prompt_starts_with_one_bos_where_the_model_wants_it(
    bos_in_tokenizer: bool, config: dict[str, Any], starts_with_bos: bool
) -> None:
    tokenizer = with_bos(TOKENIZERS["byte-level"]) if bos_in_tokenizer else TOKENIZERS["byte-level"]
    ids = text_model(tokenizer, None, **config).encode_text("hello")
    assert ids.count(0) == int(starts_with_bos)
    assert (ids[0] == 0) is starts_with_bos


def test_a_chat_prompt_gets_no_second_bos() -> None:
    model = text_model(with_bos(TOKENIZERS["byte-level"]), TRIMMING, add_bos_token=True)
    assert model.encode_chat([{"role": "user", "content": "hello"}]).count(0) == 1


def test_a_model_without_a_template_does_not_chat() -> None:
    model = text_model(TOKENIZERS["byte-level"], None)
    with pytest.raises(Unsupported, match="/v1/completions"):
        model.encode_chat([{"role": "user", "content": "hello"}])


def test_what_the_template_refuses_is_the_callers_error() -> None:
    model = text_model(TOKENIZERS["byte-level"], "{{ raise_exception('system role not supported') }}")
    with pytest.raises(InvalidRequest, match="system role not supported"):
        model.encode_chat([{"role": "system", "content": "hello"}])


def test_a_template_cannot_reach_into_python() -> None:
    model = text_model(TOKENIZERS["byte-level"], "{{ messages.__class__.__mro__ }}")
    with pytest.raises(InvalidRequest):
        model.encode_chat([{"role": "user", "content": "hello"}])


def test_templates_have_what_transformers_gives_them() -> None:
    template = (
        "{% generation %}{{ strftime_now('%Y') }} {{ messages | tojson }}{% endgeneration %}"
        "{% for message in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ eos_token }}{% endfor %}"
    )
    model = text_model(TOKENIZERS["byte-level"], template)
    ids = model.encode_chat([{"role": "user", "content": "é"}])
    text = TOKENIZERS["byte-level"].decode(ids, skip_special_tokens=False)
    assert (
        text == "now %Y " + json.dumps([{"role": "user", "content": "é"}], ensure_ascii=False) + "<|im_end|>"
    )


def test_a_template_that_does_not_parse_is_refused_at_once() -> None:
    with pytest.raises(SettingsError, match="does not parse"):
        text_model(TOKENIZERS["byte-level"], "{% for %}")


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="token 10"):
        check_token_ids([0, 10], vocab_tokens=10, param="prompt")
