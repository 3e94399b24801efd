// A CPU allocator over one range of memory: in a worker over what is shared with the judge, so that outputs are read where they
// lie; in the trusted process over memory of its own, which is kept when a tensor is freed.
#pragma once

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "free_list.h"

namespace {

class Arena final : public c10::Allocator {
   public:
    // Tensors of fewer than `least` bytes lie elsewhere.
    void open(uint8_t* base, size_t size, size_t least) {
        base_ = base;
        size_ = size;
        least_ = least;
        list_.reset(size);
    }

    // Gives whole free pages back to the kernel.
    void release() {
        list_.visit_free([this](size_t offset, size_t size) {
            const size_t start = (offset + PAGE - 1) & ~(PAGE - 1), end = (offset + size) & ~(PAGE - 1);
            if (end > start) madvise(base_ + start, end - start, MADV_DONTNEED);
        });
    }

    void confine(size_t start, size_t end, size_t kept) { list_.confine(start, end, kept); }

    c10::DataPtr allocate(size_t bytes) override {
        const bool elsewhere = bytes < least_;
        const size_t offset = elsewhere ? FreeList::none : list_.take((std::max<size_t>(bytes, 1) + 63) & ~size_t(63));
        // Full: still correct, only that an output here is copied into the arena at the candidate's expense.
        void* at = offset == FreeList::none ? c10::alloc_cpu(bytes) : base_ + offset;
        return {at, at, &give_back, c10::Device(c10::DeviceType::CPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
    void copy_data(void* dest, const void* src, std::size_t count) const override { std::memcpy(dest, src, count); }

    static void give_back(void* at);

   private:
    static constexpr size_t PAGE = 4096;

    uint8_t* base_ = nullptr;
    size_t size_ = 0, least_ = 0;
    FreeList list_;
};

Arena& arena() {
    static auto* one = new Arena();
    return *one;
}

void Arena::give_back(void* at) {
    auto& a = arena();
    auto* place = static_cast<uint8_t*>(at);
    if (place >= a.base_ && place < a.base_ + a.size_) {
        a.list_.give(size_t(place - a.base_));
    } else {
        c10::free_cpu(at);
    }
}

}  // namespace

extern "C" void warpsmith_use_arena(void* base, size_t size) {
    arena().open(static_cast<uint8_t*>(base), size, 0);
    c10::SetCPUAllocator(&arena(), /*priority=*/100);
}

// Tensors of `least` bytes and more lie in `size` bytes of address space, and what is freed there is kept for the next ones: the
// kernel zeroes what the C library gives back and takes again. Returns 0 where so much address space cannot be had.
extern "C" int warpsmith_keep_memory(size_t size, size_t least) {
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return 0;
    madvise(base, size, MADV_HUGEPAGE);
    arena().open(static_cast<uint8_t*>(base), size, least);
    c10::SetCPUAllocator(&arena(), /*priority=*/100);
    return 1;
}

extern "C" void warpsmith_give_memory_back() { arena().release(); }

// Where the tensors of the next calls come from.
extern "C" void warpsmith_confine(size_t start, size_t end, size_t kept) { arena().confine(start, end, kept); }
