// A list of callbacks that only grows, and that is read without a lock.
//
// Trackers and observers are attached a few times in the life of a process and called from inside
// allocations, some while a heap is locked. So a reader takes no lock; a node, once linked, stays
// where it is for ever. They are called in the order in which they were attached.
//
//   first ──► [callback | next] ──► [callback | next] ──► null
#ifndef GIRIH_SHIM_OBSERVERS_H
#define GIRIH_SHIM_OBSERVERS_H

#include <atomic>
#include <mutex>
#include <utility>

namespace girih {

template <typename Callback>
class Observers {
 public:
  void attach(Callback callback) {
    auto* node = new Node{std::move(callback)};
    std::lock_guard<std::mutex> lock(attaching_);
    last_->store(node, std::memory_order_release);
    last_ = &node->next;
  }

  bool empty() const {
    return first_.load(std::memory_order_acquire) == nullptr;
  }

  template <typename... Arguments>
  void call(const Arguments&... arguments) const {
    const Node* node = first_.load(std::memory_order_acquire);
    for (; node != nullptr; node = node->next.load(std::memory_order_acquire)) {
      node->callback(arguments...);
    }
  }

 private:
  struct Node {
    Callback callback;
    std::atomic<Node*> next{nullptr};
  };

  std::atomic<Node*> first_{nullptr};
  std::mutex attaching_;
  // Where the next node is linked. Guarded by attaching_.
  std::atomic<Node*>* last_ = &first_;
};

} // namespace girih

#endif
