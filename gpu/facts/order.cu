// What the driver does with the order of streams, as far as Girih builds on it: events of a whole
// context, streams that are gone, captures. Prints one line a fact.
//
//   nvcc -O2 -std=c++17 -o order gpu/facts/order.cu -lcuda && ./order; for k in 0 1 2 3 4 5 6 7; do ./order $k; done
#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

const char* name(CUresult result) {
  const char* text = "?";
  cuGetErrorName(result, &text);
  return text;
}

void must(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    std::printf("%s: %s\n", what, name(result));
    std::exit(1);
  }
}
#define MUST(call) must((call), #call)

__global__ void spin(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

constexpr long long kLong = 400'000'000; // About 0.2 s.

double now_us() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream made;
  MUST(cuStreamCreate(&made, flags));
  return made;
}

CUevent event() {
  CUevent made;
  MUST(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
  return made;
}

using RecordContext = CUresult (*)(CUcontext, CUevent);
using StreamId = CUresult (*)(CUstream, unsigned long long*);

template <class F>
F find(const char* symbol) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status;
  cuGetProcAddress(symbol, &found, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  if (found == nullptr) {
    cuGetProcAddress(symbol, &found, 12080, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  }
  return reinterpret_cast<F>(found);
}

template <class F>
double each_ns(int times, F&& work) {
  double best = 1e18;
  for (int round = 0; round < 5; ++round) {
    const double start = now_us();
    for (int k = 0; k < times; ++k) {
      work();
    }
    best = std::min(best, (now_us() - start) * 1e3 / times);
  }
  return best;
}

} // namespace

// What a call says of a stream that is gone. In a process of its own: it may crash.
int gone(const char* call) {
  MUST(cuInit(0));
  cudaSetDevice(0);
  cudaFree(nullptr);
  CUcontext context;
  MUST(cuCtxGetCurrent(&context));
  const auto stream_id = find<StreamId>("cuStreamGetId");
  CUstream gone = stream();
  unsigned long long id = 0;
  stream_id(gone, &id);
  CUevent made = event();
  MUST(cuStreamDestroy(gone));
  CUstreamCaptureStatus status;
  switch (std::atoi(call)) {
    case 0: std::printf("id %s\n", name(stream_id(gone, &id))); break;
    case 1: std::printf("query %s\n", name(cuStreamQuery(gone))); break;
    case 2: std::printf("record %s\n", name(cuEventRecord(made, gone))); break;
    case 3: std::printf("is capturing %s\n", name(cuStreamIsCapturing(gone, &status))); break;
    case 4: std::printf("synchronize %s\n", name(cuStreamSynchronize(gone))); break;
    case 5: std::printf("wait %s\n", name(cuStreamWaitEvent(gone, made, 0))); break;
    case 6: {
      unsigned long long after = 0;
      CUstream again = stream();
      stream_id(again, &after);
      std::printf("the next stream has the same handle: %d, ids %llu and %llu\n", (int)(again == gone), id, after);
      break;
    }
    case 7: {
      // A context event that covers a stream which is gone, waited for, then destroyed.
      const auto record_context = find<RecordContext>("cuCtxRecordEvent");
      std::printf("context event after streams have gone: %s\n", name(record_context(context, made)));
      break;
    }
  }
  return 0;
}

int main(int count, char** words) {
  if (count > 1) {
    return gone(words[1]);
  }
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  MUST(cuInit(0));
  cudaSetDevice(0);
  cudaFree(nullptr);
  int version = 0;
  cuDriverGetVersion(&version);
  std::printf("driver %d\n", version);
  CUcontext context;
  MUST(cuCtxGetCurrent(&context));
  const auto record_context = find<RecordContext>("cuCtxRecordEvent");
  const auto stream_id = find<StreamId>("cuStreamGetId");
  std::printf("cuCtxRecordEvent %p, cuStreamGetId %p\n", (void*)record_context, (void*)stream_id);

  if (record_context != nullptr) {
    CUstream unknown = stream();
    spin<<<1, 1, 0, unknown>>>(kLong);
    CUevent all = event();
    std::printf("context event, idle but one non-blocking stream: %s", name(record_context(context, all)));
    std::printf(", query %s", name(cuEventQuery(all)));
    CUstream waiter = stream();
    std::printf(", wait %s", name(cuStreamWaitEvent(waiter, all, 0)));
    std::printf(", waiter %s", name(cuStreamQuery(waiter)));
    cuStreamSynchronize(unknown);
    cuStreamSynchronize(waiter);
    std::printf(", after the stream is done: query %s\n", name(cuEventQuery(all)));

    // A stream that is destroyed while its work still runs.
    CUstream gone = stream();
    spin<<<1, 1, 0, gone>>>(kLong);
    MUST(cuStreamDestroy(gone));
    std::printf("context event after a running stream was destroyed: %s", name(record_context(context, all)));
    const double start = now_us();
    std::printf(", query %s", name(cuEventQuery(all)));
    cuEventSynchronize(all);
    std::printf(", took %.0f ms\n", (now_us() - start) / 1e3);

    // One of two streams.
    CUstream other = stream();
    spin<<<1, 1, 0, other>>>(kLong);
    record_context(context, all);
    spin<<<1, 1, 0, other>>>(8 * kLong);
    const double begin = now_us();
    cuEventSynchronize(all);
    std::printf("later work is not waited for: %.0f ms of 1800\n", (now_us() - begin) / 1e3);
    cuCtxSynchronize();

    // While another stream captures: which calls fail, and which of them end the capture.
    for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
      for (const bool relaxed : {false, true}) {
        const auto during = [&](const char* what, auto&& call) {
          CUstream capturing = stream();
          MUST(cuStreamBeginCapture(capturing, mode));
          CUstreamCaptureMode before = CU_STREAM_CAPTURE_MODE_RELAXED;
          if (relaxed) {
            MUST(cuThreadExchangeStreamCaptureMode(&before));
          }
          const CUresult result = call();
          if (relaxed) {
            MUST(cuThreadExchangeStreamCaptureMode(&before));
          }
          CUgraph graph = nullptr;
          const CUresult ended = cuStreamEndCapture(capturing, &graph);
          std::printf("capture mode %d%s: %s %s, capture ends with %s\n", (int)mode, relaxed ? ", this thread relaxed" : "", what, name(result), name(ended));
          MUST(cuStreamDestroy(capturing));
        };
        CUevent mine = event();
        during("context event", [&] { return record_context(context, all); });
        during("event on another stream", [&] { return cuEventRecord(mine, other); });
        during("query of an event", [&] { return cuEventQuery(mine); });
        during("another stream waits", [&] { return cuStreamWaitEvent(waiter, mine, 0); });
        during("synchronize another stream", [&] { return cuStreamSynchronize(other); });
        during("synchronize an event", [&] { return cuEventSynchronize(mine); });
        during("is the legacy stream capturing", [&] { CUstreamCaptureStatus is; return cuStreamIsCapturing(CU_STREAM_LEGACY, &is); });
        during("event on the legacy stream", [&] { return cuEventRecord(mine, CU_STREAM_LEGACY); });
        during("create memory", [&] {
          CUmemAllocationProp prop{};
          prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
          prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
          CUmemGenericAllocationHandle handle;
          return cuMemCreate(&handle, 2 << 20, &prop, 0);
        });
        during("synchronize the context", [&] { return cuCtxSynchronize(); });
      }
    }

    CUstream a = stream();
    std::printf("context event: %.0f ns (idle)\n", each_ns(2000, [&] { record_context(context, all); }));
    std::vector<CUstream> many;
    for (int k = 0; k < 64; ++k) {
      many.push_back(stream());
      spin<<<1, 1, 0, many.back()>>>(1000);
    }
    cuCtxSynchronize();
    std::printf("context event: %.0f ns (64 idle streams more)\n", each_ns(2000, [&] { record_context(context, all); }));
    for (auto busy : many) {
      spin<<<1, 1, 0, busy>>>(kLong / 4);
    }
    std::printf("context event: %.0f ns (64 busy)\n", each_ns(50, [&] { record_context(context, all); }));
    cuCtxSynchronize();
    std::printf("wait for a context event: %.0f ns\n", each_ns(2000, [&] { cuStreamWaitEvent(a, all, 0); }));
    std::printf("stream event: %.0f ns\n", each_ns(2000, [&] { cuEventRecord(all, a); }));
    std::printf("wait for a stream event: %.0f ns\n", each_ns(2000, [&] { cuStreamWaitEvent(other, all, 0); }));
    std::printf("create and destroy an event: %.0f ns\n", each_ns(2000, [&] { cuEventDestroy(event()); }));
    CUstreamCaptureStatus status;
    std::printf("is capturing: %.0f ns\n", each_ns(2000, [&] { cuStreamIsCapturing(a, &status); }));
    unsigned long long id;
    std::printf("stream id: %.0f ns\n", each_ns(2000, [&] { stream_id(a, &id); }));

    // What a wait for a context event costs the kernels that come after it.
    CUevent first, second;
    cuEventCreate(&first, 0);
    cuEventCreate(&second, 0);
    for (const bool context_wide : {false, true}) {
      cuCtxSynchronize();
      cuEventRecord(first, a);
      for (int k = 0; k < 1000; ++k) {
        CUevent here = event();
        if (context_wide) {
          record_context(context, here);
        } else {
          cuEventRecord(here, other);
        }
        cuStreamWaitEvent(a, here, 0);
        cuEventDestroy(here);
        spin<<<1, 1, 0, a>>>(1000);
      }
      cuEventRecord(second, a);
      cuEventSynchronize(second);
      float ms;
      cuEventElapsedTime(&ms, first, second);
      std::printf("1000 waits for %s and small kernels: %.2f ms\n", context_wide ? "the context" : "an idle stream", ms);
    }
  }

  // A capture that nobody told of.
  CUstream capturing = stream();
  MUST(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUevent inside = event();
  std::printf("event on the capturing stream: %s", name(cuEventRecord(inside, capturing)));
  std::printf(", query %s", name(cuEventQuery(inside)));
  CUstream outside = stream();
  std::printf(", wait of another %s", name(cuStreamWaitEvent(outside, inside, 0)));
  CUgraph graph = nullptr;
  std::printf(", capture ends with %s\n", name(cuStreamEndCapture(capturing, &graph)));

  int devices = 0;
  cuDeviceGetCount(&devices);
  if (devices > 1) {
    cudaSetDevice(1);
    cudaFree(nullptr);
    CUstream far = stream();
    CUevent far_event = event();
    cudaSetDevice(0);
    std::printf("event of this device on a stream of another: %s", name(cuEventRecord(event(), far)));
    std::printf(", its own %s", name(cuEventRecord(far_event, far)));
    CUstream here = stream();
    std::printf(", wait for it here %s\n", name(cuStreamWaitEvent(here, far_event, 0)));
    CUcontext of_far = nullptr;
    std::printf("context of the stream: %s\n", name(cuStreamGetCtx(far, &of_far)));
  }
  std::printf("end %s\n", name(cuCtxSynchronize()));
  return 0;
}
