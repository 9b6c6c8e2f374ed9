/* A few rows of one sequence and head: dot products straight from the cache. */
#include "attention.h"

#define DOT_ROWS 3
#define DOT_KEYS 4

/* Asks for the keys or values that come at this place in the next block (NULL: none): blocks are scattered, so the
 * hardware cannot foresee them. */
RL_INLINE void prefetch_ahead(const char *ahead, long offset, long bytes) {
    if (!ahead) return;
    for (long i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + offset + i);
}

/* scores[r][k] = q[r] . key[k] for up to DOT_ROWS rows and `keys` keys that lie together in one block. */
RL_INLINE void dot_scores(const int rows, const int is_bf16, const float *q, const void *cache, long at, long keys,
                          long d, float *scores, long lds, const char *ahead) {
    const long key_bytes = d * (is_bf16 ? 2 : 4);
    for (long k = 0; k < keys; k += DOT_KEYS) {
        prefetch_ahead(ahead, k * key_bytes, DOT_KEYS * key_bytes);
        const long n = keys - k < DOT_KEYS ? keys - k : DOT_KEYS;
        long from[DOT_KEYS];
        RL_UNROLL for (int j = 0; j < DOT_KEYS; j++) from[j] = at + (k + (j < n ? j : 0)) * d;
        vf acc[DOT_ROWS][DOT_KEYS] = {{{0}}};
        for (long i = 0; i < d; i += RL_LANES) {
            vf qi[DOT_ROWS];
            RL_UNROLL for (int r = 0; r < rows; r++) qi[r] = vf_load(q + r * d + i);
            RL_UNROLL for (int j = 0; j < DOT_KEYS; j++) {
                vf key = load_kv(cache, is_bf16, from[j] + i);
                RL_UNROLL for (int r = 0; r < rows; r++) vf_fma(&acc[r][j], qi[r], key);
            }
        }
        RL_UNROLL for (int r = 0; r < rows; r++) {
            float sums[DOT_KEYS];
            vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3], n == DOT_KEYS ? scores + r * lds + k : sums);
            if (n < DOT_KEYS) memcpy(scores + r * lds + k, sums, (size_t)n * sizeof(float));
        }
    }
}

/* out[r][0 .. vecs) += sum over keys of p[r][k] * value[k], keys together in one block. */
RL_INLINE void add_values(const int rows, const int vecs, const int is_bf16, const float *p, long ldp,
                          const void *cache, long at, long keys, long d, float *out, const char *ahead) {
    const long value_bytes = d * (is_bf16 ? 2 : 4);
    vf acc[DOT_ROWS][4];
    RL_UNROLL for (int r = 0; r < rows; r++)
        RL_UNROLL for (int v = 0; v < vecs; v++) acc[r][v] = vf_load(out + r * d + v * RL_LANES);
    for (long k = 0; k < keys; k++) {
        vf value[4];
        prefetch_ahead(ahead, k * value_bytes, value_bytes);
        RL_UNROLL for (int v = 0; v < vecs; v++) value[v] = load_kv(cache, is_bf16, at + k * d + v * RL_LANES);
        RL_UNROLL for (int r = 0; r < rows; r++) {
            vf pk = vf_splat(p[r * ldp + k]);
            RL_UNROLL for (int v = 0; v < vecs; v++) vf_fma(&acc[r][v], pk, value[v]);
        }
    }
    RL_UNROLL for (int r = 0; r < rows; r++)
        RL_UNROLL for (int v = 0; v < vecs; v++) vf_store(out + r * d + v * RL_LANES, acc[r][v]);
}

#define FOR_ROWS(n, CALL)  \
    do {                   \
        if ((n) == 1) CALL(1); \
        else if ((n) == 2) CALL(2); \
        else CALL(3);      \
    } while (0)

/* Turns the scores of the keys [begin, end) of a row into weights, and those of the others into 0. The row has room
 * for whole vectors past `keys`. Sets the maximum, returns the sum. */
static float soften(float *scores, long begin, long end, long keys, float *maximum) {
    const long padded = (keys + RL_LANES - 1) / RL_LANES * RL_LANES;
    for (long k = 0; k < begin; k++) scores[k] = -INFINITY;
    for (long k = end; k < padded; k++) scores[k] = -INFINITY;
    vf tops = vf_splat(-INFINITY);
    for (long k = 0; k < padded; k += RL_LANES) tops = vf_max(vf_load(scores + k), tops);
    const float top = vf_highest(tops), base = top == -INFINITY ? 0.0f : top;
    *maximum = top;
    vf sums = {0};
    for (long k = 0; k < padded; k += RL_LANES) {
        vf w = vf_exp2_falling(vf_load(scores + k) - base);
        vf_store(scores + k, w);
        sums += w;
    }
    return vf_sum(sums);
}

/* One partition of keys for a few rows: maxima, sums and unscaled outputs. */
RL_INLINE void partition_of(const row_tile *t, const int is_bf16, long k0, long k1, float *top, float *sum,
                            float *out) {
    const attention_job *job = t->job;
    const long d = job->d, bt = job->block_tokens, bytes = is_bf16 ? 2 : 4;
    const long width = (k1 - k0 + RL_LANES - 1) / RL_LANES * RL_LANES;
    float q[t->rows * d], scores[t->rows * width];
    for (long r = 0; r < t->rows; r++)
        for (long i = 0; i < d; i += RL_LANES) vf_store(q + r * d + i, vf_load(row_query(t, r) + i) * job->scale);
    /* From a whole vector on: a key keeps its place in the sums whichever row of a window comes first. */
    const long lowest = clamp(row_begin(t, 0), k0, k1) / RL_LANES * RL_LANES;
    const long highest = clamp(row_end(t, t->rows - 1), lowest, k1);
    for (long k = lowest, n; k < highest; k += n) {
        n = bt - k % bt < highest - k ? bt - k % bt : highest - k;
        const long at = key_at(t, k);
        const char *ahead = (const char *)job->cache; /* the next keys, and after the last ones the first values */
        ahead += (k + n < highest ? key_at(t, k + n) : key_at(t, lowest) + bt * d) * bytes;
        for (long r = 0; r < t->rows; r += DOT_ROWS, ahead = NULL) {
            const long rows = t->rows - r;
#define CALL(R) dot_scores(R, is_bf16, q + r * d, job->cache, at, n, d, scores + r * width + k - lowest, width, ahead)
            FOR_ROWS(rows, CALL);
#undef CALL
        }
    }
    for (long r = 0; r < t->rows; r++) {
        const long begin = clamp(row_begin(t, r), lowest, highest), end = clamp(row_end(t, r), begin, highest);
        sum[r] = soften(scores + r * width, begin - lowest, end - lowest, highest - lowest, top + r);
    }
    memset(out, 0, (size_t)(t->rows * d) * sizeof(float));
    for (long k = lowest, n; k < highest; k += n) {
        n = bt - k % bt < highest - k ? bt - k % bt : highest - k;
        const long at = key_at(t, k) + bt * d;
        const char *ahead = (const char *)job->cache; /* the next values, after the last ones the next head's keys */
        ahead += (k + n < highest ? key_at(t, k + n) + bt * d : key_at(t, lowest) + 2 * bt * d) * bytes;
        for (long r = 0; r < t->rows; r += DOT_ROWS, ahead = NULL) {
            const long rows = t->rows - r;
            const float *p = scores + r * width + k - lowest;
            long i = 0;
#define CALL(R) add_values(R, 4, is_bf16, p, width, job->cache, at + i, n, d, out + r * d + i, i ? NULL : ahead)
            for (; i + 4 * RL_LANES <= d; i += 4 * RL_LANES) FOR_ROWS(rows, CALL);
#undef CALL
#define CALL(R) add_values(R, 1, is_bf16, p, width, job->cache, at + i, n, d, out + r * d + i, i ? NULL : ahead)
            for (; i < d; i += RL_LANES) FOR_ROWS(rows, CALL);
#undef CALL
        }
    }
}

/* Merges the partitions of one sequence and head, in order. */
static void merge(const row_tile *t, const float *partial, long parts, long stride) {
    const long d = t->job->d;
    float out[d];
    for (long r = 0; r < t->rows; r++) {
        float top = -INFINITY, sum = 0.0f;
        for (long p = 0; p < parts; p++) top = partial[p * stride + r] > top ? partial[p * stride + r] : top;
        memset(out, 0, (size_t)d * sizeof(float));
        for (long p = 0; p < parts; p++) {
            const float *part = partial + p * stride;
            if (part[FEW_ROWS + r] == 0.0f) continue; /* no key of this partition is seen; NaN is not 0 and goes on */
            const float share = exp2f(part[r] - top);
            sum += share * part[FEW_ROWS + r];
            for (long i = 0; i < d; i += RL_LANES)
                vf_store(out + i, vf_load(out + i) + share * vf_load(part + 2 * FEW_ROWS + r * d + i));
        }
        write_row(t, r, out, sum);
    }
}

static void decode_part(const row_tile *t, long part, float *result) {
    const long k0 = part * PARTITION, k1 = clamp(k0 + PARTITION, 0, t->context);
    if (t->job->is_bf16) partition_of(t, 1, k0, k1, result, result + FEW_ROWS, result + 2 * FEW_ROWS);
    else partition_of(t, 0, k0, k1, result, result + FEW_ROWS, result + 2 * FEW_ROWS);
}

/* All partitions by one task, and the same merge. */
static void decode_alone(const row_tile *t, long parts, long stride) {
    float *base = malloc((size_t)(parts * stride) * sizeof(float));
    if (!base) {
        atomic_store(t->job->fault, 2);
        return;
    }
    for (long part = 0; part < parts; part++) decode_part(t, part, base + part * stride);
    merge(t, base, parts, stride);
    free(base);
}

void attention_decode(const row_tile *t, long part) {
    const attention_job *job = t->job;
    const long parts = partitions(t->context), stride = FEW_ROWS * (2 + job->d);
    if (parts == 1) {
        float result[stride];
        decode_part(t, 0, result);
        for (long r = 0; r < t->rows; r++) write_row(t, r, result + 2 * FEW_ROWS + r * job->d, result[FEW_ROWS + r]);
        return;
    }
    if (is_piece(job, t->seq)) {
        decode_alone(t, parts, stride);
        return;
    }
    float *base = job->partials + (job->first_partial[t->seq] * job->kv_heads + t->head * parts) * stride;
    decode_part(t, part, base + part * stride);
    atomic_int *done = job->parts_done + t->seq * job->kv_heads + t->head;
    if (atomic_fetch_add(done, 1) == parts - 1) merge(t, base, parts, stride);
}
