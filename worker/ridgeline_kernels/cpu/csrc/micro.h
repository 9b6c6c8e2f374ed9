/* The register-tiled core of every matrix product here.
 *
 * c[row][16 * panel + lane] (+)= sum over k of x[row][k] * w[panel][k][lane], with k ascending in one chain
 * per output, whatever the tile: a row's result does not depend on the rows computed beside it.
 */
#ifndef RL_MICRO_H
#define RL_MICRO_H

#include "vec.h"

#if RL_LANES == 16
#define RL_TILE_ROWS 12
#else
#define RL_TILE_ROWS 6
#endif

/* Where an output tile starts from. */
typedef enum { RL_FROM_ZERO, RL_FROM_BIAS, RL_FROM_OUT } rl_start;

RL_INLINE void micro_begin(const int rows, const int vecs, vf acc[rows][vecs], rl_start start, const float *bias,
                           const float *c, long ldc) {
    RL_UNROLL for (int r = 0; r < rows; r++)
        RL_UNROLL for (int v = 0; v < vecs; v++)
            acc[r][v] = start == RL_FROM_OUT    ? vf_load(c + r * ldc + v * RL_LANES)
                        : start == RL_FROM_BIAS ? vf_load(bias + v * RL_LANES)
                                                : (vf){0};
}

RL_INLINE void micro_end(const int rows, const int vecs, vf acc[rows][vecs], float *c, long ldc) {
    RL_UNROLL for (int r = 0; r < rows; r++)
        RL_UNROLL for (int v = 0; v < vecs; v++) vf_store(c + r * ldc + v * RL_LANES, acc[r][v]);
}

/* fp32 weights: row k of panel p starts at w + p * panel_stride + k * ldw. */
RL_INLINE void micro_f32(const int rows, const int panels, const float *x, long ldx, const float *w, long ldw,
                         long panel_stride, long depth, rl_start start, const float *bias, float *c, long ldc) {
    vf acc[rows][panels * RL_NV];
    micro_begin(rows, panels * RL_NV, acc, start, bias, c, ldc);
    for (long k = 0; k < depth; k++) {
        vf wk[panels * RL_NV];
        RL_UNROLL for (int v = 0; v < panels * RL_NV; v++)
            wk[v] = vf_load(w + k * ldw + (v / RL_NV) * panel_stride + (v % RL_NV) * RL_LANES);
        RL_UNROLL for (int r = 0; r < rows; r++) {
            vf xk = vf_splat(x[r * ldx + k]);
            RL_UNROLL for (int v = 0; v < panels * RL_NV; v++) acc[r][v] += xk * wk[v];
        }
    }
    micro_end(rows, panels * RL_NV, acc, c, ldc);
}

/* bf16 weights, two neighbouring k of one output sharing a 32-bit word: pair j of panel p is 16 words at
 * w + p * panel_stride + 32 * j. `depth` is even. */
RL_INLINE void micro_bf16(const int rows, const int panels, const float *x, long ldx, const uint16_t *w,
                          long panel_stride, long depth, rl_start start, const float *bias, float *c, long ldc) {
    vf acc[rows][panels * RL_NV];
    micro_begin(rows, panels * RL_NV, acc, start, bias, c, ldc);
    for (long k = 0; k < depth; k += 2) {
        vu even[panels * RL_NV], odd[panels * RL_NV];
        RL_UNROLL for (int v = 0; v < panels * RL_NV; v++) {
            vu both = *(const vu_u *)(w + k * RL_PANEL + (v / RL_NV) * panel_stride + (v % RL_NV) * 2 * RL_LANES);
            even[v] = both << 16;
            odd[v] = both & 0xffff0000u;
        }
        RL_UNROLL for (int r = 0; r < rows; r++) {
            vf x0 = vf_splat(x[r * ldx + k]), x1 = vf_splat(x[r * ldx + k + 1]);
            RL_UNROLL for (int v = 0; v < panels * RL_NV; v++) acc[r][v] += x0 * (vf)even[v];
            RL_UNROLL for (int v = 0; v < panels * RL_NV; v++) acc[r][v] += x1 * (vf)odd[v];
        }
    }
    micro_end(rows, panels * RL_NV, acc, c, ldc);
}

#endif
