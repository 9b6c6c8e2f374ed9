/* All layers of a decoder in one call: the operators in their order, on one team of threads. */
#include <string.h>

#include "operators.h"
#include "team.h"

#define RL_EXPORT __attribute__((visibility("default")))

/* `program.py` mirrors these structures field by field. */
typedef struct {
    const void *weight;
    const float *bias;
    long in, depth, out, group, format;
} matrix;

typedef struct {
    const float *input_norm, *query_norm, *key_norm, *feed_forward_norm; /* those of heads may be NULL */
    matrix qkv, output, gate_up, down;
    void *cache;
    long kv_group;
} layer;

typedef struct {
    const layer *layers;
    const float *final_norm;
    matrix head;
    const float *cos_sin;
    long layer_count, hidden, feed_forward, query_heads, kv_heads, head_dim, context, blocks, block_tokens;
    long kv_is_bf16, threads, invariant;
    double epsilon, scale;
} model;

typedef struct {
    const int64_t *slots;
    const int32_t *tables, *query_start, *context;
    long table_width, sequences, window;
} group_batch;

typedef struct {
    const int32_t *positions;
    const group_batch *groups;
    const int64_t *wanted; /* rows that go through the head */
    float *residual, *normed, *qkv, *attended, *change, *gate_up, *activated, *logits;
    long rows, wanted_rows, first, last; /* layers to run: first <= layer < last; the head follows the last one */
} step;

/* What the operators return for a fault, made unique: see program.py. */
enum { FAULT_POSITION = 1, FAULT_MEMORY = 2, FAULT_LENGTHS = 3, FAULT_BLOCK = 4, FAULT_SLOT = 5 };

typedef struct {
    const model *m;
    const step *s;
    int fault;
} step_call;

static int product(const model *m, const matrix *w, const float *x, float *y, long rows) {
    return rl_linear(x, w->in, w->weight, w->bias, y, w->out, rows, w->in, w->depth, w->out, (int)w->format, w->group,
                     (int)m->threads);
}

static void norm(const model *m, const float *change, const float *weight, const step *s, long rows) {
    if (change)
        rl_rms_norm(change, m->hidden, weight, (float)m->epsilon, s->residual, m->hidden, s->normed, rows, m->hidden,
                    (int)m->threads);
    else
        rl_rms_norm(s->residual, m->hidden, weight, (float)m->epsilon, 0, 0, s->normed, rows, m->hidden,
                    (int)m->threads);
}

static void norm_heads(const model *m, const layer *l, float *row) {
    float *keys = row + m->query_heads * m->head_dim;
    rl_rms_norm(row, m->head_dim, l->query_norm, (float)m->epsilon, 0, 0, row, m->query_heads, m->head_dim, 1);
    rl_rms_norm(keys, m->head_dim, l->key_norm, (float)m->epsilon, 0, 0, keys, m->kv_heads, m->head_dim, 1);
}

/* Keys and values of the layer, from the residual (and the change that is still to be added to it). */
static int store_kv(const model *m, const layer *l, const step *s, const float *change) {
    norm(m, change, l->input_norm, s, s->rows);
    if (product(m, &l->qkv, s->normed, s->qkv, s->rows)) return FAULT_MEMORY;
    for (long r = 0; l->query_norm && r < s->rows; r++) norm_heads(m, l, s->qkv + r * l->qkv.out);
    const int fault = rl_rope_store(s->qkv, l->qkv.out, s->positions, m->cos_sin, m->context, l->cache,
                                    (int)m->kv_is_bf16, m->blocks, m->block_tokens, s->groups[l->kv_group].slots,
                                    s->rows, m->query_heads, m->kv_heads, m->head_dim, (int)m->threads);
    return fault == 2 ? FAULT_SLOT : fault;
}

static int attend(const model *m, const layer *l, const step *s) {
    const group_batch *g = &s->groups[l->kv_group];
    return rl_paged_attention(s->qkv, l->qkv.out, l->cache, (int)m->kv_is_bf16, m->blocks, m->block_tokens, g->tables,
                              g->table_width, g->query_start, g->context, g->sequences, s->rows, m->query_heads,
                              m->kv_heads, m->head_dim, (float)m->scale, g->window, s->attended, l->output.in,
                              (int)m->invariant, (int)m->threads);
}

/* Past the last KV only the wanted rows matter: they are moved to the front, in their (ascending) order. */
static long keep_wanted(const model *m, const layer *l, const step *s) {
    if (s->wanted_rows == s->rows) return s->rows;
    for (long i = 0; i < s->wanted_rows; i++) {
        const long from = s->wanted[i];
        if (from == i) continue;
        memcpy(s->attended + i * l->output.in, s->attended + from * l->output.in, (size_t)l->output.in * 4);
        memcpy(s->residual + i * m->hidden, s->residual + from * m->hidden, (size_t)m->hidden * 4);
    }
    return s->wanted_rows;
}

static int feed_forward(const model *m, const layer *l, const step *s, long rows) {
    if (product(m, &l->output, s->attended, s->change, rows)) return FAULT_MEMORY;
    norm(m, s->change, l->feed_forward_norm, s, rows);
    if (product(m, &l->gate_up, s->normed, s->gate_up, rows)) return FAULT_MEMORY;
    rl_silu_mul(s->gate_up, l->gate_up.out, s->activated, rows, m->feed_forward, (int)m->threads);
    return product(m, &l->down, s->activated, s->change, rows) ? FAULT_MEMORY : 0;
}

static int run(const model *m, const step *s) {
    for (long i = s->first; i < s->last; i++) {
        const layer *l = &m->layers[i];
        const int is_last = i == m->layer_count - 1;
        int fault = store_kv(m, l, s, i ? s->change : 0);
        if (fault || (is_last && !s->wanted_rows)) return fault;
        if ((fault = attend(m, l, s))) return fault;
        const long rows = is_last ? keep_wanted(m, l, s) : s->rows;
        if ((fault = feed_forward(m, l, s, rows))) return fault;
        if (!is_last) continue;
        norm(m, s->change, m->final_norm, s, rows);
        return product(m, &m->head, s->normed, s->logits, rows) ? FAULT_MEMORY : 0;
    }
    return 0;
}

static void run_call(void *argument) {
    step_call *call = argument;
    call->fault = run(call->m, call->s);
}

/* Runs layers [first, last) of a step, and after the very last one the head. Returns 0 or a fault. */
RL_EXPORT int rl_step(const model *m, const step *s) {
    step_call call = {.m = m, .s = s};
    with_team((int)m->threads, run_call, &call);
    return call.fault;
}
