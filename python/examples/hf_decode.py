# SPDX-License-Identifier: Apache-2.0
"""The time of a new token in transformers: its eager and SDPA attention beside tamis's full and quest.

    python hf_decode.py [--dtype bfloat16] [--tokens 6000] [--budget 1024] [--threads 2] [--json FILE]

The model is SmolLM2-135M-Instruct (tools/fetch_model.sh gets it). All four read the same text and
then take turns, several tokens each, so that what else the machine does meets all of them alike. The table
has medians, and ratios to tamis under quest."""
import argparse
import copy
import dataclasses
import json
import os
import pathlib
import statistics
import time

import torch
import transformers

import tamis
import tamis.hf

CACHES = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
MODEL = pathlib.Path(CACHES) / "tamis" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples" / "prompt.txt"


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=pathlib.Path, default=MODEL)
    parser.add_argument("--text", type=pathlib.Path, default=TEXT)
    parser.add_argument("--tokens", type=int, default=6000, help="of the text, repeated as needed")
    parser.add_argument("--budget", type=int, default=1024, help="of quest, tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--cache", help="dtype of tamis's caches: f16, q8, ...; default the model's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--each", type=int, default=8, help="tokens of each in a round")
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


@dataclasses.dataclass
class Way:
    """A model with one attention, and a cache that holds the text."""

    name: str
    model: object
    cache: object
    reader: object = None  # what tamis.hf.attach gave


def read_by_torch(model, name, ids):
    """A copy of the model with an attention of transformers' own."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("sdpa")  # eager takes minutes to read so much
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids, use_cache=True, cache=cache, logits_to_keep=1)
    model.set_attn_implementation(name)
    return Way(name, model, cache)


def read_by_tamis(model, select, budget, dtype, context, ids):
    """The same with tamis attached."""
    model = copy.deepcopy(model)
    reader = tamis.hf.attach(model, select=select, budget=budget, dtype=dtype, device=context,
                             max_context=8192)
    name = f"tamis, {select}" + (f" {budget}" if budget else "")
    return Way(name, model, reader.read(ids), reader)


def decode(model, cache, token, count):
    """Times of `count` greedy tokens, and the tokens."""
    times, tokens = [], []
    with torch.no_grad():
        for _ in range(count):
            begin = time.perf_counter()
            logits = model(input_ids=token, use_cache=True, cache=cache).logits
            token = logits[:, -1:].argmax(-1)
            times.append(time.perf_counter() - begin)
            tokens.append(int(token))
    return times, tokens


def main():
    chosen = options()
    torch.set_num_threads(chosen.threads)
    transformers.logging.set_verbosity_error()
    load = {"pretrained_model_name_or_path": chosen.gguf.parent, "gguf_file": chosen.gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    dtype = getattr(torch, chosen.dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(**load, dtype=dtype).eval()
    ids = tokenizer(chosen.text.read_text(), return_tensors="pt").input_ids
    ids = ids.repeat(1, chosen.tokens // ids.shape[1] + 1)[:, :chosen.tokens]
    before, last = ids[:, :-1], ids[:, -1:]

    context = tamis.Context()
    ways = [read_by_torch(model, "eager", before), read_by_torch(model, "sdpa", before),
            read_by_tamis(model, "full", None, chosen.cache, context, before),
            read_by_tamis(model, "quest", chosen.budget, chosen.cache, context, before)]
    times = {way.name: [] for way in ways}
    texts = {way.name: [int(last)] for way in ways}
    for _ in range(chosen.rounds):
        for way in ways:
            took, tokens = decode(way.model, way.cache, torch.tensor([texts[way.name][-1:]]), chosen.each + 1)
            times[way.name] += took[1:]  # the first one warms caches up
            texts[way.name] += tokens
    medians = {name: statistics.median(took) for name, took in times.items()}
    base = medians[ways[-1].name]
    print(f"{chosen.gguf.name}, {chosen.dtype}, {chosen.tokens} tokens, {chosen.threads} threads, "
          f"{context.device.name}, {chosen.rounds} x {chosen.each} tokens\n")
    print("| attention | ms a token | times quest's | first tokens |\n|---|---|---|---|")
    for name, median in medians.items():
        print(f"| {name} | {median * 1e3:.1f} | {median / base:.2f} | {texts[name][1:5]} |")
    read = ways[-1].reader.counters
    print(f"\nquest read {read.kv_bytes_read / read.kv_bytes_full:.2f} of K and V")
    if chosen.json:
        chosen.json.write_text(json.dumps({"tokens": chosen.tokens, "budget": chosen.budget,
                                           "milliseconds": {n: m * 1e3 for n, m in medians.items()}},
                                          indent=1))


if __name__ == "__main__":
    main()
