"""The parts of the llmserve runner that need no backend: sizes of units, prompts in slots, text, payloads, model files."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BUNDLE = Path(__file__).resolve().parents[2] / "modules" / "llmserve"


@pytest.fixture(scope="module", autouse=True)
def bundle() -> Iterator[None]:
    """The runner's modules import each other by plain names, as they lie in one folder."""
    sys.path.insert(0, str(BUNDLE))
    before = set(sys.modules)
    yield
    sys.path.remove(str(BUNDLE))
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).parent == BUNDLE:
            del sys.modules[name]


def load(name: str) -> Any:
    return importlib.import_module(name)


class Clock:
    """Time passes only where a backend works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeCtl:
    paused_s = 0.0
    gpu_duty: float | None = None
    stop_after: int | None = None
    points = 0

    def safe_point(self) -> None:
        self.points += 1
        if self.stop_after is not None and self.points > self.stop_after:
            raise InterruptedError


class FakeDuty:
    """A duty that measures by the clock, and whose share of a second a unit must fit."""

    idle_s = 0.0

    def __init__(self, clock: Clock, duty: float | None = None) -> None:
        self.clock, self.duty = clock, duty
        self.units: list[float] = []

    @property
    def busy_s(self) -> float:
        return self.clock.now

    @contextlib.contextmanager
    def unit(self) -> Iterator[None]:
        before = self.clock.now
        yield
        self.units.append(self.clock.now - before)

    def scale(self) -> float:
        longest = max(self.units[-8:])
        return 1.0 if self.duty is None or longest <= self.duty else self.duty / longest


class FakeBackend:
    """Answers ``a`` until told to stop; every token costs the same time, and a step a little."""

    name, device, unit_max = "fake", "cpu", 512

    def __init__(self, clock: Clock, width: int = 4, context: int = 1000, token_s: float = 0.005) -> None:
        self.clock, self.width, self.context, self.token_s = clock, width, context, token_s
        self.unread: dict[int, int] = {}
        self.shared: list[int] = []
        self.most_live = self.largest = 0

    def encode(self, prompt: Any) -> list[int]:
        text = prompt.text if prompt.text is not None else prompt.messages[0][1]
        if prompt.messages and prompt.messages[0][0] == "system":
            raise load("batching").BadPrompt("the template has no system role")
        return [ord(character) for character in text]

    def open(self, shared: list[int]) -> None:
        self.shared = shared

    def start(self, slot: int, tokens: list[int], sampling: Any) -> None:
        assert slot not in self.unread, "a slot is used by one prompt at a time"
        self.unread[slot] = len(tokens) - len(self.shared)
        self.most_live = max(self.most_live, len(self.unread))

    def step(self, limit: int) -> tuple[int, list[tuple[int, int]]]:
        held, news = 0, []
        for slot, left in self.unread.items():
            if held == limit:
                break
            take = min(limit - held, max(1, left))
            held += take
            self.unread[slot] = max(0, left - take)
            if self.unread[slot] == 0:
                news.append((slot, ord("a")))
        assert 0 < held <= limit
        self.largest = max(self.largest, held)
        self.clock.now += 0.002 + held * self.token_s
        return held, news

    def piece(self, slot: int, token: int) -> bytes:
        return chr(token).encode()

    def rest(self, slot: int) -> bytes:
        return b""

    def ends(self, token: int) -> bool:
        return False

    def stop(self, slot: int) -> None:
        del self.unread[slot]

    def close(self) -> None:
        return


class InTurns(FakeBackend):
    """As MLX: a unit is one prompt's turn."""

    def step(self, limit: int) -> tuple[int, list[tuple[int, int]]]:
        slot, left = next(iter(self.unread.items()))
        held = min(limit, max(1, left))
        del self.unread[slot]
        self.unread[slot] = max(0, left - held)
        self.clock.now += 0.002 + held * self.token_s
        return held, [] if self.unread[slot] else [(slot, ord("a"))]


def run(
    prompts: list[Any],
    duty: float | None = None,
    wall_s: float = 1e9,
    kind: type[FakeBackend] = FakeBackend,
    **backend: Any,
) -> tuple[Any, ...]:
    clock = Clock()
    engine, ctl, governor = kind(clock, **backend), FakeCtl(), FakeDuty(clock, duty)
    ctl.gpu_duty = duty
    done: list[Any] = []
    batch = load("batching").Batch(engine, ctl, governor, wall_s, done.append, clock=clock)
    batch.run(load("prompts").parse({"prompts": prompts, "max_tokens": 10, "backend": "stub"}).prompts)
    return done, batch.figures, engine, governor


def test_prompts_are_decoded_together_and_refilled_and_each_finishes_once() -> None:
    done, figures, engine, _ = run([f"{n:02d} and something of its own" for n in range(11)], width=4)
    assert sorted(one.prompt.id for one in done) == sorted(str(n) for n in range(11))
    assert {(one.text, one.finish, one.tokens) for one in done} == {("a" * 10, "length", 10)}
    assert engine.most_live == figures.width_most == 4
    assert not engine.unread


def test_a_common_beginning_is_shared_and_each_prompt_keeps_a_token() -> None:
    prefix = load("batching").common_prefix
    assert prefix([[1] * 20 + [2], [1] * 20 + [3]]) == [1] * 20
    assert prefix([[1] * 20, [1] * 20]) == [1] * 19
    assert prefix([[1] * 20, [1] * 20 + [4]]) == [1] * 19
    assert prefix([[1] * 10, [1] * 10 + [4]]) == [], "too short to be worth it"
    assert prefix([[1] * 40]) == []


@pytest.mark.parametrize("duty", [None, 0.5, 0.1, 0.05])
def test_units_come_to_fit_both_bounds_and_fill_them(duty: float | None) -> None:
    _, _, _, governor = run([f"{n} " + "x" * 400 for n in range(20)], duty=duty, width=16)
    # twenty prompts made into tokens, the context opened, and the first units, which find out what a token costs
    settled = governor.units[41:]
    allowed = 0.4 if duty is None else min(0.2, duty)
    assert max(settled) <= allowed * 1.1
    assert sorted(settled)[len(settled) // 2] >= 0.5 * allowed, "units are not needlessly small"


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_making_tokens_is_work_of_the_device_where_that_is_the_processor(device: str) -> None:
    class Reading(FakeBackend):
        def encode(self, prompt: Any) -> list[int]:
            self.clock.now += 0.5
            return super().encode(prompt)

    Reading.device = device
    _, _, _, governor = run(["a", "b", "c"], kind=Reading)
    assert governor.units.count(0.5) == (3 if device == "cpu" else 0)


def test_the_width_follows_what_a_unit_may_hold() -> None:
    _, wide, _, _ = run(["x" * 5 + str(n) for n in range(40)], width=16)
    _, narrow, _, _ = run(["x" * 5 + str(n) for n in range(40)], width=16, duty=0.02)
    assert wide.width_most == 16
    assert narrow.unit_worst_s <= 8 * 0.005 + 0.003, "the first units are small before anything is known"
    assert narrow.units > 2 * wide.units


def test_prompts_without_room_or_tokens_are_refused_and_the_others_go_on() -> None:
    done, _, _, _ = run(["x" * 95, "y" * 90], context=100)
    by_id = {one.prompt.id: one for one in done}
    assert by_id["0"].error["code"] == "too_long"
    assert by_id["1"].text == "a" * 10


def test_a_prompt_that_the_models_template_refuses_is_refused_alone() -> None:
    done, _, _, _ = run([{"id": "s", "messages": [{"role": "system", "content": "be brief"}]}, "b"])
    by_id = {one.prompt.id: one for one in done}
    assert by_id["s"].error == {"code": "bad_prompt", "message": "the template has no system role"}
    assert by_id["1"].text == "a" * 10


def test_a_prompt_ends_at_the_wall_limit_with_what_it_has() -> None:
    done, figures, _, _ = run(["x"], wall_s=0.02)
    assert (done[0].finish, figures.at_limit) == ("wall", 1)
    assert 0 < done[0].tokens < 10


@pytest.mark.parametrize("kind", [FakeBackend, InTurns])
def test_a_prompt_that_waits_for_its_turn_uses_up_none_of_its_wall_limit(kind: type[FakeBackend]) -> None:
    """A slow model under a small duty: eight begin together, and then one at a time has a token."""
    done, figures, _, governor = run(list("abcdefgh"), duty=0.02, wall_s=10.0, kind=kind, width=8, token_s=0.5)
    assert sum(governor.units) > 3 * 10.0, "the last ones waited for longer than their limit"
    assert {(one.text, one.finish) for one in done} == {("a" * 10, "length")}
    assert (len(done), figures.at_limit) == (8, 0)


@pytest.mark.parametrize("kind", [FakeBackend, InTurns])
def test_no_prompt_ends_at_the_wall_limit_without_a_token(kind: type[FakeBackend]) -> None:
    """Reading a long prompt is not generating, so what is cut is an answer that has begun."""
    done, figures, _, _ = run(["x" * 400, "y" * 300], wall_s=0.02, kind=kind, duty=0.02)
    assert {one.finish for one in done} == {"wall"}
    assert all(0 < one.tokens < 10 and one.text for one in done)
    assert figures.at_limit == 2


def test_a_stop_is_met_between_two_units_and_loses_only_what_was_open() -> None:
    clock = Clock()
    engine, ctl = FakeBackend(clock, width=2), FakeCtl()
    ctl.stop_after = 20
    done: list[Any] = []
    batch = load("batching").Batch(engine, ctl, FakeDuty(clock), 1e9, done.append, clock=clock)
    with pytest.raises(InterruptedError):
        batch.run(load("prompts").parse({"prompts": ["a", "b", "c", "d"], "max_tokens": 10}).prompts)
    assert {one.prompt.id for one in done} == {"0", "1"}
    assert batch.figures.yield_s >= batch.figures.unit_worst_s


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


def gguf(keys: list[tuple[str, int, bytes]], tensors: int = 1, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    head = magic + struct.pack("<IQQ", version, tensors, len(keys))
    for name, kind, value in keys:
        head += text(name) + struct.pack("<I", kind) + value
    for number in range(tensors):
        head += text(f"t{number}") + struct.pack("<IQIQ", 1, 4, 0, 0)
    return head + b"\0" * (-len(head) % 32) + b"\0" * 16


ARCHITECTURE = ("general.architecture", 8, struct.pack("<Q", 5) + b"llama")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no GGUF"),
        (b"PK\x03\x04zip", "no GGUF"),
        (b"GGUF\x03", "truncated"),
        ((b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + b"\0" * 37)[:37], "no name"),
        (gguf([ARCHITECTURE], version=1), "version"),
        (gguf([ARCHITECTURE], tensors=0), "0 tensors"),
        (gguf([("x", 99, b"")]), "unknown type"),
        (gguf([("x", 8, struct.pack("<Q", 1 << 60))]), "bytes long"),
        (gguf([("x", 9, struct.pack("<IQ", 10, 1 << 23))]), "truncated"),
        (gguf([("x", 9, struct.pack("<IQQ", 8, 1, 1 << 60))]), "bytes long"),
        (gguf([("x", 9, struct.pack("<IQQ", 8, 2, 3) + b"abc" + struct.pack("<Q", 1 << 20))]), "truncated"),
        (gguf([ARCHITECTURE, ARCHITECTURE]), "twice"),
        (gguf([]), "0 keys"),
        (gguf([("x", 4, b"\1\0\0\0")]), "architecture"),
        (gguf([ARCHITECTURE])[:-12], "truncated"),
    ],
)
def test_case_099_a_file_that_is_no_whole_model_is_refused_with_the_reason(
    tmp_path: Path, data: bytes, why: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    module = load("gguf")
    with pytest.raises(module.BadModel, match=why):
        module.read_header(str(path))


def test_a_whole_head_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    numbers = {"block_count": 2, "attention.head_count": 4, "embedding_length": 64, "context_length": 512}
    words = struct.pack("<IQ", 8, 3) + b"".join(struct.pack("<Q", len(word)) + word for word in (b"a", b"", b"bcd"))
    keys = [ARCHITECTURE, ("tokenizer.ggml.tokens", 9, words)]
    keys += [(f"llama.{name}", 4, struct.pack("<I", value)) for name, value in numbers.items()]
    path.write_bytes(gguf(keys))
    header = load("gguf").read_header(str(path))
    assert (header.architecture, header.context, header.layers) == ("llama", 512, 2)
    assert header.kv_bytes_per_token == 2 * 2 * 2 * 64
    assert header.bytes == path.stat().st_size


@pytest.mark.parametrize(
    ("max_tokens", "context", "waits"),
    [
        ([1_000_000, 20], None, False),
        ([1_000_000], None, False),
        ([512], None, False),
        ([300], 256, False),
        ([300], None, True),
        ([300, 400], 500, True),
    ],
)
def test_an_answer_that_cannot_fit_the_context_makes_no_job_wait_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_tokens: list[int], context: int | None, waits: bool
) -> None:
    """The prompts are refused as too long once the model is loaded; the weights and 250 tokens of cache have room."""
    path = tmp_path / "m.gguf"
    numbers = {"block_count": 2, "attention.head_count": 4, "embedding_length": 64, "context_length": 512}
    keys = [ARCHITECTURE, *((f"llama.{name}", 4, struct.pack("<I", value)) for name, value in numbers.items())]
    path.write_bytes(gguf(keys))
    batch, models = load("batch"), load("models")
    free = models.need_bytes(models.read_header(str(path)), 250)
    monkeypatch.setattr(models, "free_bytes", lambda: free)
    monkeypatch.setattr(models, "probe", lambda path, pieces: None)
    monkeypatch.setattr(batch, "open_backend", lambda *_: "loaded")
    asked: dict[str, Any] = {"prompts": [{"prompt": "a", "max_tokens": most} for most in max_tokens], "model": "m.gguf"}
    request = load("prompts").parse(asked | ({} if context is None else {"context": context}))
    ctl = types.SimpleNamespace(safe_point=lambda: None, workdir=str(tmp_path), threads=None, gpu_duty=None)
    pieces = load("loading").Pieces(ctl, FakeDuty(Clock()))
    if waits:
        with pytest.raises(load("envelope").Failed, match="GiB are free"):
            batch._loaded(pieces, "llamacpp", request, str(path))
    else:
        assert batch._loaded(pieces, "llamacpp", request, str(path)) == "loaded"


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("import os; os.abort()", "BadModel", "signal 6"),
        ("print('no tensors'); raise SystemExit(2)", "BadModel", "no tensors"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "OSError", "-9"),
        ("raise SystemExit(0)", "", ""),
    ],
)
def test_case_099_what_kills_the_child_that_loads_a_model_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: str, words: str
) -> None:
    models = load("models")
    monkeypatch.setenv("OARBANK_MODULE_DATA", str(tmp_path))
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "m.gguf"
    path.write_bytes(b"x")
    monkeypatch.setattr(models, "__file__", str(tmp_path / "models.py"))
    (tmp_path / "probe.py").write_text(script)
    pieces = load("loading").Pieces(FakeCtl(), FakeDuty(Clock()))
    if not kind:
        models.probe(path, pieces)
        (tmp_path / "probe.py").write_text("raise SystemExit(2)")
        models.probe(path, pieces)  # a file that was loaded once is not tried again
        path.write_bytes(b"other")
        with pytest.raises(models.BadModel):
            models.probe(path, pieces)
        return
    with pytest.raises(models.BadModel if kind == "BadModel" else OSError, match=words):
        models.probe(path, pieces)


def test_llama_cpps_chat_template_refuses_one_prompt_and_not_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are programs of whoever made the model. llama.cpp is stood in for; the code around it is the real one."""

    class Formatter:
        def __init__(self, template: str, **_: str) -> None:
            if template == "broken":
                raise SyntaxError("unexpected end of template")

        def __call__(self, messages: list[dict[str, str]]) -> Any:
            if messages[0]["role"] == "system":
                raise ValueError("System role not supported")
            return types.SimpleNamespace(prompt="<" + messages[0]["content"] + ">")

    binding = types.ModuleType("llama_cpp")
    chat = types.ModuleType("llama_cpp.llama_chat_format")
    chat.Jinja2ChatFormatter = Formatter  # type: ignore[attr-defined]
    told = {"llama_model_chat_template": lambda model, name: model, "llama_vocab_bos": lambda _: -1,
            "llama_vocab_eos": lambda _: 0, "llama_vocab_get_text": lambda *_: b"\xff"}  # fmt: skip
    for name, value in (told | {"llama_log_callback": lambda function: function}).items():
        setattr(binding, name, value)
    monkeypatch.setitem(sys.modules, "llama_cpp", binding)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_chat_format", chat)
    module, refused = load("backend_llamacpp"), load("batching").BadPrompt
    texts: list[str] = []

    def backend(template: bytes) -> Any:
        made = module.LlamaBackend.__new__(module.LlamaBackend)
        made._model, made._vocab, made._template_why, made._add_bos, made.context, made._need = (
            template,
            0,
            "",
            True,
            99,
            1,
        )
        made._tokens = lambda text, **_: texts.append(text) or [1]
        made._format = made._chat_format()
        return made

    asked = [{"messages": [{"role": role, "content": "hi"}]} for role in ("user", "system")]
    user, system, raw = load("prompts").parse({"prompts": [*asked, {"prompt": "hi", "raw": True}]}).prompts
    good, broken = backend(b"fine"), backend(b"broken")
    good.encode(user)
    broken.encode(raw)
    assert texts == ["<hi>", "hi"]
    with pytest.raises(refused, match="System role not supported"):
        good.encode(system)
    with pytest.raises(refused, match=r"unexpected end of template.*--raw"):
        broken.encode(user)
    sys.modules.pop("backend_llamacpp")


def test_mlx_is_driven_a_prompt_at_a_turn_through_its_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX runs on Apple silicon only: its calls are stood in for, the code around them is the real one."""
    seen: list[tuple[str, Any]] = []

    class Array(list):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            return self if key is None else super().__getitem__(key)

    class Core(types.ModuleType):
        array = staticmethod(Array)
        random = types.SimpleNamespace(seed=lambda seed: seen.append(("seed", seed)))
        metal = types.SimpleNamespace(device_info=lambda: {"memory_size": 1000})

        @staticmethod
        def set_memory_limit(size: int) -> None:
            seen.append(("memory limit", size))

        @staticmethod
        def eval(what: Any) -> None:
            return

        @staticmethod
        def synchronize() -> None:
            seen.append(("synchronize", None))

    class Model:
        args = types.SimpleNamespace(max_position_embeddings=64)

        def __call__(self, tokens: Any, cache: Any) -> None:
            seen.append(("read", len(tokens)))

    class Detokenizer:
        """As that of mlx_lm: text comes when it is whole; here each token is a byte."""

        def __init__(self) -> None:
            self.held, self.text, self.told = b"", "", 0

        def add_token(self, token: int) -> None:
            self.held += bytes([token])
            with contextlib.suppress(UnicodeDecodeError):
                self.text, self.held = self.text + self.held.decode(), b""

        def finalize(self) -> None:
            self.text, self.held = self.text + self.held.decode("utf-8", "replace"), b""

        @property
        def last_segment(self) -> str:
            before, self.told = self.told, len(self.text)
            return self.text[before:]

    class Tokenizer:
        chat_template = "x"
        eos_token_ids = (0,)

        def apply_chat_template(self, turns: Any, add_generation_prompt: bool) -> list[int]:
            if turns[0]["role"] == "system":
                raise ValueError("System role not supported")
            return [ord(character) for character in turns[0]["content"]]

        @property
        def detokenizer(self) -> Detokenizer:
            return Detokenizer()

    def generate_step(prompt: Any, model: Any, **options: Any) -> Iterator[tuple[int, None]]:
        assert len(prompt) == 1
        assert options["prefill_step_size"] == 2048
        yield from ((byte, None) for byte in itertools.cycle("z\u20ac".encode()))

    def module(name: str, **names: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        for key, value in names.items():
            setattr(made, key, value)
        return made

    core = Core("mlx.core")
    stand_ins = {
        "mlx": module("mlx", core=core),
        "mlx.core": core,
        "mlx_lm": module("mlx_lm", load=lambda path: (Model(), Tokenizer())),
        "mlx_lm.generate": module("mlx_lm.generate", generate_step=generate_step),
        "mlx_lm.models": module("mlx_lm.models"),
        "mlx_lm.models.cache": module("mlx_lm.models.cache", make_prompt_cache=lambda model: []),
        "mlx_lm.sample_utils": module("mlx_lm.sample_utils", make_sampler=lambda **options: options),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    request = load("prompts").parse(
        {
            "prompts": [
                "x" * 20,
                {"id": "1", "prompt": "y" * 8, "max_tokens": 4},
                "q" * 70,
                {"id": "3", "messages": [{"role": "system", "content": "be brief"}]},
            ],
            "max_tokens": 3,
            "model": "m",
            "backend": "mlx",
        }
    )
    backend = load("backend_mlx").MlxBackend(request, "m")
    clock, done = Clock(), []
    batch = load("batching").Batch(backend, FakeCtl(), FakeDuty(clock), 1e9, done.append, clock=clock)
    batch.run(request.prompts)
    assert {one.prompt.id: one.text for one in done} == {"0": "z\ufffd", "1": "z\u20ac", "2": "", "3": ""}
    codes = {one.prompt.id: one.error["code"] for one in done if one.error}
    assert codes == {"2": "too_long", "3": "bad_prompt"}
    assert ("memory limit", 600) in seen
    assert max(size for what, size in seen if what == "read") < 20, "a prompt is read in pieces"
    assert json.dumps([what for what, _ in seen]).count("synchronize") >= 6
