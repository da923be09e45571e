// tokenize, detokenize, render.
#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/base/utf8.h"
#include "k3/cli/commands.h"
#include "k3/cli/common.h"
#include "k3/format/chat/chat.h"

namespace k3::cli {
namespace {

void write_ids(JsonWriter& w, const std::vector<int32_t>& ids) {
  w.begin_array();
  for (const int32_t id : ids) w.value(id);
  w.end_array();
}

}  // namespace

Status tokenize_command(const TokenizeOptions& options) {
  K3_TRY_ASSIGN(const Tokenizer tokenizer, load_tokenizer(options.model));
  K3_TRY_ASSIGN(const std::string text,
                read_input(options.text, options.file, "text", "give it as an argument, with -f FILE, or on stdin"));
  std::vector<int32_t> ids;
  K3_TRY(options.specials ? tokenizer.encode_with_specials(text, ids) : tokenizer.encode(text, ids));
  if (options.json) {
    JsonWriter w;
    w.begin_object().field("count", static_cast<int64_t>(ids.size())).key("ids");
    write_ids(w, ids);
    w.key("pieces").begin_array();
    for (const int32_t id : ids) w.value(tokenizer.bytes(id));
    w.end_array().end_object();
    print_out(w.text() + "\n");
    return {};
  }
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i) out += fmt::format("{}{}", i > 0 ? " " : "", ids[i]);
  print_out(out + "\n");
  return {};
}

Status detokenize_command(const DetokenizeOptions& options) {
  K3_TRY_ASSIGN(const Tokenizer tokenizer, load_tokenizer(options.model));
  std::string list;
  if (options.ids) {
    list = *options.ids;
  } else {
    K3_TRY_ASSIGN(list, read_input({}, {}, "ids", "give them as an argument or on stdin"));
  }
  K3_TRY_ASSIGN(const std::vector<int32_t> ids, parse_ids(list));
  K3_TRY_ASSIGN(const std::string bytes, tokenizer.decode(ids, options.skip_specials));
  if (options.json) {
    JsonWriter w;
    w.begin_object()
        .field("text", bytes)
        .field("valid_utf8", is_utf8(bytes))
        .field("count", static_cast<int64_t>(ids.size()))
        .end_object();
    print_out(w.text() + "\n");
    return {};
  }
  print_out(bytes);  // the exact bytes: no newline is added
  return {};
}

Status render_command(const RenderOptions& options) {
  K3_TRY_ASSIGN(const Tokenizer tokenizer, load_tokenizer(options.model));
  K3_TRY_ASSIGN(const ChatFormat format, ChatFormat::load(model_folder(options.model), tokenizer));
  K3_TRY_ASSIGN(const std::string body, options.request == "-" ? read_stdin() : read_file(options.request));
  K3_TRY_ASSIGN(const ChatRequest request, parse_chat_request(body).with_context(options.request));
  K3_TRY_ASSIGN(const Prompt prompt, format.render(request));
  if (!format.verified())
    note("k3: this chat format was written from public descriptions and never compared with the original");
  if (!options.json) {
    print_out(prompt.text());
    return {};
  }
  K3_TRY_ASSIGN(const std::vector<int32_t> ids, prompt.encode(tokenizer));
  JsonWriter w;
  w.begin_object().field("text", prompt.text()).key("ids");
  write_ids(w, ids);
  w.end_object();
  print_out(w.text() + "\n");
  return {};
}

}  // namespace k3::cli
