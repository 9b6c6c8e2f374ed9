/* The operators that a step is made of; each is described where it is defined. */
#ifndef RL_OPERATORS_H
#define RL_OPERATORS_H

#include <stdint.h>

int rl_linear(const float *x, long ldx, const void *w, const float *bias, float *y, long ldy, long rows, long in,
              long depth, long out, int format, long group, int threads);
int rl_rms_norm(const float *x, long ldx, const float *weight, float eps, float *residual, long ldr, float *y,
                long rows, long hidden, int threads);
int rl_silu_mul(const float *gate_up, long ldg, float *y, long rows, long ffn, int threads);
int rl_rope_store(float *qkv, long ldq, const int32_t *positions, const float *cos_sin, long context, void *cache,
                  int is_bf16, long blocks, long block_tokens, const int64_t *slots, long rows, long query_heads,
                  long kv_heads, long d, int threads);
int rl_paged_attention(const float *q, long ldq, const void *cache, int is_bf16, long blocks, long block_tokens,
                       const int32_t *tables, long table_width, const int32_t *query_start, const int32_t *context,
                       long seqs, long rows, long query_heads, long kv_heads, long d, float scale, long window,
                       float *out, long ldo, int invariant, int threads);

#endif
