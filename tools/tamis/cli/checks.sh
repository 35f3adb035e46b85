# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: Apache-2.0
# What the tests of the command line share; sourced by those that are run as TEST.sh TAMIS DATA_FOLDER.
set -u
tamis=${1:?}
data=${2:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
unset TAMIS_DEVICE TAMIS_LOG
export TAMIS_SETTINGS=none # the user's own file is not tested
export TAMIS_CUDA_DRIVER=$work/none # a GPU would serve where the reference is meant

fail() {
    printf 'FAIL %s\n' "$*"
    sed 's/^/     stderr: /' "$work/err"
    failures=$((failures + 1))
}

# expect STATUS PATTERN ARGUMENT...: exit status, and a line of stderr that matches.
expect() {
    local status=$1 pattern=$2 got=0
    shift 2
    "$tamis" "$@" >"$work/out" 2>"$work/err" || got=$?
    [ "$got" -eq "$status" ] || fail "tamis $*: exit status $got, not $status"
    [ -z "$pattern" ] || grep -qE -e "$pattern" "$work/err" ||
        fail "tamis $*: stderr lacks: $pattern"
}

# usage_error PATTERN ARGUMENT...: exit status 2 and one line on stderr, nothing on stdout.
usage_error() {
    expect 2 "$@"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "tamis ${*:2}: more than one line"
    [ ! -s "$work/out" ] || fail "tamis ${*:2}: output on stdout"
}

# succeeds PATTERN ARGUMENT...: exit status 0 and stdout that matches.
succeeds() {
    local pattern=$1
    shift
    expect 0 '' "$@"
    grep -qE -e "$pattern" "$work/out" || fail "tamis $*: stdout lacks: $pattern"
}

# Small enough for the reference: a bench, and a model that answers.
small=(bench attention --shape llama3-8b --context 192 --budget 128 --layers 1 --repeat 1
    --device reference)
model=(run --model "$data/needle.gguf" --device reference)

# What makes other models of that one.
python=$(command -v python3)
keys=$(dirname "${BASH_SOURCE[0]}")/gguf_keys.py

# A chat template as Mistral's first: its tags are text, the system text is a part of the first question.
inst_template="{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\\n\\n' %}\
{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{{ bos_token }}\
{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + (system if loop.first else '') + \
m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"

# json CODE: Python that sees $work/out.json as `root`, its rows as `rows`.
json() {
    "$python" - "$work/out.json" "$1" <<'END' || fail "${FUNCNAME[1]}: not as it should be: $1"
import json, sys
root = json.load(open(sys.argv[1]))
rows = root['rows']
exec(sys.argv[2])
END
}

# start_server: a Redis or Valkey server at $socket, which is the process $server. Returns 1 where
# there is none, or where the build is without it; $why says which.
start_server() {
    local name
    socket=$work/socket
    # redis-check-rdb is the server, too, where it is called so.
    name=$(command -v redis-server || command -v redis-check-rdb || command -v valkey-server) ||
        { why='neither redis-server nor valkey-server is installed'; return 1; }
    "$tamis" store list --redis "$socket" >/dev/null 2>"$work/err"
    ! grep -q 'this build is without it' "$work/err" || { why='built without hiredis'; return 1; }
    (exec -a redis-server "$name" --port 0 --unixsocket "$socket" --save '' --appendonly no \
        --dir "$work" --logfile /dev/null) &
    server=$!
    trap '[ -z "$server" ] || kill -9 "$server"; rm -rf "$work"' EXIT
    for _ in $(seq 200); do
        [ ! -S "$socket" ] || return 0
        sleep 0.05
    done
    fail 'the server has not started'
}

stop_server() {
    kill "$server"
    wait "$server" 2>/dev/null
    server= # the number may be another process's from now on
}

# The devices to measure on, and the fastest of them.
devices=(reference)
"$tamis" devices 2>"$work/err" | grep -qE '^opencl:0 .* usable' && devices+=(opencl:0)
fast=${devices[-1]}

# holds CONDITION NAME=VALUE...: an awk expression over numbers.
holds() {
    local condition=$1 name sets=()
    shift
    for name in "$@"; do
        [[ "$name" =~ =[0-9.]+$ ]] || return 1
        sets+=(-v "$name")
    done
    awk "${sets[@]}" "BEGIN { exit !($condition) }"
}
