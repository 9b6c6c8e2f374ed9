/* Causal attention over the paged cache [blocks, kv_heads, 2, block_tokens, d], in place.
 *
 * A few rows (decode): scores by dot products straight from the cache, one partition of PARTITION keys at a
 * time; long contexts give several partitions, merged in order by whichever thread ends last. Many rows
 * (prefill): tiles of queries against chunks of keys turned into panels, with a running softmax. How a row is
 * computed depends on its own sequence alone, never on the rest of the batch.
 */
#include "micro.h"

#define PARTITION 512  /* keys per decode task */
#define FEW_ROWS 16    /* queries x heads of a group up to which a sequence takes the decode way */
#define TILE_LIMIT 96  /* queries x heads of a group in one prefill tile */
#define CHUNK 64       /* keys per step of a prefill tile */
#define DOT_ROWS 3
#define DOT_KEYS 4

typedef struct {
    const float *q;
    float *out;
    const void *cache;
    const int32_t *tables, *query_start, *context;
    long ldq, ldo, table_width, seqs, query_heads, kv_heads, group, d, block_tokens, blocks, window;
    float scale; /* with log2(e), since the softmax is in powers of two */
    int is_bf16;
    long heads_per_task; /* of a decode task: several in a row are one stream of memory */
    long *first_task;  /* [seqs + 1] */
    long *first_partial; /* [seqs + 1], partial results before each sequence, per kv head */
    float *partials;   /* each: FEW_ROWS maxima, FEW_ROWS sums, FEW_ROWS x d outputs */
    atomic_int *parts_done; /* [seqs * kv_heads] */
    atomic_int *fault;
} attention_job;

/* What one task works on: rows of one group of heads that share keys. */
typedef struct {
    const attention_job *job;
    const int32_t *table;
    long seq, head, queries, context, query0, rows; /* rows = queries of this tile x group */
} row_tile;

RL_INLINE long partitions(long context) { return (context + PARTITION - 1) / PARTITION; }
RL_INLINE long few(const attention_job *job, long queries) { return queries * job->group <= FEW_ROWS; }
RL_INLINE long tile_queries(const attention_job *job) { return job->group >= TILE_LIMIT ? 1 : TILE_LIMIT / job->group; }

/* Keys that row r of the tile sees: [begin, end). */
RL_INLINE long row_end(const row_tile *t, long r) {
    return t->context - t->queries + t->query0 + r / t->job->group + 1;
}
RL_INLINE long row_begin(const row_tile *t, long r) {
    const long begin = row_end(t, r) - t->job->window;
    return t->job->window > 0 && begin > 0 ? begin : 0;
}
RL_INLINE const float *row_query(const row_tile *t, long r) {
    const attention_job *job = t->job;
    const long row = job->query_start[t->seq] + t->query0 + r / job->group;
    return job->q + row * job->ldq + (t->head * job->group + r % job->group) * job->d;
}
RL_INLINE float *row_out(const row_tile *t, long r) {
    const attention_job *job = t->job;
    const long row = job->query_start[t->seq] + t->query0 + r / job->group;
    return job->out + row * job->ldo + (t->head * job->group + r % job->group) * job->d;
}

/* Elements before the key `token` of this head in the cache; its value is block_tokens * d further on. */
RL_INLINE long key_at(const row_tile *t, long token) {
    const attention_job *job = t->job;
    const long block = t->table[token / job->block_tokens];
    return ((block * job->kv_heads + t->head) * 2 * job->block_tokens + token % job->block_tokens) * job->d;
}

RL_INLINE vf load_kv(const void *cache, const int is_bf16, long at) {
    return is_bf16 ? vf_load_bf16((const uint16_t *)cache + at) : vf_load((const float *)cache + at);
}

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

RL_INLINE long clamp(long value, long low, long high) { return value < low ? low : value > high ? high : value; }

/* One partition of keys for a few rows: maxima, sums and unscaled outputs. */
RL_INLINE void partition_of(const row_tile *t, const int is_bf16, long k0, long k1, float *top, float *sum, float *out) {
    const attention_job *job = t->job;
    const long d = job->d, bt = job->block_tokens, bytes = is_bf16 ? 2 : 4;
    const long width = (k1 - k0 + RL_LANES - 1) / RL_LANES * RL_LANES;
    float q[t->rows * d], scores[t->rows * width];
    for (long r = 0; r < t->rows; r++)
        for (long i = 0; i < d; i += RL_LANES) vf_store(q + r * d + i, vf_load(row_query(t, r) + i) * job->scale);
    const long lowest = clamp(row_begin(t, 0), k0, k1), highest = clamp(row_end(t, t->rows - 1), k0, k1);
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
        const char *ahead = (const char *)job->cache; /* the next values, and after the last ones the next head's keys */
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

static void write_row(const row_tile *t, long r, const float *from, float sum) {
    float *to = row_out(t, r);
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (long i = 0; i < t->job->d; i += RL_LANES) vf_store(to + i, vf_load(from + i) * inverse);
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
            if (part[r] == -INFINITY) continue;
            const float share = exp2f(part[r] - top);
            sum += share * part[FEW_ROWS + r];
            for (long i = 0; i < d; i += RL_LANES)
                vf_store(out + i, vf_load(out + i) + share * vf_load(part + 2 * FEW_ROWS + r * d + i));
        }
        write_row(t, r, out, sum);
    }
}

static void decode_task(const row_tile *t, long part) {
    const attention_job *job = t->job;
    const long parts = partitions(t->context), stride = FEW_ROWS * (2 + job->d);
    const long k0 = part * PARTITION, k1 = clamp(k0 + PARTITION, 0, t->context);
    float own[parts == 1 ? stride : 1];
    float *base = parts == 1 ? own
                             : job->partials + (job->first_partial[t->seq] * job->kv_heads + t->head * parts) * stride;
    float *result = parts == 1 ? own : base + part * stride;
    if (job->is_bf16) partition_of(t, 1, k0, k1, result, result + FEW_ROWS, result + 2 * FEW_ROWS);
    else partition_of(t, 0, k0, k1, result, result + FEW_ROWS, result + 2 * FEW_ROWS);
    if (parts > 1) {
        atomic_int *done = job->parts_done + t->seq * job->kv_heads + t->head;
        if (atomic_fetch_add(done, 1) == parts - 1) merge(t, base, parts, stride);
        return;
    }
    for (long r = 0; r < t->rows; r++) write_row(t, r, result + 2 * FEW_ROWS + r * job->d, result[FEW_ROWS + r]);
}

/* Keys [k0, k0 + keys) as panels of 16 keys (d rows of 16), values as rows; the rest of the chunk is zero. */
static void load_chunk(const row_tile *t, long k0, long keys, float *key_panels, float *values) {
    const attention_job *job = t->job;
    const long d = job->d;
    const long padded = (keys + RL_PANEL - 1) / RL_PANEL * RL_PANEL;
    float wide[d];
    for (long k = 0; k < padded; k++) {
        float *column = key_panels + k / RL_PANEL * d * RL_PANEL + k % RL_PANEL;
        if (k >= keys) {
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
    for (; r + 6 <= rows; r += 6) micro_f32(6, 1, 0, x + r * ldx, ldx, 1, w, ldw, 0, depth, start, NULL, c + r * ldc, ldc);
    for (; r + 2 <= rows; r += 2) micro_f32(2, 1, 0, x + r * ldx, ldx, 1, w, ldw, 0, depth, start, NULL, c + r * ldc, ldc);
    for (; r < rows; r++) micro_f32(1, 1, 0, x + r * ldx, ldx, 1, w, ldw, 0, depth, start, NULL, c + r * ldc, ldc);
}

/* One chunk of `keys` keys, a multiple of RL_PANEL, against the whole tile: scores, running softmax, values. */
static void prefill_chunk(const row_tile *t, long k0, long keys, const float *q, const float *key_panels, const float *values,
                          float *scores, float *top, float *sum, float *out) {
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
    for (long i = 0; i < d; i += RL_PANEL) product(scores, CHUNK, values + i, d, keys, RL_FROM_OUT, out + i, d, t->rows);
}

static void prefill_task(const row_tile *t) {
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

static void attention_task(const void *argument, long task) {
    const attention_job *job = argument;
    long low = 0, high = job->seqs;
    while (high - low > 1) {
        const long middle = (low + high) / 2;
        if (job->first_task[middle] <= task) low = middle;
        else high = middle;
    }
    row_tile t = {.job = job, .seq = low, .table = job->tables + low * job->table_width,
                  .queries = job->query_start[low + 1] - job->query_start[low], .context = job->context[low]};
    const long index = task - job->first_task[low];
    if (few(job, t.queries)) {
        const long parts = partitions(t.context), first = index / parts * job->heads_per_task;
        t.rows = t.queries * job->group;
        for (t.head = first; t.head < first + job->heads_per_task && t.head < job->kv_heads; t.head++)
            decode_task(&t, index % parts);
        return;
    }
    const long step = tile_queries(job), tiles = (t.queries + step - 1) / step;
    t.head = index / tiles;
    t.query0 = (tiles - 1 - index % tiles) * step; /* longest first */
    t.rows = (t.queries - t.query0 < step ? t.queries - t.query0 : step) * job->group;
    prefill_task(&t);
}

/* Checks the batch and lays out its tasks; 0, or 3 for lengths that do not fit, 4 for a block outside the cache. */
static int plan(const attention_job *job, long rows) {
    job->first_task[0] = 0;
    job->first_partial[0] = 0;
    if (job->query_start[0] != 0 || job->query_start[job->seqs] != rows) return 3;
    for (long s = 0; s < job->seqs; s++) {
        const long queries = job->query_start[s + 1] - job->query_start[s], context = job->context[s];
        if (queries < 0 || context < queries || context > job->table_width * job->block_tokens) return 3;
        for (long b = 0; b * job->block_tokens < context; b++) {
            const int32_t block = job->tables[s * job->table_width + b];
            if (block < 0 || block >= job->blocks) return 4;
        }
        long tasks = 0, parts = 0;
        if (queries && few(job, queries)) {
            parts = partitions(context);
            tasks = parts * ((job->kv_heads + job->heads_per_task - 1) / job->heads_per_task);
        } else if (queries) {
            tasks = (queries + tile_queries(job) - 1) / tile_queries(job) * job->kv_heads;
        }
        job->first_task[s + 1] = job->first_task[s] + tasks;
        job->first_partial[s + 1] = job->first_partial[s] + (parts > 1 ? parts : 0);
    }
    return 0;
}

/* q: [rows, query_heads, d] with row stride ldq; out: the same with ldo. d is a multiple of 16; window 0 is none.
 * Returns 0; 2 out of memory; 3 lengths that do not fit together; 4 a block outside the cache. */
RL_EXPORT int rl_paged_attention(const float *q, long ldq, const void *cache, int is_bf16, long blocks,
                                 long block_tokens, const int32_t *tables, long table_width,
                                 const int32_t *query_start, const int32_t *context, long seqs, long rows,
                                 long query_heads, long kv_heads, long d, float scale, long window, float *out,
                                 long ldo, int threads) {
    attention_job job = {.q = q, .out = out, .cache = cache, .tables = tables, .query_start = query_start,
                         .context = context, .ldq = ldq, .ldo = ldo, .table_width = table_width, .seqs = seqs,
                         .query_heads = query_heads, .kv_heads = kv_heads, .group = query_heads / kv_heads, .d = d,
                         .block_tokens = block_tokens, .blocks = blocks, .window = window,
                         .scale = scale * RL_LOG2E, .is_bf16 = is_bf16,
                         .heads_per_task = seqs >= 4L * threads ? kv_heads : 1};
    atomic_int fault = 0;
    job.fault = &fault;
    job.first_task = malloc(2 * (size_t)(seqs + 1) * sizeof(long));
    job.parts_done = calloc((size_t)(seqs * kv_heads), sizeof(atomic_int));
    if (!job.first_task || !job.parts_done) {
        free(job.first_task);
        free(job.parts_done);
        return 2;
    }
    job.first_partial = job.first_task + seqs + 1;
    int code = plan(&job, rows);
    const long partials = code ? 0 : job.first_partial[seqs] * kv_heads;
    if (partials) {
        job.partials = malloc((size_t)(partials * FEW_ROWS * (2 + d)) * sizeof(float));
        if (!job.partials) code = 2;
    }
    if (!code) {
        parallel_tasks(threads, job.first_task[seqs], attention_task, &job);
        code = atomic_load(&fault);
    }
    free(job.partials);
    free(job.first_task);
    free(job.parts_done);
    return code;
}
