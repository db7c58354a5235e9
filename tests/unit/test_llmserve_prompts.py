"""What the llmserve runner makes of a payload, and of the pieces of a text that a model gives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.llmserve_rig import load

pytestmark = pytest.mark.usefixtures("bundle")


def test_text_of_pieces_stop_strings_and_cut_characters() -> None:
    sequence, prompts = load("sequence").Sequence, load("prompts")

    def taken(pieces: list[bytes], **options: Any) -> Any:
        prompt = prompts.parse({"prompts": [{"prompt": "p", **options}]}).prompts[0]
        one = sequence(prompt, 1, 0.0)
        for piece in pieces:
            one.take(piece, 1.0, end=piece == b"<end>")
            if one.finish:
                break
        return one

    assert taken([b"\xe2\x82", b"\xac!", b"<end>"]).text == "\u20ac!"
    assert taken([b"one EN", b"D two"], stop=["END"]).text == "one "
    assert taken([b"aXb", b"Y"], stop=["Y", "X"]).text == "a"
    assert taken([b"\xe2\x82", b"<end>"]).text == "\ufffd", "what was begun is not passed over"
    assert taken([b"aX\xe2", b"\x82"], stop=["X"]).text == "a"
    split = taken([b"one", b"<", b"|e", b"nd|", b"> two"], stop=["<|end|>"])
    assert (split.text, split.finish, split.tokens) == ("one", "stop", 5), (
        "a stop text may come in any number of tokens"
    )
    whole = "caf\u00e9".encode()
    assert taken([b"un ", whole[:4], whole[4:], b"s"], stop=["caf\u00e9"]).text == "un ", "and in halves of a character"
    assert taken([b"aab"], stop=["ab"]).text == "a"
    assert taken([b"a", b"a", b"b"], stop=["aab", "b"]).text == "", "of two that end together the one that begins first"
    cut = taken([b"ok\xe2\x82"], max_tokens=1)
    assert (cut.text, cut.finish) == ("ok\ufffd", "length")


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ([], "no object"),
        ({"prompts": []}, "prompts"),
        ({"prompts": ["a"], "extra": 1}, "extra"),
        ({"prompts": ["a"], "backend": "gpt"}, "backend"),
        ({"prompts": ["a"], "model": "../secret"}, "model"),
        ({"prompts": ["a"], "model": "a/b.gguf"}, "model"),
        ({"prompts": ["a"], "backend": "llamacpp"}, "needs a model"),
        ({"prompts": [{"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"}]}, "more than once"),
        ({"prompts": [{"id": "half \ud83d", "prompt": "a"}]}, "id is a text"),
        ({"prompts": [{"prompt": "a", "messages": []}]}, "either prompt or messages"),
        ({"prompts": ["a"], "max_tokens": 0}, "max_tokens"),
        ({"prompts": ["a"], "temperature": True}, "temperature"),
    ],
)
def test_a_payload_that_can_never_succeed_is_named(payload: Any, named: str) -> None:
    with pytest.raises(load("envelope").BadSpec, match=named):
        load("prompts").parse(payload)
