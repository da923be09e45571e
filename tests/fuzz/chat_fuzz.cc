// A request body: parse, render in both formats, encode. Whatever is accepted gives valid UTF-8 and ids.
#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/format/chat/chat_test_util.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace k3;
  static const Tokenizer xtml_tokenizer = test::byte_tokenizer(test::kXtmlSpecials);
  static const Tokenizer k2_tokenizer = test::byte_tokenizer(test::kK2Specials);
  static const ChatFormat xtml = test::short_format();
  static const ChatFormat k2 = ChatFormat::from_json(ChatFormat::Kind::k2, R"({"format":"k2"})", "k2").value();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto request = parse_chat_request(text);
  if (!request.ok()) {
    K3_CHECK(!request.error().message.empty(), "an error without a message");
    return 0;
  }
  for (const int64_t first : {int64_t{0}, static_cast<int64_t>(request->messages.size()) - 1}) {
    const auto prompt = xtml.render(*request, first);
    if (prompt.ok()) {
      K3_CHECK(is_utf8(prompt->text()), "the prompt is not UTF-8");
      K3_CHECK(prompt->encode(xtml_tokenizer).ok(), "the prompt has no ids");
    }
    const auto other = k2.render(*request, first);
    if (other.ok() && !request->has_images()) K3_CHECK(other->encode(k2_tokenizer).ok(), "the K2 prompt has no ids");
  }
  return 0;
}
