// Token ids to the output parsers. Byte 0 chooses the options; then bytes 128 to 191 stand for fragments of structure and
// all others for the id of the byte itself, so that nested structure is short to write.
#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/format/chat/output/output_test_util.h"
#include "k3/format/json/json_tree.h"

namespace {

using namespace k3;

const std::vector<std::string> kXtml = {"«think»",
                                        "«/think»",
                                        "«response»",
                                        "«/response»",
                                        "«tools»",
                                        "«/tools»",
                                        "«call tool=\"f\" index=\"1\"»",
                                        "«call»",
                                        "«/call»",
                                        "«argument key=\"a\" type=\"string\"»",
                                        "«argument key=\"b\" type=\"number\"»",
                                        "«argument»",
                                        "«/argument»",
                                        "«json type=\"object\"»",
                                        "«/json»",
                                        "«/message»",
                                        "«note»",
                                        "«/note»",
                                        "«|open|»",
                                        "«|close|»",
                                        "«|sep|»",
                                        "«|media_pad|»",
                                        "«.»",
                                        "call tool=\"g\"",
                                        "«message»",
                                        "«»",
                                        "«/»",
                                        " key=\"c&quot;\""};
const std::vector<std::string> kK2 = {"«|im_end|»",
                                      "«|tool_calls_section_begin|»",
                                      "«|tool_calls_section_end|»",
                                      "«|tool_call_begin|»",
                                      "«|tool_call_argument_begin|»",
                                      "«|tool_call_end|»",
                                      "functions.f:0",
                                      "«|im_user|»"};

std::vector<std::vector<int32_t>> encode(const Tokenizer& tokenizer, const std::vector<std::string>& fragments) {
  std::vector<std::vector<int32_t>> out;
  for (const std::string& fragment : fragments) out.push_back(test::output_ids(tokenizer, fragment));
  return out;
}

void run(const ChatFormat& format, const Tokenizer& tokenizer, const std::vector<int32_t>& ids, uint8_t options,
         bool objects) {
  ParserOptions parsing;
  parsing.thinking = (options & 1) != 0;
  parsing.start = parsing.thinking ? OpenChannel::think : (options & 2) != 0 ? OpenChannel::none : OpenChannel::response;
  parsing.strict_tools = (options & 4) != 0;
  parsing.tools = {"g"};
  OutputParser parser(format, tokenizer, parsing), twin(format, tokenizer, parsing);
  std::vector<ChatEvent> events, ignored;
  for (const int32_t id : ids) {
    parser.push(id, events);
    twin.push(id, ignored);
  }
  const auto closing = twin.closing().encode(tokenizer);
  K3_CHECK(closing.ok(), "the closing has no ids");
  for (const int32_t id : *closing) twin.push(id, ignored);
  K3_CHECK(twin.ended(), "the closing does not end the message");

  parser.finish(StopCause::stop, events);
  MessageAssembler assembler;
  bool content = false;
  for (const ChatEvent& event : events) {
    K3_CHECK(is_utf8(event.text), "an event that is not UTF-8");
    content = content || event.kind == ChatEvent::Kind::content || event.kind == ChatEvent::Kind::call_start;
    K3_CHECK(!(content && event.kind == ChatEvent::Kind::reasoning), "reasoning after content");
  }
  K3_CHECK(events.back().kind == ChatEvent::Kind::finished, "no end");
  assembler.add(events);
  if (!objects) return;
  for (const OutputCall& call : assembler.message().calls) {
    const auto parsed = parse_json(call.arguments);
    K3_CHECK(parsed.ok() && parsed->is_object(), "arguments that are no object: {}", call.arguments);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer xtml_tokenizer = test::byte_tokenizer(test::kXtmlSpecials);
  static const Tokenizer k2_tokenizer = test::byte_tokenizer(test::kK2Specials);
  static const ChatFormat xtml = test::short_format();
  static const ChatFormat k2 = ChatFormat::from_json(ChatFormat::Kind::k2, R"({"format":"k2"})", "k2").value();
  static const auto xtml_fragments = encode(xtml_tokenizer, kXtml);
  static const auto k2_fragments = encode(k2_tokenizer, kK2);
  if (size == 0) return 0;
  std::vector<int32_t> xtml_ids, k2_ids;
  bool has_json = false;  // a json block may be emitted raw, so its call need not hold an object
  for (size_t i = 1; i < size; ++i) {
    const size_t fragment = data[i] & 63U;
    const bool structure = (data[i] & 0xC0) == 0x80;
    const auto add = [&](const auto& fragments, std::vector<int32_t>& ids) {
      if (structure && fragment < fragments.size()) {
        ids.insert(ids.end(), fragments[fragment].begin(), fragments[fragment].end());
      } else {
        ids.push_back(data[i]);
      }
    };
    add(xtml_fragments, xtml_ids);
    add(k2_fragments, k2_ids);
    has_json = has_json || data[i] == 'j' || (structure && fragment == 13);
  }
  run(xtml, xtml_tokenizer, xtml_ids, data[0], !has_json);
  run(k2, k2_tokenizer, k2_ids, data[0], false);
  return 0;
}
