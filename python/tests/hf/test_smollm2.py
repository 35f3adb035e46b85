# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct, from the file that tools/fetch_model.sh gets, in transformers through tamis."""
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

import tamis.hf  # noqa: E402

transformers.logging.set_verbosity_error()
_caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
FILE = pathlib.Path(_caches) / "tamis" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = pathlib.Path(__file__).resolve().parents[3] / "docs" / "examples" / "prompt.txt"


@pytest.mark.skipif(not FILE.exists(), reason="SmolLM2 is not there: tools/fetch_model.sh gets it")
def test_greedy_text_is_the_models_own():
    tokenizer = transformers.AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(FILE.parent, gguf_file=FILE.name,
                                                              dtype=torch.float32).eval()
    ids = tokenizer(TEXT.read_text()[:2000], return_tensors="pt").input_ids
    options = {"max_new_tokens": 100, "min_new_tokens": 100, "do_sample": False}
    own = model.generate(ids, **options)
    with tamis.hf.attach(model, select="full") as reader:
        ours = model.generate(ids, **options)
        assert reader.counters.rows_full == 30 * 99
    assert torch.equal(own, ours), tokenizer.decode(ours[0, ids.shape[1]:])
