// Replaces cuda/wgmma.cuh: a warpgroup's products are computed when they are waited for and no earlier.
#pragma once
#include "flash_attn_varlen.cuh"

template <int N>
void wgmma(Accumulator<N>& acc, uint64_t a, uint64_t b, bool first) {
    self().pending_products.push_back({&acc.frag[0][0], N, a, b, nullptr, first});
}
template <int N>
void wgmma(Accumulator<N>& acc, const uint32_t (&a)[4], uint64_t b) {
    self().pending_products.push_back({&acc.frag[0][0], N, 0, b, a, false});
}
inline void wgmma_fence() {}
inline void wgmma_commit() {
    self().wgmma_groups.push_back(std::move(self().pending_products));
    self().pending_products.clear();
}
template <int C>
void fence_accumulator(Accumulator<C>&) {}
template <int N>
void fence_operand(uint32_t (&)[N][4]) {}
inline void fence_proxy_async() {}
inline int warp_uniform(int value) { return value; }
inline uint64_t pack_u64(uint32_t low, uint32_t high) { return low | static_cast<uint64_t>(high) << 32; }
inline void keep_above(int) {}

// The element that a descriptor addresses: PTX ISA, "Shared memory matrix layout", swizzled by 128 bytes. `along` counts in the
// contiguous dimension.
inline float described_value(uint64_t descriptor, int along, int across, uint32_t slice_stride) {
    const uint32_t start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    uint32_t address = start + across / 8 * stride + across % 8 * 128 + along / 64 * slice_stride + along % 64 * 2;
    address ^= (address >> 7 & 7) << 4;
    uint16_t bits;
    memcpy(&bits, smem_raw + address, 2);
    return to_float(bits);
}

// This thread's part of product `number` of a group.
inline void compute_product(size_t group, size_t number) {
    const WgmmaProduct& product = self().wgmma_groups[group][number];
    const int lane = current % 32, r = lane / 4, t = lane % 4, first_row = current / 32 % 4 * 16;
    const uint32_t slice_stride = (product.b >> 16 & 0x3fff) << 4;
    for (int half = 0; half < 2; ++half) {
        float a[16];
        for (int k = 0; k < 16; ++k) {
            if (product.a_registers) {
                const uint32_t* words = lane_fiber(4 * r + k % 8 / 2).wgmma_groups[group][number].a_registers;
                a[k] = to_float(words[k / 8 * 2 + half] >> k % 2 * 16 & 0xffff);
            } else {
                a[k] = described_value(product.a, k, first_row + r + 8 * half, 0);
            }
        }
        for (int n = 0; n < product.columns / 8; ++n)
            for (int i = 0; i < 2; ++i) {
                const int column = 8 * n + 2 * t + i;
                float& to = product.acc[4 * n + 2 * half + i];
                double sum = product.first ? 0.0 : to;
                for (int k = 0; k < 16; ++k)
                    sum += static_cast<double>(a[k]) * (product.a_registers ? described_value(product.b, column, k, slice_stride)
                                                                            : described_value(product.b, k, column, 0));
                to = static_cast<float>(sum);
            }
    }
}

template <int Groups>
void wgmma_wait() {
    Barrier& barrier = warpgroup_barriers[current / 128];
    arrive_and_wait(barrier);
    auto& wgmma_groups = self().wgmma_groups;
    const size_t due = wgmma_groups.size() > Groups ? wgmma_groups.size() - Groups : 0;
    for (size_t group = 0; group < due; ++group)
        for (size_t number = 0; number < wgmma_groups[group].size(); ++number) compute_product(group, number);
    // Other threads may still read this thread's registers.
    arrive_and_wait(barrier);
    wgmma_groups.erase(wgmma_groups.begin(), wgmma_groups.begin() + static_cast<long>(due));
    arrive_and_wait(barrier);
}

// A phase completes when so many have arrived.
struct Mbarrier {
    int size, arrived, phase;
};
inline void mbarrier_init(Mbarrier& barrier, int arrivals) { barrier = {arrivals, 0, 0}; }
inline void mbarrier_arrive(Mbarrier& barrier) {
    if (++barrier.arrived < barrier.size) return;
    barrier.arrived = 0;
    ++barrier.phase;
}
inline void mbarrier_wait(Mbarrier& barrier, int parity) {
    while (barrier.phase % 2 == parity) swapcontext(&self().context, &scheduler);
}
