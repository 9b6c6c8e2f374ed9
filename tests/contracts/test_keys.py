"""API keys: their form, their hash, and what must not leak."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.errors import NotAuthenticated
from ridgeline_contracts.keys import generate_key, hash_key, key_matches, parse_key

PEPPER = b"pepper of 16 byt"


@given(st.binary(min_size=60, max_size=60))
def test_a_generated_key_parses_to_itself(drawn: bytes) -> None:
    key = generate_key(lambda count: drawn[:count])
    assert parse_key(key.reveal()) == key
    assert len(key.reveal()) == len("rl-") + 12 + 1 + 43


def test_keys_differ_and_use_their_whole_alphabet() -> None:
    counter = iter(range(10_000))

    def random_bytes(count: int) -> bytes:
        return hashlib.shake_128(str(next(counter)).encode()).digest(count)

    keys = [generate_key(random_bytes) for _ in range(200)]
    assert len({key.key_id for key in keys}) == len({key.secret for key in keys}) == 200
    assert len(set("".join(key.secret for key in keys))) == 62
    assert len(set("".join(key.key_id for key in keys))) == 36


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("sk-" + "a" * 12 + "-" + "b" * 43, id="another-prefix"),
        pytest.param("rl-" + "a" * 12 + "-" + "b" * 42, id="cut"),
        pytest.param("rl-" + "a" * 12 + "-" + "b" * 44, id="padded"),
        pytest.param("rl-" + "A" * 12 + "-" + "b" * 43, id="capitals-in-the-id"),
        pytest.param("rl-" + "a" * 12 + "-" + "b" * 43 + "\n", id="a-line-end"),
        pytest.param("rl-" + "a" * 12 + "-" + "é" * 43, id="not-ascii"),
    ],
)
def test_what_is_no_key_is_refused_without_an_echo(text: str) -> None:
    with pytest.raises(NotAuthenticated) as refused:
        parse_key(text)
    assert not text or text not in str(refused.value)


def test_the_hash_is_an_hmac_under_the_pepper() -> None:
    key = parse_key("rl-" + "a" * 12 + "-" + "b" * 43)
    assert hash_key(key, PEPPER) == hmac.new(PEPPER, key.reveal().encode(), hashlib.sha256).digest()
    assert key_matches(key, PEPPER, hash_key(key, PEPPER))
    assert not key_matches(key, b"another pepper..", hash_key(key, PEPPER))
    other = parse_key("rl-" + "a" * 12 + "-" + "c" * 43)
    assert not key_matches(other, PEPPER, hash_key(key, PEPPER))


def test_a_short_pepper_is_refused() -> None:
    with pytest.raises(ValueError, match="has 15 bytes"):
        hash_key(parse_key("rl-" + "a" * 12 + "-" + "b" * 43), b"x" * 15)


def test_the_repr_of_a_key_hides_its_secret() -> None:
    key = parse_key("rl-" + "a" * 12 + "-" + "b" * 43)
    assert "bbb" not in repr(key)
    assert "aaa" in repr(key)
