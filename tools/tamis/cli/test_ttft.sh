#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `tamis bench ttft`: what each arm loads and computes, speeds that are stated, queues, what is refused.
# Usage: test_ttft.sh TAMIS DATA_FOLDER
# Exit status: 0 if all passed, 1 if something failed.
. "$(dirname "$0")/checks.sh"
small=(bench ttft --model "$data/needle.gguf" --chunk-tokens 48 --suffix 10 --repeat 2)

check_rows() {
    local device=$1
    expect 0 '' "${small[@]}" --device "$device" --chunks 2,3 --share 15,100 --store "$work/store" \
        --source memory,cached,disk --throttle 8MB --rate 50,5000 --requests 8 --json "$work/out.json"
    [ "$(find "$work/store" -name '*.kv' | wc -l)" -eq 6 ] || fail "$device: not 6 chunks are stored"
    json '
sources = ["memory", "cached", "disk", "8MB/s"]
arms = [("full", None, None), ("all", None, None)]
for s in sources:
    arms += [("prefix", s, None), ("reuse", s, None), ("blend", s, 0.15), ("blend", s, 1)]
ttft = [r for r in rows if r["what"] == "ttft"]
key = lambda r: (r["arm"], r["source"], r["share"])
for i, n in enumerate([2, 3]):
    of = ttft[i * len(arms):(i + 1) * len(arms)]
    assert [key(r) for r in of] == [(a, s, p if p is None else r["share"])
                                    for (a, s, p), r in zip(arms, of)], of
    tokens, hits = 48 * n + 10, 48 * (n - 1)
    for r in of:
        assert r["chunks"] == n and r["tokens"] == tokens, r
        assert 0 < r["ttft_s_lowest"] <= r["ttft_s"] <= r["ttft_s_highest"], r
        if r["arm"] == "full":
            assert r["speedup_over_full"] == 1 and r["speedup_bound"] == 1, r
            continue
        layers = r["layers"]
        assert len(layers) == 4, r
        busy = [l["load_us"] + l["compute_us"] for l in layers]
        near = lambda a, b: abs(a - b) < 1e-6 * max(a, b) + 1e-6
        assert near(r["pipeline_us"], sum(busy) + sum(l["wait_us"] for l in layers)), r
        assert near(r["longer_us"], sum(max(b, l["read_us"]) for b, l in zip(busy, layers))), r
        assert near(r["both_us"], sum(busy) + sum(l["read_us"] for l in layers)), r
        assert sum(l["bytes_read"] for l in layers) == r["bytes_read"], r
        loaded = {"all": 0, "prefix": 1, "reuse": n, "blend": n}[r["arm"]]
        if r["share"] == 1: loaded = 0
        exact = 48 if loaded else 0
        assert r["parts_found"] == loaded and r["tokens_exact"] == exact, r
        hit = hits if loaded == n else 0
        assert r["tokens_hit"] == hit and r["tokens_fresh"] == tokens - exact - hit, r
        computed = {"blend": -(-hit * 165 // 1000)}.get(r["arm"], 0) if loaded else 0
        assert r["tokens_selected"] == computed, (r, computed)
        plane = 48 * 2 * 64 * 2   # tokens, KV heads, channels, f16
        planes = 0 if not loaded else 8 if r["arm"] == "prefix" else 8 * n
        if r["arm"] == "blend" and loaded:
            planes = 8 + (n - 1) * 5  # the others: V of layer 1, both of the two layers behind it
        assert r["bytes_read"] == plane * planes, (r, plane * planes)
        last = layers[-1]["rows_attended"]
        assert last == r["tokens_fresh"] + r["tokens_selected"], r
        fraction = {"all": 1, "reuse": 10 / tokens, "prefix": (tokens - 48) / tokens}
        if r["arm"] in fraction: assert near(r["compute_fraction"], fraction[r["arm"]]), r
        if r["share"] == 1: assert near(r["compute_fraction"], 1), r
        if r["source"] == "8MB/s" and loaded:
            assert r["read_us"] >= 0.99 * r["bytes_read"] / 8, r
            assert r["ttft_s_lowest"] >= 0.99 * r["bytes_read"] / 8e6, r
assert 0 <= root["page_cache_kept"] <= 1
queues = [r for r in rows if r["what"] == "rate"]
assert [(r["rate"],) + key(r)[:2] for r in queues] == [(f,) + a[:2] for f in (50, 5000) for a in arms]
for r in queues:
    assert r["requests"] == 8 and r["chunks"] == 2, r
    assert 0 < r["ttft_s_p50"] <= r["ttft_s_p95"] and r["ttft_s_mean"] <= r["ttft_s_p95"], r
    assert 0 < r["busy"] <= 1.000001 and r["requests_per_s"] > 0, r
for slow, fast in zip(queues, queues[len(arms):]):
    assert slow["ttft_s_mean"] <= fast["ttft_s_mean"], (slow, fast)
'
}

# The controller's share is the one that follows from the times that it names, whatever they are.
check_auto() {
    local device=$1
    expect 0 '^memory: share [0-9.]+ %: reading takes' "${small[@]}" --device "$device" --chunks 3 \
        --share auto,15 --store "$work/store" --source memory --throttle 1MB --json "$work/out.json"
    export auto_lines
    auto_lines=$(grep ': share ' "$work/err")
    json '
import os, re
blends = [(r["source"], r["share_chosen"], r["share"]) for r in rows if r["arm"] == "blend"]
assert [b[:2] for b in blends] == [("memory", True), ("memory", False), ("1MB/s", True),
                                   ("1MB/s", False)], blends
hits, exact, fresh = 96, 48, 10
clamp = lambda load, compute: min(1, max(0.15, ((hits + exact) * load - fresh * compute) /
                                               (hits * compute)))
lines = os.environ["auto_lines"].splitlines()
assert len(lines) == 2, lines
for line, blend in zip(lines, blends[::2]):
    name, share, load, compute = re.match(
        r"(\S+): share (\S+) %: reading takes (\S+) us .* computing (\S+) us", line).groups()
    share, load, compute = float(share) / 100, float(load), float(compute)
    assert name == blend[0] and abs(share - blend[2]) <= 0.006 * share, (line, blend)
    low, high = clamp(load - 0.006, compute + 0.006), clamp(load + 0.006, max(compute - 0.006, 1e-9))
    assert low - 0.006 <= share <= high + 0.006, (line, low, high)
    # K and V of a token in a layer: 2 heads of 64 channels in f16.
    if name == "1MB/s": assert load >= 0.99 * 512, line
'
}

# The suffix asks in a pass of its own, which reads the chunks, too.
check_question() {
    expect 0 '' "${small[@]}" --device "$fast" --chunks 3 --select question --json "$work/out.json"
    json '
assert root["select"] == "question", root
blend, = [r for r in rows if r["arm"] == "blend"]
plane = 48 * 2 * 64 * 2   # tokens, KV heads, channels, f16
assert blend["bytes_read"] == plane * (8 * 3 + 8 + (3 - 1) * 4), blend
busy = sum(l["load_us"] + l["compute_us"] + l["wait_us"] for l in blend["layers"])
assert blend["ask_us"] > 0, blend
assert abs(blend["pipeline_us"] - busy - blend["ask_us"]) < 1e-6 * blend["pipeline_us"], blend
assert all(r["ask_us"] == 0 for r in rows if r["arm"] != "blend"), rows
'
}

# ask_server COMMAND: what it answers.
ask_server() {
    "$python" - "$socket" "$1" <<'END'
import socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
line.sendall(sys.argv[2].encode() + b'\r\nQUIT\r\n')
print(b''.join(iter(lambda: line.recv(65536), b'')).decode())
END
}

sent_bytes() {
    ask_server 'INFO stats' | sed -n 's/^total_net_output_bytes:\([0-9]*\).*/\1/p'
}

# interrupted PATTERN COMMAND...: the command runs in the middle of a run, which then fails with a line
# that matches.
interrupted() {
    local pattern=$1 run got=0
    shift
    # its --repeat is 1000 in the place of 2
    "$tamis" "${from_redis[@]/#2/1000}" >"$work/out" 2>"$work/err" &
    run=$!
    for _ in $(seq 1200); do
        ! grep -q 'round 2 of 1000' "$work/err" || break
        sleep 0.05
    done
    "$@" >"$work/done" || fail "$* fails"
    wait "$run" || got=$?
    [ "$got" -eq 1 ] || fail "$*: exit status $got, not 1"
    grep -qE "$pattern" "$work/err" || fail "$*: stderr lacks: $pattern"
}

# Chunks of a server are put there once, and each sample reads them from there.
check_redis() {
    local name='^tamis bench ttft:' of=(--prefix p: --database 1) from_redis before
    start_server || {
        echo "redis: skipped: $why"
        [ "$why" != 'built without hiredis' ] ||
            expect 1 "$name redis: .*: this build is without it" "${small[@]}" --redis x:1
        return
    }
    from_redis=("${small[@]}" --device "$fast" --chunks 3 --redis "$socket" "${of[@]}")
    expect 0 "^$socket: recording chunk 6 of 6" "${from_redis[@]}" --source redis --share auto \
        --rate 50 --requests 2 --json "$work/out.json"
    json 'assert [(r["what"], r["arm"], r["source"]) for r in rows] == [
    (w, a, s) for w in ("ttft", "rate") for a, s in
    (("full", None), ("all", None), ("prefix", "redis"), ("reuse", "redis"), ("blend", "redis"))]'
    succeeds '^6 records' store list --redis "$socket" "${of[@]}"
    before=$(sent_bytes)
    # Memory and redis, as without --source: memory must not answer for the server.
    expect 0 '^3 chunks: round 2 of 2' "${from_redis[@]}" --json "$work/out.json"
    ! grep -q "^$socket: recording" "$work/err" || fail 'chunks are put again'
    grep -qE '^blend +redis +15 ' "$work/out" || fail 'no row of redis'
    export sent
    sent=$(($(sent_bytes) - before))
    json '
import os
of = lambda source: [(r["arm"], r["parts_found"], r["bytes_read"]) for r in rows
                     if r["source"] == source]
assert [a[:2] for a in of("redis")] == [("prefix", 1), ("reuse", 3), ("blend", 3)], of("redis")
assert of("redis") == of("memory"), rows
passes = 1 + 2 + 3   # not counted, rounds, with times of layers
least = passes * sum(a[2] for a in of("redis"))
assert least > 0 and int(os.environ["sent"]) >= least, (os.environ["sent"], least)
'
    from_redis+=(--source redis)
    interrupted "$name [a-z]+ from redis: ([1-9][0-9]* chunks missed|.*, [1-9][0-9]* not read)" \
        "$tamis" store gc --redis "$socket" "${of[@]}" --bytes 1
    interrupted "$name [a-z]+ from redis: .*, [1-9][0-9]* calls to $socket failed" \
        kill -STOP "$server"
    kill -CONT "$server"
    stop_server
    expect 1 "$name redis $socket: .*connecting: " "${from_redis[@]}"
}

check_refused() {
    local name='^tamis bench ttft:'
    usage_error "$name --model: is missing" bench ttft
    usage_error "$name --share 0: must be above 0" "${small[@]}" --share 15,0
    usage_error "$name --share x: not a decimal" "${small[@]}" --share x
    usage_error "$name --share 5: more than 4 shares" "${small[@]}" --share 1,2,3,4,5
    usage_error "$name --rate 0: must be above 0" "${small[@]}" --rate 0
    usage_error "$name --rate x: not a decimal" "${small[@]}" --rate 1,x
    usage_error "$name --requests: belongs to --rate" "${small[@]}" --requests 5
    usage_error "$name --throttle 5: must be bytes a second" "${small[@]}" --store s --throttle 5
    usage_error "$name --throttle 5MX: must be bytes" "${small[@]}" --store s --throttle 5MX
    usage_error "$name --throttle 0MB: must be bytes" "${small[@]}" --store s --throttle 1GB,0MB
    usage_error "$name --store: is missing; 1MB/s reads a folder" "${small[@]}" --throttle 1MB
    usage_error "$name --store: is missing; disk reads a folder" "${small[@]}" --source disk
    usage_error "$name --redis: is missing; redis reads a server" "${small[@]}" --source redis
    usage_error "$name --redis: belongs to --source redis" "${small[@]}" --source memory --redis x:1
    usage_error "$name --prefix: belongs to --redis" "${small[@]}" --prefix x
    usage_error "$name --database: belongs to --redis" "${small[@]}" --database 1
    usage_error "$name --source: disk is given twice" "${small[@]}" --source disk,disk --store s
    usage_error "$name --share: 15 is given twice" "${small[@]}" --share 15,5,15
    usage_error "$name --share: auto is given twice" "${small[@]}" --share auto,auto
    usage_error "$name --throttle: 1000KB is given twice" "${small[@]}" --store s \
        --throttle 1MB,1000KB
    usage_error "$name --store: belongs to --source disk or cached" "${small[@]}" --store s \
        --source memory
    expect 1 "$name a prompt has [0-9]+ tokens; the model states a context of" "${small[@]}" \
        --device reference --chunks 1024
}

for device in "${devices[@]}"; do
    rm -rf "$work/store"
    check_rows "$device"
done
check_auto "$fast"
check_question
check_redis
check_refused
[ "$failures" -eq 0 ] || exit 1
echo 'ttft: all passed'
