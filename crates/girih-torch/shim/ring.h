// The newest entries of a sequence, as many as fit.
//
//   [ 7 | 8 | 9 | 4 | 5 | 6 ]      the oldest is at next_, once the ring is full
//               ▲ next_
#ifndef GIRIH_SHIM_RING_H
#define GIRIH_SHIM_RING_H

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace girih {

template <typename Entry>
class Ring {
 public:
  // Keeps at most `capacity` entries, and at least one. If more are there, the oldest go.
  void set_capacity(size_t capacity) {
    capacity_ = std::max<size_t>(1, capacity);
    // In order again, for only then can it grow at its end.
    const auto oldest = entries_.begin() + static_cast<std::ptrdiff_t>(next_);
    std::rotate(entries_.begin(), oldest, entries_.end());
    next_ = 0;
    if (entries_.size() > capacity_) {
      const size_t surplus = entries_.size() - capacity_;
      entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(surplus));
    }
  }

  void push(Entry entry) {
    if (entries_.size() < capacity_) {
      entries_.push_back(std::move(entry));
      return;
    }
    entries_[next_] = std::move(entry);
    next_ = (next_ + 1) % entries_.size();
  }

  // The entries, oldest first.
  std::vector<Entry> copy() const {
    std::vector<Entry> all;
    all.reserve(entries_.size());
    const auto oldest = entries_.begin() + static_cast<std::ptrdiff_t>(next_);
    all.insert(all.end(), oldest, entries_.end());
    all.insert(all.end(), entries_.begin(), oldest);
    return all;
  }

  // Forgets all entries and gives their memory back.
  void clear() {
    std::vector<Entry>().swap(entries_);
    next_ = 0;
  }

 private:
  size_t capacity_ = 1;
  size_t next_ = 0;
  std::vector<Entry> entries_;
};

} // namespace girih

#endif
