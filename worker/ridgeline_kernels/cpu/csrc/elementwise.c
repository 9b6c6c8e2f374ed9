/* Norm, rotary embedding with the store into the paged cache, and the gated activation. */
#include "vec.h"

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

/* residual (or NULL) += x; y = residual / rms(residual) * weight. */
RL_EXPORT void rl_rms_norm(const float *x, long ldx, const float *weight, float eps, float *residual, long ldr,
                           float *y, long rows, long hidden, int threads) {
    RL_PARALLEL_TASKS(threads_for(rows * hidden, threads), (rows + 7) / 8, task, {
        for (long r = task * 8; r < rows && r < task * 8 + 8; r++)
            norm_row(x + r * ldx, weight, residual ? residual + r * ldr : NULL, y + r * hidden, hidden, eps);
    });
}

RL_INLINE vf vf_silu(vf v) { return v / (1.0f + vf_exp2(v * -RL_LOG2E)); }

/* y[r, i] = silu(gate_up[r, i]) * gate_up[r, ffn + i]. */
RL_EXPORT void rl_silu_mul(const float *gate_up, long ldg, float *y, long rows, long ffn, int threads) {
    RL_PARALLEL_TASKS(threads_for(rows * ffn * 4, threads), (rows + 3) / 4, task, {
        for (long r = task * 4; r < rows && r < task * 4 + 4; r++) {
            const float *gate = gate_up + r * ldg;
            const float *up = gate + ffn;
            float *to = y + r * ffn;
            long i = 0;
            for (; i + RL_LANES <= ffn; i += RL_LANES) vf_store(to + i, vf_silu(vf_load(gate + i)) * vf_load(up + i));
            if (i < ffn) {
                float lanes[2][RL_LANES] = {{0}};
                const size_t bytes = (size_t)(ffn - i) * sizeof(float);
                memcpy(lanes[0], gate + i, bytes);
                memcpy(lanes[1], up + i, bytes);
                vf_store(lanes[0], vf_silu(vf_load(lanes[0])) * vf_load(lanes[1]));
                memcpy(to + i, lanes[0], bytes);
            }
        }
    });
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
    RL_PARALLEL_TASKS(threads_for(rows * ldq, threads), (rows + 3) / 4, task, {
        for (long r = task * 4; r < rows && r < task * 4 + 4; r++) {
            float *row = qkv + r * ldq;
            for (long h = 0; h < query_heads + kv_heads; h++) rotate(row + h * d, cos_sin + positions[r] * d, d);
            if (slots[r] < 0) continue;
            const long block = slots[r] / block_tokens, offset = slots[r] % block_tokens;
            for (long h = 0; h < kv_heads; h++) {
                const float *k = row + (query_heads + h) * d;
                const long at = ((block * kv_heads + h) * 2 * block_tokens + offset) * d;
                store_head(cache, is_bf16, at, k, d);
                store_head(cache, is_bf16, at + block_tokens * d, k + kv_heads * d, d);
            }
        }
    });
    return 0;
}
