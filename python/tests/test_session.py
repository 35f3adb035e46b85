# SPDX-License-Identifier: Apache-2.0
"""Sessions: a text that is asked, conversations, and both in files."""
from __future__ import annotations

import gc
import io
import os
import pathlib
import signal
import stat
from typing import Any, Iterator

import numpy
import pytest

import tamis
from tamis import H2O, AdaKV, Quest, Sampling, Session, SnapKV
from tamis.session import _HEAD, _Answer

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("TAMIS_TEST_DATA") or ROOT / "tests" / "data")
TEXT = (DATA / "text.txt").read_text()
CHAT = ("{% for m in messages %}{{ m.role[:1] + ':' + m.content | trim + ('<|end|>' if m.role == 'assistant' "
        "else '\n') }}{% endfor %}{% if add_generation_prompt %}{{ 'a:' }}{% endif %}")


@pytest.fixture(scope="module")
def tiny() -> Iterator[tamis.Model]:
    """Context 256, 97 tokens; no template, bos or eos."""
    with tamis.Context("reference") as context, tamis.Model(context, DATA / "tiny.gguf") as model:
        yield model


@pytest.fixture
def chat(tiny: tamis.Model) -> Iterator[tamis.Vocab]:
    """The model's vocabulary with a chat template."""
    vocab = tiny.vocab
    vocab.chat_template = CHAT
    yield vocab  # a session takes this very object while it lives


def pages(session: Session) -> int:
    return session.cache.stats.pages_held


# ---- A text and questions -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def needle() -> tamis.Model:
    try:
        return tamis.load(DATA / "needle.gguf", "opencl")
    except tamis.NoDeviceError as reason:
        pytest.skip(str(reason))


def test_a_key_in_ten_thousand_tokens(needle: tamis.Model) -> None:
    prompt = (DATA.parents[1] / "docs" / "examples" / "prompt.txt").read_text()
    key = prompt.partition("The red pass key is ")[2][:5]
    found = {}
    for select in (None, Quest(budget=256), tamis.Window(budget=256)):
        with needle.session(select=select, max_context=10200, reads=select is not None) as session:
            session.read(prompt)
            assert session.tokens_read == len(prompt.encode()) == session.stats.slots / 8
            found[session.runner.select.kind] = session.ask("The red pass key is ", max_new=5)
            assert session.ended == "tokens"
            other = prompt.partition("The blue pass key is ")[2][:5]
            if select is None:
                assert session.ask("The blue pass key is ", max_new=5) == other
                assert session.ask("The red pass key is ", max_new=5) == key  # nothing of a question stays
            else:
                assert (session.reads.sum(-1) == 256 / 16).all() and session.reads.shape[:2] == (4, 2)
                assert session.counters.kv_bytes_read < session.counters.kv_bytes_full / 30
    assert found["full"] == found["quest"] == key != found["window"]


def test_a_session_gives_what_a_runner_gives(tiny: tamis.Model) -> None:
    vocab, text, question = tiny.vocab, TEXT[:120], TEXT[120:140]
    for select, evict in ((None, None), (Quest(budget=64), None), (None, SnapKV(budget=64, window=8))):
        cache = tiny.cache(512, evict=evict, bounds="meanstd")
        runner, sequence = tiny.runner(cache, select=select, evict=evict), cache.add()
        runner.prefill(sequence, vocab.encode(text))
        if select is None and evict is None:
            token = runner.prefill(sequence, vocab.encode(question))
        else:
            for one in vocab.encode(question):
                token = int(runner.decode(sequence, one)[0])
        out = [token]
        while len(out) < 12:
            out.append(int(runner.decode(sequence, out[-1])[0]))
        session = tiny.session(select=select, evict=evict)
        session.read(text)
        held = pages(session)
        assert session.ask(question, max_new=12) == vocab.text(out)
        assert "".join(session.stream(question, max_new=12)) == vocab.text(out)
        assert session.tokens_read == 120 and pages(session) == held and session.cache.stats.sequences == 1
        assert session.ask(question, max_new=12, keep=True) == vocab.text(out)
        assert session.tokens_read == 120 + 20 + 12
        out.append(int(runner.decode(sequence, out[-1])[0]))
        assert session.ask("", max_new=1) == vocab.text(out[-1:])


@pytest.mark.parametrize("evict", [SnapKV(budget=48, window=8), SnapKV(budget=48, window=8, every=4),
                                   AdaKV(budget=48, window=8), H2O(budget=48), tamis.TOVA(budget=48),
                                   tamis.Streaming(budget=48), tamis.Knorm(budget=48)],
                         ids=lambda evict: f"{evict.kind}-{evict.every}")
def test_evicting_leaves_room_for_questions(tiny: tamis.Model, evict: tamis.Eviction) -> None:
    session = tiny.session(evict=evict)
    session.read(TEXT[:224])
    assert session.tokens_read == 224 and session.stats.slots <= 2 * 48 + 2
    first = session.ask("Who? ", max_new=9)
    assert session.ask("And then? ", max_new=9) and session.ask("Who? ", max_new=9) == first
    assert session.ask("Who? ", max_new=9, keep=True) == first
    assert session.ask("Go on ", max_new=9) != ""
    assert session.counters.evictions >= 1 and session.cache.stats.sequences == 1


def test_texts_and_questions_one_behind_another(tiny: tamis.Model) -> None:
    whole, parts = tiny.session(), tiny.session()
    whole.read(TEXT[:100])
    told: list[tuple[int, int]] = []
    parts.read(TEXT[:60], watch=lambda *done: told.append(done))
    parts.read("")
    parts.read(TEXT[60:100])
    assert told == [(60, 60)] and whole.ask("x", max_new=20) == parts.ask("x", max_new=20)
    kept = parts.ask("x", max_new=20, keep=True)
    whole.read("x" + kept)
    assert whole.tokens_read == parts.tokens_read
    assert whole.ask(" y", max_new=10) == parts.ask(" y", max_new=10)
    parts.read(" y")  # runs the answer's last token, too
    whole.read(" y")
    assert whole.ask("z", max_new=10) == parts.ask("z", max_new=10)
    assert tiny.session().ask(TEXT[:50], max_new=4)  # a question behind nothing


def test_the_end_of_an_answer(tiny: tamis.Model) -> None:
    session = tiny.session(max_context=100)
    session.read(TEXT[:80])
    answer = session.ask("Who? ", max_new=99)
    assert session.ended == "context" and len(answer) == 16  # the last one is not run
    assert session.ask("Who? ", max_new=3) == answer[:3] and session.ended == "tokens"
    stop = answer[5:7]
    assert session.ask("Who? ", stop=stop) == answer[:answer.index(stop)] and session.ended == "text"
    assert session.ask("Who? ", stop=["~~~", "\x7f"]) == answer
    token = tiny.vocab.encode(answer[4])[0]
    session._endings |= {int(token)}
    assert session.ask("Who? ") == answer[:answer.index(answer[4])] and session.ended == "token"
    with pytest.raises(tamis.ArgumentError, match="21 tokens behind the 80 of the session; max_.* 100"):
        session.ask("x" * 21)
    with pytest.raises(tamis.ArgumentError, match="max_context is 100"):
        session.read("x" * 21)
    for wrong in ({"question": ""}, {"question": "x", "max_new": 0}, {"question": "x", "stop": ""}):
        with pytest.raises(tamis.ArgumentError):
            session.ask(**wrong)  # type: ignore[arg-type]
    assert session.ask("x" * 20, max_new=5) and session.ended == "context"
    session.ask("x" * 20, max_new=5, keep=True)
    with pytest.raises(tamis.ArgumentError, match="behind the 101"):
        session.ask("x")


def test_tokens_are_drawn_from_the_seed(tiny: tamis.Model) -> None:
    session = tiny.session(sampling=Sampling(temperature=2, seed=4))
    session.read(TEXT[:50])
    first = session.ask("Who? ", max_new=20)
    assert session.ask("Who? ", max_new=20) == first
    assert session.ask("Who? ", max_new=20, sampling=Sampling(temperature=2, seed=5)) != first
    plain = tiny.session()
    plain.read(TEXT[:50])
    assert plain.ask("Who? ", max_new=20) == session.ask("Who? ", max_new=20, sampling=Sampling())


def test_pieces_are_whole_characters_and_stop_before_a_text() -> None:
    def pieces(stop: Any, *given: bytes) -> tuple[list[str], str, bool]:
        answer = _Answer(stop)
        return [answer.add(one) for one in given], answer.held, answer.stopped

    assert pieces((), "ü".encode()[:1], "ü".encode()[1:] + b"x", b"\xe4\xb8") == (["", "üx", ""], "", False)
    assert pieces((), b"\xff", b"a") == (["\ufffd", "a"], "", False)
    assert pieces("end", b"an e", b"n", b"t en", b"d x") == (["an ", "", "ent ", ""], "", True)
    assert pieces("end", b"a en") == (["a "], "en", False)
    assert pieces(["abc", "b"], b"xabc") == (["xa"], "", True)  # b is complete first
    assert pieces(["bc", "abc"], b"xabc") == (["x"], "", True)  # of two, the longest
    assert pieces("aab", b"aa", b"ab") == (["", "a"], "", True)


def test_what_raises_leaves_the_session_as_it_was(tiny: tamis.Model) -> None:
    session = tiny.session(max_rows=16)
    session.read(TEXT[:50])
    wanted, held = session.ask("Who? ", max_new=5), pages(session)

    def stop(done: int, count: int) -> None:
        if done >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.read(TEXT[50:150], watch=stop)
    with pytest.raises(tamis.ArgumentError, match="byte"):
        session.read("\x01")
    stream = session.stream("Who? ", max_new=5, keep=True)
    assert next(stream) == wanted[0]
    stream.close()  # not taken to its end: not kept
    session.runner.observe(lambda rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.ask("Who? ", keep=True)
    session.runner.observe(None)
    assert (session.tokens_read, pages(session), session.cache.stats.sequences) == (50, held, 1)
    assert session.ask("Who? ", max_new=5) == wanted


def test_a_signal_ends_reading_between_two_steps(needle: tamis.Model) -> None:
    def ring(*_: Any) -> None:
        raise TimeoutError("it rings")

    session = needle.session(max_context=16000, max_rows=64)
    session.read("x" * 256)  # builds kernels
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError, match="it rings"):
            session.read("x" * 15000)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert session.tokens_read == 256 and session.ask("y", max_new=2)


def test_two_streams_at_once(tiny: tamis.Model) -> None:
    session = tiny.session(select=Quest(budget=64), capacity_tokens=512)
    session.read(TEXT[:100])
    wanted = [session.ask(question, max_new=8) for question in ("Who? ", "Where? ")]
    one, other = (session.stream(question, max_new=8, keep=True) for question in ("Who? ", "Where? "))
    pairs = list(zip(one, other))
    assert ["".join(pair[i] for pair in pairs) for i in range(2)] == [text[:len(pairs)] for text in wanted]
    assert list(one) == []
    with pytest.raises(tamis.StateError, match="has gone on since"):
        list(other)
    assert session.tokens_read == 100 + 5 + 8
    late = session.stream("Who? ")
    session.read("More.")
    with pytest.raises(tamis.StateError, match="has gone on since"):
        next(late)


def test_forgotten_sessions_are_freed(tiny: tamis.Model) -> None:
    session = tiny.session()
    session.read(TEXT[:20])
    cache = session.cache
    assert cache.stats.sequences == 1
    gc.disable()
    try:
        del session
        assert cache.stats.sequences == 0
    finally:
        gc.enable()
    with tiny.session() as closed:
        pass
    assert "closed" in repr(closed)
    with pytest.raises(tamis.StateError):
        closed.ask("x")


# ---- Conversations --------------------------------------------------------------------------------


def test_a_conversation_has_the_tokens_of_its_template(tiny: tamis.Model, chat: tamis.Vocab) -> None:
    session, plain = tiny.session(system="Be good."), tiny.session(chat=False)
    session.read(" A book")
    first = session.ask("Who wrote it? ", max_new=6)
    assert session.ask("Who wrote it? ", max_new=6, keep=True) == first
    second = session.ask("When?", max_new=6, keep=True)
    session.read("More text.")
    third = session.ask("Why?", max_new=6)
    talk = "s:Be good.\nu:A book\n\nWho wrote it?\na:"
    assert plain.ask(talk, max_new=6) == first
    end = chat.find_special("<|end|>")
    assert end in session._endings
    tokens = [*chat.encode(talk + first), end, *chat.encode("u:When?\na:" + second), end,
              *chat.encode("u:More text.\n\nWhy?\na:")]
    cache = tiny.cache(256)
    runner, sequence = tiny.runner(cache), cache.add()
    out = [runner.prefill(sequence, tokens)]
    while len(out) < 6:
        out.append(int(runner.decode(sequence, out[-1])[0]))
    assert third == chat.text(out[:out.index(end)] if end in out else out)
    with pytest.raises(tamis.ArgumentError, match="no chat template is used"):
        tiny.session(chat=False, system="x")


def test_a_template_that_writes_earlier_turns_anew(tiny: tamis.Model, chat: tamis.Vocab) -> None:
    chat.chat_template = "{{ messages | length }}:{{ messages[-1].content }}\na:"
    session = tiny.session()
    session.ask("Who?", max_new=3, keep=True)
    before = session.tokens_read
    with pytest.raises(tamis.UnsupportedError, match="anew with turn 2"):
        session.ask("Who?", max_new=3)
    assert session.tokens_read == before
    chat.chat_template = None
    with pytest.raises(tamis.UnsupportedError, match="no chat template"):
        tiny.session(chat=True)


# ---- Files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("evict", [None, SnapKV(budget=48, window=8)])
def test_a_saved_session_goes_on(tiny: tamis.Model, chat: tamis.Vocab, tmp_path: pathlib.Path,
                                 evict: Any) -> None:
    path = tmp_path / "talk.kv"
    session = tiny.session(select=Quest(budget=64), evict=evict, system="Hm.")
    session.read(TEXT[:100])
    session.ask("Who? ", max_new=7, keep=True)
    session.read("And ")
    session.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(tmp_path) == ["talk.kv"]
    again = Session.restore(tiny, path, select=Quest(budget=64), evict=evict)
    assert again.tokens_read == session.tokens_read and again.stats == session.stats
    for keep in (False, True, True):
        assert again.ask("where?", max_new=8, keep=keep) == session.ask("where?", max_new=8, keep=keep)
    # Behind an answer of which a token is yet to be run, and in the midst of a file.
    file = io.BytesIO()
    file.write(b"before")
    session.save(file)
    file.write(b"behind")
    file.seek(6)
    last = Session.restore(tiny, file, select=Quest(budget=64), evict=evict)
    assert file.read() == b"behind" and last.tokens_read == session.tokens_read
    assert last.ask("And?", max_new=8) == session.ask("And?", max_new=8)


def test_files_that_are_no_session_or_another_one(tiny: tamis.Model, chat: tamis.Vocab) -> None:
    session = tiny.session(system="Hm.")
    session.read(TEXT[:20])
    session.ask("Who? ", max_new=2, keep=True)
    file = io.BytesIO()
    session.save(file)
    data = file.getvalue()
    head = _HEAD.size + int.from_bytes(data[12:16], "little")
    for n in (0, 3, _HEAD.size, head - 1, head, head + 5, len(data) // 2, len(data) - 1):
        with pytest.raises(tamis.FormatError, match="ends within"):
            Session.restore(tiny, io.BytesIO(data[:n]))
    for at, wrong in ((0, tamis.FormatError), (8, tamis.FormatError), (15, tamis.FormatError),
                      (16, tamis.DamagedError), (30, tamis.DamagedError), (head, tamis.FormatError),
                      (len(data) // 2, tamis.DamagedError)):
        with pytest.raises(wrong):
            Session.restore(tiny, io.BytesIO(data[:at] + bytes([data[at] ^ 65]) + data[at + 1:]))
    with pytest.raises(tamis.FormatError, match="no session of this package"):
        Session.restore(tiny, DATA / "text.txt")
    with pytest.raises(tamis.ArgumentError, match="planes is 0"):
        Session.restore(tiny, io.BytesIO(data), evict=SnapKV(budget=48, window=8))
    with pytest.raises(tamis.ArgumentError, match="dtype"):
        Session.restore(tiny, io.BytesIO(data), dtype="f32")
    with pytest.raises(tamis.ArgumentError, match="system is given"):
        Session.restore(tiny, io.BytesIO(data), system="x")
    chat.chat_template = CHAT + " "
    with pytest.raises(tamis.ArgumentError, match="another chat template"):
        Session.restore(tiny, io.BytesIO(data))


@pytest.mark.parametrize("state", [
    b"[]", b"{}", b"nothing", b"[" * 100000,
    b'{"turns": -1, "begun": false, "pending": [], "template": null, "system": null}',
    b'{"turns": 1e9, "begun": false, "pending": [], "template": null, "system": null}',
    b'{"turns": 999, "begun": false, "pending": [], "template": null, "system": null}',
    b'{"turns": 0, "begun": 1, "pending": [], "template": null, "system": null}',
    b'{"turns": 0, "begun": false, "pending": [97], "template": null, "system": null}',
    b'{"turns": 0, "begun": false, "pending": [1, 2], "template": null, "system": null}',
    b'{"turns": 0, "begun": false, "pending": [], "template": null, "system": "x"}',
    b'{"turns": 0, "begun": false, "pending": [], "system": null}'])
def test_a_head_is_not_trusted(tiny: tamis.Model, state: bytes) -> None:
    import zlib

    session = tiny.session()
    session.read(TEXT[:20])
    file = io.BytesIO()
    session.save(file)
    data = file.getvalue()
    old = _HEAD.size + int.from_bytes(data[12:16], "little")
    forged = _HEAD.pack(b"tamis-py", 1, len(state), zlib.crc32(state)) + state + data[old:]
    with pytest.raises(tamis.FormatError):
        Session.restore(tiny, io.BytesIO(forged))


class Failing(io.RawIOBase):
    """A file that takes some bytes at a time, and none behind `most`."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if len(self.taken) >= self.most:
            raise BufferError("the disk is full")
        self.taken += bytes(data[:100])
        return min(len(data), 100)


def test_a_save_that_fails(tiny: tamis.Model, tmp_path: pathlib.Path,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    session = tiny.session()
    session.read(TEXT[:20])
    whole = Failing(1 << 30)
    session.save(whole)  # type: ignore[arg-type]
    assert Session.restore(tiny, io.BytesIO(whole.taken)).ask("x", max_new=4) == session.ask("x", max_new=4)
    for most in (0, 1000):
        with pytest.raises(BufferError, match="the disk is full"):
            session.save(Failing(most))  # type: ignore[arg-type]
    path = tmp_path / "kept"
    session.save(path)
    before = path.read_bytes()
    session.read("more")

    def fail(*_: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr("tamis.saved.write_all", fail)
    with pytest.raises(OSError, match="no"):
        session.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["kept"]


def test_sequences_are_saved_without_sessions(tiny: tamis.Model) -> None:
    caches = [tiny.cache(256, dtype="f32") for _ in range(2)]
    runners = [tiny.runner(cache) for cache in caches]
    sequence = caches[0].add()
    token = runners[0].prefill(sequence, tiny.vocab.encode(TEXT[:70]))
    file = io.BytesIO()
    tamis.save(runners[0].plan, sequence, file, tiny.fingerprint, bounds=True)
    file.seek(0)
    again = tamis.restore(runners[1].plan, file, tiny.fingerprint)
    assert len(again) == 70 and numpy.array_equal(again.read(1, 0)[0], sequence.read(1, 0)[0])
    assert runners[0].decode(sequence, token) == runners[1].decode(again, token)
    assert numpy.array_equal(runners[0].logits(), runners[1].logits())
    del again
    file.seek(0)
    with pytest.raises(tamis.ArgumentError, match="fingerprint"):
        tamis.restore(runners[1].plan, file)
    with pytest.raises(tamis.ArgumentError, match="3 bytes"):
        tamis.save(runners[0].plan, sequence, file, b"abc")
    assert caches[1].stats.sequences == 0
