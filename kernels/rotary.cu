// Rotary positions: pairs of elements of heads, rotated by the angles of their row's position.
//
//     rotary    (y[a], y[b]) (+)= (x[a] cos - x[b] sin, x[b] cos + x[a] sin) for each pair; y[c] (+)= x[c] for all
//     other elements
//
// Launch: as `each_unit`. A unit is eight pairs, or eight elements that are copied; in place x is y and nothing is
// copied. Numerics: f32, rounded once when stored.
// Bytes moved for each element: read once and written once; read once more where it is added. The table is a few rows.
// Rows whose position is outside of the table are not turned, and reported.

// Number of the host for reports.
enum { kRotary = 7 };

struct RotaryArguments {
    In x;
    Out y;
    // [entries][2 * half]: cosines, then sines.
    const float* table;
    // Null where rows of a sequence count from 0.
    const long long* positions;
    Fault* fault;
    long long rows;
    long long length;
    long long columns;
    long long heads;
    long long head_size;
    // Pairs of a head.
    long long half;
    long long entries;
    // Units of a head: of pairs, and of the elements after them.
    long long turned_units;
    long long rest_units;
    // Of a row.
    long long units;
    float sign;
    // Neighbours turn together; otherwise elements `half` apart.
    int pairs;
    // Every address is a multiple of 16 bytes; rows, heads and halves are of 8 elements.
    int whole;
    int unused;
};

// What a unit of a row is.
struct RotaryUnit {
    // Of the first element, and of the second pack of what is turned.
    long long at;
    long long second;
    // Of the first angle; -1 where elements are copied.
    long long angle;
    // Elements of the two packs.
    int count;
    int second_count;
};

__device__ __forceinline__ RotaryUnit rotary_unit(const RotaryArguments& a, long long row, long long unit) {
    const long long of_head = a.turned_units + a.rest_units;
    const long long behind = unit - a.heads * of_head;
    if (behind >= 0) {
        const long long column = a.heads * a.head_size + behind * kPack;
        return {row * a.columns + column, 0, -1, pack_count_at(a.columns, column), 0};
    }
    const long long head = quotient(unit, of_head), in_head = unit - head * of_head;
    const long long start = row * a.columns + head * a.head_size;
    if (in_head >= a.turned_units) {
        const long long element = 2 * a.half + (in_head - a.turned_units) * kPack;
        return {start + element, 0, -1, pack_count_at(a.head_size, element), 0};
    }
    const long long angle = in_head * kPack;
    const int count = pack_count_at(a.half, angle);
    if (a.pairs) {
        const int low = 2 * count < kPack ? 2 * count : kPack;
        return {start + 2 * angle, start + 2 * angle + kPack, angle, low, 2 * count - low};
    }
    return {start + angle, start + a.half + angle, angle, count, count};
}

// Turn eight pairs: element i of both packs, or neighbours in the sixteen elements of both.
__device__ __forceinline__ void turn_packs(Pack& first, Pack& second, const Pack& cosines, const Pack& sines,
                                           float sign, bool pairs) {
    Pack a = first, b = second;
    if (pairs) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            const Pack& from = i < kPack / 2 ? first : second;
            a.at[i] = from.at[2 * i % kPack];
            b.at[i] = from.at[2 * i % kPack + 1];
        }
    }
    Pack turned_a, turned_b;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        const float sine = sign * sines.at[i];
        turned_a.at[i] = fmaf(a.at[i], cosines.at[i], -(b.at[i] * sine));
        turned_b.at[i] = fmaf(b.at[i], cosines.at[i], a.at[i] * sine);
    }
    if (pairs) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            Pack& to = i < kPack / 2 ? first : second;
            to.at[2 * i % kPack] = turned_a.at[i];
            to.at[2 * i % kPack + 1] = turned_b.at[i];
        }
    } else {
        first = turned_a;
        second = turned_b;
    }
}

template <class Types>
__device__ __forceinline__ void rotary_body(const RotaryArguments& a) {
    struct Row {
        long long row;
        // -1 outside of the table.
        long long position;
    };
    struct Loaded {
        typename Types::Loaded first;
        typename Types::Loaded second;
    };
    const bool whole = a.whole != 0, pairs = a.pairs != 0;
    each_unit<2>(
        a.rows, a.units,
        [&](long long row) {
            if (a.positions == nullptr) {
                return Row{row, row - quotient(row, a.length) * a.length};
            }
            const long long position = a.positions[row];
            return Row{row, position >= 0 && position < a.entries ? position : -1};
        },
        [&](const Row& at, long long unit) {
            if (at.position < 0 && unit == 0) {
                report(a.fault, kRotary, at.row, a.positions[at.row], a.entries);
            }
            const RotaryUnit place = rotary_unit(a, at.row, unit);
            Loaded loaded = {};
            loaded.first = Types::load_pack(a.x, place.at, place.count, whole);
            if (place.angle >= 0) {
                loaded.second = Types::load_pack(a.x, place.second, place.second_count, whole);
            }
            return loaded;
        },
        [&](const Row& at, long long unit, const Loaded& loaded) {
            const RotaryUnit place = rotary_unit(a, at.row, unit);
            Pack first = loaded.first;
            if (place.angle < 0) {
                Types::store_pack(a.y, place.at, first, place.count, whole);
                return;
            }
            Pack second = loaded.second;
            if (at.position >= 0) {
                const long long angles = at.position * 2 * a.half + place.angle;
                const int count = pack_count_at(a.half, place.angle);
                const Pack cosines = load_pack_of<float>(a.table, angles, count, whole);
                const Pack sines = load_pack_of<float>(a.table, angles + a.half, count, whole);
                turn_packs(first, second, cosines, sines, a.sign, pairs);
            }
            Types::store_pack(a.y, place.at, first, place.count, whole);
            Types::store_pack(a.y, place.second, second, place.second_count, whole);
        });
}

TYPED_KERNEL(rotary, RotaryArguments, kRowsThreads)
