/* Chooses tokens, and finds the most likely ones: each row on its own, by one thread.
 *
 * Scaled logits are 0 for the best token and negative for the rest, so without the sign their bits are in order: the
 * likelier, the smaller. A boundary (of top-k, of top-p) is found by the digits of those bits, without a sort, and
 * equal logits stay on one side of it.
 */
#include "vec.h"

#define BLOCK 512      /* tokens whose weights are at hand at a time */
#define DIGIT_BINS 2048
#if RL_LANES == 16 && !defined(__AVX512F__)
#define WIDE 4 /* GCC 12 does not get through 8 doubles that the machine does not have */
#else
#define WIDE (RL_LANES / 2) /* doubles in a vector */
#endif
#define KEY(value) (bits_of(value) & 0x7fffffffu)

typedef double vd __attribute__((vector_size(WIDE * 8)));
typedef double vd_u __attribute__((vector_size(WIDE * 8), aligned(8), may_alias));
typedef int64_t vl __attribute__((vector_size(WIDE * 8)));
typedef float vn_u __attribute__((vector_size(WIDE * 4), aligned(4), may_alias));

typedef struct {
    const float *logits, *best, *temperature;
    const int64_t *rows, *top_k;
    const double *top_p, *min_p, *uniform;
    long vocab, count, scratch_bytes;
    int64_t *tokens;
    char *scratch;
    atomic_long *next;
} draw_job;

/* What a row still keeps, in order of token id. */
typedef struct {
    float *value;    /* scaled logits */
    int32_t *id;     /* of each value, once `listed`; before that value i is token i */
    uint32_t *keys;  /* scratch of `boundary` */
    double *before;  /* scratch of `choose`: the weight in front of each block */
    double *mass;    /* scratch of `boundary`, [2 * DIGIT_BINS] */
    long count;
    int listed;
} kept_tokens;

RL_INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
RL_INLINE float value_of(uint32_t key) {
    float value;
    memcpy(&value, &key, sizeof value);
    return -value;
}

/* e**x for x <= 0, to about the last place; exactly 1 at 0, and 0 where the result would not be a normal number.
 * e**r is 1 + r + r**2 q(r) with a q that was fitted to |r| <= log(2) / 2: relative error 2e-17. */
RL_INLINE vd exp_falling(vd x) {
    const vd lowest = -708.0 - (vd){0}, round = 6755399441055744.0 - (vd){0}; /* 1.5 * 2**52 */
    const vl normal = x > lowest;
    const vd held = (vd)((normal & (vl)x) | (~normal & (vl)lowest));
    const vd shifted = held * 1.44269504088896340736 + round, n = shifted - round;
    const vd r = held - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
    const vd r2 = r * r, r4 = r2 * r2;
    const vd q01 = 0.5000000000000001 + r * 0.16666666666666669;
    const vd q23 = 0.04166666666662413 + r * 0.008333333333330062;
    const vd q45 = 0.0013888888917213717 + r * 0.00019841269863053618;
    const vd q67 = 2.4801521295954376e-05 + r * 2.7557268459997064e-06;
    const vd q89 = 2.7620088445409746e-07 + r * 2.510038549551032e-08;
    const vd q = (q01 + r2 * q23) + r4 * ((q45 + r2 * q67) + r4 * q89);
    const vd p = 1.0 + (r + r2 * q);
    return (vd)(((vl)p + ((vl)shifted << 52)) & normal);
}

/* e**(value - best) of up to BLOCK values; up to WIDE - 1 past `count` are overwritten with what does not count. */
RL_INLINE void wide_weights(const float *value, double best, long count, double *weights) {
    float padded[WIDE];
    for (long i = 0; i < count; i += WIDE) {
        const float *from = value + i;
        if (count - i < WIDE) from = memcpy(padded, from, (size_t)(count - i) * sizeof *from);
        *(vd_u *)(weights + i) = exp_falling(__builtin_convertvector(*(const vn_u *)from, vd) - best);
    }
}

RL_INLINE void block_weights(const float *scaled, long count, double *weights) { wide_weights(scaled, 0.0, count, weights); }

RL_INLINE double sum_of(const double *weights, long count) {
    vd first = {0}, second = {0};
    long i = 0;
    for (; i + 2 * WIDE <= count; i += 2 * WIDE) {
        first += *(const vd_u *)(weights + i);
        second += *(const vd_u *)(weights + i + WIDE);
    }
    double sum = 0.0;
    for (; i < count; i++) sum += weights[i];
    first += second;
    for (int lane = 0; lane < WIDE; lane++) sum += first[lane];
    return sum;
}

/* The first bin at which *above, the mass in front of the bins, reaches `target`; `bins` if none does. Leaves in *above
 * what is in front of the bin. */
static long reached_bin(const double *mass, long bins, double target, double *above) {
    for (long bin = 0; bin < bins; bin++) {
        if (*above + mass[bin] >= target) return bin;
        *above += mass[bin];
    }
    return bins;
}

/* Keys whose digit at `shift` is `bin`, moved to the front. */
static long with_digit(uint32_t *keys, long count, int shift, long bins, long bin) {
    long found = 0;
    for (long i = 0; i < count; i++) {
        const uint32_t key = keys[i];
        keys[found] = key;
        found += (long)(key >> shift & (uint32_t)(bins - 1)) == bin;
    }
    return found;
}

/* The mass of what is kept by the first digit of its key; returns all of it. */
RL_INLINE double first_digit_mass(const kept_tokens *kept, const int counted) {
    double weights[BLOCK], *mass = kept->mass, total = 0.0;
    memset(mass, 0, 2 * DIGIT_BINS * sizeof *mass);
    for (long at = 0; at < kept->count; at += BLOCK) {
        const long count = kept->count - at < BLOCK ? kept->count - at : BLOCK;
        if (!counted) block_weights(kept->value + at, count, weights);
        /* Neighbours go to bins of their own: sums of one bin would wait for each other. */
        for (long i = 0; i < count; i++)
            mass[(i & 1) * DIGIT_BINS + (KEY(kept->value[at + i]) >> 20)] += counted ? 1.0 : weights[i];
    }
    for (long bin = 0; bin < DIGIT_BINS; bin++) total += mass[bin] += mass[bin + DIGIT_BINS];
    return total;
}

/* The largest value at which the mass of what is kept, from the best token on, reaches `share` of all of it, or where
 * `counted` so many tokens: -inf if it never does. A token's mass is its weight. */
RL_INLINE float boundary(const kept_tokens *kept, double share, const int counted) {
    static const int shifts[] = {20, 9, 0};
    static const long bins[] = {2048, 2048, 512};
    double above = 0.0, *mass = kept->mass;
    const double all = first_digit_mass(kept, counted), target = counted ? share : share * all;
    long bin = reached_bin(mass, bins[0], target, &above);
    if (bin == bins[0]) return -INFINITY;
    long count = 0;
    for (long i = 0; i < kept->count; i++) {
        const uint32_t key = kept->keys[count] = KEY(kept->value[i]);
        count += key >> shifts[0] == (uint32_t)bin;
    }
    uint32_t key = (uint32_t)bin << shifts[0];
    for (int digit = 1; digit < 3; digit++) {
        memset(mass, 0, DIGIT_BINS * sizeof *mass);
        long last = 0;
        for (long i = 0; i < count; i++) {
            const long own = kept->keys[i] >> shifts[digit] & (uint32_t)(bins[digit] - 1);
            mass[own] += counted ? 1.0 : exp_falling((double)value_of(kept->keys[i]) - (vd){0})[0];
            last = own > last ? own : last;
        }
        /* The parts of a bin may add up to a hair less than the bin did: then the boundary is its last value. */
        bin = reached_bin(mass, last, target, &above);
        count = with_digit(kept->keys, count, shifts[digit], bins[digit], bin);
        key |= (uint32_t)bin << shifts[digit];
    }
    return value_of(key);
}

static void keep_from(kept_tokens *kept, float least) {
    long found = 0;
    for (long i = 0; i < kept->count; i++) {
        const float value = kept->value[i];
        kept->value[found] = value;
        kept->id[found] = kept->listed ? kept->id[i] : (int32_t)i;
        found += value >= least;
    }
    kept->count = found;
    kept->listed = 1;
}

RL_INLINE void chosen_weights(const float *value, long count, double min_p, double *weights) {
    block_weights(value, count, weights);
    for (long i = 0; i < count; i++) weights[i] = weights[i] >= min_p ? weights[i] : 0.0;
}

/* The first token with a cumulative weight above uniform * total, weights below min_p counting as 0. */
static int64_t choose(const kept_tokens *kept, double min_p, double uniform) {
    double weights[BLOCK], total = 0.0;
    const long blocks = (kept->count + BLOCK - 1) / BLOCK;
    for (long block = 0; block < blocks; block++) {
        const long at = block * BLOCK, count = kept->count - at < BLOCK ? kept->count - at : BLOCK;
        chosen_weights(kept->value + at, count, min_p, weights);
        kept->before[block] = total;
        total += sum_of(weights, count);
    }
    const double target = uniform * total;
    long block = blocks - 1;
    while (block > 0 && kept->before[block] > target) block--;
    const long at = block * BLOCK, count = kept->count - at < BLOCK ? kept->count - at : BLOCK;
    chosen_weights(kept->value + at, count, min_p, weights);
    double cumulative = kept->before[block];
    long chosen = at;
    for (long i = 0; i < count; i++) {
        if (weights[i] == 0.0) continue;
        chosen = at + i; /* stays the last one if rounding leaves the sum a hair below the block's */
        cumulative += weights[i];
        if (cumulative > target) break;
    }
    return kept->listed ? kept->id[chosen] : chosen;
}

static int64_t draw_row(const draw_job *job, long index, kept_tokens *kept) {
    const float best = job->best[index], temperature = job->temperature[index];
    if (!isfinite(best)) return 0; /* the row has a fault, and no right answer */
    const float *logits = job->logits + job->rows[index] * job->vocab;
    for (long i = 0; i < job->vocab; i++) kept->value[i] = (logits[i] - best) / temperature;
    kept->count = job->vocab, kept->listed = 0;
    const int64_t top_k = job->top_k[index];
    if (top_k > 0 && top_k < job->vocab) keep_from(kept, boundary(kept, (double)top_k, 1));
    const double top_p = job->top_p[index];
    if (top_p < 1.0) keep_from(kept, boundary(kept, top_p, 0));
    return choose(kept, job->min_p[index], job->uniform[index]);
}

static long blocks_of(long vocab) { return (vocab + BLOCK - 1) / BLOCK; }

/* Each task takes rows until none is left; it has scratch space of its own. */
static void draw_body(const void *argument, long task) {
    const draw_job *job = argument;
    double *scratch = (double *)(job->scratch + task * job->scratch_bytes);
    kept_tokens kept = {.mass = scratch, .before = scratch + 2 * DIGIT_BINS};
    kept.value = (float *)(kept.before + blocks_of(job->vocab));
    kept.id = (int32_t *)(kept.value + job->vocab);
    kept.keys = (uint32_t *)(kept.id + job->vocab);
    for (long index; (index = atomic_fetch_add(job->next, 1)) < job->count;)
        job->tokens[index] = draw_row(job, index, &kept);
}

/* Bytes that each thread of `rl_draw` needs: a multiple of 8. */
RL_EXPORT int rl_draw_scratch(long vocab) {
    const long floats = 3 * vocab + (vocab & 1);
    return (int)((2 * DIGIT_BINS + blocks_of(vocab)) * (long)sizeof(double) + floats * (long)sizeof(float));
}

/* tokens[i] = the token chosen from row rows[i] of logits [any, vocab]; best[i] is its largest logit. A row whose best
 * is not finite gets token 0. `scratch` is of rl_draw_scratch(vocab) bytes for each thread. */
RL_EXPORT int rl_draw(const float *logits, long vocab, const int64_t *rows, long count, const float *best,
                      const float *temperature, const int64_t *top_k, const double *top_p, const double *min_p,
                      const double *uniform, int64_t *tokens, void *scratch, int threads) {
    atomic_long next = 0;
    const draw_job job = {.logits = logits, .vocab = vocab, .rows = rows, .count = count, .best = best,
                          .temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p,
                          .uniform = uniform, .tokens = tokens, .scratch = scratch, .next = &next,
                          .scratch_bytes = rl_draw_scratch(vocab)};
    parallel_tasks(threads, count < threads ? count : threads, draw_body, &job);
    return 0;
}

typedef struct {
    const float *logits;
    long vocab;
    int64_t *tokens;
    float *best;
} best_job;

/* The largest of up to BLOCK logits, NaN if one is. */
RL_INLINE float block_best(const float *logits, long count) {
    vf first = vf_splat(-INFINITY), second = first;
    vi strange = {0};
    long i = 0;
    for (; i + 2 * RL_LANES <= count; i += 2 * RL_LANES) {
        const vf a = vf_load(logits + i), b = vf_load(logits + i + RL_LANES);
        first = vf_max(a, first), second = vf_max(b, second);
        strange |= (a != a) | (b != b);
    }
    float best = vf_highest(vf_max(first, second));
    int is_strange = 0;
    for (; i < count; i++) {
        best = logits[i] > best ? logits[i] : best;
        is_strange |= logits[i] != logits[i];
    }
    for (int lane = 0; lane < RL_LANES; lane++) is_strange |= strange[lane];
    return is_strange ? NAN : best;
}

static void best_body(const void *argument, long index) {
    const best_job *job = argument;
    const float *logits = job->logits + index * job->vocab;
    float best = -INFINITY;
    long place = 0;
    for (long at = 0; at < job->vocab; at += BLOCK) {
        const float found = block_best(logits + at, job->vocab - at < BLOCK ? job->vocab - at : BLOCK);
        if (found <= best) continue;
        best = found, place = at;
        if (isnan(found)) break;
    }
    while (logits[place] != best && !isnan(best)) place++;
    job->tokens[index] = isnan(best) ? 0 : place;
    job->best[index] = best;
}

/* The largest of each row of logits [count, vocab] and its lowest token; NaN and token 0 for a row that holds NaN. */
RL_EXPORT int rl_best(const float *logits, long vocab, long count, int64_t *tokens, float *best, int threads) {
    const best_job job = {logits, vocab, tokens, best};
    parallel_tasks(threads, count, best_body, &job);
    return 0;
}

typedef struct {
    const float *logits;
    const int64_t *rows;
    long vocab, wanted;
    int64_t *ids;
    double *normalisers;
} likely_job;

/* The ids of the `wanted` largest, by falling value and then by rising id. */
static void largest_ids(const float *logits, long vocab, long wanted, int64_t *ids) {
    float values[wanted > 0 ? wanted : 1];
    long found = 0;
    for (long token = 0; token < vocab && wanted > 0; token++) {
        const float value = logits[token];
        if (found == wanted && !(value > values[found - 1])) continue;
        long at = found < wanted ? found++ : found - 1;
        for (; at > 0 && value > values[at - 1]; at--) values[at] = values[at - 1], ids[at] = ids[at - 1];
        values[at] = value, ids[at] = token;
    }
}

static double log_sum_exp(const float *logits, long vocab) {
    vf highest = vf_splat(-INFINITY);
    long at = 0;
    for (; at + RL_LANES <= vocab; at += RL_LANES) highest = vf_max(vf_load(logits + at), highest);
    float best = vf_highest(highest);
    for (; at < vocab; at++) best = logits[at] > best ? logits[at] : best;
    double weights[BLOCK], total = 0.0;
    for (at = 0; at < vocab; at += BLOCK) {
        const long count = vocab - at < BLOCK ? vocab - at : BLOCK;
        wide_weights(logits + at, (double)best, count, weights);
        total += sum_of(weights, count);
    }
    return (double)best + log(total);
}

static void likely_body(const void *argument, long index) {
    const likely_job *job = argument;
    const float *logits = job->logits + job->rows[index] * job->vocab;
    largest_ids(logits, job->vocab, job->wanted, job->ids + index * job->wanted);
    job->normalisers[index] = log_sum_exp(logits, job->vocab);
}

/* For each of `count` rows of logits [any, vocab]: the ids [count, wanted] of the most likely tokens, wanted <= vocab,
 * and log(sum(exp(logits))). A row with what is not finite gets ids of the vocabulary, and values without meaning. */
RL_EXPORT int rl_most_likely(const float *logits, long vocab, const int64_t *rows, long count, long wanted,
                             int64_t *ids, double *normalisers, int threads) {
    const likely_job job = {logits, rows, vocab, wanted, ids, normalisers};
    parallel_tasks(threads, count, likely_body, &job);
    return 0;
}
