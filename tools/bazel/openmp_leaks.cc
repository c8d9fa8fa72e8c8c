// What clang's OpenMP library leaves to the end of the process is no leak of
// ours. Read by the leak sanitizer's run time, absent otherwise.
extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() {
  return "leak:libomp.so";
}
