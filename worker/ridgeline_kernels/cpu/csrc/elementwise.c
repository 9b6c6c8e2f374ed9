/* Norm, rotary embedding with the store into the paged cache, and the gated activation. */
#include "vec.h"
#include "operators.h"

#define PARALLEL_FROM 32768 /* floats of work below which waking another thread costs more than it saves */

static int threads_for(long floats, int threads) { return floats < PARALLEL_FROM ? 1 : threads; }

static void norm_row(const float *x, const float *weight, float *residual, float *y, long hidden, float eps) {
    const long whole = hidden / RL_LANES * RL_LANES;
    vf sums[4] = {{0}};
    for (long i = 0, j = 0; i < whole; i += RL_LANES, j++) {
        vf v = vf_load(x + i);
        if (residual) {
            v += vf_load(residual + i);
            vf_store(residual + i, v);
        }
        sums[j & 3] += v * v;
    }
    float sum = vf_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (long i = whole; i < hidden; i++) {
        float v = residual ? (residual[i] += x[i]) : x[i];
        sum += v * v;
    }
    const float *from = residual ? residual : x;
    const float scale = 1.0f / sqrtf(sum / (float)hidden + eps);
    for (long i = 0; i < whole; i += RL_LANES) vf_store(y + i, vf_load(from + i) * scale * vf_load(weight + i));
    for (long i = whole; i < hidden; i++) y[i] = from[i] * scale * weight[i];
}

typedef struct {
    const float *x, *weight;
    float *residual, *y;
    long ldx, ldr, rows, hidden;
    float eps;
} norm_job;

static void norm_task(const void *argument, long task) {
    const norm_job *job = argument;
    const long end = task * 8 + 8 < job->rows ? task * 8 + 8 : job->rows;
    for (long r = task * 8; r < end; r++)
        norm_row(job->x + r * job->ldx, job->weight, job->residual ? job->residual + r * job->ldr : NULL,
                 job->y + r * job->hidden, job->hidden, job->eps);
}

/* residual (or NULL) += x; y = residual / rms(residual) * weight. */
RL_EXPORT int rl_rms_norm(const float *x, long ldx, const float *weight, float eps, float *residual, long ldr,
                           float *y, long rows, long hidden, int threads) {
    const norm_job job = {.x = x, .weight = weight, .residual = residual, .y = y, .ldx = ldx,
                          .ldr = ldr, .rows = rows, .hidden = hidden, .eps = eps};
    parallel_tasks(threads_for(rows * hidden, threads), (rows + 7) / 8, norm_task, &job);
    return 0;
}

RL_INLINE vf vf_silu(vf v) { return v / (1.0f + vf_exp2(v * -RL_LOG2E)); }

static void silu_row(const float *gate, const float *up, float *y, long ffn) {
    long i = 0;
    for (; i + RL_LANES <= ffn; i += RL_LANES) vf_store(y + i, vf_silu(vf_load(gate + i)) * vf_load(up + i));
    if (i == ffn) return;
    float lanes[2][RL_LANES] = {{0}};
    const size_t bytes = (size_t)(ffn - i) * sizeof(float);
    memcpy(lanes[0], gate + i, bytes);
    memcpy(lanes[1], up + i, bytes);
    vf_store(lanes[0], vf_silu(vf_load(lanes[0])) * vf_load(lanes[1]));
    memcpy(y + i, lanes[0], bytes);
}

typedef struct {
    const float *gate_up;
    float *y;
    long ldg, rows, ffn;
} silu_job;

static void silu_task(const void *argument, long task) {
    const silu_job *job = argument;
    const long end = task * 4 + 4 < job->rows ? task * 4 + 4 : job->rows;
    for (long r = task * 4; r < end; r++) {
        const float *gate = job->gate_up + r * job->ldg;
        silu_row(gate, gate + job->ffn, job->y + r * job->ffn, job->ffn);
    }
}

/* y[r, i] = silu(gate_up[r, i]) * gate_up[r, ffn + i]. */
RL_EXPORT int rl_silu_mul(const float *gate_up, long ldg, float *y, long rows, long ffn, int threads) {
    const silu_job job = {.gate_up = gate_up, .y = y, .ldg = ldg, .rows = rows, .ffn = ffn};
    parallel_tasks(threads_for(rows * ffn * 4, threads), (rows + 3) / 4, silu_task, &job);
    return 0;
}

/* Rotates the pairs (i, i + d/2) of one head in place. */
static void rotate(float *head, const float *cos_sin, long d) {
    const long half = d / 2;
    const float *sin = cos_sin + half;
    long i = 0;
    for (; i + RL_LANES <= half; i += RL_LANES) {
        vf a = vf_load(head + i), b = vf_load(head + half + i), c = vf_load(cos_sin + i), s = vf_load(sin + i);
        vf_store(head + i, a * c - b * s);
        vf_store(head + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = head[i], b = head[half + i];
        head[i] = a * cos_sin[i] - b * sin[i];
        head[half + i] = b * cos_sin[i] + a * sin[i];
    }
}

static void store_head(void *cache, int is_bf16, long at, const float *head, long d) {
    if (!is_bf16) {
        memcpy((float *)cache + at, head, (size_t)d * sizeof(float));
        return;
    }
    uint16_t *to = (uint16_t *)cache + at;
    long i = 0;
    for (; i + RL_LANES <= d; i += RL_LANES) vf_store_bf16(to + i, vf_load(head + i));
    for (; i < d; i++) to[i] = float_to_bf16(head[i]);
}

typedef struct {
    float *qkv;
    const int32_t *positions;
    const float *cos_sin;
    void *cache;
    const int64_t *slots;
    long ldq, rows, query_heads, kv_heads, d, block_tokens;
    int is_bf16;
} rope_job;

static void rope_row(const rope_job *job, long r) {
    const long d = job->d, heads = job->query_heads + job->kv_heads;
    float *row = job->qkv + r * job->ldq;
    for (long h = 0; h < heads; h++) rotate(row + h * d, job->cos_sin + job->positions[r] * d, d);
    if (job->slots[r] < 0) return;
    const long block = job->slots[r] / job->block_tokens, offset = job->slots[r] % job->block_tokens;
    for (long h = 0; h < job->kv_heads; h++) {
        const float *k = row + (job->query_heads + h) * d;
        const long at = ((block * job->kv_heads + h) * 2 * job->block_tokens + offset) * d;
        store_head(job->cache, job->is_bf16, at, k, d);
        store_head(job->cache, job->is_bf16, at + job->block_tokens * d, k + job->kv_heads * d, d);
    }
}

static void rope_task(const void *argument, long task) {
    const rope_job *job = argument;
    const long end = task * 4 + 4 < job->rows ? task * 4 + 4 : job->rows;
    for (long r = task * 4; r < end; r++) rope_row(job, r);
}

/* Rotates q and k of each row in place and stores k and v in the cache
 * [blocks, kv_heads, 2, block_tokens, d]; a negative slot is not stored.
 * Returns 0; 1 for a position outside the table, 2 for a slot outside the cache (nothing is written then). */
RL_EXPORT int rl_rope_store(float *qkv, long ldq, const int32_t *positions, const float *cos_sin, long context,
                            void *cache, int is_bf16, long blocks, long block_tokens, const int64_t *slots,
                            long rows, long query_heads, long kv_heads, long d, int threads) {
    for (long r = 0; r < rows; r++) {
        if (positions[r] < 0 || positions[r] >= context) return 1;
        if (slots[r] >= blocks * block_tokens) return 2;
    }
    const rope_job job = {.qkv = qkv, .positions = positions, .cos_sin = cos_sin, .cache = cache,
                          .slots = slots, .ldq = ldq, .rows = rows, .query_heads = query_heads,
                          .kv_heads = kv_heads, .d = d, .block_tokens = block_tokens, .is_bf16 = is_bf16};
    parallel_tasks(threads_for(rows * ldq, threads), (rows + 3) / 4, rope_task, &job);
    return 0;
}
