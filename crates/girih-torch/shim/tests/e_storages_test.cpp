// Storages whose bytes go and come.
#include "fake_heap.h"
#include "testing.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>

namespace {

uint64_t name_of(const c10::Storage& storage) {
  return reinterpret_cast<uint64_t>(storage.unsafeGetStorageImpl());
}

} // namespace

TEST("the bytes of a storage go and come while the storage stays") {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  const size_t before = fake::live_blocks();
  {
    c10::Storage storage(c10::Storage::use_byte_size_t(), 4096, allocator->allocate(4096), allocator, true);
    c10::Storage view = storage;
    const auto& heap = fake::heap();
    EXPECT_EQ(heap.owners(name_of(storage)), 2U);
    view = c10::Storage();
    EXPECT_EQ(heap.owners(name_of(storage)), 1U);

    void* bytes = storage.mutable_data();
    EXPECT_EQ(heap.address(name_of(storage)), reinterpret_cast<uint64_t>(bytes));
    EXPECT_EQ(heap.take(name_of(storage)), reinterpret_cast<uint64_t>(bytes));
    EXPECT(storage.data() == nullptr);
    EXPECT_EQ(storage.nbytes(), 4096U);
    EXPECT(storage.device_type() == c10::DeviceType::CUDA);
    EXPECT_EQ(fake::live_blocks(), before + 1);
    girih_free(bytes);
    EXPECT_EQ(fake::live_blocks(), before);

    void* others = allocator->raw_allocate(4096);
    heap.give(name_of(storage), reinterpret_cast<uint64_t>(others));
    EXPECT(storage.data() == others);
    EXPECT_EQ(fake::live_blocks(), before + 1);
  }
  EXPECT_EQ(fake::live_blocks(), before);
}

#if GIRIH_TORCH_FROM(2, 10)
TEST("an object of Python that nobody has is no owner of its storage") {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  c10::Storage storage(c10::Storage::use_byte_size_t(), 4096, allocator->allocate(4096), allocator, true);
  const auto& heap = fake::heap();
  // What PyTorch does when Python asks for the storage: the object owns it, and is owned by it.
  c10::Storage of_the_object = storage;
  struct {
    uint64_t references;
    const void* type;
  } object = {1, nullptr};
  auto* slot = storage.unsafeGetStorageImpl()->pyobj_slot();
  EXPECT_EQ(heap.owners(name_of(storage)), 2U);
  slot->store_pyobj(reinterpret_cast<PyObject*>(&object));
  EXPECT_EQ(heap.owners(name_of(storage)), 1U);
  c10::Storage view = storage;
  EXPECT_EQ(heap.owners(name_of(storage)), 2U);
  // The program has it.
  object.references = 2;
  EXPECT_EQ(heap.owners(name_of(storage)), 3U);
  slot->store_pyobj(nullptr);
}
#endif

TEST("the storage of a tensor is found without an owner more") {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  c10::Storage storage(c10::Storage::use_byte_size_t(), 4096, allocator->allocate(4096), allocator, true);
  const uint64_t name = name_of(storage);
  auto tensor = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(c10::DispatchKey::CUDA),
      caffe2::TypeMeta::Make<float>());
  uint64_t size = 0;
  EXPECT_EQ(fake::heap().of_tensor(reinterpret_cast<uint64_t>(tensor.get()), &size), name);
  EXPECT_EQ(size, 4096U);
  EXPECT_EQ(fake::heap().owners(name), 1U);
}

TEST("a storage that ends without its bytes frees nothing") {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  const int frees = fake::heap().frees;
  void* bytes = nullptr;
  {
    c10::Storage storage(c10::Storage::use_byte_size_t(), 4096, allocator->allocate(4096), allocator, true);
    bytes = storage.mutable_data();
    fake::heap().take(name_of(storage));
  }
  EXPECT_EQ(fake::heap().frees, frees);
  girih_free(bytes);
}

TEST("bytes that another process has are not a storage's alone") {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  const size_t before = fake::live_blocks();
  {
    c10::Storage storage(c10::Storage::use_byte_size_t(), 4096, allocator->allocate(4096), allocator, true);
    const auto& heap = fake::heap();
    void* bytes = storage.mutable_data();
    EXPECT_EQ(heap.address(name_of(storage)), reinterpret_cast<uint64_t>(bytes));
    // What PyTorch does when a tensor is put into a queue (CudaIPCSentData): the same bytes, in the hands of what counts
    // who has them.
    struct Sent {
      c10::DataPtr original;
    };
    auto* sent = new Sent;
    c10::DataPtr counted(
        bytes, sent, [](void* context) { delete static_cast<Sent*>(context); }, storage.device());
    sent->original = storage.set_data_ptr(std::move(counted));
    EXPECT(storage.data() == bytes);
    EXPECT_EQ(heap.owners(name_of(storage)), 1U);
    EXPECT_EQ(heap.address(name_of(storage)), 0U);
  }
  EXPECT_EQ(fake::live_blocks(), before);
}

TEST("bytes that come back are the storage's own while the cache is off") {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  const size_t before = fake::live_blocks();
  {
    c10::Storage storage(c10::Storage::use_byte_size_t(), 4096, allocator->allocate(4096), allocator, true);
    const auto& heap = fake::heap();
    const uint64_t bytes = heap.take(name_of(storage));
    c10::cuda::CUDACachingAllocator::get()->enable(false);
    heap.give(name_of(storage), bytes);
    EXPECT_EQ(heap.address(name_of(storage)), bytes);
    c10::cuda::CUDACachingAllocator::get()->enable(true);
  }
  // The heap's block was given back to the heap.
  EXPECT_EQ(fake::live_blocks(), before);
}

TEST("a storage that may not tell where its bytes are has none to Girih") {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  c10::Storage storage(c10::Storage::use_byte_size_t(), 4096, allocator->allocate(4096), allocator, true);
  EXPECT(fake::heap().address(name_of(storage)) != 0);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_("gone");
  EXPECT_EQ(fake::heap().address(name_of(storage)), 0U);
}
