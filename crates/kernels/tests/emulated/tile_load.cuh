// Replaces cuda/tile_load.cuh: cp.async and ldmatrix.
#pragma once
#include "primitives.cuh"

inline void cp_async_bytes(void* to, const void* from, size_t bytes, bool valid) {
    self().pending_copies.push_back({to, from, bytes, valid});
    memset(to, 0xff, bytes);
}
inline void cp_async_16(void* to, const void* from, bool valid) { cp_async_bytes(to, from, 16, valid); }
inline void cp_async_4(float* to, const float* from, bool valid) { cp_async_bytes(to, from, 4, valid); }

inline void cp_async_commit() {
    self().copy_groups.push_back(std::move(self().pending_copies));
    self().pending_copies.clear();
}

template <int Groups>
void cp_async_wait() {
    for (auto& copy_groups = self().copy_groups; copy_groups.size() > Groups; copy_groups.pop_front())
        for (const Copy& copy : copy_groups.front()) {
            if (copy.valid)
                memcpy(copy.to, copy.from, copy.bytes);
            else
                memset(copy.to, 0, copy.bytes);
        }
}

// Lane 8m + r says where row r of matrix m is.
template <bool transposed>
void ldmatrix(uint32_t (&to)[4], const void* row) {
    self().lane_address = row;
    __syncwarp();
    const int r = current % 32 / 4, t = current % 4;
    for (int m = 0; m < 4; ++m) {
        uint16_t pair[2];
        for (int i = 0; i < 2; ++i) {
            const int from = transposed ? 2 * t + i : r, column = transposed ? r : 2 * t + i;
            memcpy(&pair[i], static_cast<const char*>(lane_fiber(8 * m + from).lane_address) + 2 * column, 2);
        }
        to[m] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
    }
    __syncwarp();
}
inline void ldmatrix_x4(uint32_t (&to)[4], const void* row) { ldmatrix<false>(to, row); }
inline void ldmatrix_x4_trans(uint32_t (&to)[4], const void* row) { ldmatrix<true>(to, row); }
