// Lines of text that become conversations: what is accepted has as many mask entries as ids, and the assistant ends what it learns.
#include <cstdlib>
#include <string>

#include "k3/train/data/prepare/document_ids.h"
#include "k3/train/tokenizer/learn_tokenizer.h"

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

struct Chat {
  k3::Tokenizer tokenizer;
  k3::ChatFormat format;

  static Chat make() {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    return {*k3::Tokenizer::from_text(k3::train::tiktoken_text(tokens), k3::train::tokenizer_config_text(256), "fuzz"),
            *k3::ChatFormat::from_json(k3::ChatFormat::Kind::xtml, k3::train::chat_format_text(), "fuzz")};
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Chat chat = Chat::make();
  const auto conversation = k3::train::parse_conversation({reinterpret_cast<const char*>(data), size});
  if (!conversation.ok()) return 0;
  const auto document = k3::train::chat_ids(chat.tokenizer, chat.format, *conversation);
  if (!document.ok()) return 0;
  check(document->ids.size() == document->learned.size() && !document->ids.empty());
  const int32_t end = *chat.tokenizer.special("<|end_of_msg|>");
  for (size_t i = 0; i < document->ids.size(); ++i) {
    const bool last = i + 1 == document->ids.size() || document->learned[i + 1] == 0;
    if (document->learned[i] != 0 && last) check(document->ids[i] == end);
  }
  return 0;
}
