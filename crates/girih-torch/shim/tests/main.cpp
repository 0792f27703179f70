// Runs the tests of the shim. Status 0 if all hold, and if the process then ends without touching
// the heap again.
#include "fake_heap.h"
#include "testing.h"

#include <cstdlib>

int main() {
  // Registered before the shim is installed, so it runs after the shim's own handler: what is freed
  // from here on was let through by the shim.
  std::atexit(&fake::forbid_frees);
  const int failed = testing::run_all();
  std::printf("%zu tests, %d failed\n", testing::tests().size(), failed);
  return failed == 0 ? 0 : 1;
}
