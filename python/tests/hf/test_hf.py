# SPDX-License-Identifier: Apache-2.0
"""tamis.hf beside transformers' own attention and cache, on small models with random weights.
architectures.py goes through all architectures."""
import copy
import dataclasses
import functools
import gc
import os
import pickle
import threading
import weakref

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
OTHERS = {  # how else layers attend
    "soft caps": (transformers.Gemma2Config, {"sliding_window": 48, "query_pre_attn_scalar": 64,
                                              "attn_logit_softcapping": 5.0}),
    "sink logits": (transformers.GptOssConfig, {"num_local_experts": 4, "num_experts_per_tok": 2,
                                                "sliding_window": 48, "layer_types": None}),
    "chunks, layers without RoPE": (transformers.Llama4TextConfig, {
        "attention_chunk_size": 32, "num_local_experts": 2, "intermediate_size_mlp": 256}),
    "one projection for q, k and v": (transformers.Phi3Config, {"hidden_size": 512}),
}
DEVICE = os.environ.get("TAMIS_TEST_DEVICE", "opencl")


def make(family, dtype=torch.float32, **fields):
    """A model whose greedy text does not repeat one token."""
    kind, own = {**FAMILIES, **OTHERS}[family]
    torch.manual_seed(7)
    usual = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 4,
             "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
             "max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
             "tie_word_embeddings": False}
    config = kind(**{**usual, **own, **fields})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 or name.endswith("sinks"):
            torch.nn.init.normal_(parameter, std=0.12 if parameter.ndim > 1 else 1)
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


def test_padding_anywhere(context):
    """Tokens behind padding are a row's next ones; chunks of nothing but padding bring none."""
    model, ids = make("llama"), ids_of(2, 60)
    mask = torch.ones_like(ids)
    mask[0, 40:] = 0
    with tamis.hf.attach(model, select="full", device=context) as reader, torch.no_grad():
        right = model(ids, attention_mask=mask, use_cache=True, **{reader._keyword: reader.cache()}).logits
        alone = model(ids[:1, :40], use_cache=True, **{reader._keyword: reader.cache()}).logits
        assert torch.allclose(right[0, :40], alone[0], atol=1e-4)
        with pytest.raises(tamis.UnsupportedError, match="row 0 of the batch ends in padding"):
            generate(model, ids, 2, attention_mask=mask)
        left = torch.cat([torch.zeros(2, 50, dtype=torch.int64), ids], 1)
        mask = (left > 0).long()
        mask[0, :80] = 0
        with_chunks = generate(model, left, 5, attention_mask=mask, prefill_chunk_size=20)
        assert torch.equal(with_chunks, generate(model, left, 5, attention_mask=mask))
        gc.collect()
        assert reader.store.stats.pages_held == 0
    assert torch.equal(with_chunks, generate(model, left, 5, attention_mask=mask))
    model, mask = make("gemma3"), torch.ones_like(ids)
    mask[1, 20:30] = 0
    with tamis.hf.attach(model, select="full", device=context) as reader:
        with pytest.raises(tamis.UnsupportedError, match="row 1 of the batch has padding between its tokens"):
            reader.read(ids, mask)


def test_rows_that_end_early(context):
    """generate feeds padding behind them; the next turn's mask takes it away."""
    model, ids = make("llama"), ids_of(3, 60)
    eos = int(generate(model, ids, 6)[0, -1])
    first = generate(model, ids, 12, eos_token_id=eos)
    assert int(first[0, -1]) == 0  # padding
    more = torch.cat([first, ids_of(3, 5, seed=8)], 1)
    second = generate(model, more, 5)
    with tamis.hf.attach(model, select="full", device=context) as reader:
        cache = reader.cache()
        assert torch.equal(generate(model, ids, 12, eos_token_id=eos, past_key_values=cache), first)
        assert cache.length == 71 and len(cache.sequences[0]) == 71
        assert torch.equal(generate(model, more, 5, past_key_values=cache), second)
        assert [len(sequence) for sequence in cache.sequences] == [75, 81, 81]


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



@pytest.mark.parametrize("options", [
    {"prefill_chunk_size": 33}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 3},
    {"do_sample": True, "num_beams": 2, "num_return_sequences": 2}, {"prompt_lookup_num_tokens": 4},
    {"assistant": 2}, {"embeds": True}, {"generation_config": transformers.GenerationConfig(
        max_new_tokens=20, num_beams=2, pad_token_id=0)}], ids=lambda options: ", ".join(options))
def test_what_generate_does(context, options):
    """As with transformers' own cache."""
    model, ids = make("gemma3" if "prefill_chunk_size" in options else "llama"), ids_of(tokens=50)
    ids = torch.cat([ids, ids[:, :30]], 1)
    options = {"max_new_tokens": 20, "do_sample": False, **options}
    if options.pop("embeds", False):
        ids, options["inputs_embeds"] = None, model.get_input_embeddings()(ids).detach()
    if "generation_config" in options:
        options = {"generation_config": options["generation_config"]}
    if options.pop("assistant", 0):
        options["assistant_model"] = make("llama")
        options["assistant_model"].model.layers[3].mlp.down_proj.weight.data *= 1.5  # it errs at times

    def run():
        torch.manual_seed(5)
        return model.generate(ids, **options)

    own = run()
    with tamis.hf.attach(model, select="full", device=context) as reader:
        assert torch.equal(run(), own)
        if "assistant_model" in options:
            with tamis.hf.attach(options["assistant_model"], select="full", device=context):
                assert torch.equal(run(), own)
        assert reader.counters.steps > 0


def test_drafts_go_through_the_selection(context):
    model, ids = make("llama"), ids_of(tokens=400)
    with tamis.hf.attach(model, select="quest", budget=128, device=context) as reader, torch.no_grad():
        cache = reader.read(ids[:, :380])
        drafts = cache.fork()
        one = [model(ids[:, i:i + 1], use_cache=True, **{reader._keyword: cache}).logits[0, 0]
               for i in range(380, 400)]
        before = reader.counters.rows_selected
        drafts.activate_past_recording()  # as assisted decoding does
        drafts.crop(0)
        several = model(ids[:, 380:], use_cache=True, **{reader._keyword: drafts}).logits[0]
        assert reader.counters.rows_selected == before + 4 * 20
        assert torch.allclose(several, torch.stack(one), atol=1e-3)
        with pytest.raises(tamis.ArgumentError, match="65 rows of drafts"):
            model(ids[:, :65], use_cache=True, **{reader._keyword: drafts})
        exact = reader.counters.rows_exact
        generate(model, torch.cat([ids, ids[:, :9]], 1), 1, past_key_values=drafts)
        assert reader.counters.rows_exact == exact + 4 * 9  # a new text is no draft


def test_candidates_share_pages(context):
    """batch_repeat_interleave, batch_select_indices and reorder_cache as of a DynamicCache."""
    model, ids, new = make("llama"), ids_of(2, 40), ids_of(6, 1, seed=5)

    def run(cache, keyword):
        def logits(tokens):
            return model(tokens, use_cache=True, **{keyword: cache}).logits
        logits(ids)
        cache.batch_repeat_interleave(3)
        found = [logits(new)]
        cache.batch_select_indices(torch.tensor([2, 3, 5]))
        found.append(logits(new[:3]))
        cache.reorder_cache(torch.tensor([1, 1, 0]))
        return [*found, logits(new[:3])]

    with torch.no_grad():
        own = run(transformers.DynamicCache(config=model.config), "past_key_values")
        with tamis.hf.attach(model, select="full", device=context) as reader:
            cache = reader.cache()
            for mine, its in zip(run(cache, reader._keyword), own):
                assert torch.allclose(mine, its, atol=1e-4)
            gc.collect()
            assert reader.store.stats.sequences == 3


@pytest.mark.parametrize("kind", OTHERS)
def test_other_attention(context, kind):
    model, ids = make(kind), ids_of(2, 100)
    model.set_attn_implementation("eager")
    mask = torch.ones_like(ids)
    mask[0, :25] = 0
    own, padded = generate(model, ids, 12), generate(model, ids, 12, attention_mask=mask)
    with torch.no_grad():
        logits = model(ids).logits
        with tamis.hf.attach(model, select="full", device=context) as reader:
            ours = model(ids, use_cache=True, **{reader._keyword: reader.cache()}).logits
            assert (ours - logits).norm() < 1e-4 * logits.norm()
            assert torch.equal(generate(model, ids, 12), own)
            assert torch.equal(generate(model, ids, 12, attention_mask=mask), padded)


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


def test_evictions_in_batches_and_windows(context):
    model, ids = make("llama"), ids_of(2, 200)
    mask = torch.ones_like(ids)
    mask[0, :120] = 0
    with tamis.hf.attach(model, select="full", evict=tamis.H2O(budget=64), device=context) as reader:
        cache = reader.cache()
        both = generate(model, ids, 20, attention_mask=mask, past_key_values=cache)
        assert [sequence.lane_lengths().max() for sequence in cache.sequences] == [64, 64]
        assert torch.equal(both[0, 200:], generate(model, ids[:1, 120:], 20)[0, 80:])
        with pytest.raises(ValueError, match="cache that can be cropped"):  # transformers' own words
            generate(model, ids[:1], 4, prompt_lookup_num_tokens=2)
        with pytest.raises(tamis.StateError, match="some have been evicted"):
            cache.crop(-30)
        assert cache.length == len(cache.sequences[0]) + 120
        assert generate(model, ids[:1], 20, num_beams=3).shape == (1, 220)
    local = make("gemma3")
    with tamis.hf.attach(local, select="quest", budget=64, evict=tamis.SnapKV(budget=96, every=8),
                         device=context) as reader:
        cache = reader.cache()
        generate(local, ids[:1], 30, past_key_values=cache)
        assert reader.counters.evictions == 4 and cache.sequences[0].lane_lengths().max() <= 96 + 8
    with pytest.raises(tamis.UnsupportedError, match="sliding_window 48 under eviction h2o"):
        tamis.hf.attach(local, evict=tamis.H2O(budget=96), device=context)
    with tamis.hf.attach(local, evict=tamis.H2O(budget=32), max_context=48, device=context) as reader:
        generate(local, ids[:1, :40], 5)  # no window within 48 tokens


def test_reindexed_streaming_knows_the_rotation(context):
    streaming = tamis.Streaming(budget=64, reindex=True)
    usual = {"vocab_size": 512, "hidden_size": 512, "intermediate_size": 256, "num_hidden_layers": 4,
             "num_attention_heads": 8, "num_key_value_heads": 2, "pad_token_id": 0}
    for kind, answer in ((transformers.CohereConfig, "adjacent"), (transformers.GPTNeoXConfig, "half"),
                         (transformers.SmolLM3Config, "the keys of layers .3. do not turn")):
        model = transformers.AutoModelForCausalLM.from_config(kind(**usual)).eval()
        if answer.startswith("the keys"):
            with pytest.raises(tamis.UnsupportedError, match=answer):
                tamis.hf.attach(model, evict=streaming, select="full", device=context)
        else:
            with tamis.hf.attach(model, evict=streaming, select="full", device=context) as reader:
                assert reader.plan._bound["rotation"].pairing == answer


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
    with tamis.hf.attach(model, device=context, max_context=64) as reader, torch.no_grad():
        def forward(ids, cache=None, **options):
            return model(ids, use_cache=True, **{reader._keyword: cache or reader.cache()}, **options)

        with pytest.raises(tamis.StateError, match="attached to this model already"):
            tamis.hf.attach(model, device=context)
        with pytest.raises(tamis.UnsupportedError, match="use_cache=False"):
            generate(model, ids, 2, use_cache=False)
        with pytest.raises(tamis.UnsupportedError, match="cache_implementation='static'"):
            generate(model, ids, 2, cache_implementation="static")
        with pytest.raises(tamis.UnsupportedError, match="assistant_early_exit"):
            generate(model, ids, 2, assistant_early_exit=2)
        with pytest.raises(tamis.StateError, match="do not come from a cache of tamis"):
            model(ids)
        with pytest.raises(tamis.ArgumentError, match="65 tokens: attach.max_context=64"):
            generate(model, ids_of(tokens=65), 2)
        with pytest.raises(tamis.ArgumentError, match="9 rows: attach.max_sequences=8"):
            generate(model, ids_of(9, 2), 2)
        with pytest.raises(tamis.ArgumentError, match="20 tokens with a cache of 20"):
            generate(model, ids, 2, past_key_values=reader.read(ids))
        with pytest.raises(tamis.ArgumentError, match="batch of 2 for a cache of 1"):
            forward(ids_of(2, 1), reader.read(ids))
        with pytest.raises(tamis.UnsupportedError, match="output_attentions"):
            forward(ids, output_attentions=True)
        with pytest.raises(tamis.UnsupportedError, match="output_attentions"):
            generate(model, ids, 2, output_attentions=True, return_dict_in_generate=True)
        causal = torch.ones(1, 1, 20, 20, dtype=torch.bool).tril()
        for mask in (causal, {"full_attention": causal}):
            with pytest.raises((tamis.UnsupportedError, AttributeError)):
                forward(ids, attention_mask=mask)
        with pytest.raises(tamis.ArgumentError, match=r"\[1, 2\]: \[1\]\[22\] is expected"):
            forward(ids[:, :2], reader.read(ids), attention_mask=torch.ones(1, 2, dtype=torch.int64))
        padded = torch.ones(1, 22, dtype=torch.int64)
        padded[0, :5] = 0
        with pytest.raises(tamis.ArgumentError, match="holds 15 tokens beside padding, and it holds 20"):
            forward(ids[:, :2], reader.read(ids), attention_mask=padded)
        with torch.enable_grad(), pytest.raises(tamis.UnsupportedError, match="torch.no_grad"):
            forward(ids)
        model.train()
        model.model.layers[1].self_attn.attention_dropout = 0.1
        with pytest.raises(tamis.UnsupportedError, match="dropout 0.1"):
            forward(ids)
        model.eval()
        generate(model, ids, 2)  # and it goes on
        handle = model.model.layers[1].self_attn.register_forward_pre_hook(lambda _, args, options: (args, {
            **options, "attention_mask": dataclasses.replace(options["attention_mask"], padding=padded > 0)}),
            with_kwargs=True)
        with pytest.raises(tamis.UnsupportedError, match="layer 1 has another padding"):
            forward(ids)
        handle.remove()
        model.model.layers[1].self_attn.scaling *= 2
        with pytest.raises(tamis.UnsupportedError, match="layer 1 passes scale 0.25, 0.125 when"):
            forward(ids)
        gc.collect()
        assert reader.store.stats.pages_held == 0
    with pytest.raises(tamis.ArgumentError, match="'quests'"):
        tamis.hf.attach(make("llama"), select="quests", device=context)


@pytest.mark.parametrize("kind, fields, reason", [
    ("Bloom", {"n_layer": 2, "n_head": 8}, "not all behind AttentionInterface"),
    ("DeepseekV2", {"qk_rope_head_dim": 32, "moe_intermediate_size": 64, "n_routed_experts": 4},
     "latent attention"),
    ("Qwen3Next", {"num_experts": 4}, "LinearAttentionLayer"),
    ("Gemma4Text", {}, "layers differ in"),
    ("Moshi", {"sliding_window": 16}, "has a mask of local size 0, but transformers keeps 16 tokens"),
    ("T5Gemma", {}, "encoder-decoder"),
], ids=lambda value: value if isinstance(value, str) and value[0].isupper() else "")
def test_models_that_are_refused(context, kind, fields, reason):
    config = getattr(transformers, kind + "Config")
    if kind == "T5Gemma":
        model = make("llama")
        model.config.is_encoder_decoder = True
    else:
        usual = {"vocab_size": 512, "hidden_size": 512, "intermediate_size": 256, "num_hidden_layers": 6,
                 "num_attention_heads": 8, "num_key_value_heads": 2}
        model = transformers.AutoModelForCausalLM.from_config(config(**{**usual, **fields}))
    before = model.config._attn_implementation
    with pytest.raises(tamis.UnsupportedError, match=reason):
        tamis.hf.attach(model, device=context)
    assert model.config._attn_implementation == before and "generate" not in vars(model)


def test_a_cache_is_of_one_model(context):
    model, other, ids = make("llama"), make("llama"), ids_of(tokens=40)
    own = generate(model, ids, 5)
    with tamis.hf.attach(model, select="full", device=context) as reader, torch.no_grad():
        cache = reader.read(ids[:, :30])
        with pytest.raises(tamis.StateError, match="tamis is not attached to it"):
            generate(other, ids, 5, past_key_values=cache.fork())
        gc.collect()
        assert reader.store.stats.sequences == 1
        with pytest.raises(tamis.ArgumentError, match="a DynamicCache that is not of this model's tamis"):
            generate(model, ids, 5, past_key_values=transformers.DynamicCache())
        with tamis.hf.attach(other, select="full", device=context) as second:
            with pytest.raises(tamis.ArgumentError, match="a TamisCache that is not"):
                generate(model, ids, 5, past_key_values=second.cache())
            with pytest.raises(tamis.StateError, match="a cache of another model"):
                model(ids, use_cache=True, **{reader._keyword: second.cache()})
            assert torch.equal(generate(model, ids, 5), generate(other, ids, 5))  # they have equal weights
        copied = copy.deepcopy(cache)
        assert torch.equal(generate(model, ids, 5, past_key_values=copied), own) and cache.length == 30
        with pytest.raises(tamis.UnsupportedError, match="pickled"):
            pickle.dumps(cache)
    with pytest.raises(tamis.StateError, match="detached"):
        generate(model, ids, 5, past_key_values=cache)


def test_copies_of_a_model(context):
    model, ids = make("llama"), ids_of(tokens=40)
    own = generate(model, ids, 5)
    with tamis.hf.attach(model, select="full", device=context):
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            with pytest.raises(tamis.StateError, match="do not come from a cache of tamis"):
                generate(copied, ids, 5)
            with tamis.hf.attach(copied, select="full", device=context):
                assert torch.equal(generate(copied, ids, 5), own)
            assert torch.equal(generate(copied, ids, 5), own)  # its own attention
        assert torch.equal(generate(model, ids, 5), own)


def test_generate_that_is_overridden(context):
    class Short(transformers.LlamaForCausalLM):
        def generate(self, *args, **kwargs):
            return super().generate(*args, **{**kwargs, "max_new_tokens": 3})

    model, ids = make("llama"), ids_of(tokens=40)
    model.__class__ = Short
    own = generate(model, ids, 5)
    assert own.shape == (1, 43)
    mine = functools.partial(Short.generate, model)
    for on_instance in (False, True):
        if on_instance:
            model.generate = mine
        with tamis.hf.attach(model, select="full", device=context) as reader:
            assert torch.equal(generate(model, ids, 5), own) and reader.counters.steps == 3
    assert model.generate is mine


def test_interrupted_passes(context):
    model, ids = make("llama"), ids_of(tokens=40)
    own = generate(model, ids, 5)

    def interrupt(*_):
        raise KeyboardInterrupt

    def interrupted(cache):
        handle = model.model.layers[2].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            generate(model, ids, 5, past_key_values=cache)
        handle.remove()
        assert cache.length == 30

    with tamis.hf.attach(model, select="full", device=context) as reader:
        cache = reader.read(ids[:, :30])
        held = reader.store.stats.pages_held
        interrupted(cache)
        fork = cache.fork()
        assert reader.store.stats.pages_held == held and len(fork.sequences[0]) == 30
        interrupted(fork)
        fork.crop(-1)
        interrupted(cache)
        assert torch.equal(generate(model, ids, 5, past_key_values=cache), own)
        interrupted(reader.read(ids[:, :30]))  # which is forgotten with its pass open
        fork.reset()
        del cache, fork
        reader.settle()
        gc.collect()
        generate(model, ids, 2)
        gc.collect()
        assert reader.store.stats.pages_held == 0
        interrupted(reader.read(ids[:, :30]))
    assert torch.equal(generate(model, ids, 5), own)


def test_another_thread_in_between(context):
    """The pass that has begun last goes on; the other one fails by name."""
    model, ids = make("llama"), ids_of(tokens=40)
    own, found = generate(model, ids, 5), []

    def run(*_):
        handle.remove()
        thread = threading.Thread(target=lambda: found.append(generate(model, ids, 5)))
        thread.start()
        thread.join()

    with tamis.hf.attach(model, select="full", device=context):
        handle = model.model.layers[2].register_forward_pre_hook(run)
        with pytest.raises(tamis.StateError, match="threads take turns"):
            generate(model, ids, 5)
        assert torch.equal(found[0], own)
        assert torch.equal(generate(model, ids, 5), own)


def test_another_thread_stops_in_the_same_cache(context):
    """Its pass is at the layer that comes next here, and is not gone on with."""
    model, ids = make("llama"), ids_of(tokens=40)
    own = generate(model, ids, 5)

    def forward():
        with torch.no_grad():
            model(ids[:, 30:], use_cache=True, **{reader._keyword: cache})

    def stop(*_):
        if threading.current_thread() is not threading.main_thread():
            raise InterruptedError
        thread = threading.Thread(target=lambda: pytest.raises(InterruptedError, forward))
        thread.start()
        thread.join()

    with tamis.hf.attach(model, select="full", device=context) as reader:
        cache = reader.read(ids[:, :30])
        handle = model.model.layers[2].register_forward_pre_hook(stop)
        with pytest.raises(tamis.StateError, match="threads take turns"):
            forward()
        handle.remove()
        assert torch.equal(generate(model, ids, 5, past_key_values=cache), own)


def test_modes(context):
    model, ids = make("llama"), ids_of(tokens=40)
    own = generate(model, ids, 5)
    with tamis.hf.attach(model, select="full", device=context) as reader:
        with torch.inference_mode():
            assert torch.equal(generate(model, ids, 5), own)
        assert torch.equal(generate(model, ids, 5), own)
        with torch.no_grad():
            spaced = {"position_ids": torch.arange(40)[None] * 2, "use_cache": True}
            ours = model(ids, **spaced, **{reader._keyword: reader.cache()}).logits
            cache = reader.read(ids[:, :39])
            plain = model(ids[:, 39:], use_cache=True, **{reader._keyword: cache.fork()}).logits
            compiled = torch.compile(model, backend="eager")
            for _ in range(2):
                again = compiled(ids[:, 39:], use_cache=True, **{reader._keyword: cache.fork()}).logits
                assert torch.equal(again, plain)
    with torch.no_grad():
        assert torch.allclose(ours, model(ids, **spaced).logits, atol=1e-3)


def test_memory_that_is_not_shared(context):
    """As on a device with memory of its own."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model, ids = make("llama", dtype), ids_of(tokens=40)
        with tamis.hf.attach(model, select="full", device=context) as reader:
            shared = generate(model, ids, 5)
            for buffer in (reader._k, reader._v, reader._q, reader._out):
                buffer.in_place, buffer.array, buffer.tensor = False, None, None
            assert torch.equal(generate(model, ids, 5), shared)


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
        gc.collect()
        cache = reader.cache()
        with pytest.raises(tamis.FullError, match="capacity_tokens"):
            reader.read(ids_of(4, 60), cache=cache)
        assert reader.read(ids, cache=cache).length == 100  # of another batch: it was empty


def test_an_eviction_without_room_undoes_its_pass(context):
    model, ids = make("llama"), ids_of(tokens=128)
    question = ids_of(tokens=70, seed=8)
    with tamis.hf.attach(model, select="full", evict=tamis.SnapKV(budget=64, window=16), device=context,
                         max_context=512, capacity_tokens=288) as reader:
        text = reader.read(ids)
        forks = [text.fork() for _ in range(3)]
        reader.read(question, cache=forks[0])
        reader.read(question, cache=forks[1])
        with pytest.raises(tamis.FullError, match="copies of"):
            reader.read(question, cache=forks[2])
        assert forks[2].length == len(forks[2].sequences[0]) == 128
        forks[0].reset()
        reader.read(question, cache=forks[2])
        assert forks[2].length == 198 and (forks[2].sequences[0].lane_lengths() == 64).all()


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
    tamis.hf.attach(model, device=context)
    forgotten = weakref.ref(model)
    del model, reader
    gc.collect()
    assert forgotten() is None


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
