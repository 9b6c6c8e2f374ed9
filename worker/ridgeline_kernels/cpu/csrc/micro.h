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

#define RL_MAX_VECS (4 * RL_NV) /* widest tile, in vectors; arrays of fixed size are what GCC keeps in registers */

/* Where an output tile starts from. */
typedef enum { RL_FROM_ZERO, RL_FROM_BIAS, RL_FROM_OUT } rl_start;

RL_INLINE void micro_begin(const int rows, const int vecs, vf acc[RL_TILE_ROWS][RL_MAX_VECS], rl_start start,
                           const float *bias, const float *c, long ldc) {
    RL_UNROLL for (int r = 0; r < rows; r++)
        RL_UNROLL for (int v = 0; v < vecs; v++)
            acc[r][v] = start == RL_FROM_OUT    ? vf_load(c + r * ldc + v * RL_LANES)
                        : start == RL_FROM_BIAS ? vf_load(bias + v * RL_LANES)
                                                : (vf){0};
}

RL_INLINE void micro_end(const int rows, const int vecs, vf acc[RL_TILE_ROWS][RL_MAX_VECS], float *c, long ldc) {
    RL_UNROLL for (int r = 0; r < rows; r++)
        RL_UNROLL for (int v = 0; v < vecs; v++) vf_store(c + r * ldc + v * RL_LANES, acc[r][v]);
}

/* Asks for the weights some steps ahead of those at `w`: the hardware's own prefetch is late at panel borders. The
 * distances were measured; a single row runs through four panels at once and needs less of each. */
RL_INLINE void prefetch_panels(const int panels, const void *w, long panel_bytes) {
    const long ahead = panels == 4 ? 1024 : 2048;
    RL_UNROLL for (int p = 0; p < panels; p++) __builtin_prefetch((const char *)w + p * panel_bytes + ahead);
}

/* fp32 weights: row k of panel p starts at w + p * panel_stride + k * ldw. x[row][k] is at x + row * ldx + k * ldk.
 * `streamed` for weights that come from far memory. */
RL_INLINE void micro_f32(const int rows, const int panels, const int streamed, const float *x, long ldx, long ldk,
                         const float *w, long ldw, long panel_stride, long depth, rl_start start, const float *bias,
                         float *c, long ldc) {
    vf acc[RL_TILE_ROWS][RL_MAX_VECS];
    micro_begin(rows, panels * RL_NV, acc, start, bias, c, ldc);
    for (long k = 0; k < depth; k++) {
        vf wk[RL_MAX_VECS];
        if (streamed) prefetch_panels(panels, w + k * ldw, panel_stride * 4);
        RL_UNROLL for (int v = 0; v < panels * RL_NV; v++)
            wk[v] = vf_load(w + k * ldw + (v / RL_NV) * panel_stride + (v % RL_NV) * RL_LANES);
        RL_UNROLL for (int r = 0; r < rows; r++) {
            vf xk = vf_splat(x[r * ldx + k * ldk]);
            RL_UNROLL for (int v = 0; v < panels * RL_NV; v++) vf_fma(&acc[r][v], xk, wk[v]);
        }
    }
    micro_end(rows, panels * RL_NV, acc, c, ldc);
}

RL_INLINE vu load_pairs(const uint16_t *w, long k, int v, long panel_stride) {
    return *(const vu_u *)(w + k * RL_PANEL + (v / RL_NV) * panel_stride + (v % RL_NV) * 2 * RL_LANES);
}

/* bf16 weights, two neighbouring k of one output sharing a 32-bit word: pair j of panel p is 16 words at
 * w + p * panel_stride + 32 * j. `depth` is even. */
RL_INLINE void micro_bf16(const int rows, const int panels, const float *x, long ldx, long ldk, const uint16_t *w,
                          long panel_stride, long depth, rl_start start, const float *bias, float *c, long ldc) {
    vf acc[RL_TILE_ROWS][RL_MAX_VECS];
    micro_begin(rows, panels * RL_NV, acc, start, bias, c, ldc);
    for (long k = 0; k < depth; k += 2) {
        /* Even then odd, each from its own load: with both at hand the tile would not fit 16 registers. */
        vf wk[RL_MAX_VECS];
        prefetch_panels(panels, w + k * RL_PANEL, panel_stride * 2);
        RL_UNROLL for (int v = 0; v < panels * RL_NV; v++) wk[v] = (vf)(load_pairs(w, k, v, panel_stride) << 16);
        RL_UNROLL for (int r = 0; r < rows; r++) {
            vf xk = vf_splat(x[r * ldx + k * ldk]);
            RL_UNROLL for (int v = 0; v < panels * RL_NV; v++) vf_fma(&acc[r][v], xk, wk[v]);
        }
        RL_UNROLL for (int v = 0; v < panels * RL_NV; v++)
            wk[v] = (vf)(load_pairs(w, k, v, panel_stride) & 0xffff0000u);
        RL_UNROLL for (int r = 0; r < rows; r++) {
            vf xk = vf_splat(x[r * ldx + (k + 1) * ldk]);
            RL_UNROLL for (int v = 0; v < panels * RL_NV; v++) vf_fma(&acc[r][v], xk, wk[v]);
        }
    }
    micro_end(rows, panels * RL_NV, acc, c, ldc);
}

#if RL_BF16_DOT
/* The same on bf16 activations: x holds pairs of neighbouring k, [depth / 2][rows] words. */
RL_INLINE void micro_dot(const int rows, const int panels, const uint32_t *x, const uint16_t *w, long panel_stride,
                         long depth, rl_start start, const float *bias, float *c, long ldc) {
    vf acc[RL_TILE_ROWS][RL_MAX_VECS];
    micro_begin(rows, panels * RL_NV, acc, start, bias, c, ldc);
    for (long k = 0; k < depth; k += 2) {
        vu wk[RL_MAX_VECS];
        prefetch_panels(panels, w + k * RL_PANEL, panel_stride * 2);
        RL_UNROLL for (int v = 0; v < panels * RL_NV; v++) wk[v] = load_pairs(w, k, v, panel_stride);
        RL_UNROLL for (int r = 0; r < rows; r++) {
            vu xk = x[k / 2 * rows + r] - (vu){0};
            RL_UNROLL for (int v = 0; v < panels * RL_NV; v++) vf_dot_pairs(&acc[r][v], wk[v], xk);
        }
    }
    micro_end(rows, panels * RL_NV, acc, c, ldc);
}
#endif

#endif
