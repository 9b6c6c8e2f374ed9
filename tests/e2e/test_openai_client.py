"""The official client against the running product and the real model."""

import openai
import pytest
from ridgeline_testing.running import Platform

MODEL = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "Name three primary colours."}]


def test_the_model_list_names_the_served_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_streamed_chat_equals_the_same_chat_unstreamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=24, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert finishes == [whole.choices[0].finish_reason]
    usage = chunks[-1].usage
    assert usage is not None
    assert whole.usage is not None
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.completion_tokens == whole.usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_completion_goes_on_with_the_prompt(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0
    )
    assert "Paris" in made.choices[0].text


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    free = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", max_tokens=24, temperature=0)
    assert ", 7" in free.choices[0].text
    stopped = client.completions.create(
        model=MODEL, prompt="1, 2, 3, 4,", max_tokens=24, temperature=0, stop=[", 7"]
    )
    assert stopped.choices[0].text == free.choices[0].text.split(", 7")[0]
    assert stopped.choices[0].finish_reason == "stop"


def test_the_same_seed_gives_the_same_text_and_another_seed_another(client: openai.OpenAI) -> None:
    def text(seed: int) -> str | None:
        made = client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=24, temperature=1.5, seed=seed
        )
        return made.choices[0].message.content

    assert text(7) == text(7)
    assert text(7) != text(8)


def test_a_wrong_key_raises_the_clients_authentication_error(platform: Platform) -> None:
    wrong = "rl-" + "0" * 12 + "-" + "x" * 43
    client = openai.OpenAI(base_url=platform.ready().base_url, api_key=wrong, max_retries=0)
    with client, pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(model=MODEL, messages=QUESTION)


def test_a_bad_body_raises_the_clients_bad_request_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=17)


def test_an_unknown_model_raises_the_clients_not_found_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
