// First-fit free list over one range of bytes, merging neighbours; both arenas use it.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>

class FreeList {
   public:
    static constexpr size_t none = ~size_t(0);

    void reset(size_t size) {
        std::lock_guard<std::mutex> lock(mutex_);
        used_.clear();
        free_.clear();
        free_[0] = size;
    }

    // The offset of `size` bytes, or `none`.
    size_t take(size_t size) {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto it = free_.begin(); it != free_.end(); ++it) {
            if (it->second < size) continue;
            const size_t offset = it->first, left = it->second - size;
            free_.erase(it);
            if (left) free_[offset + size] = left;
            used_[offset] = size;
            return offset;
        }
        return none;
    }

    void give(size_t offset) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = used_.find(offset);
        if (found == used_.end()) return;
        size_t size = found->second;
        used_.erase(found);
        auto next = free_.lower_bound(offset);
        if (next != free_.end() && offset + size == next->first) {
            size += next->second;
            next = free_.erase(next);
        }
        if (next != free_.begin()) {
            auto before = std::prev(next);
            if (before->first + before->second == offset) {
                before->second += size;
                return;
            }
        }
        free_[offset] = size;
    }

   private:
    std::mutex mutex_;
    std::map<size_t, size_t> free_, used_;
};
