#include "lab/host/machine/report.hpp"

#include <charconv>
#include <utility>

#include "lab/host/machine/rendezvous.hpp"

namespace lab::host {

const char* name_of(Word word) {
  if (word == Word::mma_f16) return "mma_m16n8k16<f16>";
  if (word == Word::mma_bf16) return "mma_m16n8k16<bf16>";
#define LAB_NAME(word) #word,
  static constexpr const char* names[] = {"nothing", LAB_WORDS(LAB_NAME)};
#undef LAB_NAME
  return names[static_cast<int>(word)];
}

std::string place(Where where) {
  std::string file = where.file_name();
  const auto slash = file.rfind('/');
  if (slash != std::string::npos && slash > 0) {  // the folder tells the kernels apart
    const auto folder = file.rfind('/', slash - 1);
    if (folder != std::string::npos) file.erase(0, folder + 1);
  }
  return file + ":" + std::to_string(where.line());
}

std::string hexadecimal(const void* address) {
  char digits[16];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, reinterpret_cast<std::uintptr_t>(address), 16);
  return "0x" + std::string(digits, end.ptr);
}

std::string this_block() {
  const auto& b = sm->block;
  return "block (" + std::to_string(b[0]) + ", " + std::to_string(b[1]) + ", " +
         std::to_string(b[2]) + ")";
}

std::string this_thread() { return this_block() + ", thread " + std::to_string(sm->thread); }

void fail_block(std::string&& message) {
  worker().error = std::move(message);
  leave_block();
}

void fail(std::string&& what) { fail_block(this_thread() + ": " + std::move(what)); }

}  // namespace lab::host
