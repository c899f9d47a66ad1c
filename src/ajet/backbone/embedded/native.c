/* What of the small-model forward torch does in many passes over memory, in one each. float32; see native.py.
 *
 * Letters: N new tokens of all sequences, one behind the other; B sequences; W = (heads + 2 * kv) * dim.
 * Keys lie in tiles [block][kv head][dim][16], values in [block][kv head][16][padded dim]: sixteen keys at once are one
 * vector, and so are sixteen entries of a value. Weights [M, K] are packed as [M / 32][K][32], zeros behind the last.
 */
#ifdef __AVX512DQ__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define ROWS 12
#define PANEL 32

typedef float vec __attribute__((vector_size(64)));
typedef float vec_u __attribute__((vector_size(64), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(64)));
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

INLINE vec splat(float x) { return x - (vec){0}; }

/* exp(x), relative error below 3e-7; 0 below -87. */
INLINE vec vexp(vec x) {
    const ivec keep = x > splat(-87.0f);
    vec top = splat(88.0f);
    x = (vec)(((ivec)x & (x < top)) | ((ivec)top & ~(x < top)));
    x = (vec)((ivec)x & keep);
    vec n = x * splat(1.44269504088896341f) + splat(12582912.0f);
    ivec whole = (ivec)n - (ivec)splat(12582912.0f);
    n = n - splat(12582912.0f);
    vec r = x - n * splat(0.693359375f);
    r = r + n * splat(2.12194440e-4f);
    vec p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * r * r + r + splat(1.0f);
    p = (vec)((ivec)p + (whole << 23));
    return (vec)((ivec)p & keep);
}

/* 2^x for x <= 0 (where the processor scales by itself, for any x), relative error below 2e-7; 0 below -126 (denormal there). A polynomial
 * of degree 5 over the half around a whole number. */
INLINE vec vexp2(vec x) {
#ifdef __AVX512DQ__
    const vec r = (vec)_mm512_reduce_ps((__m512)x, 8); /* x - its nearest whole number; of -inf: 0 */
#else
    const ivec keep = x > splat(-126.0f);
    x = (vec)((ivec)x & keep);
    const vec n = x + splat(12582912.0f);
    const vec r = x - (n - splat(12582912.0f));
#endif
    vec p = splat(1.3264726149e-3f);
    p = p * r + splat(9.6715129912e-3f);
    p = p * r + splat(5.5507335812e-2f);
    p = p * r + splat(2.4022242427e-1f);
    p = p * r + splat(6.9314700365e-1f);
    p = p * r + splat(1.0f);
#ifdef __AVX512DQ__
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)(x - r));
#else
    return (vec)(((ivec)p + ((ivec)n << 23)) & keep);
#endif
}

INLINE vec larger(vec a, vec b) {
#ifdef __AVX512DQ__
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
    const ivec more = a > b;
    return (vec)(((ivec)a & more) | ((ivec)b & ~more));
#endif
}

/* g / (1 + exp(-g)) * u, relative error below 5e-7. */
INLINE vec gated(vec g, vec u) {
#ifdef __AVX512DQ__
    vec x = g * splat(-1.44269504088896341f);
    x = (vec)_mm512_min_ps((__m512)x, _mm512_set1_ps(120.0f)); /* so that below stays finite */
    const vec below = splat(1.0f) + vexp2(x);
    const vec by = (vec)_mm512_rcp14_ps((__m512)below);
    return g * u * (by * (splat(2.0f) - below * by));
#else
    return g / (splat(1.0f) + vexp(-g)) * u;
#endif
}

INLINE float sum_lanes(vec x) {
    float s = 0;
    for (int i = 0; i < LANES; i++) s += x[i];
    return s;
}

INLINE float max_lanes(vec x) {
    float m = x[0];
    for (int i = 1; i < LANES; i++) m = x[i] > m ? x[i] : m;
    return m;
}

/* Rotate queries and keys of the new tokens of sequences first <= b < last in place; keys and values go to the pool. */
void ajet_store(float *qkv, float *pool_k, float *pool_v, const int32_t *tables, int64_t K, const int32_t *start,
                const int32_t *offset, const float *cos, const float *sin, int64_t first, int64_t last, int64_t heads,
                int64_t kv, int64_t dim, int64_t padded) {
    const int64_t W = (heads + 2 * kv) * dim, half = dim / 2;
    for (int64_t b = first; b < last; b++) {
        for (int64_t n = offset[b]; n < offset[b + 1]; n++) {
            const int64_t position = start[b] + (n - offset[b]);
            const int64_t block = tables[b * K + position / LANES], at = position % LANES;
            const float *c = cos + position * dim, *s = sin + position * dim;
            float *row = qkv + n * W;
            for (int64_t h = 0; h < heads + kv; h++, row += dim)
                for (int64_t d = 0; d < half; d++) {
                    const float x = row[d], y = row[d + half];
                    row[d] = x * c[d] - y * s[d];
                    row[d + half] = y * c[d] + x * s[d];
                }
            row -= kv * dim;
            for (int64_t h = 0; h < kv; h++, row += dim) {
                float *k = pool_k + (block * kv + h) * dim * LANES + at;
                for (int64_t d = 0; d < dim; d++) k[d * LANES] = row[d];
            }
            for (int64_t h = 0; h < kv; h++, row += dim)
                memcpy(pool_v + ((block * kv + h) * LANES + at) * padded, row, dim * sizeof(float));
        }
    }
}

/* Attention of R queries of one key head in three steps, each of which goes on where an earlier one over other keys stopped: so
 * queries of several sequences take the keys that they share together, and each then its own, in the same order of additions
 * as alone. */

/* One step over the keys of `table`, of which query r sees the first keys[r]. query is [dim][R], already scaled; score [blocks][R][16]
 * is filled in (and up to three blocks more, with -inf), so that every loop walks one pointer; tops [R] are raised. Two or four blocks
 * go at once: they share the queries, and the adders are never idle. Arrays here have a fixed size: as long as R, the compiler would
 * keep them in memory. */
INLINE void score_rows(const int R, const float *query, const int64_t *keys, const float *pool_k, const int32_t *table,
                       int64_t blocks, int64_t kv, int64_t head, int64_t dim, float *score, vec *tops) {
    const int side = R <= 3 ? 4 : 2; /* blocks side by side */
    vec top[ROWS];
    UNROLL for (int r = 0; r < R; r++) top[r] = tops[r];
    for (int64_t k = 0; k < blocks; k += side) {
        const float *tile[4]; /* past the last: the last again, unseen */
        vec acc[4][ROWS];
        UNROLL for (int u = 0; u < side; u++) {
            tile[u] = pool_k + (table[k + u < blocks ? k + u : blocks - 1] * kv + head) * dim * LANES;
            UNROLL for (int r = 0; r < R; r++) acc[u][r] = splat(0);
        }
        for (int64_t d = 0; d < dim; d++) {
            const float *q = query + d * R;
            vec key[4];
            UNROLL for (int u = 0; u < side; u++) key[u] = *(const vec_u *)(tile[u] + d * LANES);
            UNROLL for (int r = 0; r < R; r++) {
                const vec by = splat(q[r]);
                UNROLL for (int u = 0; u < side; u++) acc[u][r] += key[u] * by;
            }
        }
        UNROLL for (int u = 0; u < side; u++)
            UNROLL for (int r = 0; r < R; r++) {
                vec s = acc[u][r];
                int64_t seen = keys[r] - (k + u) * LANES;
                if (seen < LANES) {
                    const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
                    const ivec in = lane < ((ivec){0} + (int32_t)(seen < 0 ? 0 : seen));
                    s = (vec)(((ivec)s & in) | ((ivec)splat(-INFINITY) & ~in));
                }
                top[r] = larger(s, top[r]);
                *(vec_u *)(score + ((k + u) * R + r) * LANES) = s;
            }
    }
    UNROLL for (int r = 0; r < R; r++) tops[r] = top[r];
}

/* score = 2^(score - top), which is added to totals [R]. */
INLINE void weigh_rows(const int R, int64_t blocks, float *score, const vec *tops, vec *totals) {
    vec top[ROWS], total[ROWS];
    UNROLL for (int r = 0; r < R; r++) {
        top[r] = tops[r];
        total[r] = totals[r];
    }
    for (int64_t k = 0; k < blocks; k++)
        UNROLL for (int r = 0; r < R; r++) {
            float *at = score + (k * R + r) * LANES;
            const vec e = vexp2(*(vec_u *)at - top[r]);
            total[r] += e;
            *(vec_u *)at = e;
        }
    UNROLL for (int r = 0; r < R; r++) totals[r] = total[r];
}

/* sums += score times values, of the first `most` keys of `table`. sums is [padded / 16][rows], R of them are meant. */
INLINE void value_rows(const int R, int64_t most, const float *pool_v, const int32_t *table, int64_t kv, int64_t head,
                       int64_t padded, const float *score, vec *sums, int64_t rows) {
    const int64_t blocks = (most + LANES - 1) / LANES;
    for (int64_t part = 0; part < padded; part += 2 * LANES, sums += 2 * rows) {
        const int two = padded - part > LANES;
        vec low[ROWS], high[ROWS];
        UNROLL for (int r = 0; r < R; r++) {
            low[r] = sums[r];
            high[r] = two ? sums[rows + r] : splat(0);
        }
        for (int64_t k = 0; k < blocks; k++) {
            const float *v = pool_v + (table[k] * kv + head) * LANES * padded + part;
            const int64_t count = most - k * LANES < LANES ? most - k * LANES : LANES;
            const float *p = score + k * R * LANES;
            if (two)
                for (int64_t j = 0; j < count; j++, v += padded, p++) {
                    const vec a = *(const vec_u *)v, c = *(const vec_u *)(v + LANES);
                    UNROLL for (int r = 0; r < R; r++) {
                        const vec by = splat(p[r * LANES]);
                        low[r] += a * by;
                        high[r] += c * by;
                    }
                }
            else
                for (int64_t j = 0; j < count; j++, v += padded, p++) {
                    const vec a = *(const vec_u *)v;
                    UNROLL for (int r = 0; r < R; r++) low[r] += a * p[r * LANES];
                }
        }
        UNROLL for (int r = 0; r < R; r++) {
            sums[r] = low[r];
            if (two) sums[rows + r] = high[r];
        }
    }
}

#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#define CASE(n)                                                                                                         \
    case n:                                                                                                             \
        score_rows(n, query, keys, pool_k, table, blocks, kv, head, dim, score, tops);                                  \
        break;
static void scores(int R, const float *query, const int64_t *keys, const float *pool_k, const int32_t *table,
                   int64_t blocks, int64_t kv, int64_t head, int64_t dim, float *score, vec *tops) {
    switch (R) { CASES }
}
#undef CASE
#define CASE(n)                                                                                                         \
    case n:                                                                                                             \
        weigh_rows(n, blocks, score, tops, totals);                                                                     \
        break;
static void weigh(int R, int64_t blocks, float *score, const vec *tops, vec *totals) {
    switch (R) { CASES }
}
#undef CASE
#define CASE(n)                                                                                                         \
    case n:                                                                                                             \
        value_rows(n, most, pool_v, table, kv, head, padded, score, sums, rows);                                        \
        break;
static void values(int R, int64_t most, const float *pool_v, const int32_t *table, int64_t kv, int64_t head,
                   int64_t padded, const float *score, vec *sums, int64_t rows) {
    switch (R) { CASES }
}
#undef CASE

#define SHARED 4
/* Blocks from which on it is worth while that sequences take their common keys together. */

/* How many sequences from b on, `most` at most, go together over the *shared blocks with which all of them begin. Each has one query. */
static int64_t together(const int32_t *tables, int64_t K, const int32_t *start, int64_t b, int64_t most, int64_t *shared) {
    int64_t common = start[b] / LANES, best = 1, saved = 0;
    for (int64_t n = 1; n < most; n++) {
        const int32_t *one = tables + b * K, *other = tables + (b + n) * K;
        const int64_t full = start[b + n] / LANES;
        int64_t c = 0;
        while (c < common && c < full && one[c] == other[c]) c++;
        common = c;
        if (common < SHARED) break;
        if (n * common > saved) {
            saved = n * common;
            best = n + 1;
            *shared = common;
        }
    }
    return best;
}

/* Attention of n sequences with `each` queries of one key head, over the first `shared` blocks together. Query q [n * each] sees
 * seen [n * each] keys; sequence i has the blocks tables + i * K. score: see ajet_attend. */
static void attend_group(int n, int each, const float *const *q, float *const *out, const int64_t *seen, float scale,
                         const float *pool_k, const float *pool_v, const int32_t *tables, int64_t K, int64_t shared,
                         int64_t kv, int64_t head, int64_t dim, int64_t padded, float *score) {
    const int R = n * each;
    float *query = score + ROWS * LANES * (K + 1), *own[ROWS], *at = score;
    vec tops[ROWS], totals[ROWS];
    vec *sums = (vec *)(((uintptr_t)(query + ROWS * dim) + sizeof(vec) - 1) / sizeof(vec) * sizeof(vec));
    int64_t keys[ROWS], most[ROWS];
    for (int r = 0; r < R; r++) {
        tops[r] = splat(-INFINITY);
        totals[r] = splat(0);
        keys[r] = shared * LANES;
    }
    for (int64_t i = 0; i < R * padded / LANES; i++) sums[i] = splat(0);
    if (shared) {
        for (int r = 0; r < R; r++)
            for (int64_t d = 0; d < dim; d++) query[d * R + r] = q[r][d] * scale;
        scores(R, query, keys, pool_k, tables, shared, kv, head, dim, score, tops);
        at += shared * R * LANES;
    }
    for (int i = 0; i < n; i++) {
        most[i] = 0;
        for (int r = 0; r < each; r++) {
            for (int64_t d = 0; d < dim; d++) query[d * each + r] = q[i * each + r][d] * scale;
            keys[r] = seen[i * each + r] - shared * LANES;
            most[i] = keys[r] > most[i] ? keys[r] : most[i];
        }
        const int64_t blocks = (most[i] + LANES - 1) / LANES;
        own[i] = at;
        scores(each, query, keys, pool_k, tables + i * K + shared, blocks, kv, head, dim, at, tops + i * each);
        at += blocks * each * LANES;
    }
    for (int r = 0; r < R; r++) tops[r] = splat(max_lanes(tops[r]));
    if (shared) {
        weigh(R, shared, score, tops, totals);
        values(R, shared * LANES, pool_v, tables, kv, head, padded, score, sums, R);
    }
    for (int i = 0; i < n; i++) {
        const int64_t blocks = (most[i] + LANES - 1) / LANES;
        weigh(each, blocks, own[i], tops + i * each, totals + i * each);
        values(each, most[i], pool_v, tables + i * K + shared, kv, head, padded, own[i], sums + i * each, R);
    }
    for (int r = 0; r < R; r++) {
        const float inverse = 1.0f / sum_lanes(totals[r]);
        for (int64_t d = 0; d < dim; d += LANES) {
            const vec part = sums[d / LANES * R + r] * splat(inverse);
            if (d + LANES <= dim)
                *(vec_u *)(out[r] + d) = part;
            else
                memcpy(out[r] + d, &part, (dim - d) * sizeof(float));
        }
    }
}

/* Attention of the new tokens (the last of each sequence only, where only_last) over all cached ones.
 * out is [N, heads * dim], or [B, heads * dim] where only_last. score: room for 12 rows of K + 1 blocks, and 12 * (dim + padded) + 16. */
void ajet_attend(const float *qkv, float *out, const float *pool_k, const float *pool_v, const int32_t *tables, int64_t K,
                 const int32_t *start, const int32_t *offset, int64_t first, int64_t last, int64_t heads, int64_t kv,
                 int64_t dim, int64_t padded, int64_t only_last, float *score) {
    const int64_t W = (heads + 2 * kv) * dim, share = heads / kv;
    const float scale = 1.44269504088896341f / sqrtf((float)dim); /* scores to base 2 */
    const float *q[ROWS];
    float *o[ROWS];
    int64_t seen[ROWS];
    for (int64_t b = first, n; b < last; b += n) {
        int64_t alike = 0, shared = 0; /* sequences from b on with one query each, and blocks that some of them share */
        while (b + alike < last && alike * share < ROWS && (only_last || offset[b + alike + 1] - offset[b + alike] == 1))
            alike++;
        if (alike * share > ROWS) alike--;
        n = alike > 1 ? together(tables, K, start, b, alike, &shared) : 1;
        const int64_t begin = only_last || n > 1 ? offset[b + 1] - 1 : offset[b];
        const int64_t rows = (n > 1 ? n : offset[b + 1] - begin) * share;
        for (int64_t g = 0; g < kv; g++)
            for (int64_t r0 = 0; r0 < rows; r0 += ROWS) {
                const int R = rows - r0 < ROWS ? (int)(rows - r0) : ROWS;
                for (int r = 0; r < R; r++) {
                    const int64_t at = (r0 + r) / share, h = g * share + (r0 + r) % share;
                    const int64_t i = n > 1 ? b + at : b, token = n > 1 ? offset[i + 1] - 1 : begin + at;
                    q[r] = qkv + token * W + h * dim;
                    o[r] = out + ((only_last ? i : token) * heads + h) * dim;
                    seen[r] = start[i] + (token - offset[i]) + 1;
                }
                attend_group((int)n, R / (int)n, q, o, seen, scale, pool_k, pool_v, tables + b * K, K, shared, kv, g, dim, padded,
                             score);
            }
    }
}

/* K up to whole lanes: the numbers that a row of K takes where rows are "tiled", [K / 16][R][16], as panel_rows reads them. */
INLINE int64_t tiled(int64_t K) { return (K + LANES - 1) / LANES * LANES; }

/* buffer [R][32] = R tiled rows of a times one panel [K][32] of packed weights. */
INLINE void panel_rows(const int R, const float *a, const float *w, int64_t K, float *buffer) {
    vec low[ROWS], high[ROWS];
    UNROLL for (int r = 0; r < R; r++) low[r] = high[r] = splat(0);
    for (int64_t k = 0; k < K; k += LANES, a += R * LANES) {
        const int64_t count = K - k < LANES ? K - k : LANES;
        for (int64_t l = 0; l < count; l++, w += PANEL) {
            const vec x = *(const vec_u *)w, y = *(const vec_u *)(w + LANES);
            UNROLL for (int r = 0; r < R; r++) {
                const vec by = splat(a[r * LANES + l]);
                low[r] += x * by;
                high[r] += y * by;
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        *(vec_u *)(buffer + r * PANEL) = low[r];
        *(vec_u *)(buffer + r * PANEL + LANES) = high[r];
    }
}

static void panel(int R, const float *a, const float *w, int64_t K, float *buffer) {
#define CASE(n)                                                                                                         \
    case n:                                                                                                             \
        panel_rows(n, a, w, K, buffer);                                                                                 \
        break;
    switch (R) { CASES }
}
#undef CASE

/* a = R rows of x / rms * weight, tiled. */
static void normed(int R, const float *x, const float *weight, float *a, int64_t H, float eps) {
    for (int r = 0; r < R; r++, x += H, a += LANES) {
        float squares = 0;
        vec lanes = splat(0);
        int64_t i = 0;
        for (; i + LANES <= H; i += LANES) {
            const vec v = *(const vec_u *)(x + i);
            lanes += v * v;
        }
        for (; i < H; i++) squares += x[i] * x[i];
        const float by = 1.0f / sqrtf((sum_lanes(lanes) + squares) / (float)H + eps);
        for (i = 0; i + LANES <= H; i += LANES)
            *(vec_u *)(a + i * R) = *(const vec_u *)(x + i) * splat(by) * *(const vec_u *)(weight + i);
        for (int64_t l = 0; i + l < H; l++) a[i * R + l] = x[i + l] * by * weight[i + l];
    }
}

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Columns from <= m < to of ajet_in; `from` is a multiple of 32. */
static void in_part(const float *x, const float *norm, const float *w, const float *bias, float *out, int64_t first,
                    int64_t last, int64_t H, int64_t M, int64_t from, int64_t to, float eps, float *scratch) {
    float *buffer = scratch + ROWS * tiled(H);
    for (int64_t n = first; n < last; n += ROWS) {
        const int R = (int)least(ROWS, last - n);
        normed(R, x + n * H, norm, scratch, H, eps);
        for (int64_t m = from; m < to; m += PANEL) {
            const int64_t count = least(PANEL, to - m);
            panel(R, scratch, w + m * H, H, buffer);
            for (int r = 0; r < R; r++) {
                float *into = out + (n + r) * M + m, *part = buffer + r * PANEL;
                if (bias)
                    for (int64_t i = 0; i < count; i++) into[i] = part[i] + bias[m + i];
                else
                    memcpy(into, part, count * sizeof(float));
            }
        }
    }
}

/* out [N, M] = norm(x) times packed weights, plus bias where given; rows first <= n < last. scratch: 12 * (tiled(H) + 32). */
void ajet_in(const float *x, const float *norm, const float *w, const float *bias, float *out, int64_t first,
             int64_t last, int64_t H, int64_t M, float eps, float *scratch) {
    in_part(x, norm, w, bias, out, first, last, H, M, 0, M, eps, scratch);
}

static void add_product(int R, const float *a, const float *w, int64_t K, float *x, int64_t H, float *buffer) {
    for (int64_t m = 0; m < H; m += PANEL) {
        const int64_t count = least(PANEL, H - m);
        panel(R, a, w + m * K, K, buffer);
        for (int r = 0; r < R; r++)
            for (int64_t i = 0; i < count; i++) x[r * H + m + i] += buffer[r * PANEL + i];
    }
}

/* x += o times wo; x += down(silu(gate) * up) of norm(x): the rest of a layer behind attention, for first <= n < last.
 * I is a multiple of 32. scratch: 12 * (tiled(max(A, H)) + I + 64). */
void ajet_out(float *x, const float *o, const float *wo, const float *norm, const float *gate, const float *up,
              const float *down, int64_t first, int64_t last, int64_t H, int64_t A, int64_t I, float eps,
              float *scratch) {
    float *inner = scratch + ROWS * tiled(A > H ? A : H), *buffer = inner + ROWS * I, *other = buffer + ROWS * PANEL;
    for (int64_t n = first; n < last; n += ROWS) {
        const int R = (int)least(ROWS, last - n);
        for (int r = 0; r < R; r++)
            for (int64_t i = 0; i < A; i += LANES)
                memcpy(scratch + i * R + r * LANES, o + (n + r) * A + i, least(LANES, A - i) * sizeof(float));
        add_product(R, scratch, wo, A, x + n * H, H, buffer);
        normed(R, x + n * H, norm, scratch, H, eps);
        for (int64_t m = 0; m < I; m += PANEL) {
            panel(R, scratch, gate + m * H, H, buffer);
            panel(R, scratch, up + m * H, H, other);
            for (int r = 0; r < R; r++)
                for (int64_t i = 0; i < PANEL; i += LANES) {
                    const vec g = *(const vec_u *)(buffer + r * PANEL + i), u = *(const vec_u *)(other + r * PANEL + i);
                    *(vec_u *)(inner + (m + i) * R + r * LANES) = gated(g, u);
                }
        }
        add_product(R, inner, down, I, x + n * H, H, buffer);
    }
}

/* One layer over all sequences; where only_last, tail [B, H] gets the last row of each and goes on alone. */
void ajet_layer(float *x, float *tail, float *qkv, float *o, float *const *w, float *pool_k, float *pool_v,
                const int32_t *tables, int64_t K, const int32_t *start, const int32_t *offset, const float *cos,
                const float *sin, int64_t B, int64_t H, int64_t I, int64_t heads, int64_t kv, int64_t dim, int64_t padded,
                int64_t only_last, float eps, float *scratch) {
    const int64_t N = offset[B], A = heads * dim, W = A + 2 * kv * dim, queries = A / PANEL * PANEL;
    /* Of the last layer only the last tokens' queries are asked for. */
    const int few = only_last && N > 2 * B;
    in_part(x, w[0], w[1], w[2], qkv, 0, N, H, W, few ? queries : 0, W, eps, scratch);
    for (int64_t b = 0; few && b < B; b++)
        in_part(x, w[0], w[1], w[2], qkv, offset[b + 1] - 1, offset[b + 1], H, W, 0, queries, eps, scratch);
    ajet_store(qkv, pool_k, pool_v, tables, K, start, offset, cos, sin, 0, B, heads, kv, dim, padded);
    ajet_attend(qkv, o, pool_k, pool_v, tables, K, start, offset, 0, B, heads, kv, dim, padded, only_last, scratch);
    if (only_last)
        for (int64_t b = 0; b < B; b++) memcpy(tail + b * H, x + (offset[b + 1] - 1) * H, H * sizeof(float));
    ajet_out(only_last ? tail : x, o, w[3], w[4], w[5], w[6], w[7], 0, only_last ? B : N, H, A, I, eps, scratch);
}

/* A model and its cache; native.py fills it in. layers[i]: the eight weights that ajet_layer takes. */
typedef struct {
    const float *embed, *norm, *head;
    float *const *const *layers;
    float *const *pool_k, *const *pool_v;
    const float *cos, *sin;
    int64_t count, H, I, heads, kv, dim, padded, V;
    float eps;
} model;

/* Logits [B, V] after the last new token of each sequence; ids [N]. scratch: N * (H + W + A) + B * H + ajet_layer's. */
void ajet_pass(const model *m, const int32_t *ids, const int32_t *tables, int64_t K, const int32_t *start,
               const int32_t *offset, int64_t B, float *logits, float *scratch) {
    const int64_t N = offset[B], H = m->H, A = m->heads * m->dim, W = A + 2 * m->kv * m->dim;
    float *x = scratch, *qkv = x + N * H, *o = qkv + N * W, *tail = o + N * A, *rest = tail + B * H;
    for (int64_t n = 0; n < N; n++) memcpy(x + n * H, m->embed + ids[n] * H, H * sizeof(float));
    for (int64_t i = 0; i < m->count; i++)
        ajet_layer(x, tail, qkv, o, m->layers[i], m->pool_k[i], m->pool_v[i], tables, K, start, offset, m->cos, m->sin, B, H,
                   m->I, m->heads, m->kv, m->dim, m->padded, i == m->count - 1, m->eps, rest);
    ajet_in(tail, m->norm, m->head, 0, logits, 0, B, H, m->V, m->eps, rest);
}

/* One token of one row of logits by inverse CDF, or the most probable one at temperature 0, with its log-prob (at
 * temperature 1 there). chances: room for V floats and 16 more. -1: the logits are not finite. */
static int32_t draw_row(const float *logits, int64_t V, float temperature, double uniform, float *chances,
                        float *logprob) {
    const float by = temperature > 0 ? temperature : 1.0f;
    const int64_t padded = tiled(V);
    memcpy(chances, logits, V * sizeof(float));
    for (int64_t i = V; i < padded; i++) chances[i] = -INFINITY;
    vec tops = splat(-INFINITY), finite = splat(0);
    for (int64_t i = 0; i < padded; i += LANES) {
        vec s = *(vec_u *)(chances + i) / splat(by);
        *(vec_u *)(chances + i) = s;
        const ivec more = s > tops;
        tops = (vec)(((ivec)s & more) | ((ivec)tops & ~more));
    }
    for (int64_t i = 0; i + LANES <= V; i += LANES) finite += *(const vec_u *)(logits + i) * splat(0);
    float rest = sum_lanes(finite);
    for (int64_t i = V / LANES * LANES; i < V; i++) rest += logits[i] * 0.0f;
    if (rest != 0) return -1; /* NaN */
    const float top = max_lanes(tops);
    double total = 0;
    int64_t first = 0;
    while (chances[first] != top) first++;
    for (int64_t i = 0; i < padded; i += LANES) {
        const vec e = vexp(*(vec_u *)(chances + i) - splat(top));
        *(vec_u *)(chances + i) = e;
        total += sum_lanes(e);
    }
    int64_t chosen = first;
    if (temperature > 0) {
        const double target = uniform * total;
        double below = 0;
        for (int64_t i = 0; i < padded; i += LANES) {
            const double here = sum_lanes(*(vec_u *)(chances + i));
            if (below + here <= target && i + LANES < padded) {
                below += here;
                continue;
            }
            for (int64_t l = i; l < i + LANES; l++) {
                if (chances[l] > 0) chosen = l;
                below += chances[l];
                if (below > target) break;
            }
            break;
        }
    }
    *logprob = (logits[chosen] / by - top) - (float)log(total);
    return (int32_t)chosen;
}

/* One token for each of B rows of logits. -1: they are not finite, else 0. */
int64_t ajet_draw(const float *logits, int64_t B, int64_t V, const float *temperature, const double *uniform,
                  int32_t *ids, float *logprobs, float *chances) {
    for (int64_t b = 0; b < B; b++)
        if ((ids[b] = draw_row(logits + b * V, V, temperature[b], uniform[b], chances, logprobs + b)) < 0) return -1;
    return 0;
}

/* Decode B sequences together, up to `steps` tokens of each. A sequence ends with one of its stops [B, S] (they end at -1) or at
 * its limit; when `enough` have ended, all return. token [B] is the last of each, start [B] how many are cached. uniform, ids and
 * logprobs are [steps, B]; ids are -1 where nothing was drawn. tables, start and token are written over. Answers how many
 * steps were taken; -1: the logits are not finite. scratch: as ajet_pass, and B * V + V + 16; who: B. */
int64_t ajet_decode(const model *m, int32_t *tables, int64_t K, int32_t *start, const int32_t *offset, int64_t B,
                    int32_t *token, float *temperature, const double *uniform, const int32_t *stops, int64_t S,
                    const int32_t *limit, int64_t steps, int64_t enough, int32_t *ids, float *logprobs, int32_t *who,
                    float *scratch) {
    float *logits = scratch, *chances = logits + B * m->V, *rest = chances + m->V + LANES;
    int64_t live = B;
    for (int64_t b = 0; b < B; b++) who[b] = (int32_t)b;
    for (int64_t step = 0; step < steps; step++) {
        for (int64_t b = 0; b < B; b++) ids[step * B + b] = -1;
        ajet_pass(m, token, tables, K, start, offset, live, logits, rest);
        int64_t kept = 0;
        for (int64_t i = 0; i < live; i++) {
            const int64_t b = who[i], at = step * B + b;
            const int32_t drawn = draw_row(logits + i * m->V, m->V, temperature[b], uniform[at], chances, logprobs + at);
            if (drawn < 0) return -1;
            ids[at] = drawn;
            int over = start[i] + 2 >= limit[b];
            for (int64_t s = 0; s < S && stops[b * S + s] >= 0; s++) over |= stops[b * S + s] == drawn;
            if (over) continue;
            if (kept < i) memcpy(tables + kept * K, tables + i * K, K * sizeof(int32_t));
            who[kept] = (int32_t)b;
            token[kept] = drawn;
            start[kept++] = start[i] + 1;
        }
        live = kept;
        if (B - live >= enough) return step + 1;
    }
    return steps;
}
