/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the wide forms of select, against a full sort by the rules of the contract. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a way asks for. */
enum { ROW = 1, FORCED = 2, TABLE = 4, MASS = 8, POS = 16 };
static uint32_t asks(const check_data *data, uint32_t what) {
    static const uint32_t ways[] = {
        ROW, ROW | FORCED, FORCED,       TABLE,         TABLE | FORCED,    MASS,
        POS, POS | FORCED, MASS | TABLE, MASS | FORCED, POS | MASS | TABLE};
    return ways[check_get(data, KEY_WAY)] & what;
}

static uint32_t entries_of(const check_data *data, uint32_t visible) {
    const uint32_t size = check_get(data, KEY_CHUNK);
    return (visible + size - 1) / size;
}

static uint32_t most_entries(const check_data *data) {
    return entries_of(data, check_get(data, KEY_KV));
}

/* ---- The rules ------------------------------------------------------------------------------- */

/* An entry; what stands before what is a matter of rank, then value, then the rest. */
typedef struct entry {
    int rank; /* 0 protected, or first with positions; 1 recent with positions; 2 others; 3 NaN */
    double value;
    uint32_t ordinal, head;
    double score; /* 0 for none */
    bool taken;
} entry;

static int better(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->rank != y->rank) return x->rank - y->rank;
    if (x->value > y->value || x->value < y->value) return x->value > y->value ? -1 : 1;
    if (x->ordinal != y->ordinal) return x->ordinal > y->ordinal ? -1 : 1;
    return x->head < y->head ? -1 : x->head > y->head;
}

static int by_number(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static bool is_forced(const check_data *data, uint64_t lane, uint32_t ordinal) {
    const int32_t *lists = check_init(data, BUF_FORCED);
    const int32_t *counts = check_init(data, BUF_FORCED_COUNTS);
    const int32_t wanted = (int32_t)ordinal;
    return lists && counts[lane] &&
           bsearch(&wanted, lists + lane * most_entries(data), (size_t)counts[lane], sizeof wanted,
                   by_number);
}

/* By slot: the entry's slots [begin, end) against the lane's ends. */
static void rank_by_slot(const check_data *data, uint32_t visible, uint32_t begin, uint32_t end,
                         entry *e) {
    const uint32_t recent = check_get(data, KEY_RECENT);
    if (begin < check_get(data, KEY_SINKS)) e->rank = 0;
    if (recent && end + recent > visible) e->rank = 0;
}

static void rank_by_position(const check_data *data, uint32_t row, uint32_t head, uint32_t begin,
                             uint32_t end, entry *e) {
    const int32_t *plane = check_init(data, BUF_POSITIONS);
    const int32_t now = ((int32_t *)check_init(data, BUF_ROW_POSITIONS))[row];
    const int32_t sinks = (int32_t)check_get(data, KEY_SINKS);
    const int32_t recent = (int32_t)check_get(data, KEY_RECENT),
                  size = (int32_t)check_get(data, KEY_PAGE);
    bool first = e->rank == 0, late = false;
    int32_t newest = INT32_MIN;
    for (uint32_t s = begin; s < end; s++) {
        const uint32_t id = check_page_id(data, check_row_seq(data, row), head, s / (uint32_t)size);
        const int32_t position = plane[id * (uint32_t)size + s % (uint32_t)size];
        first |= position < sinks || position == now;
        late |= recent > 0 && position > now - recent;
        newest = position > newest ? position : newest;
    }
    e->rank = first ? 0 : late ? 1 : e->rank;
    if (e->rank == 1 || check_get(data, KEY_NOSCORE)) e->value = newest;
}

/* One entry of a lane, as the rules see it. */
static entry make_entry(const check_data *data, uint32_t row, uint32_t head, uint32_t ordinal) {
    const uint64_t lane = (uint64_t)row * data->lanes.n_kv_heads + head;
    const uint32_t size = check_get(data, KEY_CHUNK), visible = check_visible(data, row, head);
    const uint32_t begin = ordinal * size, end = begin + size < visible ? begin + size : visible;
    const float *scores = check_init(data, BUF_SCORES);
    entry e = {.rank = 2, .ordinal = ordinal, .head = head};
    const bool scored = begin + size <= visible;
    if (scores && scored) e.score = scores[lane * most_entries(data) + ordinal];
    e.value = isnan(e.score) ? 0 : e.score;
    if (isnan(e.score)) e.rank = 3;
    if (!scored || is_forced(data, lane, ordinal)) e.rank = 0;
    if (asks(data, POS))
        rank_by_position(data, row, head, begin, end, &e);
    else
        rank_by_slot(data, visible, begin, end, &e);
    if (e.rank == 0) e.value = 0;
    return e;
}

static uint32_t sorted_lane(const check_data *data, uint32_t row, uint32_t head, entry *out) {
    const uint32_t n = entries_of(data, check_visible(data, row, head));
    for (uint32_t i = 0; i < n; i++)
        out[i] = make_entry(data, row, head, i);
    if (n) qsort(out, n, sizeof *out, better);
    return n;
}

static uint64_t limit_of(const check_data *data, uint64_t lane) {
    const int32_t *table = check_init(data, BUF_K_TABLE);
    const uint64_t top = check_get(data, KEY_TOP);
    if (!table) return top;
    const int64_t k = table[lane] < 0 ? 0 : (int64_t)table[lane] * check_get(data, KEY_SHARE);
    return (uint64_t)k / TMS_SHARE_ONE < top ? (uint64_t)k / TMS_SHARE_ONE : top;
}

/* What a score counts for, in the unit of the sums. */
static long double counts_for(double score) {
    return score > 0 ? floorl(ldexpl(score < 1024 ? score : 1024, 32)) : 0;
}

/* Scope LANE. Sums are below 2^64 and exact in a long double. */
static void take_of_lane(const check_data *data, uint64_t lane, entry *e, uint32_t n) {
    const uint64_t limit = limit_of(data, lane);
    const long double mass = ldexpl(check_get(data, KEY_MASS), 30); /* a quarter of 2^32 each */
    long double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bool protect = e[i].rank < 2;
        if (i >= limit && (asks(data, POS) || !protect)) break;
        if (!protect && asks(data, MASS) && sum >= mass) break;
        e[i].taken = true;
        sum += counts_for(e[i].score);
    }
}

/* Scope ROW: `all` has room for the entries of every lane, which it leaves sorted. Returns their
 * number. */
static uint64_t take_of_row(const check_data *data, uint32_t row, entry *all) {
    uint64_t n_all = 0, taken = 0;
    for (uint32_t h = 0; h < data->lanes.n_kv_heads; h++) {
        entry *lane = all + n_all;
        const uint32_t n = sorted_lane(data, row, h, lane);
        uint32_t floor_left = check_get(data, KEY_FLOOR);
        for (uint32_t i = 0; i < n; i++) {
            lane[i].taken = lane[i].rank == 0 || floor_left > 0;
            if (lane[i].rank != 0 && floor_left) floor_left--;
            taken += lane[i].taken;
        }
        n_all += n;
    }
    if (n_all) qsort(all, n_all, sizeof *all, better);
    for (uint64_t i = 0; i < n_all && taken < check_get(data, KEY_TOTAL); i++) {
        taken += !all[i].taken;
        all[i].taken = true;
    }
    return n_all;
}

/* What the contract asks of lists; for all entries where the case may force any of them. */
static uint32_t capacity_of(const check_data *data) {
    const uint32_t size = check_get(data, KEY_CHUNK), n = most_entries(data);
    const uint32_t k = check_get(data, KEY_TOP), total = check_get(data, KEY_TOTAL);
    const uint32_t protect = (check_get(data, KEY_SINKS) + size - 1) / size +
                             (check_get(data, KEY_RECENT) + size - 1) / size +
                             1; /* recent may begin within an entry */
    uint32_t most = protect > k ? protect : k;
    if (asks(data, POS)) most = k;
    if (asks(data, ROW)) {
        const uint32_t fixed = protect + check_get(data, KEY_FLOOR);
        most = fixed > total ? fixed : total;
    }
    return most < n && !asks(data, FORCED) ? most : n;
}

static void put(const check_data *data, uint64_t lane, const entry *e, uint64_t n, uint32_t head) {
    int32_t *list = (int32_t *)data->buf[BUF_LISTS].want + lane * capacity_of(data);
    int32_t *count = (int32_t *)data->buf[BUF_COUNTS].want + lane;
    *count = 0;
    for (uint64_t i = 0; i < n; i++)
        if (e[i].taken && e[i].head == head && (uint32_t)*count < capacity_of(data))
            list[(*count)++] = (int32_t)e[i].ordinal;
    qsort(list, (size_t)*count, sizeof *list, by_number);
}

static void oracle(check_data *data) {
    const uint32_t heads = data->lanes.n_kv_heads;
    entry *entries = check_alloc(((uint64_t)heads * most_entries(data) + 1) * sizeof *entries);
    check_want(data, BUF_LISTS, false);
    check_want(data, BUF_COUNTS, false);
    for (uint32_t row = 0; row < data->lanes.n_rows; row++) {
        uint64_t n = asks(data, ROW) ? take_of_row(data, row, entries) : 0;
        for (uint32_t h = 0; h < heads; h++) {
            const uint64_t lane = (uint64_t)row * heads + h;
            if (!asks(data, ROW)) {
                n = sorted_lane(data, row, h, entries);
                take_of_lane(data, lane, entries, (uint32_t)n);
            }
            put(data, lane, entries, n, h);
        }
    }
    free(entries);
}

/* ---- Data ------------------------------------------------------------------------------------ */

static void make_scores(check_data *data, uint64_t lanes) {
    const uint64_t n = lanes * most_entries(data);
    float *scores = check_buffer_add(data, BUF_SCORES, ROLE_INPUT, TAMIS_F32, n);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_SCORES);
    for (uint64_t i = 0; i < n; i++)
        scores[i] = check_get(data, KEY_SAME)
                        ? 0.25f
                        : (float)check_value(&rng, (check_fill)check_get(data, KEY_FILL));
}

/* Some lanes force nothing, some an eighth of their entries, one all of them. */
static void make_forced(check_data *data, uint64_t lanes) {
    const uint32_t most = most_entries(data);
    int32_t *lists = check_buffer_add(data, BUF_FORCED, ROLE_INPUT, CHECK_I32, lanes * most);
    int32_t *counts = check_buffer_add(data, BUF_FORCED_COUNTS, ROLE_INPUT, CHECK_I32, lanes);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_FORCED);
    for (uint64_t lane = 0; lane < lanes; lane++) {
        const uint32_t heads = data->lanes.n_kv_heads, kind = check_below(&rng, 4);
        const uint32_t n = entries_of(
            data, check_visible(data, (uint32_t)(lane / heads), (uint32_t)(lane % heads)));
        memset(lists + lane * most, -1, most * sizeof *lists);
        for (uint32_t i = 0; i < n && kind; i++)
            if (lane == 1 || check_below(&rng, 8) == 0)
                lists[lane * most + (uint32_t)counts[lane]++] = (int32_t)i;
    }
}

static void make_k_table(check_data *data, uint64_t lanes) {
    int32_t *table = check_buffer_add(data, BUF_K_TABLE, ROLE_INPUT, CHECK_I32, lanes);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_K_TABLE);
    for (uint64_t i = 0; i < lanes; i++)
        table[i] = (int32_t)check_below(&rng, 2 * check_get(data, KEY_TOP) + 5) - 2;
}

/* Slots of a lane that has been thinned out and written over: positions have gaps and a part of
 * them has changed places. The newest of all lanes of a sequence are the positions of its rows. */
static void make_positions(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t size = check_get(data, KEY_PAGE), rows = check_get(data, KEY_R);
    const uint32_t newest = 2 * check_get(data, KEY_KV) + 100;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_POSITIONS);
    int32_t *plane =
        check_buffer_add(data, BUF_POSITIONS, ROLE_INPUT, CHECK_I32, (uint64_t)l->n_pages * size);
    int32_t *now = check_buffer_add(data, BUF_ROW_POSITIONS, ROLE_INPUT, CHECK_I32, l->n_rows);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        const uint32_t n = l->length[lane], seq = lane / l->n_kv_heads, head = lane % l->n_kv_heads;
        uint32_t *order = check_alloc((n + 1) * sizeof *order);
        for (uint32_t s = 0; s < n; s++)
            order[s] = s < 8 ? s : newest - (n - 1 - s) - (n - 1 - s) / 2;
        for (uint32_t swaps = n / 4; swaps > 0; swaps--) {
            const uint32_t i = check_below(&rng, n), j = check_below(&rng, n), kept = order[i];
            order[i] = order[j];
            order[j] = kept;
        }
        for (uint32_t s = 0; s < n; s++)
            plane[check_page_id(data, seq, head, s / size) * size + s % size] = (int32_t)order[s];
        free(order);
    }
    for (uint32_t row = 0; row < l->n_rows; row++)
        now[row] = (int32_t)(newest - (rows - 1 - row % rows));
}

static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_lanes_make(data, ROLE_ABSENT);
    const uint64_t lanes = (uint64_t)l->n_rows * l->n_kv_heads;
    if (!lanes) return;
    if (!check_get(data, KEY_NOSCORE)) make_scores(data, lanes);
    if (asks(data, FORCED)) make_forced(data, lanes);
    if (asks(data, TABLE)) make_k_table(data, lanes);
    if (asks(data, POS)) make_positions(data);
    check_buffer_add(data, BUF_LISTS, ROLE_OUTPUT, CHECK_I32, lanes * capacity_of(data));
    check_buffer_add(data, BUF_COUNTS, ROLE_OUTPUT, CHECK_I32, lanes);
}

static void settle(const check_data *data, void *const *arrays) {
    check_settle_lists(data, arrays, capacity_of(data));
}

/* ---- The launch ------------------------------------------------------------------------------ */

static tms_select_wide wide_of(check_side *side, check_rows rows, uint64_t lane) {
    const check_data *data = side->data;
    const uint32_t share = check_get(data, KEY_SHARE);
    return (tms_select_wide){
        .scope = asks(data, ROW) ? TMS_SCOPE_ROW : TMS_SCOPE_LANE,
        .total = check_get(data, KEY_TOTAL),
        .floor = check_get(data, KEY_FLOOR),
        .forced = {check_ref(side, BUF_FORCED, lane * most_entries(data)),
                   check_ref(side, BUF_FORCED_COUNTS, lane), most_entries(data)},
        .k_table = check_ref(side, BUF_K_TABLE, lane),
        .k_share = share == TMS_SHARE_ONE ? 0 : share,
        .mass = asks(data, MASS) ? (float)check_get(data, KEY_MASS) / 4 : 0,
        .positions = check_ref(side, BUF_POSITIONS, 0),
        .row_positions = check_ref(side, BUF_ROW_POSITIONS, rows.first),
        .page_size = check_get(data, KEY_PAGE),
    };
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t lane = (uint64_t)rows.first * data->lanes.n_kv_heads;
    tms_select p = {
        .batch = check_batch(side, rows),
        .granularity = check_get(data, KEY_CHUNK),
        .k = check_get(data, KEY_TOP),
        .sinks = check_get(data, KEY_SINKS),
        .recent = check_get(data, KEY_RECENT),
        .scores = check_ref(side, BUF_SCORES, lane * most_entries(data)),
        .stride = most_entries(data),
        .lists = {check_ref(side, BUF_LISTS, lane * capacity_of(data)),
                  check_ref(side, BUF_COUNTS, lane), capacity_of(data)},
        .wide = wide_of(side, rows, lane),
    };
    if (data->lanes.n_rows == 0)
        p.wide.scope = TMS_SCOPE_ROW; /* nothing else says that it is wide */
    p.scratch = check_scratch(side, tms_select_scratch(side->dev, &p));
    return tms_run_select(side->dev, &p, &side->error);
}

static uint64_t bytes(const check_data *data) {
    return data->buf[BUF_SCORES].count * 4;
}

static const char *reject(const check_case *c) {
    const check_data data = {.c = c};
    if (!c->v[KEY_B] || !c->v[KEY_HKV] || !c->v[KEY_KV] || !c->v[KEY_PAGE] || !c->v[KEY_CHUNK])
        return "b, hkv, kv, page and chunk are at least 1";
    return asks(&data, MASS) && c->v[KEY_NOSCORE] ? "a mass is of scores" : NULL;
}

static bool cpu_form(const check_case *c) {
    const check_data data = {.c = c};
    return c->v[KEY_B] && c->v[KEY_R] && !asks(&data, ROW | MASS);
}

const check_op check_op_select_wide = {
    .name = "select_wide",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_PAGE, 16},
                                        {KEY_CHUNK, 1},
                                        {KEY_KV, 600},
                                        {KEY_TOP, 64},
                                        {KEY_SINKS, 0},
                                        {KEY_RECENT, 0},
                                        {KEY_WAY, 0},
                                        {KEY_TOTAL, 100},
                                        {KEY_FLOOR, 0},
                                        {KEY_SHARE, TMS_SHARE_ONE},
                                        {KEY_MASS, 40},
                                        {KEY_EVEN, 0},
                                        {KEY_NOSCORE, 0},
                                        {KEY_SAME, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_WAY, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
                                      CHECK_FILLS,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 2, {1, 3}},
                                      {KEY_HKV, 4, {1, 2, 5, 40}},
                                      {KEY_PAGE, 2, {8, 32}},
                                      {KEY_CHUNK, 4, {1, 4, 16, 32}},
                                      {KEY_KV, 4, {1, 17, 300, 1100}},
                                      {KEY_TOP, 4, {0, 1, 16, 333}},
                                      {KEY_SINKS, 3, {0, 4, 100}},
                                      {KEY_RECENT, 4, {0, 1, 64, 333}},
                                      {KEY_TOTAL, 4, {0, 30, 700, 100000}},
                                      {KEY_FLOOR, 3, {0, 3, 50}},
                                      {KEY_SHARE, 3, {TMS_SHARE_ONE, 22938, 1}},
                                      {KEY_MASS, 3, {1, 40, 1000000}},
                                      {KEY_NOSCORE, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries =
        (const check_entry[]){
            {LIST_SMOKE, "normal:row:b2:hkv4:floor5:sinks4:recent32"},
            {LIST_SMOKE, "nasty:pos:b2:page16:chunk16:top12:sinks4:recent32"},
            {LIST_SMOKE, "nasty:masstable:b2"},
            {LIST_CI, "r0"},
            {LIST_CI, "r0:pos"},
            {LIST_CI, "ints:row:hkv40:kv300:total3000:even"}, /* ties of heads */
            {LIST_CI, "row:same:hkv40:kv65:total1000:even"},
            {LIST_CI, "row:same:hkv40:kv65:total999:floor7"},
            {LIST_CI, "nasty:row:hkv3:kv500:total1400:even"}, /* NaN, -0 */
            {LIST_CI, "nasty:row:hkv1:kv500:total499"},
            {LIST_CI, "normal:row:hkv3:kv300:total900:even"}, /* all there are */
            {LIST_CI, "normal:row:hkv3:kv300:total899:even"},
            {LIST_CI, "normal:row:hkv3:kv300:total0:floor300"},
            {LIST_CI, "normal:row:hkv3:kv300:total50:sinks20:recent20"},
            {LIST_CI, "same:row:hkv2:kv40000:total41000:even"}, /* long ordinals */
            {LIST_CI, "row:same:hkv1100:kv9:total777:even"},    /* many heads */
            {LIST_CI, "normal:row:hkv1100:kv9:total777"},
            {LIST_CI, "normal:b3:hkv5:kv601:top300:mass:mass40:chunk4"},
            {LIST_CI, "same:forced:hkv2:kv70000:top65537:even"},
            {LIST_CI, "same:mass:kv300:mass17:top300"},
            {LIST_CI, "same:mass:kv300:mass17:top16"},
            {LIST_CI, "same:mass:kv300:mass18:top17"},
            {LIST_CI, "ints:mass:kv300:mass300:top300:even"},
            {LIST_CI, "ints:mass:kv300:mass1:top300:sinks40:recent40"},
            {LIST_CI, "nasty:mass:kv300:mass2000000000:top299:even"},
            {LIST_CI, "ints:mass:kv300:mass300:top300:sinks20:recent20:even"},
            {LIST_CI, "nasty:mass:kv300:mass12300:top300:even"},
            {LIST_CI, "normal:pos:chunk4:page16:top5:even"}, /* the row's own */
            {LIST_CI, "normal:pos:chunk8:page16:b3:hkv5:top12:sinks4:even"},
            {LIST_CI, "nasty:forced:hkv1:kv4000:top2300:even"}, /* -0 = +0 */
            {LIST_CI, "nasty:massforced:kv300:mass8200:top299"},
            {LIST_CI, "nasty:posmasstable:kv600:chunk8:sinks4:recent40:share40000"},
            {LIST_CI, "nasty:masstable:kv600:share40000:top300"},
            {LIST_CI, "normal:pos:chunk16:page16:top3:recent200:sinks4"},
            {LIST_CI, "normal:pos:chunk16:page16:top1:recent200:sinks4"},
            {LIST_CI, "normal:pos:chunk1:top20:recent200:noscore"},
            {LIST_CI, "normal:pos:chunk5:page8:r4:top30:recent20:sinks4"},
            {LIST_OCLGRIND, "nasty:rowforced:hkv3:kv70:total60:floor3:recent9"},
            {LIST_OCLGRIND, "ints:mass:kv70:mass200:top60:sinks4:recent9"},
            {LIST_OCLGRIND, "nasty:posforced:kv70:chunk4:page8:top9:recent9"},
            {LIST_BENCH, "normal:row:hkv8:kv131072:total16384:floor409:even"},
            {LIST_BENCH, "normal:row:hkv256:kv8192:total65536:even"},
            {LIST_BENCH, "normal:table:hkv8:kv131072:top4096:even"},
            {LIST_BENCH, "normal:pos:hkv8:kv8192:chunk16:top64:recent64:even"},
            {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .cpu_form = cpu_form,
    .rows = check_lanes_rows,
    .settle = settle,
    .rows_alone = true,
    .exact = true,
    .bytes = bytes,
};
