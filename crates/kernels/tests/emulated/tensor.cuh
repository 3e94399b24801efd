// In the place of cuda/tensor.cuh: how tiles come into shared memory, and from there into registers.
#pragma once
#include "common.cuh"

inline void fetch_bytes(void* to, const void* from, size_t bytes, bool there) {
    self().copies.push_back({to, from, bytes, there});
    memset(to, 0xff, bytes);
}
inline void fetch(void* to, const void* from, bool there) { fetch_bytes(to, from, 16, there); }
inline void fetch_number(float* to, const float* from, bool there) { fetch_bytes(to, from, 4, there); }

inline void end_group() {
    self().groups.push_back(std::move(self().copies));
    self().copies.clear();
}

template <int Groups>
void wait_for_groups() {
    for (auto& groups = self().groups; groups.size() > Groups; groups.pop_front())
        for (const Copy& copy : groups.front()) {
            if (copy.there)
                memcpy(copy.to, copy.from, copy.bytes);
            else
                memset(copy.to, 0, copy.bytes);
        }
}

// Lane 8m + r says where row r of matrix m is.
template <bool transposed>
void load_matrices(uint32_t (&to)[4], const void* row) {
    self().shown_place = row;
    __syncwarp();
    const int r = current % 32 / 4, t = current % 4;
    for (int m = 0; m < 4; ++m) {
        uint16_t pair[2];
        for (int i = 0; i < 2; ++i) {
            const int from = transposed ? 2 * t + i : r, column = transposed ? r : 2 * t + i;
            memcpy(&pair[i], static_cast<const char*>(of_lane(8 * m + from).shown_place) + 2 * column, 2);
        }
        to[m] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
    }
    __syncwarp();
}
inline void load4(uint32_t (&to)[4], const void* row) { load_matrices<false>(to, row); }
inline void load4_transposed(uint32_t (&to)[4], const void* row) { load_matrices<true>(to, row); }
