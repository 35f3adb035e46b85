# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by demo_real.sh: what it asks SmolLM2-135M-Instruct. The text is Ruth, Jonah and the beginning of
# Mark; a fourth arm is an eviction, snapkv.

# Twice, as in the pass keys of Mohtashami and Jaggi: quest reads whole pages, and a number whose digits
# stand in two pages may come out as the half of one.
sentence="The special magic number is $key. Remember it. $key is the special magic number."
lines=200 place=70 # of the text, and behind which the sentence stands
budget=2048        # tokens that quest and window read of each lane, and snapkv keeps
evict=snapkv
questions=(
    'What is the special magic number?'
    'What is the special magic number mentioned in the text?'
    'Tell me the special magic number.'
)
reads_it='SmolLM2-135M reads its 7,000 tokens once, one to three minutes on two cores'
