# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by demo_real.sh: what it asks Gemma 3 270M. The text is Ruth, Jonah and most of Mark. The model
# is a base model, which goes on where the question ends.

sentence="The pass key is $key. Remember it. $key is the pass key."
lines=540 place=180
budget=1024
evict=''
questions=(
    'The pass key is'
    'What is the pass key? The pass key is'
    'Remember the pass key. The pass key is'
)
reads_it='Gemma 3 270M reads its 16,000 tokens once, a minute or two on two cores'
