// In the place of cuda/warpgroups.cuh: products of four warps, made when they are waited for and no earlier.
#pragma once
#include "packed_attention.cuh"

template <int N>
void multiply(Sums<N>& sums, uint64_t left, uint64_t right, bool first) {
    self().products.push_back({&sums.at[0][0], N, left, right, nullptr, first});
}
template <int N>
void multiply(Sums<N>& sums, const uint32_t (&left)[4], uint64_t right) {
    self().products.push_back({&sums.at[0][0], N, 0, right, left, false});
}
inline void begin_products() {}
inline void end_lot() {
    self().lots.push_back(std::move(self().products));
    self().products.clear();
}
template <int C>
void arrived(Sums<C>&) {}
template <int N>
void used(uint32_t (&)[N][4]) {}
inline void show_copies() {}
inline int of_warp(int value) { return value; }
inline uint64_t joined(uint32_t low, uint32_t high) { return low | static_cast<uint64_t>(high) << 32; }
inline void stay_above(int) {}

// A number where a description says it is: PTX ISA, "Shared memory matrix layout", swizzled by 128 bytes. `along` counts in the
// dimension whose numbers are neighbours.
inline float described_number(uint64_t description, int along, int across, uint32_t further) {
    const uint32_t start = (description & 0x3fff) << 4, stride = (description >> 32 & 0x3fff) << 4;
    uint32_t place = start + across / 8 * stride + across % 8 * 128 + along / 64 * further + along % 64 * 2;
    place ^= (place >> 7 & 7) << 4;
    uint16_t bits;
    memcpy(&bits, room + place, 2);
    return widen(bits);
}

// This thread's part of product `number` of a lot.
inline void make_product(size_t lot, size_t number) {
    const Product& product = self().lots[lot][number];
    const int lane = current % 32, r = lane / 4, t = lane % 4, first_row = current / 32 % 4 * 16;
    const uint32_t further = (product.right >> 16 & 0x3fff) << 4;
    for (int half = 0; half < 2; ++half) {
        float left[16];
        for (int k = 0; k < 16; ++k) {
            if (product.left_registers) {
                const uint32_t* words = of_lane(4 * r + k % 8 / 2).lots[lot][number].left_registers;
                left[k] = widen(words[k / 8 * 2 + half] >> k % 2 * 16 & 0xffff);
            } else {
                left[k] = described_number(product.left, k, first_row + r + 8 * half, 0);
            }
        }
        for (int n = 0; n < product.columns / 8; ++n)
            for (int i = 0; i < 2; ++i) {
                const int column = 8 * n + 2 * t + i;
                float& to = product.sums[4 * n + 2 * half + i];
                double sum = product.first ? 0.0 : to;
                for (int k = 0; k < 16; ++k)
                    sum += static_cast<double>(left[k]) * (product.left_registers
                                                               ? described_number(product.right, column, k, further)
                                                               : described_number(product.right, k, column, 0));
                to = static_cast<float>(sum);
            }
    }
}

template <int Lots>
void wait_for_lots() {
    Barrier& of_group = of_groups[current / 128];
    meet(of_group);
    auto& lots = self().lots;
    const size_t due = lots.size() > Lots ? lots.size() - Lots : 0;
    for (size_t lot = 0; lot < due; ++lot)
        for (size_t number = 0; number < lots[lot].size(); ++number) make_product(lot, number);
    // Others may still read what this thread has in registers.
    meet(of_group);
    lots.erase(lots.begin(), lots.begin() + static_cast<long>(due));
    meet(of_group);
}

// Passed once so many have arrived; then again, and so on.
struct Gate {
    int size, here, times;
};
inline void set_up(Gate& gate, int arrivals) { gate = {arrivals, 0, 0}; }
inline void arrive(Gate& gate) {
    if (++gate.here < gate.size) return;
    gate.here = 0;
    ++gate.times;
}
inline void await(Gate& gate, int odd) {
    while (gate.times % 2 == odd) swapcontext(&self().context, &scheduler);
}
