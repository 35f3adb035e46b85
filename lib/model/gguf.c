/* SPDX-License-Identifier: Apache-2.0 */
/* Parses GGUF v2 and v3, which are the same but for big-endian files. The file is not trusted: each
 * count, length and offset is checked against the rest of the file before it is used, and work and
 * memory stay linear in the file's size (n log n to sort). The file is read, not mapped, so that a
 * file that shrinks meanwhile gives an error. */
#include "lib/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF tensors are little-endian and are used as they lie in the file"
#endif

#define GGUF_OLDEST 2u
#define GGUF_NEWEST 3u
/* The most bytes before the tensors' data; a vocabulary of 256k tokens takes about 10 MiB. */
#define MAX_HEAD (128u << 20)
/* The head is read in pieces, since its length is not known before it is parsed. */
#define HEAD_PIECE (1u << 20)
/* The least bytes of an entry (empty key, one byte) and of a tensor (empty name, one dim). */
#define MIN_ENTRY_BYTES  13u
#define MIN_TENSOR_BYTES 32u

static const char *const type_names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
static const uint8_t type_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
#define N_TYPES (sizeof type_bytes)

/* The types of tensors by the format's numbers, and which of them are read. The gaps are types that
 * the format has retired. */
typedef struct tensor_type {
    const char *name;
    bool read;
    tamis_weight_type type;
} tensor_type;
static const tensor_type tensor_types[] = {[0] = {"f32", true, TAMIS_WEIGHT_F32},
                                           [1] = {"f16", true, TAMIS_WEIGHT_F16},
                                           [2] = {"Q4_0", true, TAMIS_WEIGHT_Q4_0},
                                           [3] = {"Q4_1", true, TAMIS_WEIGHT_Q4_1},
                                           [6] = {"Q5_0", true, TAMIS_WEIGHT_Q5_0},
                                           [7] = {"Q5_1", true, TAMIS_WEIGHT_Q5_1},
                                           [8] = {"Q8_0", true, TAMIS_WEIGHT_Q8_0},
                                           [9] = {.name = "Q8_1"},
                                           [10] = {"Q2_K", true, TAMIS_WEIGHT_Q2_K},
                                           [11] = {"Q3_K", true, TAMIS_WEIGHT_Q3_K},
                                           [12] = {"Q4_K", true, TAMIS_WEIGHT_Q4_K},
                                           [13] = {"Q5_K", true, TAMIS_WEIGHT_Q5_K},
                                           [14] = {"Q6_K", true, TAMIS_WEIGHT_Q6_K},
                                           [15] = {.name = "Q8_K"},
                                           [16] = {.name = "IQ2_XXS"},
                                           [17] = {.name = "IQ2_XS"},
                                           [18] = {.name = "IQ3_XXS"},
                                           [19] = {.name = "IQ1_S"},
                                           [20] = {"IQ4_NL", true, TAMIS_WEIGHT_IQ4_NL},
                                           [21] = {.name = "IQ3_S"},
                                           [22] = {.name = "IQ2_S"},
                                           [23] = {"IQ4_XS", true, TAMIS_WEIGHT_IQ4_XS},
                                           [24] = {.name = "I8"},
                                           [25] = {.name = "I16"},
                                           [26] = {.name = "I32"},
                                           [27] = {.name = "I64"},
                                           [28] = {.name = "F64"},
                                           [29] = {.name = "IQ1_M"},
                                           [30] = {"bf16", true, TAMIS_WEIGHT_BF16},
                                           [34] = {.name = "TQ1_0"},
                                           [35] = {.name = "TQ2_0"},
                                           [39] = {"MXFP4", true, TAMIS_WEIGHT_MXFP4}};
#define N_TENSOR_TYPES (sizeof tensor_types / sizeof tensor_types[0])

/* ---- Bytes of the file ----------------------------------------------------------------------- */

/* Reads bytes [from, from + bytes), which the file had when it was opened. */
static tamis_status read_bytes(const tms_gguf *gguf, uint64_t from, void *to, uint64_t bytes,
                               tamis_error *error) {
    uint8_t *at = to;
    while (bytes > 0) {
        const ssize_t n = pread(gguf->descriptor, at, bytes, (off_t)from);
        if (n < 0 && errno == EINTR) continue;
        TMS_REQUIRE(n >= 0, TAMIS_E_IO, "reading at byte %llu: %s", (unsigned long long)from,
                    strerror(errno));
        TMS_REQUIRE(n > 0, TAMIS_E_IO,
                    "the file ends at byte %llu; it had %llu bytes when it was opened",
                    (unsigned long long)from, (unsigned long long)gguf->bytes);
        at += n;
        from += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return TAMIS_OK;
}

tamis_status tms_gguf_read_at(const tms_gguf *gguf, uint64_t at, uint64_t bytes, void *to,
                              tamis_error *error) {
    if (gguf->descriptor >= 0) return read_bytes(gguf, at, to, bytes, error);
    memcpy(to, gguf->head + at, bytes);
    return TAMIS_OK;
}

tamis_status tms_gguf_read(const tms_gguf *gguf, const tms_gguf_tensor *tensor, uint64_t first,
                           uint64_t bytes, void *to, tamis_error *error) {
    const tms_gguf *file = tensor->part ? &gguf->others[tensor->part - 1] : gguf;
    return tms_gguf_read_at(file, tensor->at + first, bytes, to, error);
}

/* The state of reading: the first `loaded` bytes of the head are in memory. */
typedef struct reader {
    const tms_gguf *gguf;
    uint8_t *head; /* of a file */
    uint64_t at, loaded;
} reader;

static uint64_t left(const reader *r) {
    return r->gguf->bytes - r->at;
}

static const uint8_t *here(const reader *r) {
    return r->gguf->head + r->at;
}

static tamis_status truncated(const reader *r, const char *what, tamis_error *error) {
    return tms_model_fail(error, TAMIS_E_FORMAT, "the file ends at byte %llu, inside %s",
                          (unsigned long long)r->gguf->bytes, what);
}

/* Loads the next `bytes` bytes; the file has at least that many left. */
static tamis_status load(reader *r, uint64_t bytes, tamis_error *error) {
    const uint64_t end = r->at + bytes;
    if (end <= r->loaded) return TAMIS_OK;
    TMS_REQUIRE(end <= MAX_HEAD, TAMIS_E_UNSUPPORTED,
                "%llu bytes before the tensors' data; up to %u are read", (unsigned long long)end,
                MAX_HEAD);
    uint64_t to = (end + HEAD_PIECE - 1) / HEAD_PIECE * HEAD_PIECE;
    if (to > r->gguf->bytes) to = r->gguf->bytes;
    tamis_status status =
        read_bytes(r->gguf, r->loaded, r->head + r->loaded, to - r->loaded, error);
    if (status == TAMIS_OK) r->loaded = to;
    return status;
}

/* Copies the next `bytes` bytes to `out`. */
static tamis_status take(reader *r, void *out, size_t bytes, const char *what, tamis_error *error) {
    if (left(r) < bytes) return truncated(r, what, error);
    tamis_status status = load(r, bytes, error);
    if (status != TAMIS_OK) return status;
    memcpy(out, here(r), bytes);
    r->at += bytes;
    return TAMIS_OK;
}

static tamis_status take_text(reader *r, tms_text *out, const char *what, tamis_error *error) {
    tamis_status status = take(r, &out->bytes, sizeof out->bytes, what, error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(out->bytes <= left(r), TAMIS_E_FORMAT,
                "%s states %llu bytes of text, the file has %llu left", what,
                (unsigned long long)out->bytes, (unsigned long long)left(r));
    status = load(r, out->bytes, error);
    if (status != TAMIS_OK) return status;
    out->at = (const char *)here(r);
    r->at += out->bytes;
    return TAMIS_OK;
}

bool tms_text_is(tms_text text, const char *word) {
    return text.bytes == strlen(word) && memcmp(text.at, word, text.bytes) == 0;
}

tms_shown tms_text_show(tms_text text) {
    tms_shown shown = {{0}};
    for (uint64_t i = 0; i < text.bytes && i < sizeof shown.text - 1; ++i)
        shown.text[i] = text.at[i] >= ' ' && text.at[i] <= '~' ? text.at[i] : '?';
    return shown;
}

/* Compares bytes; a text comes after its prefixes. */
static int text_order(tms_text a, tms_text b) {
    int order = memcmp(a.at, b.at, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

/* ---- Entries --------------------------------------------------------------------------------- */

/* Skips the values of an entry whose type and count are known. */
static tamis_status skip_values(reader *r, const tms_gguf_entry *entry, tamis_error *error) {
    tms_shown key = tms_text_show(entry->key);
    uint64_t size = entry->type == TMS_GGUF_STRING ? sizeof(uint64_t) : type_bytes[entry->type];
    TMS_REQUIRE(entry->count <= left(r) / size, TAMIS_E_FORMAT,
                "key '%s' states %llu values of type %s, the file has %llu bytes left", key.text,
                (unsigned long long)entry->count, type_names[entry->type],
                (unsigned long long)left(r));
    if (entry->type != TMS_GGUF_STRING) {
        tamis_status status = load(r, entry->count * size, error);
        r->at += entry->count * size;
        return status;
    }
    for (uint64_t i = 0; i < entry->count; ++i) {
        tms_text text = {0};
        tamis_status status = take_text(r, &text, key.text, error);
        if (status != TAMIS_OK) return status;
    }
    return TAMIS_OK;
}

static tamis_status check_type(uint32_t type, tms_text key, tamis_error *error) {
    TMS_REQUIRE(type < N_TYPES, TAMIS_E_FORMAT, "key '%s' has the unknown type %u",
                tms_text_show(key).text, type);
    return TAMIS_OK;
}

static tamis_status parse_entry(reader *r, tms_gguf_entry *entry, tamis_error *error) {
    uint32_t type = 0;
    tamis_status status = take_text(r, &entry->key, "a key", error);
    if (status == TAMIS_OK) status = take(r, &type, sizeof type, "a key's type", error);
    if (status == TAMIS_OK) status = check_type(type, entry->key, error);
    if (status != TAMIS_OK) return status;
    entry->count = 1;
    entry->array = type == TMS_GGUF_ARRAY;
    if (entry->array) {
        status = take(r, &type, sizeof type, "an array's type", error);
        if (status == TAMIS_OK) status = check_type(type, entry->key, error);
        if (status == TAMIS_OK)
            status = take(r, &entry->count, sizeof entry->count, "an array's length", error);
        if (status != TAMIS_OK) return status;
        TMS_REQUIRE(type != TMS_GGUF_ARRAY, TAMIS_E_UNSUPPORTED, "key '%s' is an array of arrays",
                    tms_text_show(entry->key).text);
    }
    entry->type = (tms_gguf_type)type;
    entry->at = here(r);
    return skip_values(r, entry, error);
}

static int entry_order(const void *a, const void *b) {
    return text_order(((const tms_gguf_entry *)a)->key, ((const tms_gguf_entry *)b)->key);
}

/* Checked before memory is allocated for a number that the file only claims: `count` things of at
 * least `least` bytes each fit into what is left of the file, and into what is read of its head. */
static tamis_status check_count(const reader *r, uint64_t count, uint32_t least, const char *what,
                                tamis_error *error) {
    TMS_REQUIRE(count <= left(r) / least, TAMIS_E_FORMAT,
                "the file states %llu %s, its %llu bytes left cannot hold them",
                (unsigned long long)count, what, (unsigned long long)left(r));
    TMS_REQUIRE(count <= MAX_HEAD / least, TAMIS_E_UNSUPPORTED,
                "%llu %s before the tensors' data, of which up to %u bytes are read",
                (unsigned long long)count, what, MAX_HEAD);
    return TAMIS_OK;
}

static tamis_status parse_entries(reader *r, tms_gguf *gguf, tamis_error *error) {
    TMS_TRY(check_count(r, gguf->n_entries, MIN_ENTRY_BYTES, "keys", error));
    gguf->entries = calloc(gguf->n_entries + 1, sizeof *gguf->entries);
    TMS_REQUIRE(gguf->entries, TAMIS_E_NO_MEMORY, "no memory for %llu keys",
                (unsigned long long)gguf->n_entries);
    for (uint64_t i = 0; i < gguf->n_entries; ++i) {
        tamis_status status = parse_entry(r, &gguf->entries[i], error);
        if (status != TAMIS_OK) return status;
    }
    qsort(gguf->entries, gguf->n_entries, sizeof *gguf->entries, entry_order);
    for (uint64_t i = 1; i < gguf->n_entries; ++i)
        TMS_REQUIRE(entry_order(&gguf->entries[i - 1], &gguf->entries[i]) != 0, TAMIS_E_FORMAT,
                    "key '%s' stands twice", tms_text_show(gguf->entries[i].key).text);
    return TAMIS_OK;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

#define READ_TYPE(name, value, text) ", " text
static const char read_types[] = TAMIS_WEIGHT_LIST(READ_TYPE);

static tamis_status check_tensor_type(tms_gguf_tensor *tensor, uint32_t type, tamis_error *error) {
    const tensor_type entry = type < N_TENSOR_TYPES ? tensor_types[type] : (tensor_type){0};
    TMS_REQUIRE(entry.read, TAMIS_E_UNSUPPORTED,
                "tensor '%s' has type %s (%u); types that are read: %s",
                tms_text_show(tensor->name).text, entry.name ? entry.name : "unknown", type,
                read_types + strlen(", "));
    tensor->type = entry.type;
    return TAMIS_OK;
}

/* Computes the element and byte counts, checked for overflow: no type has more than 4 bytes for an
 * element. */
static tamis_status measure_tensor(tms_gguf_tensor *tensor, tamis_error *error) {
    const uint64_t limit = UINT64_MAX / 4, block = tamis_weight_block(tensor->type);
    tensor->elements = 1;
    for (uint32_t i = 0; i < tensor->n_dims; ++i) {
        TMS_REQUIRE(tensor->dims[i] > 0 && tensor->dims[i] <= limit / tensor->elements,
                    TAMIS_E_FORMAT, "tensor '%s' has the impossible dim %llu",
                    tms_text_show(tensor->name).text, (unsigned long long)tensor->dims[i]);
        tensor->elements *= tensor->dims[i];
    }
    TMS_REQUIRE(tensor->dims[0] % block == 0, TAMIS_E_FORMAT,
                "tensor '%s' has rows of %llu elements, no multiple of the %llu of a block of %s",
                tms_text_show(tensor->name).text, (unsigned long long)tensor->dims[0],
                (unsigned long long)block, tamis_weight_name(tensor->type));
    tensor->bytes =
        tamis_weight_bytes(tensor->type, tensor->elements / tensor->dims[0], tensor->dims[0]);
    return TAMIS_OK;
}

static tamis_status parse_tensor(reader *r, tms_gguf_tensor *tensor, tamis_error *error) {
    uint32_t type = 0;
    tamis_status status = take_text(r, &tensor->name, "a tensor's name", error);
    if (status == TAMIS_OK)
        status = take(r, &tensor->n_dims, sizeof tensor->n_dims, "a tensor's dims", error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(tensor->n_dims >= 1 && tensor->n_dims <= TMS_GGUF_MAX_DIMS, TAMIS_E_FORMAT,
                "tensor '%s' has %u dims; 1 to %d can be", tms_text_show(tensor->name).text,
                tensor->n_dims, TMS_GGUF_MAX_DIMS);
    for (uint32_t i = 0; i < TMS_GGUF_MAX_DIMS; ++i)
        tensor->dims[i] = 1;
    status =
        take(r, tensor->dims, tensor->n_dims * sizeof tensor->dims[0], "a tensor's dims", error);
    if (status == TAMIS_OK) status = take(r, &type, sizeof type, "a tensor's type", error);
    if (status == TAMIS_OK)
        status = take(r, &tensor->offset, sizeof tensor->offset, "a tensor's offset", error);
    if (status == TAMIS_OK) status = check_tensor_type(tensor, type, error);
    return status == TAMIS_OK ? measure_tensor(tensor, error) : status;
}

static int name_order(const void *a, const void *b) {
    return text_order(((const tms_gguf_tensor *)a)->name, ((const tms_gguf_tensor *)b)->name);
}

static int offset_order(const void *a, const void *b) {
    const tms_gguf_tensor *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Computes the tensors' places and checks them: aligned, inside the data section, not
 * overlapping. */
static tamis_status place_tensors(reader *r, tms_gguf *gguf, tamis_error *error) {
    uint32_t alignment = 32;
    tamis_status status = tms_gguf_u32(gguf, "general.alignment", &alignment, error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(alignment >= 8 && alignment <= 65536 && (alignment & (alignment - 1)) == 0,
                TAMIS_E_FORMAT, "general.alignment is %u; a power of two from 8 to 65536 can be",
                alignment);
    uint64_t padding = (alignment - r->at % alignment) % alignment;
    if (padding > left(r)) return truncated(r, "the padding before the tensors", error);
    r->at += padding;
    qsort(gguf->tensors, gguf->n_tensors, sizeof *gguf->tensors, offset_order);
    uint64_t end = 0;
    for (uint64_t i = 0; i < gguf->n_tensors; ++i) {
        tms_gguf_tensor *tensor = &gguf->tensors[i];
        tms_shown name = tms_text_show(tensor->name);
        TMS_REQUIRE(tensor->offset % alignment == 0, TAMIS_E_FORMAT,
                    "tensor '%s' has the offset %llu, not a multiple of the alignment %u",
                    name.text, (unsigned long long)tensor->offset, alignment);
        TMS_REQUIRE(tensor->offset <= left(r) && tensor->bytes <= left(r) - tensor->offset,
                    TAMIS_E_FORMAT,
                    "tensor '%s' (offset %llu, %llu bytes) leaves the file, whose "
                    "data section has %llu bytes",
                    name.text, (unsigned long long)tensor->offset,
                    (unsigned long long)tensor->bytes, (unsigned long long)left(r));
        TMS_REQUIRE(tensor->offset >= end, TAMIS_E_FORMAT,
                    "tensor '%s' at offset %llu lies over the one before it, which ends at %llu",
                    name.text, (unsigned long long)tensor->offset, (unsigned long long)end);
        end = tensor->offset + tensor->bytes;
        tensor->at = r->at + tensor->offset;
    }
    gguf->data_end = r->at + end;
    return TAMIS_OK;
}

static tamis_status parse_tensors(reader *r, tms_gguf *gguf, tamis_error *error) {
    TMS_TRY(check_count(r, gguf->n_tensors, MIN_TENSOR_BYTES, "tensors", error));
    gguf->tensors = calloc(gguf->n_tensors + 1, sizeof *gguf->tensors);
    TMS_REQUIRE(gguf->tensors, TAMIS_E_NO_MEMORY, "no memory for %llu tensors",
                (unsigned long long)gguf->n_tensors);
    for (uint64_t i = 0; i < gguf->n_tensors; ++i) {
        tamis_status status = parse_tensor(r, &gguf->tensors[i], error);
        if (status != TAMIS_OK) return status;
    }
    TMS_TRY(place_tensors(r, gguf, error));
    return tms_gguf_sort_tensors(gguf, error);
}

tamis_status tms_gguf_sort_tensors(tms_gguf *gguf, tamis_error *error) {
    qsort(gguf->tensors, gguf->n_tensors, sizeof *gguf->tensors, name_order);
    for (uint64_t i = 1; i < gguf->n_tensors; ++i)
        TMS_REQUIRE(name_order(&gguf->tensors[i - 1], &gguf->tensors[i]) != 0, TAMIS_E_FORMAT,
                    "tensor '%s' stands twice", tms_text_show(gguf->tensors[i].name).text);
    return TAMIS_OK;
}

/* ---- The file -------------------------------------------------------------------------------- */

static tamis_status parse_head(reader *r, tms_gguf *gguf, tamis_error *error) {
    uint8_t magic[4];
    uint32_t version = 0;
    tamis_status status = take(r, magic, sizeof magic, "the magic number", error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(memcmp(magic, "GGUF", 4) == 0, TAMIS_E_FORMAT,
                "not a GGUF file: it begins with the bytes %02x %02x %02x %02x", magic[0], magic[1],
                magic[2], magic[3]);
    status = take(r, &version, sizeof version, "the version", error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(version >= GGUF_OLDEST && version <= GGUF_NEWEST, TAMIS_E_UNSUPPORTED,
                "GGUF version %u is not read, only little-endian versions %u and %u", version,
                GGUF_OLDEST, GGUF_NEWEST);
    status = take(r, &gguf->n_tensors, sizeof gguf->n_tensors, "the number of tensors", error);
    if (status == TAMIS_OK)
        status = take(r, &gguf->n_entries, sizeof gguf->n_entries, "the number of keys", error);
    return status;
}

/* Fills gguf, whose head is `loaded` so far, with or without tensors. Closes it on failure. */
static tamis_status parse(tms_gguf *gguf, uint8_t *head, uint64_t loaded, bool tensors,
                          tamis_error *error) {
    reader r = {.gguf = gguf, .head = head, .loaded = loaded};
    tamis_status status = parse_head(&r, gguf, error);
    if (!tensors) gguf->n_tensors = 0;
    if (status == TAMIS_OK) status = parse_entries(&r, gguf, error);
    if (status == TAMIS_OK && tensors) status = parse_tensors(&r, gguf, error);
    if (status != TAMIS_OK) tms_gguf_close(gguf);
    return status;
}

tamis_status tms_gguf_parse(const void *file, uint64_t bytes, tms_gguf *out, tamis_error *error) {
    *out = (tms_gguf){.head = file, .bytes = bytes, .descriptor = -1};
    return parse(out, NULL, bytes, true, error);
}

tamis_status tms_gguf_parse_keys(const void *file, uint64_t bytes, tms_gguf *out,
                                 tamis_error *error) {
    *out = (tms_gguf){.head = file, .bytes = bytes, .descriptor = -1};
    return parse(out, NULL, bytes, false, error);
}

/* What is no file that can be read at any place. */
static const char *kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a pipe";
    return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "of another kind";
}

static tamis_status check_file(int descriptor, uint64_t *bytes, tamis_error *error) {
    struct stat info;
    TMS_REQUIRE(fstat(descriptor, &info) == 0, TAMIS_E_IO, "cannot be read: %s", strerror(errno));
    TMS_REQUIRE(S_ISREG(info.st_mode), TAMIS_E_IO, "not a regular file but %s",
                kind_of(info.st_mode));
    TMS_REQUIRE(info.st_size > 0, TAMIS_E_FORMAT, "the file is empty");
    *bytes = (uint64_t)info.st_size;
    return TAMIS_OK;
}

tamis_status tms_gguf_open_file(const char *path, bool tensors, tms_gguf *out, tamis_error *error) {
    uint64_t bytes = 0;
    *out = (tms_gguf){.descriptor = -1};
    /* O_NONBLOCK: opening a named pipe must not wait. */
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    TMS_REQUIRE(descriptor >= 0, TAMIS_E_IO, "cannot be read: %s", strerror(errno));
    tamis_status status = check_file(descriptor, &bytes, error);
    /* The part of it that is never read takes no physical memory. */
    uint8_t *head = status == TAMIS_OK ? malloc(bytes < MAX_HEAD ? bytes : MAX_HEAD) : NULL;
    if (status == TAMIS_OK && !head)
        status = tms_model_fail(error, TAMIS_E_NO_MEMORY, "no memory for its head");
    if (status != TAMIS_OK) {
        close(descriptor);
        return status;
    }
    *out = (tms_gguf){.head = head, .bytes = bytes, .descriptor = descriptor};
    return parse(out, head, 0, tensors, error);
}

void tms_gguf_close(tms_gguf *gguf) {
    for (uint32_t i = 0; i < gguf->n_others; ++i)
        tms_gguf_close(&gguf->others[i]);
    free(gguf->others);
    free(gguf->entries);
    free(gguf->tensors);
    if (gguf->descriptor >= 0) {
        free((void *)(uintptr_t)gguf->head);
        close(gguf->descriptor);
    }
    *gguf = (tms_gguf){.descriptor = -1};
}

/* ---- Look-ups -------------------------------------------------------------------------------- */

const tms_gguf_entry *tms_gguf_find_text(const tms_gguf *gguf, tms_text key) {
    const tms_gguf_entry wanted = {.key = key};
    return bsearch(&wanted, gguf->entries, gguf->n_entries, sizeof wanted, entry_order);
}

const tms_gguf_entry *tms_gguf_find(const tms_gguf *gguf, const char *key) {
    return tms_gguf_find_text(gguf, (tms_text){key, strlen(key)});
}

const tms_gguf_tensor *tms_gguf_tensor_find(const tms_gguf *gguf, const char *name) {
    tms_gguf_tensor wanted = {.name = {name, strlen(name)}};
    return bsearch(&wanted, gguf->tensors, gguf->n_tensors, sizeof wanted, name_order);
}

static tamis_status wrong_type(const tms_gguf_entry *entry, const char *wanted,
                               tamis_error *error) {
    return tms_model_fail(error, TAMIS_E_FORMAT, "key '%s' has type %s%s; %s is expected",
                          tms_text_show(entry->key).text, entry->array ? "array of " : "",
                          type_names[entry->type], wanted);
}

bool tms_gguf_same(const tms_gguf_entry *a, const tms_gguf_entry *b) {
    if (a->type != b->type || a->array != b->array || a->count != b->count) return false;
    if (a->type != TMS_GGUF_STRING)
        return memcmp(a->at, b->at, a->count * type_bytes[a->type]) == 0;
    const uint8_t *x = a->at, *y = b->at;
    for (uint64_t i = 0; i < a->count; ++i)
        if (text_order(tms_gguf_next_string(&x), tms_gguf_next_string(&y)) != 0) return false;
    return true;
}

bool tms_gguf_integer(const tms_gguf_entry *entry, uint64_t i, int64_t *out) {
    const uint64_t size = type_bytes[entry->type];
    uint64_t bits = 0;
    memcpy(&bits, entry->at + i * size, size);
    switch (entry->type) {
    case TMS_GGUF_U8:
    case TMS_GGUF_U16:
    case TMS_GGUF_U32:
    case TMS_GGUF_U64:
    case TMS_GGUF_I64:
        *out = (int64_t)bits;
        return true;
    case TMS_GGUF_I8:
        *out = (int8_t)bits;
        return true;
    case TMS_GGUF_I16:
        *out = (int16_t)bits;
        return true;
    case TMS_GGUF_I32:
        *out = (int32_t)bits;
        return true;
    default:
        return false;
    }
}

/* The first value of an entry. */
static tamis_status read_u32(const tms_gguf_entry *entry, const char *key, uint32_t *out,
                             tamis_error *error) {
    int64_t value;
    if (!tms_gguf_integer(entry, 0, &value)) return wrong_type(entry, "an integer", error);
    TMS_REQUIRE(value >= 0 || entry->type == TMS_GGUF_U64, TAMIS_E_FORMAT,
                "key '%s' is %lld; 0 to %u can be", key, (long long)value, UINT32_MAX);
    TMS_REQUIRE((uint64_t)value <= UINT32_MAX, TAMIS_E_FORMAT, "key '%s' is %llu; 0 to %u can be",
                key, (unsigned long long)value, UINT32_MAX);
    *out = (uint32_t)value;
    return TAMIS_OK;
}

tamis_status tms_gguf_u32(const tms_gguf *gguf, const char *key, uint32_t *out,
                          tamis_error *error) {
    const tms_gguf_entry *entry = tms_gguf_find(gguf, key);
    if (!entry) return TAMIS_OK;
    return entry->array ? wrong_type(entry, "an integer", error) : read_u32(entry, key, out, error);
}

tamis_status tms_gguf_u32_each(const tms_gguf *gguf, const char *key, uint32_t count, uint32_t *out,
                               tamis_error *error) {
    const tms_gguf_entry *entry = tms_gguf_find(gguf, key);
    int64_t first = 0, value = 0;
    if (!entry || !entry->array) return tms_gguf_u32(gguf, key, out, error);
    TMS_REQUIRE(entry->count == count, TAMIS_E_FORMAT, "key '%s' has %llu values for %u layers",
                key, (unsigned long long)entry->count, count);
    for (uint64_t i = 0; i < count; ++i) {
        if (!tms_gguf_integer(entry, i, &value))
            return wrong_type(entry, "array of integers", error);
        if (i == 0) first = value;
        TMS_REQUIRE(value == first, TAMIS_E_UNSUPPORTED,
                    "key '%s' is %lld for layer 0 and %lld for layer %llu; only layers that are "
                    "alike are run",
                    key, (long long)first, (long long)value, (unsigned long long)i);
    }
    return read_u32(entry, key, out, error);
}

tamis_status tms_gguf_f64(const tms_gguf *gguf, const char *key, double *out, tamis_error *error) {
    const tms_gguf_entry *entry = tms_gguf_find(gguf, key);
    double value = 0;
    int64_t whole;
    float narrow;
    if (!entry) return TAMIS_OK;
    if (entry->array) return wrong_type(entry, "a number", error);
    if (entry->type == TMS_GGUF_F64) {
        memcpy(&value, entry->at, sizeof value);
    } else if (entry->type == TMS_GGUF_F32) {
        memcpy(&narrow, entry->at, sizeof narrow);
        value = narrow;
    } else {
        if (!tms_gguf_integer(entry, 0, &whole)) return wrong_type(entry, "a number", error);
        value = entry->type == TMS_GGUF_U64 ? (double)(uint64_t)whole : (double)whole;
    }
    TMS_REQUIRE(isfinite(value), TAMIS_E_FORMAT, "key '%s' is %g, not a finite number", key, value);
    *out = value;
    return TAMIS_OK;
}

tamis_status tms_gguf_bool(const tms_gguf *gguf, const char *key, bool *out, tamis_error *error) {
    const tms_gguf_entry *entry = tms_gguf_find(gguf, key);
    if (!entry) return TAMIS_OK;
    if (entry->array || entry->type != TMS_GGUF_BOOL) return wrong_type(entry, "bool", error);
    TMS_REQUIRE(*entry->at <= 1, TAMIS_E_FORMAT, "key '%s' is the bool %u; 0 and 1 can be", key,
                *entry->at);
    *out = *entry->at != 0;
    return TAMIS_OK;
}

tamis_status tms_gguf_string(const tms_gguf *gguf, const char *key, tms_text *out,
                             tamis_error *error) {
    const tms_gguf_entry *entry = tms_gguf_find(gguf, key);
    if (!entry) return TAMIS_OK;
    if (entry->array || entry->type != TMS_GGUF_STRING) return wrong_type(entry, "string", error);
    const uint8_t *at = entry->at;
    *out = tms_gguf_next_string(&at);
    return TAMIS_OK;
}

tamis_status tms_gguf_array(const tms_gguf *gguf, const char *key, tms_gguf_type type,
                            const tms_gguf_entry **out, tamis_error *error) {
    const tms_gguf_entry *entry = tms_gguf_find(gguf, key);
    char wanted[32] = "array of ";
    *out = entry;
    if (!entry || (entry->array && entry->type == type)) return TAMIS_OK;
    return wrong_type(entry, strcat(wanted, type_names[type]), error);
}

tamis_status tms_gguf_integers(const tms_gguf *gguf, const char *key, const tms_gguf_entry **out,
                               tamis_error *error) {
    const tms_gguf_entry *entry = tms_gguf_find(gguf, key);
    const bool floats = entry && (entry->type == TMS_GGUF_F32 || entry->type == TMS_GGUF_F64);
    const bool other = entry && (entry->type == TMS_GGUF_BOOL || entry->type == TMS_GGUF_STRING);
    *out = entry;
    if (entry && (!entry->array || floats || other))
        return wrong_type(entry, "array of integers", error);
    return TAMIS_OK;
}

tms_text tms_gguf_next_string(const uint8_t **at) {
    tms_text text;
    memcpy(&text.bytes, *at, sizeof text.bytes);
    text.at = (const char *)*at + sizeof text.bytes;
    *at += sizeof text.bytes + text.bytes;
    return text;
}
