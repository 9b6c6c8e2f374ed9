/* Causal attention over the paged cache [blocks, kv_heads, 2, block_tokens, d], in place.
 *
 * A few rows (decode): scores by dot products straight from the cache, one partition of PARTITION keys at a
 * time; long contexts give several partitions, merged in order by whichever thread ends last. Many rows
 * (prefill): tiles of queries against chunks of keys turned into panels, with a running softmax. How a row is
 * computed depends on its own sequence alone, never on the rest of the batch.
 *
 * It does depend on how many rows the sequence has in this step: the two ways sum in another order. Where results
 * must not change with the cut of a prompt (`invariant`), all rows take one way: longer sequences are cut into
 * pieces of few rows. Heads whose group alone has too many rows take the other way at any length.
 */
#include "attention.h"
#include "operators.h"

static const int32_t *table_at(const attention_job *job, long seq) {
    return job->tables + (job->table_of ? job->table_of[seq] : seq) * job->table_width;
}

static void attention_task(const void *argument, long task) {
    const attention_job *job = argument;
    long low = 0, high = job->seqs;
    while (high - low > 1) {
        const long middle = (low + high) / 2;
        if (job->first_task[middle] <= task) low = middle;
        else high = middle;
    }
    row_tile t = {.job = job, .seq = low, .table = table_at(job, low),
                  .queries = job->query_start[low + 1] - job->query_start[low], .context = job->context[low]};
    const long index = task - job->first_task[low];
    if (few(job, t.queries)) {
        const long parts = spread(job, low, t.context), first = index / parts * job->heads_per_task;
        t.rows = t.queries * job->group;
        for (t.head = first; t.head < first + job->heads_per_task && t.head < job->kv_heads; t.head++)
            attention_decode(&t, index % parts);
        return;
    }
    const long step = tile_queries(job), tiles = (t.queries + step - 1) / step;
    t.head = index / tiles;
    t.query0 = (tiles - 1 - index % tiles) * step; /* longest first */
    t.rows = (t.queries - t.query0 < step ? t.queries - t.query0 : step) * job->group;
    attention_prefill(&t);
}

/* Cuts every sequence of many rows into pieces of few, as if each were a sequence that ends there. Returns 0, 2 or 3
 * as below; `job->table_of` is to be freed. */
static int cut(attention_job *job) {
    const long step = FEW_ROWS / job->group;
    long pieces = 0;
    for (long s = 0; s < job->seqs; s++) {
        const long queries = job->query_start[s + 1] - job->query_start[s];
        if (queries < 0) return 3;
        pieces += queries > step ? (queries + step - 1) / step : 1;
    }
    if (pieces == job->seqs) return 0;
    int32_t *table_of = malloc((size_t)(3 * pieces + 1) * sizeof(int32_t));
    if (!table_of) return 2;
    int32_t *context = table_of + pieces, *query_start = context + pieces;
    long piece = 0;
    for (long s = 0; s < job->seqs; s++) {
        int32_t begin = job->query_start[s];
        const int32_t end = job->query_start[s + 1];
        do {
            const int32_t next = end - begin > step ? begin + (int32_t)step : end;
            table_of[piece] = (int32_t)s;
            query_start[piece] = begin;
            context[piece++] = job->context[s] - (end - next);
            begin = next;
        } while (begin < end);
    }
    query_start[pieces] = job->query_start[job->seqs];
    job->table_of = table_of;
    job->context = context;
    job->query_start = query_start;
    job->seqs = pieces;
    return 0;
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
            const int32_t block = table_at(job, s)[b];
            if (block < 0 || block >= job->blocks) return 4;
        }
        long tasks = 0, parts = 0;
        if (queries && few(job, queries)) {
            parts = spread(job, s, context);
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
 * `invariant`: a row's bits do not depend on how many rows of its sequence are in the batch.
 * Returns 0; 2 out of memory; 3 lengths that do not fit together; 4 a block outside the cache. */
RL_EXPORT int rl_paged_attention(const float *q, long ldq, const void *cache, int is_bf16, long blocks,
                                 long block_tokens, const int32_t *tables, long table_width,
                                 const int32_t *query_start, const int32_t *context, long seqs, long rows,
                                 long query_heads, long kv_heads, long d, float scale, long window, float *out,
                                 long ldo, int invariant, int threads) {
    attention_job job = {.q = q, .out = out, .cache = cache, .tables = tables, .query_start = query_start,
                         .context = context, .ldq = ldq, .ldo = ldo, .table_width = table_width, .seqs = seqs,
                         .query_heads = query_heads, .kv_heads = kv_heads, .group = query_heads / kv_heads, .d = d,
                         .block_tokens = block_tokens, .blocks = blocks, .window = window,
                         .scale = scale * RL_LOG2E, .is_bf16 = is_bf16};
    int code = invariant && job.group <= FEW_ROWS ? cut(&job) : 0;
    if (code) return code;
    seqs = job.seqs;
    job.heads_per_task = seqs >= 4L * threads ? kv_heads : 1;
    atomic_int fault = 0;
    job.fault = &fault;
    job.first_task = malloc(2 * (size_t)(seqs + 1) * sizeof(long));
    job.parts_done = calloc((size_t)(seqs * kv_heads + 1), sizeof(atomic_int));
    if (!job.first_task || !job.parts_done) {
        free((void *)job.table_of);
        free(job.first_task);
        free(job.parts_done);
        return 2;
    }
    job.first_partial = job.first_task + seqs + 1;
    code = plan(&job, rows);
    const long partials = code ? 0 : job.first_partial[seqs] * kv_heads;
    if (partials) {
        job.partials = malloc((size_t)(partials * FEW_ROWS * (2 + d)) * sizeof(float));
        if (!job.partials) code = 2;
    }
    if (!code) {
        parallel_tasks(threads, job.first_task[seqs], attention_task, &job);
        code = atomic_load(&fault);
    }
    free((void *)job.table_of);
    free(job.partials);
    free(job.first_task);
    free(job.parts_done);
    return code;
}
