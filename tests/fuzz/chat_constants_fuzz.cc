// Any bytes as a Python source file and as a chat_format.json.
#include "k3/format/chat/constants/chat_constants.h"
#include "k3/format/chat/constants/python_literals.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)k3::python_string_literals(text, "fuzz");
  (void)k3::constants_from_python(text, "fuzz");
  (void)k3::constants_from_json(text, "xtml", "fuzz");
  return 0;
}
