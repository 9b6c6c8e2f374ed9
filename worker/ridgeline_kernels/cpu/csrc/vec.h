/* Vector types for the CPU operators: one source for AVX-512, AVX2 and 128-bit machines.
 *
 * GCC vector extensions carry the arithmetic; `vf` holds RL_LANES floats. Products and sums contract to
 * fused multiply-adds where the machine has them, in the same way for every number of rows.
 */
#ifndef RL_VEC_H
#define RL_VEC_H

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "team.h"

#ifndef RL_LANES
#if defined(__AVX512F__)
#define RL_LANES 16
#elif defined(__AVX2__)
#define RL_LANES 8
#else
#define RL_LANES 4
#endif
#endif

/* Whether bf16 weights meet bf16 activations in the machine's own dot products of pairs. RL_EMULATE_DOT spells the
 * instruction in plain arithmetic, to test the way to it on any machine. */
#if (defined(__AVX512BF16__) && RL_LANES == 16) || defined(RL_EMULATE_DOT)
#define RL_BF16_DOT 1
#else
#define RL_BF16_DOT 0
#endif

#define RL_PANEL 16                    /* output features of one packed panel */
#define RL_NV (RL_PANEL / RL_LANES)    /* vectors across one panel */
#define RL_INLINE static inline __attribute__((always_inline))
#define RL_UNROLL _Pragma("GCC unroll 16")
#define RL_EXPORT __attribute__((visibility("default")))

typedef float vf __attribute__((vector_size(RL_LANES * 4)));
typedef float vf_u __attribute__((vector_size(RL_LANES * 4), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(RL_LANES * 4)));
typedef uint32_t vu_u __attribute__((vector_size(RL_LANES * 4), aligned(2), may_alias));
typedef int32_t vi __attribute__((vector_size(RL_LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(RL_LANES * 2)));
typedef uint16_t vh_u __attribute__((vector_size(RL_LANES * 2), aligned(2), may_alias));

RL_INLINE vf vf_load(const float *p) { return *(const vf_u *)p; }
RL_INLINE void vf_store(float *p, vf v) { *(vf_u *)p = v; }
RL_INLINE vf vf_splat(float s) { return s - (vf){0}; }

/* acc += a * b. Spelled out where GCC would pick a form that needs a move and then run out of registers. */
RL_INLINE void vf_fma(vf *acc, vf a, vf b) {
#if defined(__FMA__) && RL_LANES == 8
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*acc) : "x"(a), "x"(b));
#else
    *acc += a * b;
#endif
}

#if RL_BF16_DOT
/* acc[lane] += the two bf16 of a's lane times the two of b's. */
RL_INLINE void vf_dot_pairs(vf *acc, vu a, vu b) {
#if defined(__AVX512BF16__) && RL_LANES == 16
    *acc = (vf)_mm512_dpbf16_ps((__m512)*acc, (__m512bh)a, (__m512bh)b);
#else
    *acc += (vf)(a & 0xffff0000u) * (vf)(b & 0xffff0000u);
    *acc += (vf)(a << 16) * (vf)(b << 16);
#endif
}
#endif

/* RL_LANES consecutive bf16 values, widened. (GCC takes the generic form apart into halves.) */
RL_INLINE vf vf_load_bf16(const uint16_t *p) {
#if defined(__AVX512F__) && RL_LANES == 16
    vu wide = (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)p));
#elif defined(__AVX2__) && RL_LANES == 8
    vu wide = (vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i_u *)p));
#else
    vu wide = __builtin_convertvector(*(const vh_u *)p, vu);
#endif
    return (vf)(wide << 16);
}

/* Round to nearest, ties to even; a NaN stays a (quiet) NaN. */
RL_INLINE uint16_t float_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

RL_INLINE void vf_store_bf16(uint16_t *p, vf v) {
    vu u = (vu)v;
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    vu nan = (vu)((u & 0x7fffffffu) > 0x7f800000u);
    rounded = (nan & 0x7fc0u) | (~nan & rounded);
    *(vh_u *)p = __builtin_convertvector(rounded, vh);
}

/* Sum of the lanes, by halves: the same tree for every caller. */
RL_INLINE float vf_sum(vf v) {
    float lanes[RL_LANES];
    vf_store(lanes, v);
    RL_UNROLL for (int width = RL_LANES / 2; width > 0; width /= 2)
        RL_UNROLL for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

/* The larger of each lane; b where a is not a number. */
RL_INLINE vf vf_max(vf a, vf b) {
#if defined(__AVX512F__) && RL_LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__) && RL_LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    vi greater = a > b;
    return (vf)((greater & (vi)a) | (~greater & (vi)b));
#endif
}

/* Sums of the lanes of four vectors, to four neighbouring floats. */
RL_INLINE void vf_sum4(vf a, vf b, vf c, vf d, float *to) {
#if defined(__AVX2__) && RL_LANES >= 8
#if RL_LANES == 16
    float lanes[4][16];
    vf_store(lanes[0], a), vf_store(lanes[1], b), vf_store(lanes[2], c), vf_store(lanes[3], d);
    __m256 half[4];
    RL_UNROLL for (int i = 0; i < 4; i++)
        half[i] = _mm256_add_ps(_mm256_loadu_ps(lanes[i]), _mm256_loadu_ps(lanes[i] + 8));
#else
    __m256 half[4] = {(__m256)a, (__m256)b, (__m256)c, (__m256)d};
#endif
    __m256 sum = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1)));
#else
    to[0] = vf_sum(a), to[1] = vf_sum(b), to[2] = vf_sum(c), to[3] = vf_sum(d);
#endif
}

RL_INLINE float vf_highest(vf v) {
    float best = v[0];
    RL_UNROLL for (int i = 1; i < RL_LANES; i++) best = v[i] > best ? v[i] : best;
    return best;
}

/* 2**f * 2**n for f in [-0.5, 0.5], where `shifted` holds n in its low bits; exactly 2**n at f = 0. */
RL_INLINE vf exp2_parts(vf f, vf shifted) {
    vf p = vf_splat(1.5403530e-4f);
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    return (vf)((vi)p + ((vi)shifted << 23));
}

#define RL_ROUND 12582912.0f /* 1.5 * 2**23: adding it leaves the nearest integer in the low bits */

/* 2**x for x <= 0, relative error about 1e-7; exactly 0 at and below -127 (so for minus infinity), since there the
 * exponent of 1.0 is taken down to all zero bits. */
RL_INLINE vf vf_exp2_falling(vf x) {
    x = vf_max(vf_splat(-127.0f), x); /* in this order what is not a number stays so */
    vf shifted = x + RL_ROUND;
    return exp2_parts(x - (shifted - RL_ROUND), shifted);
}

/* 2**x for any x: below 2**-126 it is 0 or nearly so, from 2**127 on it stays there. */
RL_INLINE vf vf_exp2(vf x) {
    vi small = x < 127.0f;
    vf top = vf_splat(127.0f);
    return vf_exp2_falling((vf)((small & (vi)x) | (~small & (vi)top)));
}

#define RL_LOG2E 1.44269504088896340736f

/* Runs body(job, task) for every task, handed out one by one: a slow thread holds up no other. */
RL_INLINE void parallel_tasks(int threads, long tasks, void (*body)(const void *job, long task), const void *job) {
    if (threads <= 1 || tasks <= 1) {
        for (long task = 0; task < tasks; task++) body(job, task);
        return;
    }
    if (rl_own_team) {
        team_run(rl_own_team, tasks, body, job);
        return;
    }
    atomic_long next = 0;
#pragma omp parallel num_threads(threads)
    for (long task; (task = atomic_fetch_add(&next, 1)) < tasks;) body(job, task);
}

#endif
