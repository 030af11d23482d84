/* Kernels for a CPU; called by native.py, built by hatch_build.py.

Without libraries and without the headers of Python. Vectors are those of GCC and Clang; there are
intrinsics only for minima, maxima and stores that bypass the cache. Plain C is vectorised by the
compiler. The file is built for several levels of x86-64, and once for any other processor. */

#include <stdint.h>
#include <string.h>
#if defined(__SSE__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16, MOST_VECTORS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, MOST_VECTORS = 2 };
#else
enum { LANES = 4, MOST_VECTORS = 2 };
#endif
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(4 * LANES)));
typedef float HalfVector __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef int64_t Keys __attribute__((vector_size(4 * LANES), aligned(8), may_alias));
typedef uint64_t Bits __attribute__((vector_size(4 * LANES), aligned(8), may_alias));
typedef double Doubles __attribute__((vector_size(4 * LANES), aligned(8), may_alias));
typedef float HalfLine __attribute__((vector_size(32), aligned(4), may_alias));
typedef double FourDoubles __attribute__((vector_size(32), aligned(8), may_alias));
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define SHUFFLE_DOUBLES SHUFFLE
#else
typedef int32_t Indices __attribute__((vector_size(32)));
typedef int64_t FourIndices __attribute__((vector_size(32)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Indices){__VA_ARGS__})
#define SHUFFLE_DOUBLES(a, b, ...) __builtin_shuffle(a, b, (FourIndices){__VA_ARGS__})
#endif

enum {
    /* Floats of a line of the cache, and of half a line. */
    LINE = 16,
    HALF = 8,
    /* Numbers of float64 of half a line. */
    FOUR = 4,
    /* Of KeyedOrder in groups.py. */
    NUM_ROUNDS = 6,
    /* Coordinates that are copied together, at most, and whose differences are squared together. */
    MOST_COPIED = 1024,
    SQUARED = 256,
    /* Coordinates that are sorted together: one comparator waits for another. Clients of a matrix,
    whose others are sorted, likewise. */
    SORTED = 64,
    /* So many floats between the rows of a buffer spread them over the whole cache. */
    GAP = 16,
    /* Coordinates of a group that are centred together: they fit the L1 cache. Their products are
    added up in float32, and those sums in float64. */
    CENTRED = 64,
    /* Clients whose products with others are formed together. */
    TILE = 4,
};

/* The checksum of this file when it was built: a library of another version is not used. */
uint32_t outvote_source(void) { return SOURCE; }

/* The level of x86-64 that this processor has: 4, 3, or 0 for anything else. */
int outvote_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2"))
        return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return 3;
    return 4;
#else
    return 0;
#endif
}

/* A random order of the coordinates: KeyedOrder in groups.py. */
typedef struct {
    int64_t size;
    int32_t num_rows, num_columns;
    const int32_t *shifts;
} Order;

/* Return the position of a cell after all rounds, which may be beyond the last coordinate. */
static int64_t moved_back(const Order *order, int64_t cell)
{
    int64_t row = cell / order->num_columns, column = cell % order->num_columns;
    for (int round = NUM_ROUNDS - 1; round >= 0; round--) {
        const int32_t *shift = order->shifts + (int64_t)round * order->num_columns;
        if (round % 2 == 0) {
            column -= shift[row];
            column += column < 0 ? order->num_columns : 0;
        } else {
            row -= shift[column];
            row += row < 0 ? order->num_rows : 0;
        }
    }
    return row * order->num_columns + column;
}

/* Without a sign, what falls below 0 becomes huge, and the bound added makes it right. */
static inline uint32_t subtract_modulo(uint32_t value, int32_t shift, uint32_t bound)
{
    uint32_t moved = value - (uint32_t)shift, wrapped = moved + bound;
    return moved < wrapped ? moved : wrapped;
}

/* Write the positions of some cells of one row. */
static void find_in_row(const Order *order, uint32_t own, uint32_t first, int32_t num,
                        int32_t *restrict to)
{
    const uint32_t rows = (uint32_t)order->num_rows, columns = (uint32_t)order->num_columns;
    const int32_t *restrict shifts = order->shifts;
    for (int32_t k = 0; k < num; k++) {
        uint32_t column = first + (uint32_t)k;
        uint32_t row = subtract_modulo(own, shifts[5 * columns + column], rows);
        column = subtract_modulo(column, shifts[4 * columns + row], columns);
        row = subtract_modulo(row, shifts[3 * columns + column], rows);
        column = subtract_modulo(column, shifts[2 * columns + row], columns);
        row = subtract_modulo(row, shifts[columns + column], rows);
        column = subtract_modulo(column, shifts[row], columns);
        to[k] = (int32_t)(row * columns + column);
    }
}

/* Write the positions of the coordinates from `start` up to, not with, `stop`. */
static void find(const Order *order, int64_t start, int64_t stop, int32_t *to)
{
    for (int64_t at = start; at < stop;) {
        int64_t row = at / order->num_columns, column = at % order->num_columns;
        int64_t num = order->num_columns - column;
        num = num < stop - at ? num : stop - at;
        find_in_row(order, (uint32_t)row, (uint32_t)column, (int32_t)num, to + (at - start));
        at += num;
    }
    for (int64_t k = 0; k < stop - start; k++)
        if (to[k] >= order->size) {
            int64_t cell = to[k];
            while (cell >= order->size)
                cell = moved_back(order, cell);
            to[k] = (int32_t)cell;
        }
}

/* Swap rows and columns of 8 x 8 numbers. */
static inline void transpose(HalfLine *rows)
{
    HalfLine a[HALF], b[HALF];
    for (int k = 0; k < HALF; k += 2) {
        a[k] = SHUFFLE(rows[k], rows[k + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        a[k + 1] = SHUFFLE(rows[k], rows[k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    for (int k = 0; k < HALF; k += 4)
        for (int j = 0; j < 2; j++) {
            b[k + j] = SHUFFLE(a[k + j], a[k + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            b[k + j + 2] = SHUFFLE(a[k + j], a[k + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int k = 0; k < HALF / 2; k++) {
        rows[k] = SHUFFLE(b[k], b[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[k + 4] = SHUFFLE(b[k], b[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* Read 8 coordinates of 8 rows, one vector for each coordinate. */
static inline void read_transposed(const float *from, int64_t step, HalfLine *to)
{
    for (int k = 0; k < HALF; k++)
        to[k] = *(const HalfLine *)(from + k * step);
    transpose(to);
}

static inline void store_bypassing_cache(float *to, HalfLine value)
{
#if defined(__AVX__)
    _mm256_stream_ps(to, (__m256)value);
#elif defined(__SSE__)
    _mm_stream_ps(to, (__m128){value[0], value[1], value[2], value[3]});
    _mm_stream_ps(to + 4, (__m128){value[4], value[5], value[6], value[7]});
#else
    *(HalfLine *)to = value;
#endif
}

/* Copy the coordinates of all clients to their positions, `width` numbers for each.

`buffer` has `width` rows of `step` numbers, at least HALF more than `copied`; what is beyond the
clients is 0. */
void outvote_scatter(int64_t size, int32_t num_rows, int32_t num_columns, const int32_t *shifts,
                     int64_t start, int64_t stop, const float *values, int64_t stride,
                     int32_t num_clients, int32_t width, int32_t copied, int64_t step, float *to,
                     float *buffer)
{
    Order order = {size, num_rows, num_columns, shifts};
    int32_t positions[MOST_COPIED];
    memset(buffer, 0, sizeof(float) * (size_t)(step * width));
    for (; start < stop; start += copied) {
        const int32_t num = stop - start < copied ? (int32_t)(stop - start) : copied;
        find(&order, start, start + num, positions);
        for (int32_t client = 0; client < num_clients; client++)
            memcpy(buffer + client * step, values + client * stride + start,
                   sizeof(float) * (size_t)num);
        for (int32_t first = 0; first < num; first += HALF)
            for (int32_t client = 0; client < width; client += LINE) {
                HalfLine low[HALF], high[HALF];
                read_transposed(buffer + client * step + first, step, low);
                read_transposed(buffer + (client + HALF) * step + first, step, high);
                for (int32_t k = 0; k < HALF && first + k < num; k++) {
                    float *own = to + (int64_t)positions[first + k] * width + client;
                    store_bypassing_cache(own, low[k]);
                    store_bypassing_cache(own + HALF, high[k]);
                }
            }
    }
#if defined(__SSE__)
    _mm_sfence();
#endif
}

/* Add to `sums` the products of TILE clients with those of some vectors. */
static inline __attribute__((always_inline)) void multiply_tile(
    const float *block, int32_t num, int64_t width, int32_t row, int32_t column,
    const int num_vectors, float *sums)
{
    Vector total[TILE][MOST_VECTORS];
    float *to = sums + row * width + column;
    for (int i = 0; i < TILE; i++)
        for (int j = 0; j < num_vectors; j++)
            total[i][j] = *(Vector *)(to + i * width + LANES * j);
    for (int32_t k = 0; k < num; k++) {
        const float *own = block + k * width;
        for (int j = 0; j < num_vectors; j++) {
            Vector right = *(const Vector *)(own + column + LANES * j);
            for (int i = 0; i < TILE; i++)
                total[i][j] += right * own[row + i];
        }
    }
    for (int i = 0; i < TILE; i++)
        for (int j = 0; j < num_vectors; j++)
            *(Vector *)(to + i * width + LANES * j) = total[i][j];
}

/* Add to `sums` the products of the clients, all those below the diagonal and some above it. */
static void multiply(const float *block, int32_t num, int32_t num_clients, int64_t width,
                     float *sums)
{
    for (int32_t row = 0; row < num_clients; row += TILE) {
        const int32_t end = (row + TILE - 1) / LANES + 1;
        int32_t at = 0;
        for (; end - at >= MOST_VECTORS; at += MOST_VECTORS)
            multiply_tile(block, num, width, row, LANES * at, MOST_VECTORS, sums);
#if defined(__AVX512F__)
        if (end - at == 3)
            multiply_tile(block, num, width, row, LANES * at, 3, sums);
        if (end - at == 2)
            multiply_tile(block, num, width, row, LANES * at, 2, sums);
#endif
        if (end - at == 1)
            multiply_tile(block, num, width, row, LANES * at, 1, sums);
    }
}

/* Add the lower triangle of `sums` to that of `total`, and clear it. */
static void move_sums(float *sums, int32_t num_clients, int64_t width, double *total)
{
    for (int32_t i = 0; i < num_clients; i++)
        for (int32_t j = 0; j <= i; j++)
            total[i * width + j] += (double)sums[i * width + j];
    memset(sums, 0, sizeof(float) * (size_t)(width * width));
}

/* Write the inner products of the clients in each group, relative to one of them.

`buffer` has CENTRED + `width` rows of `width` numbers, `total` has `width` rows. */
void outvote_products(const float *values, int64_t num_groups, int32_t num_coordinates,
                      int32_t num_clients, int32_t width, int32_t centre, float *to, float *buffer,
                      double *total)
{
    float *block = buffer, *sums = buffer + CENTRED * width;
    memset(sums, 0, sizeof(float) * (size_t)width * (size_t)width);
    for (int64_t group = 0; group < num_groups; group++) {
        memset(total, 0, sizeof(double) * (size_t)width * (size_t)width);
        for (int32_t first = 0; first < num_coordinates; first += CENTRED) {
            int32_t num = num_coordinates - first < CENTRED ? num_coordinates - first : CENTRED;
            for (int32_t k = 0; k < num; k++) {
                const float *from = values + (int64_t)(first + k) * width;
                float *own = block + (int64_t)k * width;
                for (int32_t j = 0; j < width; j += LANES)
                    *(Vector *)(own + j) = *(const Vector *)(from + j) - from[centre];
            }
            multiply(block, num, num_clients, width, sums);
            move_sums(sums, num_clients, width, total);
        }
        for (int32_t i = 0; i < num_clients; i++)
            for (int32_t j = 0; j < num_clients; j++) {
                const int64_t row = i < j ? j : i, column = i < j ? i : j;
                *to++ = (float)total[row * width + column];
            }
        values += (int64_t)num_coordinates * width;
    }
}

/* Swap rows and columns of 4 x 4 numbers. */
static inline void transpose_doubles(FourDoubles *rows)
{
    const FourDoubles a = SHUFFLE_DOUBLES(rows[0], rows[1], 0, 4, 2, 6);
    const FourDoubles b = SHUFFLE_DOUBLES(rows[0], rows[1], 1, 5, 3, 7);
    const FourDoubles c = SHUFFLE_DOUBLES(rows[2], rows[3], 0, 4, 2, 6);
    const FourDoubles d = SHUFFLE_DOUBLES(rows[2], rows[3], 1, 5, 3, 7);
    rows[0] = SHUFFLE_DOUBLES(a, c, 0, 1, 4, 5);
    rows[1] = SHUFFLE_DOUBLES(b, d, 0, 1, 4, 5);
    rows[2] = SHUFFLE_DOUBLES(a, c, 2, 3, 6, 7);
    rows[3] = SHUFFLE_DOUBLES(b, d, 2, 3, 6, 7);
}

/* Write the group of each position. The positions are cut into `num_large` groups, then smaller. */
static void find_groups(const int32_t *positions, int32_t num, int32_t num_large, int32_t large,
                        int32_t small, int32_t *groups)
{
    const int32_t end = num_large * large;
    for (int32_t k = 0; k < num; k++) {
        /* All bits are set in the larger groups; a branch would be guessed wrong. */
        const int32_t is_large = -(positions[k] < end);
        const int32_t from = positions[k] - (end & ~is_large);
        const int32_t own = small + ((large - small) & is_large);
        /* With so few groups, the quotient is off by one at most. */
        const int32_t near = (int32_t)((float)from / (float)own);
        const int32_t rest = from - near * own;
        groups[k] = near + (rest >= own) - (rest < 0) + (num_large & ~is_large);
    }
}

/* Add up the squared differences of all pairs of clients in the group of each coordinate.

All in float64: the products that are worked out from these distances would lose the digits of
short gradients beside long ones. `total` has FOUR numbers for up to as many pairs in each group,
`buffer` a row of SQUARED + GAP numbers for each of these and each client. */
void outvote_pair_sums(int64_t size, int32_t num_rows, int32_t num_columns, const int32_t *shifts,
                       int64_t start, int64_t stop, const float *values, int64_t stride,
                       int32_t num_clients, int32_t num_large, int32_t large, int32_t small,
                       double *buffer, double *total)
{
    Order order = {size, num_rows, num_columns, shifts};
    const int64_t step = SQUARED + GAP;
    const int32_t num_pairs = num_clients * (num_clients - 1) / 2;
    const int32_t width = (num_pairs + FOUR - 1) / FOUR * FOUR;
    double *own = buffer + step * width;
    int32_t positions[SQUARED], groups[SQUARED];
    memset(buffer, 0, sizeof(double) * (size_t)(step * width));
    for (; start < stop; start += SQUARED) {
        const int32_t num = stop - start < SQUARED ? (int32_t)(stop - start) : SQUARED;
        /* The next values come from memory while the positions of these are worked out. */
        for (int32_t client = 0; client < num_clients; client++)
            for (int32_t k = num; k < 2 * num; k += LINE)
                __builtin_prefetch(values + client * stride + start + k);
        find(&order, start, start + num, positions);
        find_groups(positions, num, num_large, large, small, groups);
        for (int32_t client = 0; client < num_clients; client++)
            for (int32_t k = 0; k < num; k++)
                own[client * step + k] = (double)values[client * stride + start + k];
        double *squared = buffer;
        for (int32_t i = 1; i < num_clients; i++)
            for (int32_t j = 0; j < i; j++, squared += step)
                for (int32_t k = 0; k < num; k++) {
                    const double apart = own[i * step + k] - own[j * step + k];
                    squared[k] = apart * apart;
                }
        for (int32_t first = 0; first < num; first += FOUR)
            for (int32_t pair = 0; pair < width; pair += FOUR) {
                FourDoubles some[FOUR];
                for (int k = 0; k < FOUR; k++)
                    some[k] = *(FourDoubles *)(buffer + (pair + k) * step + first);
                transpose_doubles(some);
                for (int32_t k = 0; k < FOUR && first + k < num; k++)
                    *(FourDoubles *)(total + (int64_t)groups[first + k] * width + pair) += some[k];
            }
    }
}

static inline Vector lesser(Vector a, Vector b)
{
#if defined(__AVX512F__)
    return (Vector)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (Vector)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (Vector)_mm_min_ps((__m128)a, (__m128)b);
#else
    const Mask is_less = a < b;
    return (Vector)(((Mask)a & is_less) | ((Mask)b & ~is_less));
#endif
}

static inline Vector greater(Vector a, Vector b)
{
#if defined(__AVX512F__)
    return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (Vector)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (Vector)_mm_max_ps((__m128)a, (__m128)b);
#else
    const Mask is_greater = a > b;
    return (Vector)(((Mask)a & is_greater) | ((Mask)b & ~is_greater));
#endif
}

/* Put two rows of numbers in order, number by number. */
static inline __attribute__((always_inline)) void compare(float *low, float *high, const int lanes)
{
    for (int k = 0; k < lanes; k += LANES) {
        const Vector a = *(Vector *)(low + k), b = *(Vector *)(high + k);
        *(Vector *)(low + k) = lesser(a, b);
        *(Vector *)(high + k) = greater(a, b);
    }
}

/* A network of comparators sorts `num_clients` rows of numbers. */
typedef struct {
    const int16_t *comparators;
    int32_t num_comparators, num_clients;
} Network;

/* Sort rows of SORTED numbers, the first `lanes` of them; `rows` has the number of each row. */
static inline __attribute__((always_inline)) void sort_lanes(const Network *network,
                                                             const int16_t *rows, float *buffer,
                                                             const int lanes)
{
    const int16_t *pair = network->comparators;
    for (int32_t k = 0; k < network->num_comparators; k++, pair += 2)
        compare(buffer + rows[pair[0]] * SORTED, buffer + rows[pair[1]] * SORTED, lanes);
}

static void sort_rows(const Network *network, const int16_t *rows, float *buffer, int32_t num)
{
    if (num > SORTED / 2)
        sort_lanes(network, rows, buffer, SORTED);
    else
        sort_lanes(network, rows, buffer, (num + LANES - 1) / LANES * LANES);
}

/* Values of clients: either `coordinate_step` or `client_step` is 1, the other is how far apart the
values are. */
typedef struct {
    int32_t num_clients;
    int64_t coordinate_step, client_step;
} Layout;

/* Read some coordinates, at most SORTED, into a row of SORTED numbers for each of some clients; the
others may be read, too. `scratch` has as many numbers as the rows of all clients. */
static void read_clients(const float *values, int32_t num, const Layout *layout,
                         const int16_t *clients, int32_t num_read, float *rows, float *scratch)
{
    if (layout->coordinate_step == 1) {
        for (int32_t k = 0; k < num_read; k++)
            memcpy(rows + clients[k] * SORTED, values + clients[k] * layout->client_step,
                   sizeof(float) * (size_t)num);
        return;
    }
    const int32_t width = (layout->num_clients + HALF - 1) / HALF * HALF;
    for (int32_t k = 0; k < num; k++)
        memcpy(scratch + k * width, values + k * layout->coordinate_step,
               sizeof(float) * (size_t)layout->num_clients);
    for (int32_t first = 0; first < num; first += HALF)
        for (int32_t client = 0; client < width; client += HALF) {
            HalfLine some[HALF];
            read_transposed(scratch + first * width + client, width, some);
            for (int k = 0; k < HALF; k++)
                *(HalfLine *)(rows + (client + k) * SORTED + first) = some[k];
        }
}

static inline int32_t at_most_sorted(int64_t num) { return num < SORTED ? (int32_t)num : SORTED; }

/* What is found of the values nearest to a median, for each coordinate, and where it is not. */
typedef struct {
    float *mean, *low, *high;
    uint8_t *is_unknown;
} Nearest;

/* Sorted values of up to SORTED coordinates, rank by rank: `rows` has the numbers of their rows.
The median is the mean of the ranks `first` and `last`. */
typedef struct {
    const float *values;
    const int16_t *rows;
    int32_t num_ranks, first, last;
} Ranked;

static inline const float *rank_of(const Ranked *ranked, int32_t rank)
{
    return ranked->values + ranked->rows[rank] * SORTED;
}

static inline Doubles as_doubles(HalfVector values)
{
#if defined(__clang__) || __GNUC__ >= 9
    return __builtin_convertvector(values, Doubles);
#else
    Doubles result;
    for (int k = 0; k < LANES / 2; k++)
        result[k] = values[k];
    return result;
#endif
}

/* The windows of some coordinates: where they start, how far their farthest value is from the
median, and the sums of their values. */
typedef struct {
    int32_t start[SORTED];
    float reach[SORTED];
    double total[SORTED];
} Windows;

/* Beyond this, twice a difference would overflow. */
static const float MOST_EXTREME = __FLT_MAX__ / 16;

/* Twice the distance from the median, which is the mean of two values. */
static inline float deviation(float value, float low, float high)
{
    return __builtin_fabsf((value - low) + (value - high));
}

static inline Vector deviations(Vector values, Vector low, Vector high)
{
    const Vector far = (values - low) + (values - high);
    return (Vector)((Mask)far & INT32_MAX);
}

/* Find the windows of some coordinates, from `at` on, that reach least far from the median. */
static void find_windows(const Ranked *ranked, int32_t num_nearest, int at, Windows *to)
{
    const Vector low = *(const Vector *)(rank_of(ranked, ranked->first) + at);
    const Vector high = *(const Vector *)(rank_of(ranked, ranked->last) + at);
    Vector least = (Vector){0} + __builtin_inff();
    Mask start = {0};
    for (int32_t rank = 0; rank + num_nearest <= ranked->num_ranks; rank++) {
        const Vector from = *(const Vector *)(rank_of(ranked, rank) + at);
        const Vector until = *(const Vector *)(rank_of(ranked, rank + num_nearest - 1) + at);
        const Vector reach = greater(deviations(from, low, high), deviations(until, low, high));
        const Mask is_less = reach < least;
        start = (is_less & rank) | (~is_less & start);
        least = lesser(reach, least);
    }
    Doubles total[2] = {{0}, {0}};
    for (int32_t rank = 0; rank < ranked->num_ranks; rank++) {
        const Vector own = *(const Vector *)(rank_of(ranked, rank) + at);
        const Mask is_inside = (start <= rank) & (start > rank - num_nearest);
        const union {
            Vector whole;
            HalfVector halves[2];
        } inside = {(Vector)((Mask)own & is_inside)};
        for (int half = 0; half < 2; half++)
            total[half] += as_doubles(inside.halves[half]);
    }
    memcpy(to->start + at, &start, sizeof start);
    memcpy(to->reach + at, &least, sizeof least);
    memcpy(to->total + at, total, sizeof total);
}

/* Slide a window over the sorted values of some coordinates: the nearest ones lie side by side. */
static void find_nearest(const Ranked *ranked, int32_t num_nearest, int32_t num, const Nearest *to)
{
    Windows windows;
    const float *below = rank_of(ranked, ranked->first), *above = rank_of(ranked, ranked->last);
    const float *least = rank_of(ranked, 0), *most = rank_of(ranked, ranked->num_ranks - 1);
    for (int at = 0; at < num; at += LANES)
        find_windows(ranked, num_nearest, at, &windows);
    for (int k = 0; k < num; k++) {
        const int32_t start = windows.start[k], stop = start + num_nearest;
        const float reach = windows.reach[k];
        const float low = rank_of(ranked, start)[k], high = rank_of(ranked, stop - 1)[k];
        const float mean = (float)(windows.total[k] / num_nearest);
        /* A value left out is just as near as one taken. Equal values may be exchanged, unless both
        ends of the window are as far. */
        const int is_extreme = -least[k] > MOST_EXTREME || most[k] > MOST_EXTREME;
        int is_left = 0, is_right = 0;
        if (start > 0) {
            const float left = rank_of(ranked, start - 1)[k];
            is_left = deviation(left, below[k], above[k]) <= reach &&
                      (left != low || deviation(high, below[k], above[k]) == reach);
        }
        if (stop < ranked->num_ranks) {
            const float right = rank_of(ranked, stop)[k];
            is_right = deviation(right, below[k], above[k]) <= reach &&
                       (right != high || deviation(low, below[k], above[k]) == reach);
        }
        to->mean[k] = mean < low ? low : mean > high ? high : mean;
        to->low[k] = low;
        to->high[k] = high;
        to->is_unknown[k] = (uint8_t)(is_left || is_right || is_extreme);
    }
}

/* Average the ranks from `first` to `last` of some coordinates. */
static void average_ranks(const Ranked *ranked, int32_t num, const Nearest *to)
{
    const float *low = rank_of(ranked, ranked->first), *high = rank_of(ranked, ranked->last);
    double total[SORTED] = {0};
    for (int32_t rank = ranked->first; rank <= ranked->last; rank++) {
        const float *own = rank_of(ranked, rank);
        for (int k = 0; k < SORTED; k++)
            total[k] += (double)own[k];
    }
    const double count = ranked->last - ranked->first + 1;
    for (int k = 0; k < num; k++) {
        /* Rounding may carry the mean of equal values away from them. */
        const float mean = (float)(total[k] / count);
        to->mean[k] = mean < low[k] ? low[k] : mean > high[k] ? high[k] : mean;
        to->low[k] = low[k];
        to->high[k] = high[k];
    }
}

/* Find the mean of the values nearest to the median, and the smallest and largest of them, in
groups of coordinates. `is_unknown` marks where it is not found: the indices of the clients decide,
or values are extreme. With `num_nearest` 0, find those of the ranks from `first` to `last`.

`among` has the clients that count in each group, `num_among` of them in ascending order. `buffer`
has SORTED numbers for each of all clients, rounded up to HALF, and then as many again. */
void outvote_order(const float *values, int64_t num_groups, int64_t group_step,
                     int64_t num_coordinates, int32_t num_clients, int64_t coordinate_step,
                     int64_t client_step, const int16_t *comparators, int32_t num_comparators,
                     const int16_t *among, int32_t num_among, int32_t first, int32_t last,
                     int32_t num_nearest, float *mean, float *low, float *high, uint8_t *is_unknown,
                     float *buffer)
{
    const Layout layout = {num_clients, coordinate_step, client_step};
    const Network network = {comparators, num_comparators, num_among};
    const int32_t width = (num_clients + HALF - 1) / HALF * HALF;
    float *scratch = buffer + SORTED * width;
    memset(buffer, 0, sizeof(float) * SORTED * (size_t)width * 2);
    for (int64_t group = 0; group < num_groups; group++, among += num_among)
        for (int64_t start = 0; start < num_coordinates; start += SORTED) {
            const int32_t num = at_most_sorted(num_coordinates - start);
            const int64_t at = group * num_coordinates + start;
            const Ranked ranked = {buffer, among, num_among, first, last};
            const Nearest to = {mean + at, low + at, high + at, is_unknown + at};
            read_clients(values + group * group_step + start * coordinate_step, num, &layout, among,
                         num_among, buffer, scratch);
            sort_rows(&network, among, buffer, num);
            if (num_nearest > 0)
                find_nearest(&ranked, num_nearest, num, &to);
            else
                average_ranks(&ranked, num, &to);
        }
}

/* Distances as whole numbers, which are in the same order: the bits of a float64 of 0 or more, the
last ones, which are 0 after rounding to 40 significant bits, replaced by the number of the client
that it leads to. */
static const double HUGE_DISTANCE = 1e300;

static inline int64_t key_of(double far, int32_t client, int64_t numbers)
{
    int64_t key;
    far = far < HUGE_DISTANCE ? far : HUGE_DISTANCE;
    far = far > 0 ? far : 0;
    memcpy(&key, &far, sizeof key);
    return (key & ~numbers) | client;
}

static inline double distance_of(int64_t key, int64_t numbers)
{
    double far;
    key &= ~numbers;
    memcpy(&far, &key, sizeof far);
    return far;
}

static inline Keys lesser_keys(Keys a, Keys b)
{
#if defined(__AVX512F__)
    return (Keys)_mm512_min_epi64((__m512i)a, (__m512i)b);
#else
    const Keys is_less = a < b;
    return (a & is_less) | (b & ~is_less);
#endif
}

static inline Keys greater_keys(Keys a, Keys b)
{
#if defined(__AVX512F__)
    return (Keys)_mm512_max_epi64((__m512i)a, (__m512i)b);
#else
    const Keys is_greater = a > b;
    return (a & is_greater) | (b & ~is_greater);
#endif
}

/* A sum as a rounded number and what rounding took from it: exact to 106 bits. */
static inline void subtract(double *total, double *rest, double value)
{
    const double result = *total - value, back = result - *total;
    const double lost = *rest + ((*total - (result - back)) - (value + back));
    *total = result + lost;
    *rest = lost - (*total - result);
}

/* Krum among the clients that are left. The others of each client are in `sorted`, a row for each
rank and a column for each client; its neighbours end at the rank `end` with the key `last`. A score
is exact with its `rest`; `largest` is what it was when it was last added up anew. */
typedef struct {
    int32_t num_clients;
    int64_t width, numbers;
    int64_t *sorted, *last;
    double *score, *rest, *largest;
    int32_t *end, *changes, *changing;
    uint8_t *is_left;
} Krum;

/* What a client that is taken out changes for another: where its neighbours end, or that too few
bits of its score are left. */
enum { END = 1, INEXACT = 2 };

static void sort_others(const Krum *krum, const double *far, const Network *network)
{
    const int32_t num_clients = krum->num_clients;
    for (int32_t other = 0; other < num_clients; other++) {
        int64_t *to = krum->sorted + other * krum->width;
        for (int32_t client = 0; client < num_clients; client++)
            to[client] = key_of(far[(int64_t)other * num_clients + client], other, krum->numbers);
        /* A client is the last of its others. */
        to[other] = INT64_MAX;
    }
    for (int32_t first = 0; first < num_clients; first += SORTED)
        for (int32_t k = 0; k < network->num_comparators; k++) {
            int64_t *low = krum->sorted + network->comparators[2 * k] * krum->width + first;
            int64_t *high = krum->sorted + network->comparators[2 * k + 1] * krum->width + first;
            for (int j = 0; j < SORTED; j += LANES / 2) {
                const Keys a = *(Keys *)(low + j), b = *(Keys *)(high + j);
                *(Keys *)(low + j) = lesser_keys(a, b);
                *(Keys *)(high + j) = greater_keys(a, b);
            }
        }
}

static inline int is_gone(const Krum *krum, int64_t key)
{
    return !krum->is_left[key & krum->numbers];
}

/* Add up the distances to the neighbours of a client that are left. */
static void sum_anew(const Krum *krum, int32_t client)
{
    double total = 0, rest = 0;
    for (int32_t rank = 0; rank <= krum->end[client]; rank++) {
        const int64_t key = krum->sorted[rank * krum->width + client];
        if (!is_gone(krum, key))
            subtract(&total, &rest, -distance_of(key, krum->numbers));
    }
    krum->score[client] = krum->largest[client] = total;
    krum->rest[client] = rest;
}

/* Let all clients be left, and add up the distances to the nearest others of each. */
static void begin(const Krum *krum, int32_t num_neighbours)
{
    const int32_t num_clients = krum->num_clients;
    const int64_t numbers = krum->numbers;
    double *restrict score = krum->score, *restrict rest = krum->rest;
    memset(krum->is_left, 1, (size_t)num_clients);
    for (int32_t client = 0; client < krum->width; client++)
        score[client] = client < num_clients ? 0 : __builtin_nan("");
    memset(rest, 0, sizeof(double) * (size_t)num_clients);
    for (int32_t rank = 0; rank < num_neighbours; rank++) {
        const int64_t *restrict keys = krum->sorted + rank * krum->width;
        for (int32_t client = 0; client < num_clients; client++)
            subtract(score + client, rest + client, -distance_of(keys[client], numbers));
    }
    for (int32_t client = 0; client < num_clients; client++) {
        krum->largest[client] = score[client];
        krum->end[client] = num_neighbours - 1;
        krum->last[client] = krum->sorted[(num_neighbours - 1) * krum->width + client];
    }
}

/* Return the first of the smallest scores, rounded to 40 significant bits as order.py says; those of
clients that are gone are not numbers. */
static int32_t client_of_smallest_score(const Krum *krum)
{
    enum { NUM = LANES / 2 };
    Doubles least = (Doubles){0} + __builtin_inf();
    Keys clients = {0}, chosen = {0};
    for (int k = 0; k < NUM; k++)
        clients[k] = k;
    for (int32_t first = 0; first < krum->num_clients; first += NUM, clients += NUM) {
        const Doubles exact = *(const Doubles *)(krum->score + first);
        const Doubles score = (Doubles)(((Bits)exact + 0x1000) & ~(uint64_t)0x1fff);
        const Keys is_less = (score < least) & (exact == exact);
        least = (Doubles)(((Keys)score & is_less) | ((Keys)least & ~is_less));
        chosen = (clients & is_less) | (chosen & ~is_less);
    }
    int best = 0;
    for (int k = 1; k < NUM; k++)
        if (least[k] < least[best] || (least[k] == least[best] && chosen[k] < chosen[best]))
            best = k;
    return (int32_t)chosen[best];
}

/* Let neighbours end one client earlier, or later if there are to be as many as before. */
static void move_end(const Krum *krum, int32_t client, int is_one_fewer)
{
    int32_t end = krum->end[client];
    int64_t key;
    do {
        end += is_one_fewer ? -1 : 1;
        key = krum->sorted[end * krum->width + client];
    } while (end > 0 && end < krum->num_clients - 2 && is_gone(krum, key));
    krum->end[client] = end;
    krum->last[client] = key;
    if (!is_one_fewer) {
        krum->score[client] = krum->largest[client] = distance_of(key, krum->numbers);
        krum->rest[client] = 0;
    }
}

/* Take the client out whose distances are `far`. As a rule others have one neighbour fewer then:
whoever had the chosen one among its neighbours loses it, and whoever had not loses the farthest.
When a single neighbour is left it remains one: only who loses it looks for the next. */
static void take_out(const Krum *krum, int32_t chosen, const double *far, int is_one_fewer)
{
    const int32_t num_clients = krum->num_clients;
    const int64_t numbers = krum->numbers, *restrict last = krum->last;
    const double *restrict largest = krum->largest;
    double *restrict score = krum->score, *restrict rest = krum->rest;
    int32_t *restrict changes = krum->changes, *restrict changing = krum->changing;
    int32_t num_changing = 0;
    krum->is_left[chosen] = 0;
    score[chosen] = __builtin_nan("");
    for (int32_t client = 0; client < num_clients; client++) {
        const int64_t key = key_of(far[client], chosen, numbers);
        const int is_near = key <= last[client];
        const double lost = distance_of(is_near ? key : last[client], numbers);
        subtract(score + client, rest + client, is_one_fewer ? lost : 0);
        /* 66 of the 106 bits are left. */
        const int is_inexact = score[client] < largest[client] * 0x1p-40;
        const int is_end = (key == last[client]) | (is_near < is_one_fewer);
        changes[client] = is_end * END | is_inexact * INEXACT;
    }
    for (int32_t client = 0; client < num_clients; client++) {
        changing[num_changing] = client;
        num_changing += (changes[client] != 0) & krum->is_left[client];
    }
    for (int32_t k = 0; k < num_changing; k++) {
        const int32_t client = changing[k];
        if (changes[client] & END)
            move_end(krum, client, is_one_fewer);
        if (changes[client] & INEXACT)
            sum_anew(krum, client);
    }
}

static inline int32_t at_least_one(int32_t num) { return num > 1 ? num : 1; }

/* Clear `is_left` for Krum's choice among those left, again and again, in each matrix of squared
distances. There is at least one Byzantine client.

`width` is the number of clients rounded up to SORTED and a GAP; `keys` has `width` numbers for each
client and as many again, `scores` and `ranks` three times as many. */
void outvote_select(const double *far, int64_t num_matrices, int32_t num_clients,
                    int32_t num_selected, int32_t num_byzantine, const int16_t *comparators,
                    int32_t num_comparators, int64_t width, int64_t *keys, double *scores,
                    int32_t *ranks, uint8_t *is_left)
{
    const Network network = {comparators, num_comparators, num_clients};
    int64_t numbers = 1;
    while (numbers < num_clients)
        numbers *= 2;
    memset(keys, 0, sizeof(int64_t) * (size_t)width * (size_t)num_clients);
    for (; num_matrices > 0; num_matrices--, far += (int64_t)num_clients * num_clients,
                             is_left += num_clients) {
        const Krum krum = {num_clients,
                           width,
                           numbers - 1,
                           keys,
                           keys + width * num_clients,
                           scores,
                           scores + width,
                           scores + 2 * width,
                           ranks,
                           ranks + width,
                           ranks + 2 * width,
                           is_left};
        int32_t num_neighbours = at_least_one(num_clients - num_byzantine - 2);
        sort_others(&krum, far, &network);
        begin(&krum, num_neighbours);
        for (int32_t step = 1; step <= num_selected; step++) {
            const int32_t chosen = client_of_smallest_score(&krum);
            const int32_t fewer = at_least_one(num_clients - step - num_byzantine - 2);
            take_out(&krum, chosen, far + (int64_t)chosen * num_clients, num_neighbours - fewer);
            num_neighbours = fewer;
        }
    }
}

/* Lanczos' method with full orthogonalisation: in the space of `vectors`, rows of `width` numbers,
a symmetric matrix is tridiagonal, with the numbers `beside` the diagonal. `solution` and `pivots`
belong to that matrix. */
typedef struct {
    int32_t num_rows, width;
    double *matrix, *vectors, *product, *diagonal, *beside, *solution, *pivots;
} Lanczos;

enum { DOUBLES = LANES / 2, FIRST_LOOK = 8, MOST_ROOT_STEPS = 60, NUM_SOLVES = 3 };
static const double SMALLEST = 1e-290, LARGEST_RESIDUAL = 1e-16;

static inline double dot(const double *a, const double *b, int32_t width)
{
    Doubles total = {0};
    double sum = 0;
    for (int32_t k = 0; k < width; k += DOUBLES)
        total += *(const Doubles *)(a + k) * *(const Doubles *)(b + k);
    for (int k = 0; k < DOUBLES; k++)
        sum += total[k];
    return sum;
}

static inline void add(double *to, const double *from, double factor, int32_t width)
{
    for (int32_t k = 0; k < width; k += DOUBLES)
        *(Doubles *)(to + k) += factor * *(const Doubles *)(from + k);
}

/* Multiply the rows of `from`, of `width` numbers each, by factors, and add them to `to`. */
static void add_rows(double *to, const double *from, const double *factors, int32_t num_rows,
                     int32_t width)
{
    int32_t row = 0;
    for (; row + 4 <= num_rows; row += 4, from += 4 * width, factors += 4)
        for (int32_t k = 0; k < width; k += DOUBLES)
            *(Doubles *)(to + k) += factors[0] * *(const Doubles *)(from + k) +
                                    factors[1] * *(const Doubles *)(from + width + k) +
                                    factors[2] * *(const Doubles *)(from + 2 * width + k) +
                                    factors[3] * *(const Doubles *)(from + 3 * width + k);
    for (; row < num_rows; row++, from += width, factors++)
        add(to, from, factors[0], width);
}

static inline void clear(double *numbers, int64_t num)
{
    memset(numbers, 0, sizeof(double) * (size_t)num);
}

/* Divide by the length, if there is one; return the length. */
static double normalise(double *vector, int32_t width)
{
    const double length = __builtin_sqrt(dot(vector, vector, width));
    for (int32_t k = 0; k < width; k++)
        vector[k] = length > 0 ? vector[k] / length : 0;
    return length;
}

/* Begin with a vector in the range of the matrix: numbers times it. */
static void start_from(Lanczos *of, const double *start)
{
    clear(of->vectors, of->width);
    add_rows(of->vectors, of->matrix, start, of->num_rows, of->width);
    /* The entries of the matrix may be tiny, and their squares 0. */
    double largest = SMALLEST;
    for (int32_t k = 0; k < of->width; k++) {
        const double size = __builtin_fabs(of->vectors[k]);
        largest = size > largest ? size : largest;
    }
    for (int32_t k = 0; k < of->width; k++)
        of->vectors[k] /= largest;
    normalise(of->vectors, of->width);
}

/* Multiply the latest vector by the matrix; what is orthogonal to all vectors is the next one. */
static void take_step(Lanczos *of, int32_t step)
{
    const int32_t width = of->width;
    const double *latest = of->vectors + (int64_t)step * width;
    double *next = of->vectors + (int64_t)(step + 1) * width;
    clear(next, width);
    add_rows(next, of->matrix, latest, of->num_rows, width);
    const double size = __builtin_sqrt(dot(next, next, width));
    of->diagonal[step] = dot(next, latest, width);
    /* Twice: the second time takes away what the first left by rounding. */
    for (int time = 0; time < 2; time++) {
        for (int32_t k = 0; k <= step; k++)
            of->product[k] = -dot(next, of->vectors + (int64_t)k * width, width);
        add_rows(next, of->vectors, of->product, step + 1, width);
    }
    const double length = normalise(next, width);
    /* What is left is rounding: the vectors span all that the first one has a part in. */
    of->beside[step] = length > size * 1e-14 ? length : 0;
    if (of->beside[step] == 0)
        clear(next, width);
}

/* Whether a number is above all eigenvalues of the tridiagonal matrix: all pivots are positive. If
it is, `slope` and `bend` are the first derivative of the logarithm of the characteristic polynomial
and the second one's negative. */
static int is_above(const Lanczos *of, int32_t num_steps, double value, double *slope,
                    double *bend)
{
    /* A pivot and its derivatives, relative to itself. */
    double pivot = 1, first = 0, second = 0, square = 0;
    *slope = *bend = 0;
    for (int32_t k = 0; k < num_steps; k++) {
        const double carried = square / pivot;
        const double new_second = carried * (second - 2 * first * first);
        const double new_first = 1 + carried * first;
        pivot = value - of->diagonal[k] - carried;
        if (!(pivot > 0))
            return 0;
        first = new_first / pivot;
        second = new_second / pivot;
        *slope += first;
        *bend += first * first - second;
        square = of->beside[k] * of->beside[k];
    }
    return 1;
}

/* The top eigenvalue of the tridiagonal matrix, by Laguerre's method from above: its steps do not
pass the eigenvalue. Where they are short, as many eigenvalues are close, what is left is halved. */
static double top_eigenvalue(const Lanczos *of, int32_t num_steps)
{
    double value = 0, low = 0, slope, bend;
    for (int32_t k = 0; k < num_steps; k++) {
        const double left = k > 0 ? of->beside[k - 1] : 0;
        const double right = k + 1 < num_steps ? of->beside[k] : 0;
        const double bound = of->diagonal[k] + left + right;
        value = bound > value ? bound : value;
        low = of->diagonal[k] > low ? of->diagonal[k] : low;
    }
    for (int round = 0; round < MOST_ROOT_STEPS; round++) {
        if (!is_above(of, num_steps, value, &slope, &bend))
            return value;
        const double spread = (num_steps - 1) * (num_steps * bend - slope * slope);
        double lower = value - num_steps / (slope + __builtin_sqrt(spread > 0 ? spread : 0));
        if (!(lower < value - value * 1e-16))
            return value;
        const double middle = low + (value - low) / 2;
        if (lower > middle) {
            if (is_above(of, num_steps, middle, &slope, &bend))
                lower = middle;
            else
                low = middle;
        }
        value = lower;
    }
    return value;
}

/* Find the eigenvector of the tridiagonal matrix by inverse iteration; return its length. */
static double solve(Lanczos *of, int32_t num_steps, double value)
{
    /* A little above the eigenvalue, so that the matrix to solve with is positive definite. */
    const double unit = value > 1e-30 ? value : 1e-30, above = value + unit * 4e-16;
    double pivot = 1, square = 0, length = 1;
    for (int32_t k = 0; k < num_steps; k++) {
        pivot = above - of->diagonal[k] - square / pivot;
        pivot = pivot > unit * 1e-16 ? pivot : unit * 1e-16;
        of->pivots[k] = 1 / pivot;
        of->solution[k] = 1;
        square = of->beside[k] * of->beside[k];
    }
    /* Its entries have one sign, as the numbers beside the diagonal have. */
    for (int time = 0; time < NUM_SOLVES; time++) {
        double carried = 0, squares = 0;
        for (int32_t k = 0; k < num_steps; k++) {
            of->solution[k] = of->solution[k] / length + carried;
            carried = of->solution[k] * of->beside[k] * of->pivots[k];
        }
        carried = 0;
        for (int32_t k = num_steps - 1; k >= 0; k--) {
            of->solution[k] = (of->solution[k] + carried) * of->pivots[k];
            squares += of->solution[k] * of->solution[k];
            carried = k > 0 ? of->solution[k] * of->beside[k - 1] : 0;
        }
        length = __builtin_sqrt(squares);
    }
    return length;
}

/* Write the top eigenvalue of each symmetric matrix times the squared entries of its eigenvector.

The matrices have no negative eigenvalues; their largest entry is about 1, or all are 0. `start` has
a number for each row of each matrix, to begin with. `width` is the number of rows rounded up to
HALF; `buffer` has `width` numbers for each row, one row more, as many again, and five rows. */
void outvote_leading(const double *matrices, int64_t num_matrices, int32_t num_rows, int32_t width,
                     const double *start, double *result, double *buffer)
{
    const int64_t area = (int64_t)(num_rows + 1) * width;
    double *rows = buffer + 2 * area;
    Lanczos of = {num_rows,         width,
                  buffer,           buffer + area,
                  rows,             rows + width,
                  rows + 2 * width, rows + 3 * width,
                  rows + 4 * width};
    clear(buffer, 2 * area + 5 * width);
    for (; num_matrices > 0; num_matrices--, start += num_rows) {
        for (int32_t row = 0; row < num_rows; row++, matrices += num_rows)
            memcpy(of.matrix + (int64_t)row * width, matrices, sizeof(double) * (size_t)num_rows);
        start_from(&of, start);
        double value = 0, length = 1;
        int32_t num_steps = 0;
        for (int32_t look = FIRST_LOOK;; look += look / 2) {
            look = look < num_rows ? look : num_rows;
            while (num_steps < look) {
                take_step(&of, num_steps);
                num_steps++;
                if (of.beside[num_steps - 1] == 0)
                    break;
            }
            value = top_eigenvalue(&of, num_steps);
            length = solve(&of, num_steps, value);
            const double residual =
                of.solution[num_steps - 1] / length * of.beside[num_steps - 1];
            if (num_steps == num_rows || of.beside[num_steps - 1] == 0 ||
                residual <= value * LARGEST_RESIDUAL)
                break;
        }
        clear(of.product, width);
        add_rows(of.product, of.vectors, of.solution, num_steps, width);
        const double squares = dot(of.product, of.product, width);
        const double factor = squares > 0 && value > 0 ? value / squares : 0;
        for (int32_t row = 0; row < num_rows; row++)
            *result++ = factor * of.product[row] * of.product[row];
    }
}
