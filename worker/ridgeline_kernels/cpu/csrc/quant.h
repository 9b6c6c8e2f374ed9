/* Products of weights of 8 or 4 bits with activations of 16 bits, in whole numbers.
 *
 * Both sides have a scale for each group of neighbouring k. Activations are rounded to 16 bits of the largest in
 * their group: far finer than bf16. Inside a group products are exact sums in 32 bits, two k a multiplication; each
 * group then adds sum * (weight scale * activation scale) in fp32, and with int4 offset * (sum of the activations),
 * groups ascending. So a row's result does not depend on the tile that it is computed in.
 *
 * A panel is a row of groups, one behind the other: 16 scales in bf16, with int4 16 offsets, then words of 32 bits,
 * 16 outputs side by side. With codes of b bits a word holds 16 / b pairs of neighbouring k: place p of its low half is k = 2 p, of its
 * high half k = 2 p + 1, two's complement. Unpacked weights are the same with b = 16. The activations of a tile are
 * words of one pair, [depth / 2][rows], then their scales and their sums, [groups][2][rows] in fp32.
 */
#ifndef RL_QUANT_H
#define RL_QUANT_H

#include "micro.h"

#define QUANT_HEAD(HAS_OFFSETS) ((HAS_OFFSETS) ? RL_PANEL * 4 : RL_PANEL * 2) /* bytes in front of each group */
#define QUANT_LARGEST 32767.0f       /* what the largest activation of a group becomes */
#define QUANT_LEAST 1e-30f           /* activations of a group that are all below count as zeros */
#define QUANT_PIECE 256              /* k unpacked at a time when several tiles of rows share them */

typedef int16_t vs __attribute__((vector_size(RL_LANES * 4)));

RL_INLINE long quant_group_bytes(const int bits, const int has_offsets, long group) {
    return QUANT_HEAD(has_offsets) + group * RL_PANEL * bits / 8;
}

/* The pair of codes at `place` of each word, as two 16-bit numbers. */
RL_INLINE vs quant_pairs(const char *words, const int bits, const int place) {
    const vs found = (vs)(*(const vu_u *)words);
    return found << (16 - bits * (place + 1)) >> (16 - bits);
}

/* acc[lane] += the two numbers of a's lane times the two of b's. */
RL_INLINE void quant_dot(vi *acc, vs a, vs b) {
#if defined(__AVX512VNNI__) && RL_LANES == 16
    *acc = (vi)_mm512_dpwssd_epi32((__m512i)*acc, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__) && RL_LANES == 16
    *acc += (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && RL_LANES == 8
    *acc += (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    *acc += ((vi)a << 16 >> 16) * ((vi)b << 16 >> 16) + ((vi)a >> 16) * ((vi)b >> 16);
#endif
}

/* As micro_f32, on `depth` k in whole groups; `bits` 16 for weights that are unpacked. */
RL_INLINE void micro_quant(const int rows, const int panels, const int bits, const int has_offsets, const uint32_t *x,
                           const float *x_scales, const char *w, long panel_stride, long depth, long group, rl_start start,
                           const float *bias, float *c, long ldc) {
    const int vecs = panels * RL_NV, pairs = 16 / bits;
    vf total[RL_TILE_ROWS][RL_MAX_VECS];
    micro_begin(rows, vecs, total, start, bias, c, ldc);
    for (long k0 = 0; k0 < depth; k0 += group, x_scales += 2 * rows) {
        const char *head = w;
        w += QUANT_HEAD(has_offsets);
        vi acc[RL_TILE_ROWS][RL_MAX_VECS];
        RL_UNROLL for (int r = 0; r < rows; r++)
            RL_UNROLL for (int v = 0; v < vecs; v++) acc[r][v] = (vi){0};
        for (long k = 0; k < group; k += 2 * pairs, w += RL_PANEL * 4, x += pairs * rows) {
            if (bits < 16) prefetch_panels(panels, w, panel_stride);
            RL_UNROLL for (int place = 0; place < pairs; place++) {
                vs wk[RL_MAX_VECS];
                RL_UNROLL for (int v = 0; v < vecs; v++)
                    wk[v] = quant_pairs(w + v / RL_NV * panel_stride + v % RL_NV * RL_LANES * 4, bits, place);
                RL_UNROLL for (int r = 0; r < rows; r++) {
                    const vs xk = (vs)(x[place * rows + r] - (vu){0});
                    RL_UNROLL for (int v = 0; v < vecs; v++) quant_dot(&acc[r][v], wk[v], xk);
                }
            }
        }
        RL_UNROLL for (int v = 0; v < vecs; v++) {
            const uint16_t *numbers = (const uint16_t *)(head + v / RL_NV * panel_stride) + v % RL_NV * RL_LANES;
            const vf scale = vf_load_bf16(numbers);
            RL_UNROLL for (int r = 0; r < rows; r++)
                vf_fma(&total[r][v], __builtin_convertvector(acc[r][v], vf), scale * x_scales[r]);
            if (!has_offsets) continue;
            const vf offset = vf_load_bf16(numbers + RL_PANEL);
            RL_UNROLL for (int r = 0; r < rows; r++) vf_fma(&total[r][v], offset, vf_splat(x_scales[rows + r]));
        }
    }
    micro_end(rows, vecs, total, c, ldc);
}

/* Unpacks `depth` k of one panel to pairs of 16 bits. */
RL_INLINE void quant_unpack(const int bits, const int has_offsets, const char *w, long depth, long group, char *to) {
    for (long k0 = 0; k0 < depth; k0 += group) {
        memcpy(to, w, QUANT_HEAD(has_offsets));
        w += QUANT_HEAD(has_offsets), to += QUANT_HEAD(has_offsets);
        for (long k = 0; k < group; k += 32 / bits, w += RL_PANEL * 4) {
            __builtin_prefetch(w + 2048);
            RL_UNROLL for (int place = 0; place < 16 / bits; place++, to += RL_PANEL * 4)
                RL_UNROLL for (int v = 0; v < RL_NV; v++)
                    *(vu_u *)(to + v * RL_LANES * 4) = (vu)quant_pairs(w + v * RL_LANES * 4, bits, place);
        }
    }
}

/* Rounds one row of `in` activations to column r of a tile of n rows; k past the last are zeros. A group with a
 * number that is not finite gets a scale that is not one. */
static void quant_row(const float *from, long in, long depth, long group, uint32_t *words, float *scales, long r,
                      long n) {
    for (long k0 = 0; k0 < depth; k0 += group) {
        const long given = in - k0 < group ? in - k0 : group;
        float wide[QUANT_PIECE];
        int16_t narrow[QUANT_PIECE];
        memcpy(wide, from + k0, (size_t)given * sizeof(float));
        memset(wide + given, 0, (size_t)(group - given) * sizeof(float));
        vf tops = {0}, spoilt = {0};
        vi sums = {0};
        for (long i = 0; i < group; i += RL_LANES) {
            const vf v = vf_load(wide + i);
            tops = vf_max((vf)((vu)v & 0x7fffffffu), tops);
            spoilt += v * 0.0f; /* not a number as soon as one is not finite */
        }
        const float top = vf_highest(tops);
        const float inverse = top > QUANT_LEAST ? QUANT_LARGEST / top : 0.0f;
        for (long i = 0; i < group; i += RL_LANES) {
            vf near = vf_splat(RL_ROUND);
            vf_fma(&near, vf_load(wide + i), vf_splat(inverse));
            const vi whole = (vi)near - (vi)vf_splat(RL_ROUND);
            sums += whole;
            for (int lane = 0; lane < RL_LANES; lane++) narrow[i + lane] = (int16_t)whole[lane];
        }
        const float scale = (top > QUANT_LEAST ? top / QUANT_LARGEST : 0.0f) + vf_sum(spoilt);
        scales[k0 / group * 2 * n + r] = scale;
        scales[(k0 / group * 2 + 1) * n + r] = scale * vf_sum(__builtin_convertvector(sums, vf)); /* exact */
        for (long i = 0; i < group; i += 2) {
            uint32_t pair;
            memcpy(&pair, narrow + i, sizeof pair);
            words[(k0 + i) / 2 * n + r] = pair;
        }
    }
}

#endif
