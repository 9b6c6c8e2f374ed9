/* y[rows, out] = x[rows, in] @ w[out, in]^T + bias, on weights packed into panels of 16 outputs. */
#include "micro.h"

#define DEPTH_BLOCK 512 /* k per pass when several row tiles reuse a panel: 16 KiB of bf16 stays in L1 */
#define ROW_BLOCK 96    /* rows per task: with DEPTH_BLOCK columns they stay in L2 */
#define TASK_PANELS 8   /* panels per task of a large product */

typedef struct {
    const float *x;
    long ldx, rows, depth, out;
    const void *w;
    const float *bias; /* padded to whole panels, or NULL */
    float *y;
    long ldy;
} linear_job;

/* One tile of up to RL_TILE_ROWS rows and `panels` whole panels, for k in [k0, k0 + depth). */
#define DEFINE_TILE(NAME, TYPE, CALL)                                                                             \
    RL_INLINE void NAME##_rows(const int panels, int rows, const float *x, long ldx, const TYPE *w, long stride,   \
                               long depth, rl_start start, const float *bias, float *c, long ldc) {                \
        switch (rows) {                                                                                            \
        case 1: CALL(1); break;                                                                                    \
        case 2: CALL(2); break;                                                                                    \
        case 3: CALL(3); break;                                                                                    \
        case 4: CALL(4); break;                                                                                    \
        case 5: CALL(5); break;                                                                                    \
        case 6: CALL(6); break;                                                                                    \
            RL_MORE_ROWS(CALL)                                                                                     \
        }                                                                                                          \
    }                                                                                                              \
    static __attribute__((noinline)) void NAME##_1(int rows, const float *x, long ldx, const TYPE *w, long stride, \
                                                   long depth, rl_start start, const float *bias, float *c,        \
                                                   long ldc) {                                                     \
        NAME##_rows(1, rows, x, ldx, w, stride, depth, start, bias, c, ldc);                                       \
    }                                                                                                              \
    static __attribute__((noinline)) void NAME##_2(int rows, const float *x, long ldx, const TYPE *w, long stride, \
                                                   long depth, rl_start start, const float *bias, float *c,        \
                                                   long ldc) {                                                     \
        RL_WIDE_ROWS(NAME, 2)                                                                                      \
    }                                                                                                              \
    static __attribute__((noinline)) void NAME##_4(int rows, const float *x, long ldx, const TYPE *w, long stride, \
                                                   long depth, rl_start start, const float *bias, float *c,        \
                                                   long ldc) {                                                     \
        const int panels = 4;                                                                                      \
        (void)rows; /* four panels at once are for a single row: enough chains to hide the latency of an FMA */    \
        CALL(1);                                                                                                   \
    }

#define CALL_F32(R) micro_f32(R, panels, x, ldx, w, RL_PANEL, stride, depth, start, bias, c, ldc)
#define CALL_BF16(R) micro_bf16(R, panels, x, ldx, w, stride, depth, start, bias, c, ldc)

#if RL_LANES == 16
#define RL_MORE_ROWS(CALL)    \
    case 7: CALL(7); break;   \
    case 8: CALL(8); break;   \
    case 9: CALL(9); break;   \
    case 10: CALL(10); break; \
    case 11: CALL(11); break; \
    case 12: CALL(12); break;
#define RL_WIDE_ROWS(NAME, P) NAME##_rows(P, rows, x, ldx, w, stride, depth, start, bias, c, ldc);
#define WIDE_LIMIT RL_TILE_ROWS
#else
#define RL_MORE_ROWS(CALL)
#define RL_WIDE_ROWS(NAME, P) \
    NAME##_rows(P, rows < 3 ? rows : 3, x, ldx, w, stride, depth, start, bias, c, ldc);
#define WIDE_LIMIT 3
#endif

DEFINE_TILE(tile_f32, float, CALL_F32)
DEFINE_TILE(tile_bf16, uint16_t, CALL_BF16)

/* How many panels one tile of `rows` rows takes at once. */
RL_INLINE int panels_at_once(long rows) { return rows == 1 ? 4 : rows <= WIDE_LIMIT ? 2 : 1; }

/* Rows [row0, row0 + rows) against panels [p0, p1): depth blocks outermost, so that a panel's block is read
 * once from far memory and then reused from L1 by the other row tiles. */
#define DEFINE_BLOCK(NAME, TILE, TYPE)                                                                             \
    static void NAME(const linear_job *job, long row0, long rows, long p0, long p1) {                              \
        const long tiles = (rows + RL_TILE_ROWS - 1) / RL_TILE_ROWS;                                               \
        const long block = tiles == 1 ? job->depth : DEPTH_BLOCK;                                                  \
        const long stride = job->depth * RL_PANEL;                                                                 \
        const TYPE *w = job->w;                                                                                    \
        for (long k0 = 0; k0 < job->depth; k0 += block) {                                                          \
            const long depth = job->depth - k0 < block ? job->depth - k0 : block;                                  \
            const rl_start start = k0 ? RL_FROM_OUT : job->bias ? RL_FROM_BIAS : RL_FROM_ZERO;                     \
            for (long p = p0, taken; p < p1; p += taken) {                                                         \
                const long whole = job->out / RL_PANEL - p; /* whole panels left; a partial one goes alone */      \
                taken = panels_at_once((rows + tiles - 1) / tiles);                                                \
                while (taken > 1 && (taken > p1 - p || taken > whole)) taken /= 2;                                 \
                const TYPE *panel = w + p * stride + k0 * RL_PANEL;                                                \
                const float *bias = job->bias ? job->bias + p * RL_PANEL : NULL;                                   \
                for (long t = 0; t < tiles; t++) {                                                                 \
                    const long r0 = row0 + rows * t / tiles, r1 = row0 + rows * (t + 1) / tiles;                   \
                    const int n = (int)(r1 - r0);                                                                  \
                    const float *x = job->x + r0 * job->ldx + k0;                                                  \
                    float *c = job->y + r0 * job->ldy + p * RL_PANEL;                                              \
                    if (whole < 1) {                                                                               \
                        float edge[RL_TILE_ROWS * RL_PANEL];                                                       \
                        const size_t bytes = (size_t)(job->out - p * RL_PANEL) * sizeof(float);                    \
                        for (int r = 0; r < n; r++) memcpy(edge + r * RL_PANEL, c + r * job->ldy, bytes);          \
                        TILE##_1(n, x, job->ldx, panel, stride, depth, start, bias, edge, RL_PANEL);               \
                        for (int r = 0; r < n; r++) memcpy(c + r * job->ldy, edge + r * RL_PANEL, bytes);          \
                    } else if (taken == 4) {                                                                       \
                        TILE##_4(n, x, job->ldx, panel, stride, depth, start, bias, c, job->ldy);                  \
                    } else if (taken == 2) {                                                                       \
                        TILE##_2(n, x, job->ldx, panel, stride, depth, start, bias, c, job->ldy);                  \
                    } else {                                                                                       \
                        TILE##_1(n, x, job->ldx, panel, stride, depth, start, bias, c, job->ldy);                  \
                    }                                                                                              \
                }                                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
    }

DEFINE_BLOCK(block_f32, tile_f32, float)
DEFINE_BLOCK(block_bf16, tile_bf16, uint16_t)

/* Panels per task: long runs for a few rows (streaming), short ones for many rows (balance). */
static long task_panels(long panels, long rows, int threads) {
    if (rows > ROW_BLOCK) return TASK_PANELS;
    long share = (panels + threads * 4 - 1) / (threads * 4);
    share = (share + 3) / 4 * 4;
    return share < 4 ? 4 : share;
}

static void run(const linear_job *job, int is_bf16, int threads) {
    const long panels = (job->out + RL_PANEL - 1) / RL_PANEL;
    const long run_panels = task_panels(panels, job->rows, threads);
    const long runs = (panels + run_panels - 1) / run_panels;
    const long blocks = (job->rows + ROW_BLOCK - 1) / ROW_BLOCK;
    RL_PARALLEL_TASKS(threads, runs * blocks, task, {
        const long b = task / runs, p0 = task % runs * run_panels;
        const long p1 = p0 + run_panels < panels ? p0 + run_panels : panels;
        const long r0 = job->rows * b / blocks, r1 = job->rows * (b + 1) / blocks;
        if (is_bf16) block_bf16(job, r0, r1 - r0, p0, p1);
        else block_f32(job, r0, r1 - r0, p0, p1);
    });
}

/* x: fp32 [rows, depth] with row stride ldx; w: packed; bias: padded to whole panels or NULL; depth is even. */
RL_EXPORT void rl_linear(const float *x, long ldx, const void *w, const float *bias, float *y, long ldy, long rows,
                         long depth, long out, int is_bf16, int threads) {
    const linear_job job = {.x = x, .ldx = ldx, .rows = rows, .depth = depth, .out = out,
                            .w = w, .bias = bias, .y = y, .ldy = ldy};
    run(&job, is_bf16, threads);
}
