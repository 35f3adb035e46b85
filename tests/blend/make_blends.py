#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what blends are held to: small models (tests/data/blends) and tests/data/blend_logits.h.

A forward pass of its own in float64 with NumPy, built on make_logits.py; shares no line with the
library. This is the rule that it computes, and that lib/blend must follow.

PROMPT. A list of parts, each of tokens: fresh, or a chunk that is stored, or a chunk that is missed
(it should be stored and is not, and counts as fresh). Row i of the prompt is its i-th token and has
position i. The last part is fresh.

CHUNK. Its K and V are computed from its tokens alone behind the sink: the sink's tokens have
positions 0 to s - 1, the chunk's from s on, then the sink's rows are dropped. Stored are, of every
layer, V and K as the matrix with its bias gives them: before a norm of heads, before the rotation. A
sliding window holds there as everywhere. Loading a row normalises heads of K and rotates them to the
row's position in the prompt.

ROWS. A row is exact if its chunk is stored and all that stands before the chunk in the prompt are
the tokens of the sink: its K and V are right where they stand. A row is a hit if its chunk is stored
and it is not exact. All others (fresh and missed) are fresh. n_hit is the number of hits.

LAYERS. h is the rows' hidden states; a row that is left out has none from then on.
  1. Layers before the check layer c = 1: K, V and attention of all rows, nothing is stored.
  2. Layer c: K and V of all rows are computed. dev[j] = sum over KV heads and channels of
     (V computed - V stored)^2, for the hits. K and V computed are installed for all rows. S_c is
     selected, and only its rows are attended and go on.
  3. Layers l = c + 1, ...: K and V of S_(l-1) are computed and installed, those of all other rows
     are the stored ones, rotated to their places. Where the schedule has a share for this layer, dev
     is measured anew for the hits of S_(l-1), before they are installed, and S_l is selected from
     them; else S_l = S_(l-1). Only S_l is attended and goes on.
  4. Logits are those of the prompt's last row.

MASK. By original position: row i sees the key of row j if j <= i, and under a sliding window w also
j > i - w, whichever rows are computed beside it.

SELECTORS. S_l has all fresh rows, none that is exact, and of the hits:
  none     none.
  all      all, and the exact ones: the logits are those of the whole prompt computed plainly.
  list     those that are listed. Fixed from the check layer on.
  first    the first n tokens of each stored chunk. Fixed from the check layer on.
  hkvd     k_l = ceil(share_l * n_hit), computed in double, of the largest dev, among two equal ones
           the lower row; never more than S_(l-1) has. share_l is the schedule's share i for layer
           c + i; the last share holds for the layers behind it, without a new selection. One share is
           the flat schedule. dev that is not a number counts as +infinity. (In the cases here
           share * n_hit is no integer, so that ceil does not hang on a last bit.)
  reuse    the other rule for full reuse: no layer is computed for all rows. S_l is the fresh rows
           from layer 0 on, K and V of all others are the stored ones in all layers. Not `none`, which
           has K and V of layers 0 and c computed for all rows.

The exact rows may be computed or loaded, in any layer: they are the same but for rounding.

The script writes nothing unless `all` equals make_logits.py's pass over the prompt, an exact row's
stored K and V equal the computed ones, wrong masks and left-out parts of the rule move the logits by
a bound, and the deviations at the edge of each selection differ by a part that no rounding reaches.

Usage: make_blends.py [--out tests/data]
"""
