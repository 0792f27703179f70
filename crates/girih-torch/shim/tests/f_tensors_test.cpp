// What is seen of tensors without Python.
#include "fake_heap.h"
#include "testing.h"

#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

namespace {

using Tensor = c10::intrusive_ptr<c10::TensorImpl>;

Tensor tensor_of(size_t bytes, c10::DispatchKeySet keys) {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator, true);
  auto tensor = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), keys, caffe2::TypeMeta::Make<float>());
  tensor->set_sizes_contiguous({2, 3, static_cast<int64_t>(bytes) / 24});
  return tensor;
}

Tensor tensor_of(size_t bytes) {
  return tensor_of(bytes, c10::DispatchKeySet(c10::DispatchKey::CUDA));
}

uint64_t name_of(const Tensor& tensor) {
  return reinterpret_cast<uint64_t>(tensor.get());
}

bool is_plain(const Tensor& tensor) {
  girih_tensor seen{};
  return fake::heap().look(name_of(tensor), &seen);
}

} // namespace

TEST("a look at a tensor tells all that a hook needs, and makes no owner") {
  const Tensor tensor = tensor_of(4800);
  girih_tensor seen{};
  EXPECT(fake::heap().look(name_of(tensor), &seen));
  const c10::Storage& storage = tensor->unsafe_storage();
  EXPECT_EQ(seen.storage, reinterpret_cast<uint64_t>(storage.unsafeGetStorageImpl()));
  EXPECT_EQ(seen.size, 4800U);
  EXPECT_EQ(seen.address, reinterpret_cast<uint64_t>(storage.data()));
  EXPECT_EQ(seen.version, 0);
  EXPECT_EQ(seen.device, 0);
  EXPECT_EQ(seen.element_size, 4U);
  EXPECT_EQ(seen.dimensions, 3U);
  EXPECT_EQ(seen.shape[0], 2U);
  EXPECT_EQ(seen.shape[2], 200U);
  EXPECT(!seen.may_have_graph);
  EXPECT_EQ(fake::heap().owners(seen.storage), 1U);
}

TEST("changes in place of tensors that share a version are counted as of both") {
  const Tensor tensor = tensor_of(4800);
  const Tensor alias = tensor->shallow_copy_and_detach(c10::VariableVersion(0), false);
  const auto& heap = fake::heap();
  tensor->bump_version();
  EXPECT_EQ(heap.version(name_of(tensor)), 1);
  EXPECT_EQ(heap.version(name_of(alias)), 0);
  heap.share_version(name_of(alias), name_of(tensor));
  EXPECT_EQ(heap.version(name_of(alias)), 1);
  alias->bump_version();
  EXPECT_EQ(heap.version(name_of(tensor)), 2);
}

TEST("what Python or a transform stands behind is not plain, nor what has no storage") {
  using c10::DispatchKey;
  EXPECT(is_plain(tensor_of(480)));
  const Tensor of_python = tensor_of(480);
  of_python->set_python_dispatch(true);
  EXPECT(!is_plain(of_python));
  for (const DispatchKey key :
       {DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::Functionalize}) {
    EXPECT(!is_plain(tensor_of(480, c10::DispatchKeySet({DispatchKey::CUDA, key}))));
  }
  EXPECT(!is_plain(c10::make_intrusive<c10::TensorImpl>(
      c10::DispatchKeySet(DispatchKey::CUDA),
      caffe2::TypeMeta::Make<float>(),
      c10::Device(c10::DeviceType::CUDA, 0))));
}

TEST("the stream is the calling thread's") {
  const auto stream = c10::cuda::getCurrentCUDAStream(0).stream();
  EXPECT_EQ(fake::heap().current_stream(0), reinterpret_cast<uint64_t>(stream));
}

TEST("a stream from outside is seen before it is named") {
  const auto before = c10::cuda::getCurrentCUDAStream(0);
  const size_t seen = fake::heap().seen_streams.size();
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(
      reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(0x90)), 0));
  EXPECT_EQ(fake::heap().current_stream(0), 0x90U);
  EXPECT_EQ(fake::heap().seen_streams.size(), seen + 1);
  EXPECT_EQ(fake::heap().seen_streams.back(), uint64_t{0x90});
  c10::cuda::setCurrentCUDAStream(before);
}
