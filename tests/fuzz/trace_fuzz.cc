// A trace of any format. Accepted records keep the promises that replay and simulation rely on.
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/format/trace/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  k3::TraceOptions options;
  options.block_tokens = 16;
  auto reader = k3::TraceReader::of_text({reinterpret_cast<const char*>(data), size}, "fuzz", options);
  if (!reader.ok()) {
    K3_CHECK(k3::is_utf8(reader.error().message), "{}", reader.error().message);
    return 0;
  }
  double last = 0;
  while (true) {
    const auto record = reader->next();
    if (!record.ok()) {
      K3_CHECK(k3::is_utf8(record.error().message), "{}", record.error().message);
      K3_CHECK(record.error().message.starts_with("fuzz:"), "{}", record.error().message);
      return 0;
    }
    if (!*record) return 0;
    const k3::TraceRecord& r = **record;
    K3_CHECK(r.timestamp_s >= last && r.input_tokens >= 0 && r.output_tokens >= 0);
    last = r.timestamp_s;
    K3_CHECK(r.session >= -1 && r.turn >= 0 && r.think_ms >= 0 && r.fork >= -1);
    K3_CHECK(r.turn_end == -1 || r.turn_end >= r.input_tokens);
    K3_CHECK(r.block_ids.empty() == (r.block_tokens == 0));
    if (r.block_tokens > 0) {
      K3_CHECK(static_cast<int64_t>(r.block_ids.size()) == (r.input_tokens + r.block_tokens - 1) / r.block_tokens);
    }
  }
}
