# SPDX-License-Identifier: Apache-2.0
"""Which causal language models of transformers tamis.hf takes: each architecture, made tiny with random
weights, beside its own attention. Run by hand: python architectures.py [name ...]; prints Markdown.

A model is equal where logits of a text, 30 greedy tokens behind it, and those of a batch padded on the left
are those of its eager attention."""
import collections
import copy
import gc
import os
import signal
import sys
import time
import warnings

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import tamis.hf

PARAMETERS = 200_000_000  # a model that stays larger is not tiny
SECONDS = 300
NEAR = 2e-4  # relative error of logits
FIELDS = {
    "vocab_size": 512, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 256, "max_position_embeddings": 4096,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "top_k_experts": 2, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64, "moe_shared_expert_intermediate_size": 64,
    "expert_ffn_hidden_size": 64, "ffn_hidden_size": 256, "ffn_dim": 256, "d_model": 512, "n_embd": 512,
    "word_embed_proj_dim": 512, "n_group": 1, "topk_group": 1, "ffn_intermediate_size": 256,
    "first_k_dense_replace": 1, "decoder_layers": 4, "decoder_attention_heads": 8, "decoder_ffn_dim": 256,
    "encoder_layers": 2, "encoder_attention_heads": 8, "encoder_ffn_dim": 256, "intermediate_size_mlp": 256,
    "sliding_window": 16, "attention_chunk_size": 16, "rotary_dim": 32, "dense_attention_every_n_layers": 2,
    "hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 512, "altup_num_inputs": 2,
    "mamba_d_state": 16, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_expand": 2, "kv_lora_rank": 64,
    "q_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
    "num_kv_shared_layers": 2, "n_shared_experts": 1, "num_kv_heads": 2, "num_layers_per_stack": 2,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
    "hidden_dropout": 0.0, "attention_dropout": 0.0,
}


class NotTiny(Exception):
    """The architecture cannot be built at this size."""


def fields_of(kind):
    """Those of FIELDS that a config takes, and of the texts in a config of several parts."""
    default = kind()
    out = {}
    computed = {"head_dim"} if hasattr(default, "qk_rope_head_dim") else set()
    if hasattr(default, "num_layers_per_stack"):
        computed.add("num_hidden_layers")
    if not getattr(default, "num_kv_shared_layers", 0):
        computed.add("num_kv_shared_layers")
    for name, value in [*FIELDS.items()] * 2:  # some fit once others are there
        try:
            if name in computed | set(out) or not (hasattr(default, name) or name in default.attribute_map):
                continue
            kind(**out, **{name: value})
        except Exception:  # it is computed, or does not fit the others
            continue
        out[name] = value
    for name in default.sub_configs:
        inner = getattr(default, name)
        if inner is not None:
            try:
                fields = fields_of(type(inner))
                kind(**out, **{name: fields})
            except Exception:
                continue
            out[name] = fields
    return out


def make(name):
    kind = CONFIG_MAPPING[name]
    config = kind(**fields_of(kind))
    for part in (config, config.get_text_config(decoder=True)):
        if hasattr(part, "is_decoder"):
            part.is_decoder = True
        for special, token in (("bos_token_id", 1), ("eos_token_id", 2), ("pad_token_id", 0)):
            setattr(part, special, token)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in
                   transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config)).parameters())
    if size > PARAMETERS:
        raise NotTiny(f"{size / 1e6:.0f} M parameters")
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.5 / parameter.shape[-1] ** 0.5 + 0.08)
        elif name.endswith(("sinks", "sink_bias", "sink")):
            torch.nn.init.normal_(parameter)
    model.generation_config = transformers.GenerationConfig(bos_token_id=1, pad_token_id=0)
    return model


def results(model, ids, padded, mask, cache):
    """Logits of a text, greedy tokens behind it, and those of a padded batch."""
    options = {"max_new_tokens": 30, "min_new_tokens": 30, "do_sample": False}
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=True, **cache()).logits[0].float()
        tokens = model.generate(ids, **options)[0, ids.shape[1]:]
        batch = model.generate(padded, attention_mask=mask, **options)[:, padded.shape[1]:]
    return logits, tokens, batch


def compare(name, context):
    """(verdict, note) of an architecture."""
    try:
        model = make(name)
    except Exception as reason:
        return "not built", f"{type(reason).__name__}: {reason}"
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 500, (1, 60), generator=generator)
    padded = torch.randint(3, 500, (2, 44), generator=generator)
    mask = torch.ones_like(padded)
    padded[0, :13], mask[0, :13] = 0, 0
    failed = None
    try:
        model.set_attn_implementation("eager")
        own = results(model, ids, padded, mask, dict)
        changed = ids.clone()
        changed[0, -10] = 501 - changed[0, -10]
        with torch.no_grad():
            other = model(input_ids=changed).logits[0].float()
        if not own[0].isfinite().all():
            failed = "its own logits are not finite"
    except Exception as reason:
        failed = f"its own attention does not run: {type(reason).__name__}: {reason}"
    try:
        reader = tamis.hf.attach(model, select="full", device=context, max_context=512, capacity_tokens=1024)
    except tamis.UnsupportedError as reason:
        if failed and not isinstance(reason.__cause__, (tamis.Error, type(None))):
            return "not built", failed
        return "refused", str(reason).partition(": ")[2] or str(reason)
    if failed:
        reader.detach()
        return "not built", failed
    with reader:
        ours = results(model, ids, padded, mask, lambda: {reader._keyword: reader.cache()})
    error = float((ours[0] - own[0]).norm() / own[0].norm())
    effect = float((other[-1] - own[0][-1]).norm() / own[0][-1].norm())
    note, near = f"logits {error:.0e}", NEAR
    if error > NEAR:  # rounding grows in some: as far as between the model's own two attentions?
        model.set_attn_implementation("sdpa")
        with torch.no_grad():
            sdpa = model(input_ids=ids).logits[0].float()
        near = 2 * float((sdpa - own[0]).norm() / own[0].norm())
        note += f", of its SDPA {near / 2:.0e}"
    if effect < 100 * NEAR:
        note += f", of which attention changes {effect:.0e}"
    wrong = [f"{what} from {first(mine, its)} on" for what, mine, its in
             zip(("tokens", "tokens behind padding"), ours[1:], own[1:]) if not torch.equal(mine, its)]
    if error < near and not wrong:
        return "equal", note
    return "differs", ", ".join([note, *wrong])


def first(mine, its):
    return int((mine != its).reshape(-1, mine.shape[-1]).any(0).nonzero()[0])


def late(*_):
    raise TimeoutError(f"more than {SECONDS} s")


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    context = tamis.Context(os.environ.get("TAMIS_TEST_DEVICE", "opencl"))
    names = sys.argv[1:] or list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    found = collections.defaultdict(list)
    signal.signal(signal.SIGALRM, late)
    for name in names:
        began = time.monotonic()
        signal.alarm(SECONDS)
        try:
            verdict, note = compare(name, context)
        except Exception as reason:
            verdict, note = "differs", f"{type(reason).__name__}: {reason}"
        signal.alarm(0)
        found[verdict].append((name, note))
        print(f"{name}: {verdict}: {note} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
        gc.collect()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}\n\n| | models |\n|---|---|")
    for verdict, models in found.items():
        print(f"| {verdict} | {len(models)} |")
    print("\n| model | | |\n|---|---|---|")
    for verdict in ("equal", "differs", "refused", "not built"):
        for name, note in found[verdict]:
            text = " ".join(note.split()).replace("|", "\\|")[:200]
            print(f"| {name} | {verdict} | {text} |")


if __name__ == "__main__":
    main()
