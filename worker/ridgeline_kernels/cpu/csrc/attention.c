/* Causal attention over the paged cache [blocks, kv_heads, 2, block_tokens, d], in place.
 *
 * A few rows (decode): scores by dot products straight from the cache, one partition of PARTITION keys at a
 * time; long contexts give several partitions, merged in order by whichever thread ends last. Many rows
 * (prefill): tiles of queries against chunks of keys turned into panels, with a running softmax. How a row is
 * computed depends on its own sequence alone, never on the rest of the batch.
 */
#include "attention.h"

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
            attention_decode(&t, index % parts);
        return;
    }
    const long step = tile_queries(job), tiles = (t.queries + step - 1) / step;
    t.head = index / tiles;
    t.query0 = (tiles - 1 - index % tiles) * step; /* longest first */
    t.rows = (t.queries - t.query0 < step ? t.queries - t.query0 : step) * job->group;
    attention_prefill(&t);
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
    job.parts_done = calloc((size_t)(seqs * kv_heads + 1), sizeof(atomic_int));
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
