#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shows that the checker catches broken kernels: one wrong line in each file, one write past the
# end, and, under oclgrind, one missing barrier. Fails when a mutant survives or the unbroken kernels
# do not pass.
# 77 without an OpenCL device or without oclgrind.
# usage: mutants.sh <tamis-check> <cl_kernels>
set -u
check=$1
kernels=$2
here=$(dirname "$0")
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
survivors=0
export TAMIS_OPENCL_WAIT=1 # also where not all cores run at a time: the form that is changed runs

command -v oclgrind >/dev/null || { echo "oclgrind is not installed"; exit 77; }

# restore: fresh copies of all kernels.
restore() {
    rm -rf "$work/kernels"
    cp -r "$kernels" "$work/kernels" || exit 2
}

# mutate <file> <sed script>: the script must change the copy.
mutate() {
    restore
    sed "$2" "$kernels/$1" >"$work/kernels/$1"
    cmp -s "$kernels/$1" "$work/kernels/$1" && { echo "'$2' does not change $1"; exit 2; }
}

# caught <what> <text that must appear> <command...>: the command must fail and say so.
caught() {
    what=$1 text=$2
    shift 2
    if TAMIS_KERNEL_DIR=$work/kernels "$@" </dev/null >"$work/log" 2>&1 || ! grep -q "$text" "$work/log"; then
        echo "SURVIVED: $what"
        cat "$work/log"
        survivors=$((survivors + 1))
        return
    fi
    echo "caught: $what: $(grep -m 1 "$text" "$work/log" | cut -c 1-140)"
}

base="--device opencl --form base --list smoke"
small="--form base --list oclgrind score_pages"
restore
TAMIS_KERNEL_DIR=$work/kernels "$check" --device opencl --list smoke >"$work/log" 2>&1
status=$?
[ $status -eq 77 ] && { cat "$work/log"; exit 77; }
[ $status -eq 0 ] || { echo "the unbroken kernels fail:"; cat "$work/log"; exit 1; }
TAMIS_KERNEL_DIR=$work/kernels sh "$here/oclgrind.sh" "$check" --device opencl $small >"$work/log" 2>&1 ||
    { echo "the unbroken kernels fail under oclgrind:"; cat "$work/log"; exit 1; }

# form_of <file>: which form's cases may catch a mutant of it. The device decides which shape of the
# CPU forms of attention is the other one.
form_of() {
    case $1 in
    attend_narrow.clh | attend_wide.clh) ;;
    *cpu*) echo --form cpu ;;
    *gpu*) echo --form gpu ;;
    *) echo --form base ;;
    esac
}

# One mutant of each file, by the op whose cases must catch it. The probe's kernels (probe.cl,
# probe_cpu.cl) are no ops: that they read all pages is a matter of tests/api/read_limit.c.
while IFS='|' read -r file op script; do
    mutate "$file" "$script"
    # shellcheck disable=SC2046 # two words or none
    caught "$file: $script" "FAIL $op" \
        "$check" --device opencl --list smoke --first $(form_of "$file") "$op"
done <<'LIST'
activate.cl|activate|s/vload16(0, u + first)/vload16(0, g + first)/
activate.clh|activate|s/1.0f + h \* h/1.0f + h/
logit.clh|attend|s/tanh(x \/ rule.soft_cap)/(x \/ rule.soft_cap)/
norm_cpu.cl|norm|s/accumulate ? to/0 ? to/
argmax_cpu.cl|argmax|s/k == best \&\& at < index/k == best/
argmax.cl|argmax|s/best_index\[other\] < best_index/best_index[other] > best_index/
attend.cl|attend|s/VALUE_ROW(page_of\[key\]/KEY_ROW(page_of[key]/
attend_gpu.cl|attend|s/VALUE_ROW(places/KEY_ROW(places/
attend_cpu.cl|attend|s/last = min(seen - ordinal \* PAGE_SIZE, PAGE_SIZE)/last = PAGE_SIZE/
attend_cpu.cl|observed_attend|s/old + joined/joined/
attend_cpu.cl|write_attend|s/== newest) WRITE_OWN/== 0) WRITE_OWN/
attend_cpu.clh|attend|s/total \*= old;/total *= 1.0f;/
attend_cpu.clh|attend|s/s->whole_total\[g\] \* old/s->whole_total[g]/
attend_cpu.clh|attend|s/widen_half16(from + 16 \* i)/widen_half16(from)/
attend_narrow.clh|attend|s/w\[g\] = weight\[/w[g] = 2 * weight[/
attend_rows_cpu.cl|attend|s/s->whole\[d\]\[b\] \* old/s->whole[d][b]/
attend_rows_cpu.cl|attend|s/quarter\[0\]\[i\]\[b\] + quarter\[2\]\[i\]\[b\]/quarter[0][i][b] + quarter[0][i][b]/
attend_wide.clh|attend|s/const float16 w = weight\[/const float16 w = 2 * weight[/
bounds.cl|bounds|s/store16(hi\[0\], pair/store16(lo[0], pair/
bounds.cl|bounds|s/larger(q8_largest(lo\[i\]), /(/
bounds.cl|bounds|s/kind != MEAN, pair/true, pair/
bounds.clh|score_pages|s,scales\[channel / Q8_BLOCK\],scales[0],
common.clh|read_rows|s/row.scales\[c \/ Q8_BLOCK\]/row.scales[0]/
common.clh|attend|s/(row).scales + (c) \/ Q8_BLOCK \* 2/(row).scales/
common.clh|attend|s/VALUE_SLOT_STRIDE apart_slot_stride/VALUE_SLOT_STRIDE slot_stride/
common.clh|attend|s/VALUE_CHANNEL_STRIDE apart_channel_stride/VALUE_CHANNEL_STRIDE channel_stride/
cpu.clh|attend|s/arg.apart_slot_stride}/arg.slot_stride}/
common.clh|argmax|s/u & 0x80000000u ? ~u : u/u \& 0x80000000u ? u : u/
compact.cl|compact|s/vstore16(held\[i\]/vstore16(held[0]/
compact.cl|compact|s/of\[b\] = held\[b\]/of[b] = held[0]/
compact.cl|copy_slots|s/copied\[i\] = old\[i\]/copied[i] = old[0]/
cpu.clh|observe|s/q8_widen(row.scales\[block\])/q8_widen(row.scales[0])/
cpu.clh|attend|s,(1.0f / 6),(1.0f / 7),
elements_cpu.clh|attend|s/high ? bytes >> 4/high ? bytes >> 5/
elements.clh|read_rows|s/convert_uint16(vload16(0, p)) << 16/convert_uint16(vload16(0, p)) << 15/
deviation.cl|deviation|s/if (values) held/if (!values) held/
embed.cl|embed|s/tokens\[tokens_offset + row\]/tokens[tokens_offset]/
fuse.cl|fuse|s/a \* value + b \* other/a * value - b * other/
key.cl|key_score|s/norm_of(ROW_AT(slot), HEAD_DIM,/norm_of(ROW_AT(slot), HEAD_DIM \/ 2,/
linear.cl|linear|s/all += bias ?/all -= bias ?/
linear_chain_cpu.cl|linear|s/out\[o\] += p->y/out[o] -= p->y/
linear_cpu.cl|linear|s/start += load_part(bias/start -= load_part(bias/
linear_cpu.clh|linear_parts|s/of.scale \* load_f32(norm + i)/load_f32(norm + i)/
linear_parts.cl|linear_parts|s/p = second;/p = third;/
linear_parts.cl|linear_parts|s/= input1(&rows, r, i)/= input1(\&addend, r, i)/
linear_parts_gpu.cl|linear_parts|s/p = second;/p = third;/
linear_parts_gpu.cl|linear_parts|s/= input1(&rows, r, i)/= input1(\&addend, r, i)/
linear_type_gpu.clh|linear|s/i % 8 ? both.hi/i % 8 ? both.lo/
linear_parts.clh|linear_parts|s/n.bias_at), n.n_out/n.w_at), n.n_out/
linear_chain_cpu.cl|linear_parts|s/out\[o\] += p->bias/out[o] -= p->bias/
linear_chain_cpu.cl|linear_chain|s/c.stages\[at - 1\].parts : parts/1 : parts/
linear_chain_cpu.cl|linear_chain|s/here.first = s->n_in/here.first = here.first/
linear_type_cpu.clh|linear|s/\.lo + sum\[o\]/.lo - sum[o]/
load.cl|load_rows|s/to + value_offset, /to, /
mass.cl|page_mass|s/= top + log(sum)/= top - log(sum)/
merge.cl|merge|s/joint = top + log(total)/joint = top - log(total)/
merge_cpu.cl|merge|s/top + log(total)/top - log(total)/
norm.cl|norm|s/ + eps)/ - eps)/
observe.cl|observe|s/mate\] = pair.x + pair.y/mate] = pair.x - pair.y/
observe.clh|observe|s/INFINITY : lse/INFINITY : -lse/
observe_cpu.cl|observe|s/old + x : isnan/old - x : isnan/
pages.cl|copy_pages|s/pair.y \* block_words/pair.x * block_words/
pool.cl|pool_values|s/at <= slot + reach/at < slot + reach/
project.clh|value_norm|s/turn \* SLOTS + slot/slot/
q8.clh|write_rows|s/first > second ? first/first > second ? second/
q8.clh|bounds|s/return -q8_below16(-x, d)/return q8_below16(x, d)/
q8.clh|write_rows|s/first < second ? first/first < second ? second/
q8.clh|read_rows|s/high ? 4 : 0/high ? 3 : 0/
replace.cl|replace|s/slot += WG_SIZE/slot += 2 * WG_SIZE/
replace.clh|replace|s/a.z < (int)b.z/a.z > (int)b.z/
replace_rows_cpu.cl|replace_rows|s/t.position < lowest.position/t.position > lowest.position/
replace_rows_cpu.cl|replace_rows|s/(uint)slot \/ PAGE_SIZE >= seen/(uint)slot \/ PAGE_SIZE > seen/
rotate.cl|rotate|s/b = at\[second\]/b = -at[second]/
rotate.clh|write_rotated|s/x \* turn + y \* c/x * turn - y * c/
rows.clh|write_rows|s/(page) + arg.value_offset/(page)/
rows.clh|write_rotated|s/first + n_pairs;/first + 16;/
rows.clh|write_rotated|s/HEAD_DIM \/ 16; c++)$/HEAD_DIM \/ 16 - 1; c++)/
scatter.cl|scatter_rows|s/target \* y_stride/row * y_stride/
convert.cl|convert|s/first + 16 <= width/first < width/
source.clh|convert|s/<< 16);/<< 15);/
take_lists.cl|take_lists|s/entry < next/entry + 1 < next/
score.cl|score_pages|s/load_bound16(pair, 1,/load_bound16(pair, 0,/
score_cpu.cl|score_pages|s/min(full, first/min(full - 1, first/
score_cpu.clh|score_pages|s/s->below\[g\]\[j\], x/s->below[g][j], y/
score_q8_cpu.clh|score_pages|s/(float16)(scale\[b\])/(float16)(scale[0])/
score_q8_cpu.clh|score_pages|s/(lo & ~s->positive\[j\])/(lo \& s->positive[j])/
score_rows.cl|score_rows|s/-norm_of(row_of/norm_of(row_of/
sink.cl|sink|s/exp(sink - before)/exp(before - sink)/
logit.clh|page_mass|s/log1p(exp(low - top))/log1p(exp(top - low))/
seek.cl|seek|s/\] < wanted)/] <= wanted)/
select.cl|select|s/before_equal >= skip)/before_equal < skip)/
select_cpu.cl|select|s/k, sinks, recent,/k, recent, sinks,/
select_cpu.clh|select|s/pass <= 0/pass >= 0/
select_wide.cl|select_wide|s/i >= ends.y/i > ends.y/
select_wide.clh|select_wide|s/l.seen - l.recent : 0/l.seen : 0/
select_wide_cpu.cl|select_wide|s/taken += words\[i\] >= (uint)low/taken += words[i] > (uint)low/
sparse_attend_cpu.cl|sparse_attend|s/seen - list\[first + n - 1\] \* PAGE_SIZE/PAGE_SIZE/
sparse_attend_cpu.cl|sparse_attend|s/first = whole ? 0 : part \* PIECE_PAGES/first = 0/
value.cl|value_norm|s/norm_of(ROW_AT(slot), HEAD_DIM,/norm_of(ROW_AT(slot), HEAD_DIM \/ 2,/
value_cpu.cl|value_norm|s,norm\[b\] += fabs(sums\[j\]\[b\]),norm[b] += sums[j][b],
weigh_cpu.clh|observe|s/x > 88.7f/x > 0.0f/
write_cpu.clh|write_attend|s/if (norm) norm_head(to, norm, eps);//
write_cpu.clh|write_sparse_attend|s/q_norm, row/k_norm, row/
weights.clh|embed|s/0x38000000u/0x38800000u/
weights_type.clh|embed|s/e)) + f16_at(block + 2)/e)) - f16_at(block + 2)/
LIST
for file in "$kernels"/*; do
    case ${file##*/} in
    probe.cl | probe_cpu.cl) ;;
    attention_cpu.cl | cache_cpu.cl | small_cpu.cl | weights_cpu.cl) ;; # join other files
    *) grep -q "^${file##*/}|" "$0" || { echo "no mutant of ${file##*/}"; survivors=$((survivors + 1)); } ;;
    esac
done

mutate argmax.cl 's/out\[out_offset + row\] =/out[out_offset + n_rows] = &/'
caught "write past the end in argmax.cl" "past the end of" "$check" $base argmax

mutate score.cl '/barrier(CLK_LOCAL_MEM_FENCE)/d'
caught "missing barrier in score.cl" "data race" sh "$here/oclgrind.sh" "$check" --device opencl $small

[ $survivors -eq 0 ]
