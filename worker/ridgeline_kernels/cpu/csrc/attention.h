/* What the two ways to compute attention share: the batch, a tile of rows, and where keys lie. */
#ifndef RL_ATTENTION_H
#define RL_ATTENTION_H

#include "micro.h"

#define PARTITION 512  /* keys per decode task */
#define FEW_ROWS 16    /* queries x heads of a group up to which a sequence takes the decode way */
#define TILE_LIMIT 96  /* queries x heads of a group in one prefill tile */

typedef struct {
    const float *q;
    float *out;
    const void *cache;
    const int32_t *tables, *query_start, *context;
    long ldq, ldo, table_width, seqs, query_heads, kv_heads, group, d, block_tokens, blocks, window;
    float scale; /* with log2(e), since the softmax is in powers of two */
    int is_bf16;
    long heads_per_task; /* of a decode task: several in a row are one stream of memory */
    const int32_t *table_of; /* [seqs], the table of each piece of a cut batch (attention.c); NULL where none is cut */
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

RL_INLINE long clamp(long value, long low, long high) { return value < low ? low : value > high ? high : value; }

RL_INLINE void write_row(const row_tile *t, long r, const float *from, float sum) {
    float *to = row_out(t, r);
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (long i = 0; i < t->job->d; i += RL_LANES) vf_store(to + i, vf_load(from + i) * inverse);
}

/* Whether this sequence is a piece of a longer one. */
RL_INLINE int is_piece(const attention_job *job, long seq) {
    if (!job->table_of) return 0;
    const int32_t own = job->table_of[seq];
    return (seq > 0 && job->table_of[seq - 1] == own) || (seq + 1 < job->seqs && job->table_of[seq + 1] == own);
}
/* How many tasks share the keys of a sequence of few rows: pieces are many, each does its keys alone. */
RL_INLINE long spread(const attention_job *job, long seq, long context) {
    return is_piece(job, seq) ? 1 : partitions(context);
}

/* Attention of a few rows, directly from the cache (attention_decode.c): over partition `part` of their keys where
 * tasks share them, else over all. */
void attention_decode(const row_tile *t, long part);

/* Attention of a tile of rows over all their keys, by panels (attention_prefill.c). */
void attention_prefill(const row_tile *t);

#endif
