// First-fit free list over one range of bytes, merging neighbours; both arenas use it.
#pragma once

#include <algorithm>
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
        free_[0] = size_ = size;
        window_ = kept_ = {0, size};
    }

    // From here on memory comes from the first range; what finds no room there, from the second.
    void confine(size_t start, size_t end, size_t kept) {
        std::lock_guard<std::mutex> lock(mutex_);
        window_ = {start, end};
        kept_ = {0, kept};
    }

    // The offset of `size` bytes, or `none`.
    size_t take(size_t size) {
        std::lock_guard<std::mutex> lock(mutex_);
        const size_t offset = take_from(window_, size);
        return offset == none ? take_from(kept_, size) : offset;
    }

    // What lies behind both ranges while no timed call is under way: the judge overwrites it then, so it is the last resort.
    size_t take_spare(size_t size) {
        std::lock_guard<std::mutex> lock(mutex_);
        const bool is_timed = window_.start != kept_.start || window_.end != kept_.end;
        return is_timed ? none : take_from({kept_.end, size_}, size);
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

    // Calls `visit` with the offset and size of each free range.
    template <class Visit>
    void visit_free(Visit visit) {
        std::lock_guard<std::mutex> lock(mutex_);
        for (const auto& [offset, size] : free_) visit(offset, size);
    }

   private:
    struct Range {
        size_t start, end;
    };

    size_t take_from(Range range, size_t size) {
        auto it = free_.upper_bound(range.start);
        if (it != free_.begin()) --it;  // the one that may reach into the range from before it
        for (; it != free_.end() && it->first < range.end; ++it) {
            const size_t start = it->first, end = start + it->second, offset = std::max(start, range.start);
            if (offset >= end || std::min(end, range.end) - offset < size) continue;
            free_.erase(it);
            if (offset > start) free_[start] = offset - start;
            if (end > offset + size) free_[offset + size] = end - offset - size;
            used_[offset] = size;
            return offset;
        }
        return none;
    }

    std::mutex mutex_;
    size_t size_ = 0;
    Range window_{0, 0}, kept_{0, 0};
    std::map<size_t, size_t> free_, used_;
};
