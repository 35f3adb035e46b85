#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Measures `tamis serve` under load beside llama.cpp's server, on the CPU, over loopback, with
# SmolLM2-135M-Instruct (Q4_1). It takes a machine that does nothing else.
#
# The scenario `load`: requests to /v1/completions with prompts of different lengths, uniform
# between two bounds and no two with the same first token, and greedy answers of at most --tokens
# tokens. First a server's capacity is measured, in requests a second: 24 of the requests, --slots
# at once, the next one when one has ended. Then all requests arrive at random times (a Poisson
# process) at shares of that capacity, whether or not others have ended. Arms, each with --slots
# requests at once:
#   full           tamis, all keys
#   quest          tamis, decode rows read 1,024 tokens
#   full-limit     tamis, all keys, the cache has --limit tokens: requests are preempted
#   snapkv-limit   tamis, the same cache, prompts are evicted to 1,024 tokens a lane
#   llama          llama.cpp's server: cache f16, as many slots with room for the longest request
# Nothing of a prompt is kept for another. llama.cpp's flash attention is as its server has it.
#
# The scenario `documents`: chats, one after another, each with 4 of 20 documents of about 400
# tokens in drawn order, and a question. Document n comes as often as 1/n. Arms:
#   blend          documents are parts of the message; a store keeps them, and they are blended
#   prefix         plain text; equal beginnings are shared
#   none           plain text, nothing is shared; answers of the others are compared with these
#
# Servers run one at a time: in each round every arm in the order above, in even rounds backwards.
# Within an arm come a warm-up, the capacity and the rates, lowest first. What was measured is kept
# with all samples in --out, a file for each arm, round and rate, once it is complete. A run with
# the same --out leaves out what is there; it fails where that was measured with other settings. A
# request that is answered with 429 or 503 counts as refused and is not sent again.
#
# llama.cpp is that of PyPI's package llama-cpp-python (77 MB), 0.3.36 or newer. It is kept and
# built (5 minutes on two cores) in the user's cache folder, $XDG_CACHE_HOME or ~/.cache, under
# tamis/llama.cpp.
#
# --rates, --lengths and --limit are of the scenario `load` alone.
#
# Usage: serve_load.sh --out DIR [OPTIONS]
#        serve_load.sh --out DIR --table    prints the table of what is in DIR, and measures nothing
#   --out DIR          keeps what was measured, and what servers say
#   --scenario S       load or documents (default load)
#   --arms A[,A]       some of the arms above (default all of the scenario)
#   --tamis FILE       the program (default build/tamis of this tree)
#   --rates R[,R]      shares of the capacity (default 0.5,0.8,1.2)
#   --requests N       (default 60)
#   --lengths N,N      tokens of the shortest and of the longest prompt (default 200,4000)
#   --tokens N         of an answer at most (default 64)
#   --slots N          requests that a server runs at once (default 8)
#   --limit N          tokens in the cache of the arms with a limit (default 13312)
#   --threads N        of a server (default 2)
#   --rounds N         (default 1)
#   --seed N           what is drawn (default 1)
#   --version V        of llama-cpp-python (default the newest)
#   --folder DIR       keeps llama.cpp's source and build, in place of the cache folder
# CMAKE_BUILD_PARALLEL_LEVEL is how many jobs build (default one for each processor).
# Exit status: 0 the table was printed; 1 something is missing or failed, stderr says what; 2 wrong
# usage; 3 the registry cannot be reached, or there is no pip to ask it with.
set -eu
. "$(dirname "$0")/llama_cpp.sh"

names='scenario arms rates requests lengths tokens slots limit threads rounds seed'
table=no words=()
for word in "$@"; do
    if [ "$word" = --table ]; then table=yes; else words+=("$word"); fi
done
for name in $names; do
    printf -v "$name" ''
done
read_options "$names tamis version folder out" "${words[@]}"
print_table() {
    python3 "$tools/serve_load/table.py" "$out" >&3
}
if [ "$table" = yes ]; then
    [ -n "$out" ] || refuse '--table: takes --out DIR, where results are'
    print_table
    exit
fi

pass=(--out "$out")
for name in $names; do
    [ -z "${!name}" ] || pass+=("--$name" "${!name}")
done
measure=$tools/serve_load/measure.py
arms=$(python3 "$measure" --check "${pass[@]}")
check_options
mkdir -p "$out" || fail "$out: cannot be made"
lock_folder
model=$("$tools/fetch_model.sh" smollm2 9>&-)
pass+=(--model "$model" --tamis "$tamis")
case " $arms " in
*' llama '*)
    make_llama server ON llama-server
    pass+=(--llama "$build/bin/llama-server")
    ;;
esac

python3 "$measure" "${pass[@]}" 3>&- 9>&- &
measuring=$!
trap 'kill "$measuring" 2>/dev/null || true; wait "$measuring" || true; rm -rf "$work"' EXIT
wait "$measuring"
print_table
