#include "kernels/status.h"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::Status StatusOf(std::exception_ptr exception) {
  try {
    std::rethrow_exception(std::move(exception));
  } catch (const Error& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of host memory (std::bad_alloc)");
  } catch (const std::system_error& error) {
    // A thread that finds no room for its stack, or a limit of threads.
    if (error.code() != std::errc::resource_unavailable_try_again &&
        error.code() != std::errc::not_enough_memory) {
      return absl::InternalError(error.what());
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        "the system gives no more threads or memory (", error.what(), ")"));
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  } catch (...) {
    return absl::InternalError("an exception that is no std::exception");
  }
}

absl::Status Annotate(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(context, ": ", status.message()));
}

namespace internal {
void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s\n", file, line, condition);
  std::fflush(stderr);
  std::abort();
}
}  // namespace internal
}  // namespace tessera
