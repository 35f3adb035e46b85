# SPDX-License-Identifier: Apache-2.0
"""tamis.hf beside transformers' own attention, on small models of three families with random weights."""
import gc
import os

import numpy
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tamis  # noqa: E402
import tamis.hf  # noqa: E402

transformers.logging.set_verbosity_error()
FAMILIES = {
    "llama": (transformers.LlamaConfig, {}),
    "qwen3": (transformers.Qwen3Config, {}),
    "gemma3": (transformers.Gemma3TextConfig, {"sliding_window": 48, "query_pre_attn_scalar": 64,
                                               "layer_types": ["sliding_attention", "full_attention"] * 2}),
}
DEVICE = os.environ.get("TAMIS_TEST_DEVICE", "opencl")


def make(family, dtype=torch.float32, **fields):
    """A model whose greedy text does not repeat one token."""
    kind, own = FAMILIES[family]
    torch.manual_seed(7)
    config = kind(vocab_size=512, hidden_size=256, intermediate_size=256, num_hidden_layers=4,
                  num_attention_heads=8, num_key_value_heads=2, head_dim=64, max_position_embeddings=4096,
                  bos_token_id=1, eos_token_id=None, pad_token_id=0, tie_word_embeddings=False,
                  **{**own, **fields})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.12)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.to(dtype).eval()


@pytest.fixture(scope="module")
def context():
    with tamis.Context(DEVICE) as context:
        yield context


def generate(model, ids, tokens=100, **options):
    return model.generate(ids, max_new_tokens=tokens, do_sample=False, **options)


def ids_of(batch=1, tokens=300, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 500, (batch, tokens), generator=generator)


@pytest.mark.parametrize("family", FAMILIES)
def test_full_is_the_models_own(context, family):
    model, ids = make(family), ids_of()
    own = generate(model, ids)
    with tamis.hf.attach(model, select="full", device=context) as reader:
        ours = generate(model, ids)
        assert reader.counters.rows_exact == 4 * 300 and reader.counters.rows_full == 4 * 99
    assert len(set(own[0, 300:].tolist())) > 20  # a text in which a wrong attention would show
    assert torch.equal(own, ours)
    assert torch.equal(own, generate(model, ids))  # and it is its own again


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16(context, family):
    """Logits in bf16 are as near to those in f32 as the model's own are."""
    model, ids = make(family), ids_of()
    with torch.no_grad():
        exact = model(ids).logits[0, -1].float()
        half = model.to(torch.bfloat16)
        own = half(ids).logits[0, -1].float()
        with tamis.hf.attach(half, select="full", device=context) as reader:
            cache = reader.read(ids[:, :-1])
            ours = half(ids[:, -1:], use_cache=True, **{reader._keyword: cache}).logits[0, -1].float()
            assert reader.store.dtype == "bf16"
    assert (ours - exact).norm() < 1.5 * (own - exact).norm()
    assert (ours - exact).norm() > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_batch(context, family):
    """Each text of a batch gets the tokens that it gets alone."""
    model = make(family)
    texts = [ids_of(tokens=n, seed=n)[0] for n in (130, 7, 64)]
    alone = [generate(model, text[None], 30)[0, len(text):] for text in texts]
    ids = torch.zeros(3, 130, dtype=torch.int64)
    mask = torch.zeros(3, 130, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, 130 - len(text):], mask[row, 130 - len(text):] = text, 1
    with tamis.hf.attach(model, select="full", device=context) as reader:
        cache = reader.cache()
        out = generate(model, ids, 30, attention_mask=mask, past_key_values=cache)
        assert [len(sequence) for sequence in cache.sequences] == [159, 36, 93]
        read = reader.read(ids[:, :100], mask[:, :100])  # in which the second text has not begun
        again = generate(model, ids, 30, attention_mask=mask, past_key_values=read)
    for row in range(3):
        assert torch.equal(out[row, 130:], alone[row]), row
    assert torch.equal(out, again)


def test_padding_on_the_right_is_refused(context):
    model, ids = make("llama"), ids_of(2, 10)
    mask = torch.ones(2, 10, dtype=torch.int64)
    mask[1, 6:] = 0
    with tamis.hf.attach(model, device=context) as reader:
        with pytest.raises(tamis.UnsupportedError, match="row 1 of the batch has padding behind"):
            generate(model, ids, 2, attention_mask=mask)
        gc.collect()
        assert reader.store.stats.pages_held == 0
        generate(model, ids, 2)


def test_quest_reads_its_budget(context):
    model, ids = make("llama"), ids_of(tokens=800)
    with tamis.hf.attach(model, select="quest", budget=128, device=context, reads=True) as reader:
        generate(model, ids, 10)
        read = reader.read_pages()
        assert read.shape == (4, 2, 51)  # layers, KV heads, pages of 16
        assert (read.sum(2) == 8).all() and read[..., 0].all() and read[..., -1].all()
        assert reader.counters.rows_selected == 4 * 9
    with tamis.hf.attach(model, select="quest", budget=4096, device=context):
        ours = generate(model, ids, 10)
    assert torch.equal(ours, generate(model, ids, 10))  # a budget that holds all is full




@pytest.mark.parametrize("evict", [tamis.SnapKV(budget=64), tamis.H2O(budget=64), tamis.Streaming(budget=64),
                                   tamis.CriticalKV(budget=64), tamis.Streaming(budget=64, reindex=True),
                                   tamis.SnapKV(budget=64, every=8)], ids=lambda policy: repr(policy))
def test_evictions_free_memory(context, evict):
    model, ids = make("llama"), ids_of(tokens=400)
    with tamis.hf.attach(model, select="full", evict=evict, device=context) as reader:
        cache = reader.read(ids)
        assert (cache.sequences[0].lane_lengths() == 64).all()
        both = torch.cat([ids, ids_of(tokens=1, seed=9)], 1)
        generate(model, both, 20, past_key_values=cache)
        at_most = 64 if evict.every == 1 else 64 + 8 if evict.every else 64 + 20
        assert cache.sequences[0].lane_lengths().max() <= at_most
        assert reader.counters.evictions > 0


def test_ask_twice(context):
    """Questions on forks of one text: the tokens of text and question read at once."""
    model, text = make("qwen3"), ids_of(tokens=200)
    questions = [ids_of(tokens=n, seed=n) for n in (5, 9)]
    own = [generate(model, torch.cat([text, question], 1), 20) for question in questions]
    short = generate(model, text[:, :60], 20)
    with tamis.hf.attach(model, select="full", device=context) as reader:
        read = reader.read(text)
        held = reader.store.stats.pages_held
        for question, expected in zip(questions, own):
            with_text = torch.cat([text, question], 1)
            assert torch.equal(generate(model, with_text, 20, past_key_values=read.fork()), expected)
        gc.collect()
        assert reader.store.stats.pages_held == held and read.length == 200
        read.crop(-150)
        assert torch.equal(generate(model, text[:, :60], 20, past_key_values=read), short)


def test_what_is_refused(context):
    model, ids = make("llama"), ids_of(tokens=20)
    with tamis.hf.attach(model, device=context, max_context=64) as reader:
        with pytest.raises(tamis.StateError, match="attached to this model already"):
            tamis.hf.attach(model, device=context)
        with pytest.raises(tamis.UnsupportedError, match="beam search .num_beams=4"):
            generate(model, ids, 2, num_beams=4)
        with pytest.raises(tamis.UnsupportedError, match="beam search"):
            reader.cache().reorder_cache(torch.tensor([0]))
        with pytest.raises(tamis.UnsupportedError, match="use_cache=False"):
            generate(model, ids, 2, use_cache=False)
        with pytest.raises(tamis.StateError, match="do not come from a cache of tamis"):
            model(ids)
        with pytest.raises(tamis.ArgumentError, match="context"):
            generate(model, ids_of(tokens=65), 2)
        with pytest.raises(tamis.ArgumentError, match="batch of 2 for a cache of 1"):
            cache = reader.read(ids)
            model(ids_of(2, 1), use_cache=True, **{reader._keyword: cache})
        generate(model, ids, 2)  # and it goes on
    with pytest.raises(tamis.ArgumentError, match="no such|'quests'"):
        tamis.hf.attach(model, select="quests", device=context)
    shared = make("llama")
    shared.config.num_kv_shared_layers = 2
    with pytest.raises(tamis.UnsupportedError, match="2 layers share K and V"):
        tamis.hf.attach(shared, device=context)


def test_a_full_cache_loses_nothing(context):
    model, ids = make("llama"), ids_of(tokens=100)
    with tamis.hf.attach(model, device=context, max_context=160, capacity_tokens=160) as reader:
        first = reader.read(ids)
        with pytest.raises(tamis.FullError, match="capacity_tokens"):
            reader.read(ids_of(tokens=90, seed=8))
        assert len(first.sequences[0]) == 100
        del first
        gc.collect()
        reader.read(ids_of(tokens=90, seed=8))


def test_memory_is_given_back(context):
    model, ids = make("llama"), ids_of(tokens=100)
    reader = tamis.hf.attach(model, device=context)
    for _ in range(3):
        generate(model, ids, 3)
    gc.collect()
    assert reader.store.stats.sequences == 0
    reader.detach()
    reader.detach()
    assert "generate" not in vars(model)


def test_quantised_caches(context):
    model, ids = make("llama"), ids_of()
    with torch.no_grad():
        own = model(ids).logits[0, -1]
        with tamis.hf.attach(model, select="full", dtype="q8", device=context) as reader:
            ours = model(ids, use_cache=True, **{reader._keyword: reader.cache()}).logits[0, -1]
            assert reader.store.dtype == "q8"
    error = float((ours - own).norm() / own.norm())
    assert 0 < error < 0.05, error
    assert numpy.isfinite(error)
