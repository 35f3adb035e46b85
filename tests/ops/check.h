/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the op checker share: cases, data, sides (a device holding a case's buffers),
 * comparison and reporting. */
#ifndef TAMIS_TESTS_OPS_CHECK_H
#define TAMIS_TESTS_OPS_CHECK_H

#include "host/backend.h"

/* ---- Cases (cases.c) ------------------------------------------------------------------------- */

/* What a case string can say. The order is the order of printing. */
typedef enum check_key {
    KEY_FILL,      /* check_fill */
    KEY_DTYPE,     /* tamis_dtype of K, V, bounds */
    KEY_Q8BOUNDS,  /* flag: bounds are q8, whatever K and V are */
    KEY_TYPE,      /* tamis_weight_type */
    KEY_LAYOUT,    /* check_layout */
    KEY_B,         /* sequences */
    KEY_R,         /* rows a sequence; of ops without sequences, rows */
    KEY_TILE,      /* most rows in a tile */
    KEY_HKV,       /* KV heads */
    KEY_G,         /* query heads a KV head */
    KEY_D,         /* head dim, or width of a row */
    KEY_PAGE,      /* page size */
    KEY_KV,        /* slots of the longest lane */
    KEY_TOP,       /* pages a list; attend: 0 means no lists */
    KEY_SINKS,     /* tokens */
    KEY_RECENT,    /* tokens */
    KEY_WAY,       /* what a wide selection asks for */
    KEY_TOTAL,     /* entries of all lanes of a row */
    KEY_FLOOR,     /* entries that each lane of them gets */
    KEY_SHARE,     /* of k, of TMS_SHARE_ONE */
    KEY_MASS,      /* in quarters */
    KEY_RULE,      /* tamis_group_rule */
    KEY_KIND,      /* tamis_bounds_kind */
    KEY_JOIN,      /* tamis_rows_join */
    KEY_FUSE,      /* tms_fuse_kind */
    KEY_PLANES,    /* which values lie in a plane: 1 x, 2 y, 4 out */
    KEY_WIDTH,     /* of bounds, in eighths of a standard deviation */
    KEY_N,         /* entries of a list of things: pages, pairs, rows to read */
    KEY_CHUNK,     /* slots of an entry */
    KEY_FRESH,     /* compact: ordinal from which pages are others than the lane's own */
    KEY_PARTS,     /* states to merge; matrices of linear_parts; load_rows: 1 K, 2 V, 3 both */
    KEY_IN,        /* linear: n_in */
    KEY_OUT,       /* linear: n_out; embed: n_vocab */
    KEY_ROT,       /* rotated channels */
    KEY_PAIRING,   /* tamis_pairing */
    KEY_PAD,       /* elements between the rows of a matrix */
    KEY_EVEN,      /* flag: all lanes are equally long */
    KEY_ORDERED,   /* flag: page ids ascend */
    KEY_POS,       /* flag: a plane of positions */
    KEY_SCORE,     /* flag: a plane of scores */
    KEY_LIFE,      /* flag: scores are divided by lifetimes */
    KEY_FIRST,     /* flag: first slots are hidden from rows */
    KEY_CAP,       /* flag: soft cap */
    KEY_SINK,      /* flag: each query head has a sink */
    KEY_LOGITS,    /* flag: logits, too */
    KEY_WEIGHTS,   /* flag: single weights, too */
    KEY_NOLSE,     /* flag: lse absent */
    KEY_NOSCORE,   /* flag: scores absent */
    KEY_ACC,       /* flag: accumulate */
    KEY_BIAS,      /* flag: bias present */
    KEY_WIDE,      /* flag: linear: inputs of very different sizes, infinite weights */
    KEY_SAME,      /* flag: source rows have the cache's dtype; in place; one of two outputs */
    KEY_LISTS,     /* lists of weights an (item, KV head) */
    KEY_TAIL,      /* last slots that take no part */
    KEY_KERNEL,    /* of pooling */
    KEY_POOLING,   /* tamis_pooling */
    KEY_KEEP,      /* flag: keep the sum */
    KEY_NORM,      /* tms_value_norm_kind */
    KEY_SAYS,      /* tms_key_score_kind */
    KEY_WEIGHT,    /* tamis_dtype of a projection */
    KEY_HEADS,     /* flag: heads are normalised before they are rotated */
    KEY_MIX,       /* linear_parts, linear_chain: so many types further on is the next part's */
    KEY_STAGES,    /* linear_chain: how many */
    KEY_FF,        /* linear_chain: outputs of gate and up */
    KEY_NORMED,    /* flag: inputs are normalised */
    KEY_ADDEND,    /* linear_parts: 1 + tamis_norm_kind of an addend; 0: none */
    KEY_APART,     /* flag: norm adds to rows of their own */
    KEY_GATED,     /* flag: silu of the first part, times the second if there is one */
    KEY_NORM_KIND, /* tamis_norm_kind */
    KEY_GELU,      /* flag: GELU in the place of silu */
    KEY_SCALED,    /* flag: what is read is scaled */
    KEY_STRIPS,    /* quantised weights in strips: 1: of every part, 2: of odd parts alone */
    KEY_VALUES,    /* flag: V rows, not K rows */
    KEY_SOURCE,    /* tamis_dtype of stored rows */
    KEY_NORMS,     /* flag: norms of rows beside their deviations; norms between products */
    KEY_COUNT
} check_key;

typedef enum check_fill { FILL_INTS, FILL_NORMAL, FILL_NASTY } check_fill;
/* From HALVES on K and V lie as they may where they are only read (apart.c): apart (tms_apart) with the same
 * strides, with others, or with channels that are not adjacent; with such channels, V value_offset
 * behind K. */
typedef enum check_layout {
    LAYOUT_OWN,
    LAYOUT_NHD,
    LAYOUT_HND,
    LAYOUT_HALVES,
    LAYOUT_APART,
    LAYOUT_TURNED,
    LAYOUT_SPREAD
} check_layout;

typedef struct check_op check_op;

#define CHECK_CASE_TEXT 192
typedef struct check_case {
    const check_op *op;
    uint32_t v[KEY_COUNT];
    char text[CHECK_CASE_TEXT]; /* canonical */
} check_case;

/* Lists of cases; each holds those before it, but LEAN, OCLGRIND and BENCH stand alone. CI covers all
 * pairs of levels. LEAN covers them but for pairs of factors that are both compiled into a kernel: it
 * is for drivers that take seconds to compile one. */
typedef enum check_list {
    LIST_SMOKE,
    LIST_CI,
    LIST_FULL,
    LIST_LEAN,
    LIST_OCLGRIND,
    LIST_BENCH
} check_list;

typedef struct check_default {
    check_key key;
    uint32_t value;
} check_default;

#define CHECK_LEVELS 10
/* A key and the values that the pairwise cover gives it. */
typedef struct check_factor {
    check_key key;
    uint32_t n;
    uint32_t level[CHECK_LEVELS];
} check_factor;
#define CHECK_COUNT_TYPE(name, value, text) +1
enum { CHECK_WEIGHT_TYPES = 0 TAMIS_WEIGHT_LIST(CHECK_COUNT_TYPE) };
/* What a cache may be, as factors of a case; and the fills that most ops have. */
#define CHECK_DTYPE_VALUE(name, value, text) value,
#define CHECK_DTYPES                                                                               \
    {                                                                                              \
        KEY_DTYPE, TMS_DTYPES, {                                                                   \
            TAMIS_DTYPE_LIST(CHECK_DTYPE_VALUE)                                                    \
        }                                                                                          \
    }
#define CHECK_HEAD_DIMS                                                                            \
    {                                                                                              \
        KEY_D, 6, {                                                                                \
            64, 80, 96, 128, 256, 512                                                              \
        }                                                                                          \
    }
#define CHECK_PAGE_SIZES                                                                           \
    {                                                                                              \
        KEY_PAGE, 4, {                                                                             \
            8, 16, 32, 64                                                                          \
        }                                                                                          \
    }
#define CHECK_LAYOUTS                                                                              \
    {                                                                                              \
        KEY_LAYOUT, 3, {                                                                           \
            LAYOUT_OWN, LAYOUT_NHD, LAYOUT_HND                                                     \
        }                                                                                          \
    }
#define CHECK_FILLS                                                                                \
    {                                                                                              \
        KEY_FILL, 3, {                                                                             \
            FILL_INTS, FILL_NORMAL, FILL_NASTY                                                     \
        }                                                                                          \
    }
/* What lanes of a case are, which most ops have. */
#define CHECK_LANES CHECK_DTYPES, CHECK_LAYOUTS, CHECK_HEAD_DIMS, CHECK_PAGE_SIZES

typedef struct check_entry {
    check_list list;
    const char *text; /* without the op's name */
} check_entry;

typedef struct check_cases {
    check_case *items;
    size_t count, capacity;
} check_cases;

/* Reads a case string in any order of its parts. On failure the reason is in `why`. */
bool check_case_parse(const char *text, check_case *out, char *why, size_t why_size);
bool check_list_parse(const char *name, check_list *out);
/* Appends the cases of a list, all ops. */
void check_cases_add_list(check_cases *cases, check_list list);
void check_cases_add(check_cases *cases, const check_case *item);
bool check_any_case(const check_case *c); /* check_op.cpu_form of ops that have it for every case */

/* ---- Numbers (fill.c, number.c) -------------------------------------------------------------- */

/* Element types of buffers: tamis_dtype, int32, and bytes of quantised weights. */
#define CHECK_I32 3u
#define CHECK_U8  4u
size_t check_type_size(uint32_t type);
double check_load(uint32_t type, const void *data, uint64_t i);
/* Rounds to nearest even; overflow gives infinity. */
void check_store(uint32_t type, void *data, uint64_t i, double value);
/* A whole array as f32; the caller frees it. */
float *check_widen(uint32_t type, const void *data, uint64_t count);

typedef struct check_rng {
    uint64_t state, inc;
    double spare; /* second half of a pair of normals */
    bool has_spare;
} check_rng;

/* The stream of data `stream` of a case: depends on nothing but seed, case text and stream. */
check_rng check_rng_make(uint64_t seed, const check_case *c, uint64_t stream);
uint32_t check_rng_next(check_rng *rng);
uint32_t check_below(check_rng *rng, uint32_t n); /* 0 .. n - 1; n > 0 */
double check_normal(check_rng *rng);
/* One value of a fill; nasty mixes magnitudes, zeros of both signs, ties and non-finite values. */
double check_value(check_rng *rng, check_fill fill);
/* As check_value, but nasty stays finite and below 1e4 in size. */
double check_finite(check_rng *rng, check_fill fill);
void check_shuffle(check_rng *rng, uint32_t *items, uint32_t n);

/* ---- Data: the buffers of one case (data.c) -------------------------------------------------- */

typedef enum check_id {
    BUF_KV,
    BUF_BOUNDS,
    BUF_TABLE,
    BUF_TILES,
    BUF_ALONE, /* the tile table of a launch of one row */
    BUF_ROW_SEQ,
    BUF_VISIBLE,
    BUF_Q,
    BUF_K,
    BUF_V,
    BUF_SLOTS,
    BUF_HEADS,
    BUF_SCORES,
    BUF_LISTS,
    BUF_COUNTS,
    BUF_POSITIONS,
    BUF_FIRST,
    BUF_X,
    BUF_W,
    BUF_BIAS,
    BUF_Y,
    BUF_LSE,
    BUF_LOGITS,
    BUF_SINKS,
    BUF_ROW_POSITIONS,
    BUF_TO,
    BUF_TURNS,
    BUF_CHANGED,
    BUF_FORCED,
    BUF_FORCED_COUNTS,
    BUF_K_TABLE,
    BUF_NORM_W,
    BUF_W1, /* of the second part, and so on */
    BUF_W2,
    BUF_W3,
    BUF_W4,
    BUF_W5,
    BUF_W6,
    BUF_BIAS1,
    BUF_BIAS2,
    BUF_Y1,
    BUF_Y2,
    BUF_Y3,
    BUF_Y4,
    BUF_Y5,
    BUF_Y6,
    BUF_ADDEND,
    BUF_ADDEND_W,
    BUF_SUM,
    BUF_TO_SEQ,
    BUF_COUNT
} check_id;

typedef enum check_role { ROLE_ABSENT, ROLE_INPUT, ROLE_OUTPUT, ROLE_UPDATE } check_role;

typedef struct check_buffer {
    check_role role;
    uint32_t type;
    uint64_t count;    /* elements */
    void *init;        /* before the launch; outputs are preset to a NaN of their own */
    void *want;        /* what the oracle says; NULL for inputs */
    double *tolerance; /* absolute, an element each; NULL: exact */
    bool by_value;     /* exact, but -0 equals +0 */
} check_buffer;

/* The paged lanes of a case; zero for ops without. */
typedef struct check_lanes {
    tms_kv kv; /* strides on the host, where q8 is f32; refs are set by check_kv */
    uint32_t n_seqs, n_rows, n_tiles, max_tile_rows, n_kv_heads, group;
    uint32_t lane_pages; /* entries of a page list */
    uint32_t n_pages;    /* page ids in use and spare */
    uint64_t seq_stride, head_stride;
    uint32_t *length; /* [n_seqs][n_kv_heads] */
} check_lanes;

typedef struct check_data {
    const check_case *c;
    uint64_t seed;
    check_buffer buf[BUF_COUNT];
    check_lanes lanes;
} check_data;

#define CHECK_PRESET 0xFFC1FFC1u /* a NaN as f32, f16 and bf16; what guards and outputs hold */

void *check_alloc(uint64_t bytes);           /* zeroed; ends the program when there is no memory */
void check_preset(void *to, uint64_t bytes); /* fills memory with CHECK_PRESET */
void check_data_make(check_data *data, const check_case *c, uint64_t seed);
void check_data_free(check_data *data);
/* Adds a buffer and returns its content: zeroed, or preset for an output. */
void *check_buffer_add(check_data *data, check_id id, check_role role, uint32_t type,
                       uint64_t count);
/* Room for what the oracle says, begun as the content before the launch; with tolerances if asked.
 */
void check_want(check_data *data, check_id id, bool tolerance);
/* Fills a buffer with f32 values: stream = id. Elements between rows keep the preset. */
void check_fill_matrix(check_data *data, check_id id, uint64_t rows, uint64_t width,
                       uint64_t stride);
const char *check_buffer_name(check_id id);
uint32_t check_plain_rows(const check_data *data); /* check_op.rows of ops without lanes: r */

static inline uint32_t check_get(const check_data *data, check_key key) {
    return data->c->v[key];
}
static inline void *check_init(const check_data *data, check_id id) {
    return data->buf[id].init;
}

/* ---- Weights (weights.c) --------------------------------------------------------------------- */

bool check_is_quantised(uint32_t type); /* of a tamis_weight_type */
/* A matrix of random weights in a buffer: blocks of a quantised type, else numbers of the case's
 * fill. Its layout is that of KEY_STRIPS for part `part`. */
typedef struct check_matrix {
    check_id id;
    uint32_t type, part, n_out, n_in;
} check_matrix;
/* any: also scales that are not finite. */
void check_add_matrix(check_data *data, const check_matrix *m, bool any);
/* Once its rows are as they are to be. */
void check_lay_matrix(check_data *data, const check_matrix *m);
/* Elements of any type, each a scaled number and what is added to it (minima); the caller frees. */
typedef struct check_weight {
    double scaled, added;
} check_weight;
check_weight *check_weights(const check_data *data, const check_matrix *m);

/* ---- Lanes (lanes.c) ------------------------------------------------------------------------- */

/* Page lists, lengths, rows, tiles; K and V with `kv_role`, or none if absent. What no lane holds
 * is NaN. */
void check_lanes_make(check_data *data, check_role kv_role);
/* BUF_SLOTS of the ops that write rows: neighbouring slots from anywhere in the lane on, round its
 * end; one row in eight is skipped, and so is one that finds no slot. */
void check_lanes_slots(check_data *data);
/* Of rotations (rotate.c): a pair's frequency in radians per position; BUF_W, the table of all. */
double check_frequency(const check_data *data, uint32_t pair);
void check_rotation_table(check_data *data);
/* The bounds of every full page of every lane, from K as it is now. */
void check_bounds_make(check_data *data, check_role role);
/* Writes lo and hi of one page into `bounds`, laid out as the buffer. */
void check_bounds_page(const check_data *data, void *bounds, uint32_t page, uint32_t head);
uint32_t check_page_id(const check_data *data, uint32_t seq, uint32_t head, uint32_t ordinal);
/* Element index of a K row; V is kv.value_offset further on. */
uint64_t check_key_row(const check_data *data, uint32_t page, uint32_t head, uint32_t slot);
/* The same of a slot of a lane, seq * n_kv_heads + head. */
uint64_t check_lane_row(const check_data *data, uint32_t lane, uint32_t slot);
uint32_t check_row_seq(const check_data *data, uint32_t row);
uint32_t check_visible(const check_data *data, uint32_t row, uint32_t head);
/* The first slot that it sees, at most `visible`. */
uint32_t check_first(const check_data *data, uint32_t row, uint32_t head);
/* Pairs of row and KV head, numbered row by row; what one of them sees, and all together. */
uint64_t check_owners(const check_data *data);
uint32_t check_owner_visible(const check_data *data, uint64_t owner);
uint64_t check_all_visible(const check_data *data);
/* Overwrites one slot's K and V with NaN. */
void check_poison_slot(check_data *data, uint32_t page, uint32_t head, uint32_t slot);
uint32_t check_lanes_rows(const check_data *data); /* check_op.rows of the ops on lanes */
const char *check_lanes_reject(const check_case *c);
/* The same of ops that only read K and V, which take more layouts and sizes of pages. */
const char *check_read_reject(const check_case *c);
const char *check_planes_reject(const check_case *c); /* the same of ops that write planes */
bool check_lanes_cpu_form(const check_case *c);       /* check_op.cpu_form, by the shape of pages */

/* ---- Blocks (quantised.c) -------------------------------------------------------------------- */

/* Whether a device holds the buffer in blocks; the host has f32 then. */
bool check_has_scales(const check_data *data, check_id id);
uint64_t check_quantised_bytes(const check_data *data, check_id id);
void check_quantised_encode(const check_data *data, check_id id, const void *from, void *to);
void check_quantised_decode(const check_data *data, check_id id, const void *from, void *to);
/* Makes what a case begins with, or what its oracle wants, such as the dtype can hold. */
void check_quantised_settle(check_data *data, bool want);
/* The strides on a device. */
tms_kv check_quantised_kv(const check_data *data);
/* K and V apart on a device (apart.c): whether a case has them so, and their bytes. */
bool check_is_apart(const check_data *data);
void check_apart_encode(const check_data *data, void *to);
/* Bytes of a row of K and of V, and of a pair of bounds, on a device. */
uint64_t check_key_bytes(const check_data *data);
uint64_t check_value_bytes(const check_data *data);
uint64_t check_pair_bytes(const check_data *data);

/* ---- Sides: a case's buffers on a device (side.c, guard.c) ----------------------------------- */

typedef struct check_guarded {
    tms_mem *mem;
    uint64_t bytes; /* of the body, between the guards */
} check_guarded;

typedef struct check_side {
    tms_device *dev;
    const check_data *data;
    check_guarded mem[BUF_COUNT];
    check_guarded scratch;
    void *result[BUF_COUNT]; /* outputs as read back */
    tamis_error error;       /* of the device's last failed call */
    char why[512];           /* why the last call of the checker's own failed */
} check_side;

/* Rows of one launch. */
typedef struct check_rows {
    uint32_t first, count;
} check_rows;

bool check_side_open(check_side *side, tms_device *dev, const check_data *data);
void check_side_close(check_side *side);
/* Puts outputs back to what they were before the launch. */
bool check_side_reset(check_side *side);
/* Reads outputs; false if a guard or an input has changed. */
bool check_side_read(check_side *side);
/* A place in a buffer: element `index`. Absent buffers give an absent ref. */
tms_ref check_ref(const check_side *side, check_id id, uint64_t index);
/* Scratch memory of the side, kept until the next call. */
tms_ref check_scratch(check_side *side, uint64_t bytes);
/* The strides of K and V that lie apart. */
void check_apart_kv(const check_side *side, tms_kv *kv);
tms_kv check_kv(const check_side *side);
tms_batch check_batch(const check_side *side, check_rows rows);
tms_weight_matrix check_matrix_of(const check_side *side, const check_matrix *m); /* weights.c */

bool check_guarded_alloc(check_side *side, check_guarded *g, uint64_t bytes);
bool check_guarded_write(check_side *side, const check_guarded *g, const void *body);
/* Reads the body; false if a guard band has changed. `name` is for the message. */
bool check_guarded_read(check_side *side, const check_guarded *g, void *body, const char *name);
tms_ref check_guarded_ref(const check_guarded *g, uint64_t offset);

/* ---- Comparison (compare.c) ------------------------------------------------------------------ */

/* Every output against `want` (arrays by id). On failure the first difference is in `why`. */
bool check_compare(const check_data *data, void *const *want, void *const *got, char *why,
                   size_t why_size);
/* check_op.oracle of an op whose `judge` alone knows what is wanted. */
void check_no_oracle(check_data *data);
/* Whether the results of a fused op have the bits that `apart` gives, which launches the ops that it is
 * made of on the same device, as the device chooses their forms. */
bool check_same_apart(check_side *side, tamis_status (*apart)(check_side *), char *why,
                      size_t why_size);
/* write_rotated.c: elements from a row of k, or of v, to the next; and the rows of a launch, with the
 * buffers of the plane of scores and of the weights of k's norm. */
uint64_t check_k_stride(const check_data *data);
tms_write_rotated check_rotated_rows(check_side *side, check_rows rows, check_id scores,
                                     check_id k_norm);
/* All bits of all outputs, but for those of a NaN. */
bool check_compare_bits(const check_data *data, void *const *want, void *const *got, char *why,
                        size_t why_size);

/* ---- Ops: one table entry each, in the file of its stem -------------------------------------- */

struct check_op {
    const char *name;                 /* of the op in host/backend.h */
    const check_default *defaults;    /* the keys it knows; ended by KEY_COUNT */
    const check_factor *factors;      /* of its pairwise cover; ended by KEY_COUNT */
    const check_factor *more_factors; /* optional: a second cover, where `reject` would thin one */
    const check_key *compiled;  /* optional: factors by which its kernels are compiled, ended by
                                      * KEY_COUNT */
    const check_entry *entries; /* cases by hand; ended by NULL */
    /* NULL, or which rule of the contract the numbers break. */
    const char *(*reject)(const check_case *c);
    void (*make)(check_data *data);   /* buffers and inputs */
    void (*oracle)(check_data *data); /* want and tolerances of outputs */
    tamis_status (*launch)(check_side *side, check_rows rows);
    uint32_t (*rows)(const check_data *data); /* of the whole launch */
    /* Optional. NULL: the op takes the case; else why it does not have to (optional ops). */
    const char *(*refusal)(check_side *side);
    /* Optional. Whether a CPU device owes the case its CPU form; without, none does. */
    bool (*cpu_form)(const check_case *c);
    bool cpu_shapes; /* the CPU form has two shapes */
    bool gpu_form;   /* there is one */
    /* Optional. Overwrites in read-back arrays what the contract leaves open. */
    void (*settle)(const check_data *data, void *const *arrays);
    /* Optional. Judges the results in place of check_compare. */
    bool (*judge)(check_side *side, char *why, size_t why_size);
    /* Optional. Another way to the same bits in the same form, and what it is (mode bitwise). */
    const char *again_name;
    tamis_status (*again)(check_side *side);
    bool rows_alone;   /* a row launched alone gives its bits of the batch */
    bool exact;        /* the bits are those of the reference (mode bitwise) */
    uint32_t few_rows; /* nonzero: with more rows another kernel may serve, which is exempt */
    /* Optional. Up to how many rows that kernel gives a row the bits that it gives it among others,
     * if they are more than few_rows. 0: none. */
    uint32_t (*alike_rows)(const check_side *side);
    bool tiles_apart; /* rows of larger tiles may take another kernel than rows alone in theirs */
    uint64_t (*bytes)(const check_data *data); /* moved by a launch, from the contract */
};

/* check_op_<op>, one for each op of the contract. */
#define CHECK_DECLARE(with, op) extern const check_op check_op_##op;
TMS_OPS(CHECK_DECLARE, )
extern const check_op check_op_select_wide;   /* of select, what `wide` adds */
extern const check_op *const check_ops[];     /* ended by NULL */

/* What several stems need of another's meaning. */

/* The query rows of the ops on lanes, [n_rows][n_heads][d] at stride check_q_stride. */
void check_q_make(check_data *data);
uint64_t check_q_stride(const check_data *data);
/* Nasty fills only: NaN into one channel of some keys. */
void check_nan_keys(check_data *data);
/* The formula of score_pages. */
double check_score(const check_data *data, uint32_t row, uint32_t head, uint32_t ordinal,
                   double *tolerance);
/* The rules of select for one lane, by a full sort. scores may be NULL. */
void check_select_lane(const check_data *data, uint32_t first, uint32_t visible,
                       const float *scores, int32_t *list, int32_t *count);
/* Whether sinks or recent keep the entry, or it has no score. */
bool check_protected(const check_data *data, uint32_t visible, uint32_t ordinal);
/* Entries a list may need under the case's k, sinks and recent. */
uint32_t check_select_capacity(const check_data *data);
/* Attention of every row by the direct formula into want of Y and LSE; lists NULL: all pages. */
void check_attend_rows(check_data *data, const int32_t *lists, const int32_t *counts,
                       uint32_t capacity);
/* The sinks of a case with `sink`, and that of a query head, or of one without: -inf. */
void check_sinks_make(check_data *data, uint32_t n_heads);
double check_sink(const check_data *data, uint64_t query_head);
/* Makes lists and lse comparable: entries past the count, lse beside a NaN out. */
void check_settle_lists(const check_data *data, void *const *arrays, uint32_t capacity);
void check_settle_lse(const check_data *data, void *const *arrays);
float check_attend_scale(const check_data *data);
float check_attend_cap(const check_data *data);

/* ---- Running and reporting (run.c, report.c) ------------------------------------------------- */

typedef enum check_mode { MODE_CORRECT, MODE_BITWISE, MODE_BENCH } check_mode;
typedef enum check_verdict { CHECK_PASSED, CHECK_FAILED, CHECK_SKIPPED } check_verdict;

typedef struct check_options {
    check_mode mode;
    int form; /* tms_form, or -1: each */
    uint64_t seed;
    bool json;    /* rows go to stdout as JSON, text to stderr */
    bool verbose; /* a line a result */
    bool first;   /* ends behind the first case that fails */
} check_options;

typedef struct check_result {
    check_verdict verdict;
    char why[512];
    double first_ms; /* correct: processor time of the first launches, with compiling */
    double us;       /* bench: median */
    uint64_t bytes;  /* bench: by the contract */
} check_result;

/* Runs a case on a device in every form asked for and reports each. */
void check_run_case(const check_options *options, tms_device *dev, tms_device *reference,
                    const check_case *c);
bool check_is_reference(const tms_device *dev);

/* `options` must outlive the report. */
void check_report_begin(const check_options *options);
/* A device is about to be checked; read_bandwidth in GB/s, 0 when it was not measured. */
void check_report_device(const tms_device *dev, double read_bandwidth);
/* Remembers what runs, for the line that a crash prints. */
void check_report_running(const check_case *c, tms_form form);
void check_report_result(const check_case *c, tms_form form, const check_result *result);
bool check_report_failed(void); /* whether a case has so far */
/* Prints the summary; the program's exit status. */
int check_report_end(void);

#endif
