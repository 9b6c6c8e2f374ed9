/* A tile of many rows of one sequence and head: chunks of keys turned into panels, with a running softmax. */
#include "attention.h"

#define CHUNK 64 /* keys per step */

/* Keys [k0, k0 + keys) as panels of 16 keys (d rows of 16), values as rows; the rest of the chunk is zero, and so are
 * keys that have left the window of all rows: their blocks may be another's by now. */
static void load_chunk(const row_tile *t, long k0, long keys, float *key_panels, float *values) {
    const attention_job *job = t->job;
    const long d = job->d;
    const long padded = (keys + RL_PANEL - 1) / RL_PANEL * RL_PANEL;
    const long seen_from = row_begin(t, 0) - k0;
    float wide[d];
    for (long k = 0; k < padded; k++) {
        float *column = key_panels + k / RL_PANEL * d * RL_PANEL + k % RL_PANEL;
        if (k >= keys || k < seen_from) {
            for (long i = 0; i < d; i++) column[i * RL_PANEL] = 0.0f;
            memset(values + k * d, 0, (size_t)d * sizeof(float));
            continue;
        }
        const long at = key_at(t, k0 + k);
        for (long i = 0; i < d; i += RL_LANES) {
            vf_store(wide + i, load_kv(job->cache, job->is_bf16, at + i));
            vf_store(values + k * d + i, load_kv(job->cache, job->is_bf16, at + job->block_tokens * d + i));
        }
        for (long i = 0; i < d; i++) column[i * RL_PANEL] = wide[i];
    }
}

/* c[rows][16] (+)= x[rows][depth] . w[depth][16], for any number of rows. */
static void product(const float *x, long ldx, const float *w, long ldw, long depth, rl_start start, float *c, long ldc,
                    long rows) {
    long r = 0;
#define ROWS(N) \
    for (; r + N <= rows; r += N) \
        micro_f32(N, 1, 0, x + r * ldx, ldx, 1, w, ldw, 0, depth, start, NULL, c + r * ldc, ldc)
    ROWS(RL_TILE_ROWS);
    ROWS(2);
    ROWS(1);
#undef ROWS
}

/* One chunk of `keys` keys, a multiple of RL_PANEL, against the whole tile: scores, running softmax, values. */
static void prefill_chunk(const row_tile *t, long k0, long keys, const float *q, const float *key_panels,
                          const float *values, float *scores, float *top, float *sum, float *out) {
    const long d = t->job->d;
    for (long p = 0; p < keys / RL_PANEL; p++)
        product(q, d, key_panels + p * d * RL_PANEL, RL_PANEL, d, RL_FROM_ZERO, scores + p * RL_PANEL, CHUNK, t->rows);
    for (long r = 0; r < t->rows; r++) {
        const long begin = clamp(row_begin(t, r) - k0, 0, keys), end = clamp(row_end(t, r) - k0, begin, keys);
        float *row = scores + r * CHUNK;
        for (long k = 0; k < begin; k++) row[k] = -INFINITY;
        for (long k = end; k < keys; k++) row[k] = -INFINITY;
        vf tops = vf_load(row);
        for (long k = RL_LANES; k < keys; k += RL_LANES) tops = vf_max(vf_load(row + k), tops);
        const float highest = vf_highest(tops);
        if (highest > top[r]) {
            const float shrink = top[r] == -INFINITY ? 0.0f : exp2f(top[r] - highest);
            sum[r] *= shrink;
            for (long i = 0; i < d; i += RL_LANES) vf_store(out + r * d + i, vf_load(out + r * d + i) * shrink);
            top[r] = highest;
        }
        const float base = top[r] == -INFINITY ? 0.0f : top[r];
        vf sums = {0};
        for (long k = 0; k < keys; k += RL_LANES) {
            vf w = vf_exp2_falling(vf_load(row + k) - base);
            vf_store(row + k, w);
            sums += w;
        }
        sum[r] += vf_sum(sums);
    }
    for (long i = 0; i < d; i += RL_PANEL)
        product(scores, CHUNK, values + i, d, keys, RL_FROM_OUT, out + i, d, t->rows);
}

void attention_prefill(const row_tile *t) {
    const attention_job *job = t->job;
    const long d = job->d, rows = t->rows;
    const long floats = rows * d * 2 + rows * CHUNK + rows * 2 + 2 * CHUNK * d;
    float *q = malloc((size_t)floats * sizeof(float));
    if (!q) {
        atomic_store(job->fault, 2);
        return;
    }
    float *out = q + rows * d, *scores = out + rows * d, *key_panels = scores + rows * CHUNK;
    float *values = key_panels + CHUNK * d, *top = values + CHUNK * d, *sum = top + rows;
    memset(out, 0, (size_t)(rows * d) * sizeof(float));
    for (long r = 0; r < rows; r++) {
        for (long i = 0; i < d; i += RL_LANES) vf_store(q + r * d + i, vf_load(row_query(t, r) + i) * job->scale);
        top[r] = -INFINITY;
        sum[r] = 0.0f;
    }
    const long end = row_end(t, rows - 1);
    for (long k0 = row_begin(t, 0) / CHUNK * CHUNK; k0 < end; k0 += CHUNK) {
        const long keys = end - k0 < CHUNK ? end - k0 : CHUNK;
        const long padded = (keys + RL_PANEL - 1) / RL_PANEL * RL_PANEL;
        load_chunk(t, k0, keys, key_panels, values);
        prefill_chunk(t, k0, padded, q, key_panels, values, scores, top, sum, out);
    }
    for (long r = 0; r < rows; r++) write_row(t, r, out + r * d, sum[r]);
    free(q);
}
