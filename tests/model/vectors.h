/* SPDX-License-Identifier: Apache-2.0 */
/* Logits and greedy tokens of a model by independent implementations, from a file of tests/data that
 * make_logits.py, peer_logits.py or make_blends.py wrote. */
#ifndef TEST_VECTORS_H
#define TEST_VECTORS_H

#include <stddef.h>
#include <stdint.h>

typedef struct vectors {
    const char *file; /* the model's */
    size_t text_bytes, n_vocab, n_positions, n_continuations, n_greedy;
    int32_t *positions;
    float *logits, *peer; /* [n_positions][n_vocab]; peer NULL: none */
    int32_t *greedy_at;   /* [n_continuations] indices of positions */
    int32_t *greedy;      /* [n_continuations][n_greedy] tokens that follow */
    float *leads;         /* the lead of each over its runner-up */
} vectors;

/* Reads `name`.logits of rig_data, of the model `name`.gguf; ends the test where it is not sound. */
void vectors_read(vectors *v, const char *name);
void vectors_free(vectors *v);

/* The numbers of one array of `name`.logits, which the caller frees: n of them, or *n. */
float *vectors_floats(const char *name, const char *wanted, size_t n);
int32_t *vectors_integers(const char *name, const char *wanted, size_t *n);

#endif
