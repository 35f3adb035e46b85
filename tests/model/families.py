# SPDX-License-Identifier: Apache-2.0
"""The forward pass of every family, in float64 with NumPy: what make_models.py holds llama.cpp and
the library to.

A file's keys and tensors say most of what its model computes: a norm is where its tensor is, a
product is fused where its tensor is. The table says the rest. Shares no line with the library.
"""
import copy
import dataclasses

import numpy as np

from make_logits import Model


def silu(x):
    return x * 0.5 * (1 + np.tanh(x / 2))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def gelu_by_halves(x):
    """llama.cpp's: a table of halves by halves."""
    rounded = x.astype(np.float16).astype(np.float64)
    return gelu(rounded).astype(np.float16).astype(np.float64)


def squared_relu(x):
    return np.maximum(x, 0) ** 2


@dataclasses.dataclass(frozen=True)
class Family:
    """What no key or tensor of a file says."""
    adjacent: bool = False  # a pair of channels is 2 i and 2 i + 1; else i and i + n_rot / 2
    layer_norm: bool = False  # norms take off the mean
    bare_norms: tuple = ()  # norms that have no tensor
    ffn_norm: str = 'ffn_norm'  # the tensor of the norm before the FFN
    parallel: bool = False  # without that norm, the FFN reads what attention reads
    activation: callable = silu
    rooted: bool = False  # embeddings are multiplied by the root of the width
    divided: bool = False  # logits are divided by logit_scale; else multiplied
    pattern: int = 0  # of so many layers the last one is global; 0: all are local
    unrotated: str = ''  # layers without rotation: 'global', every 'fourth'
    local_base: float = None  # of local layers, where no key says it; 0: that of global ones;
    # None: it is always that
    local_plain: bool = False  # local layers rotate without scaling
    late_norms: bool = False  # norms of heads come behind the rotation
    wide: int = 0  # a model of so many layers divides q k by the root of width / heads
    defaults: dict = dataclasses.field(default_factory=dict)


GEMMA = Family(rooted=True, activation=gelu)
FAMILIES = {
    'llama': Family(adjacent=True),
    'mistral3': Family(adjacent=True),
    'qwen2': Family(),
    'qwen3': Family(),
    'gemma': GEMMA,
    'gemma2': dataclasses.replace(GEMMA, pattern=2, wide=46, local_base=0, defaults={
        'attention.sliding_window': 4096, 'attn_logit_softcapping': 50.0,
        'final_logit_softcapping': 30.0}),
    'gemma3': dataclasses.replace(GEMMA, pattern=6, wide=62, local_base=10000.0, local_plain=True),
    'phi3': Family(),
    'glm4': Family(adjacent=True),
    'chatglm': Family(adjacent=True),
    'olmo2': Family(pattern=4, local_plain=True),
    'granite': Family(adjacent=True, divided=True),
    'minicpm': Family(adjacent=True, divided=True, defaults={
        'embedding_scale': 12.0, 'residual_scale': lambda m: 1.4 / np.sqrt(m.layers),
        'logit_scale': lambda m: 256 / m.dim}),
    'smollm3': Family(adjacent=True, unrotated='fourth'),
    'starcoder2': Family(layer_norm=True, activation=gelu),
    'exaone': Family(),
    'exaone4': Family(pattern=4, unrotated='global'),
    'internlm2': Family(adjacent=True),
    'command-r': Family(adjacent=True, layer_norm=True, parallel=True),
    'cohere2': Family(adjacent=True, layer_norm=True, parallel=True, pattern=4, unrotated='global'),
    'stablelm': Family(layer_norm=True, parallel=True),
    'nemotron': Family(layer_norm=True, activation=squared_relu),
    'qwen': Family(),
    'phi2': Family(layer_norm=True, parallel=True, activation=gelu),
    'gptneox': Family(layer_norm=True, activation=gelu),
    'falcon': Family(layer_norm=True, parallel=True, activation=gelu),
    'olmo': Family(adjacent=True, layer_norm=True,
                   bare_norms=('attn_norm', 'ffn_norm', 'output_norm')),
    'orion': Family(layer_norm=True),
    'xverse': Family(adjacent=True),
    'arcee': Family(adjacent=True, activation=squared_relu),
    'seed_oss': Family(ffn_norm='post_attention_norm'),
    'ernie4_5': Family(adjacent=True),
    'hunyuan-dense': Family(late_norms=True),
}


class FamilyModel(Model):
    def __init__(self, gguf, context, family=None):
        """`context`: what an engine is opened with. It decides between long and short factors."""
        super().__init__(gguf)
        self.context, self.family = context, family or FAMILIES[self.arch]
        self.meta = gguf.meta
        self.dim = self.get('embedding_length')
        epsilons = [self.get('attention.layer_norm_%sepsilon' % kind) for kind in ('rms_', '')]
        self.eps = epsilons[self.family.layer_norm] or max(filter(None, epsilons))
        self.window = self.get('attention.sliding_window') or 0
        self.scaling = {'longrope': 'linear'}.get(self.scaling, self.scaling)

    def get(self, key, absent=None):
        if absent is None or key in self.family.defaults:
            absent = self.family.defaults.get(key)
        value = self.meta.get(self.arch + '.' + key, absent)
        return value(self) if callable(value) else value

    def has(self, name):
        return name + '.weight' in self.w

    def norm(self, name, x):
        """x itself where the model has no such norm."""
        weight = self.w.get(name + '.weight')
        if weight is None and name.split('.')[-1] not in self.family.bare_norms:
            return x
        if self.family.layer_norm:
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        return x * (1 if weight is None else weight) + self.w.get(name + '.bias', 0.0)

    def is_local(self, layer):
        pattern = self.get('attention.sliding_window_pattern', self.family.pattern)
        if not self.window:
            return False
        if isinstance(pattern, list):
            return bool(pattern[layer])
        return pattern == 0 or layer % pattern < pattern - 1

    def turns(self, layer):
        """Radians per position of each pair, and what rotated channels are multiplied by."""
        model, family = self, self.family
        if self.is_local(layer):
            model = copy.copy(self)
            if family.local_base is not None:
                model.base = self.get('rope.freq_base_swa', family.local_base) or self.base
            if family.local_plain:
                model.scaling = 'none'
                model.attention = 1.0 if family.local_base is None else self.attention
        turns, magnitude = Model.turns(model)
        if stretch := self.get('rope.scaling.yarn_log_multiplier'):
            magnitude /= 0.1 * stretch * np.log(self.factor) + 1
        length = 'long' if self.context > self.original else 'short'
        return turns / self.w.get('rope_factors_%s.weight' % length, 1.0), magnitude

    def is_rotated(self, layer):
        if self.family.unrotated == 'fourth':
            return (layer + 1) % 4 != 0
        if self.family.unrotated == 'global' and self.window:
            return self.is_local(layer)
        return self.arch != 'granite' or self.get('rope.scaling.finetuned', True)

    def rotate_heads(self, layer, x, first):
        if not self.is_rotated(layer):
            return x
        turns, magnitude = self.turns(layer)
        angle = (np.arange(first, first + len(x))[:, None] * turns)[:, None, :]
        pairs = np.arange(self.n_rot).reshape((-1, 2) if self.family.adjacent else (2, -1))
        one, two = pairs.T if self.family.adjacent else pairs
        out = x.copy()
        out[..., one] = magnitude * (x[..., one] * np.cos(angle) - x[..., two] * np.sin(angle))
        out[..., two] = magnitude * (x[..., one] * np.sin(angle) + x[..., two] * np.cos(angle))
        return out

    def norm_heads(self, name, x):
        """A norm of each head with one weight or its own, or of the whole row."""
        weight = self.w.get(name + '.weight')
        if weight is not None and weight.shape == x[0].ravel().shape:
            return self.norm(name, x.reshape(len(x), -1)).reshape(x.shape)
        return self.norm(name, x)

    def qkv(self, layer, x):
        blk, widths = 'blk.%d.' % layer, [n * self.head_dim for n in (self.heads, self.kv_heads)]
        if self.has(blk + 'attn_qkv'):
            rows = np.split(self.project(layer, 'attn_qkv', x), np.cumsum(widths), axis=1)
        else:
            rows = [self.project(layer, name, x) for name in ('attn_q', 'attn_k', 'attn_v')]
        most = self.get('attention.clamp_kqv', np.inf)
        return [np.clip(row, -most, most).reshape(len(x), -1, self.head_dim) for row in rows]

    def attend(self, layer, x, past):
        n, first, group = len(x), len(past[layer][0]), self.heads // self.kv_heads
        *qk, v = self.qkv(layer, x)
        names = ['blk.%d.attn_%s_norm' % (layer, which) for which in 'qk']
        for i, name in enumerate(names):
            if self.family.late_norms:
                qk[i] = self.norm_heads(name, self.rotate_heads(layer, qk[i], first))
            else:
                qk[i] = self.rotate_heads(layer, self.norm_heads(name, qk[i]), first)
        steps = np.arange(first, first + n) // self.original
        heat = 1 + (self.get('attention.temperature_scale') or 0) * np.log(1 + steps)
        q = qk[0] * heat[:, None, None]
        k, v = past[layer] = [np.concatenate(pair) for pair in zip(past[layer], (qk[1], v))]
        wide = self.family.wide and self.layers == self.family.wide
        scale = (self.get('attention.scale')
                 or (self.dim // self.heads if wide else self.head_dim) ** -0.5)
        cap = self.get('attn_logit_softcapping')
        distance = np.arange(first, first + n)[:, None] - np.arange(first + n)
        hidden = (distance < 0) | ((distance >= self.window) if self.is_local(layer) else False)
        out = np.empty_like(q)
        for head in range(self.heads):
            logits = q[:, head] @ k[:, head // group].T * scale
            logits = cap * np.tanh(logits / cap) if cap else logits
            logits[hidden] = -np.inf
            p = np.exp(logits - logits.max(1, keepdims=True))
            out[:, head] = p / p.sum(1, keepdims=True) @ v[:, head // group]
        return self.project(layer, 'attn_output', out.reshape(n, -1))

    def feed(self, layer, x):
        up, act = self.project(layer, 'ffn_up', x), self.family.activation
        if self.has('blk.%d.ffn_gate' % layer):
            up = act(self.project(layer, 'ffn_gate', x)) * up
        elif up.shape[1] == self.w['blk.%d.ffn_down.weight' % layer].shape[1]:
            up = act(up)
        else:
            gate, up = np.split(up, 2, axis=1)
            up = act(gate) * up
        return self.project(layer, 'ffn_down', up)

    def advance(self, layer, x, past):
        norm = lambda name, x: self.norm('blk.%d.%s' % (layer, name), x)
        family, scale = self.family, self.get('residual_scale') or 1.0
        h = norm('attn_norm', x)
        second = self.has('blk.%d.attn_norm_2' % layer)
        attended = self.attend(layer, norm('attn_norm_2', x) if second else h, past)
        if family.ffn_norm != 'post_attention_norm':
            attended = norm('post_attention_norm', attended)
        after = x + scale * attended
        if self.arch == 'gptneox' and self.get('use_parallel_residual'):
            h = norm(family.ffn_norm, x)
        elif self.has('blk.%d.%s' % (layer, family.ffn_norm)) or not family.parallel:
            h = norm(family.ffn_norm, after)
        return after + scale * norm('post_ffw_norm', self.feed(layer, h))

    def logits(self, tokens, past=None, last=None):
        past = self.empty() if past is None else past
        x = self.w['token_embd.weight'][tokens] * (self.get('embedding_scale') or 1.0)
        x = x * (np.sqrt(self.dim) if self.family.rooted else 1)
        for layer in range(self.layers):
            x = self.advance(layer, x, past)
        x = self.norm('output_norm', x[-last:] if last else x)
        logits = x @ self.w.get('output.weight', self.w['token_embd.weight']).T
        logits = logits + self.w.get('output.bias', 0.0)
        scale = self.get('logit_scale') or 1.0
        logits = logits / scale if self.family.divided else logits * scale
        cap = self.get('final_logit_softcapping')
        return cap * np.tanh(logits / cap) if cap else logits
