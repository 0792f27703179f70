// What lets a shim that is compiled here be loaded by the C library and libstdc++ of 2018.
//
// Prebuilt shims are linked with this file besides; one that is compiled on a user's machine needs none
// of it. Headers of newer compilers put references into a shared object that older libraries cannot
// resolve. Those below are all that there are; auditwheel finds it if another comes.
extern "C" {

// glibc 2.32: whether the process has one thread, so that counts need not be atomic. They are always
// atomic here: torch has threads.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// libstdc++ 11: the count of references to an exception, by itself. Older ones have it inside the copy
// constructor and the destructor of std::exception_ptr, which every libstdc++ exports still. An
// exception_ptr is one pointer, to the exception.
void copy_exception(void** self, void* const* other) asm(
    "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void destroy_exception(void** self) asm("_ZNSt15__exception_ptr13exception_ptrD1Ev");

__attribute__((visibility("hidden"))) void add_reference(void** self) asm(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void add_reference(void** self) {
  // Never destroyed: its reference is the one that is asked for.
  void* copy = nullptr;
  copy_exception(&copy, self);
}

__attribute__((visibility("hidden"))) void release_reference(void** self) asm(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void release_reference(void** self) {
  destroy_exception(self);
  *self = nullptr;
}

// libstdc++ 11: what std::allocator throws for a size that no memory has. The compiler's own is older.
[[noreturn]] void __cxa_throw_bad_array_new_length();

[[noreturn]] __attribute__((visibility("hidden"))) void throw_bad_array_new_length() asm(
    "_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_array_new_length() {
  __cxa_throw_bad_array_new_length();
}

// libstdc++ 11: the text of a string stream, by its name in C++20. The one before it does the same. A
// std::string is returned in memory, as whatever has a destructor is.
struct Text {
  char bytes[32];
  ~Text();
};
Text text_before(const void* buffer) asm(
    "_ZNKSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");

__attribute__((visibility("hidden"))) Text text(const void* buffer) asm(
    "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
Text text(const void* buffer) {
  return text_before(buffer);
}

} // extern "C"
