// Purpose:  ids of one document: of a text [BOS] ids [EOS]; of a conversation the checkpoint's chat format with a mask over what
//           the assistant has to learn.
// Shapes:   learned has one entry an id for conversations, none for texts.
// Units:    text_bytes: UTF-8 bytes of the text, or of what the assistant says.
// Memory:   results own their parts.
// Threads:  may be called concurrently.
// Errors:   invalid_argument: a line that is no JSON object with `messages` of text; corrupt: no assistant message.
// Source:   model.md 5.3. The mask holds an assistant message from the end of its channel opener (which the prompt of a running
//           chat holds, too) to its <|end_of_msg|>: content, close tags and end token. Everything else is given, not learned.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/format/chat/chat.h"
#include "k3/format/tokenizer.h"

namespace k3::train {

struct DocumentIds {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learned;
  int64_t text_bytes = 0;
};

Result<DocumentIds> text_ids(const Tokenizer& tokenizer, std::string_view text, int32_t bos, int32_t eos);

// A line of JSON: {"messages": [{"role": ..., "content": ...}, ...]}; other fields are those of a chat request or ignored.
Result<ChatRequest> parse_conversation(std::string_view line);
Result<DocumentIds> chat_ids(const Tokenizer& tokenizer, const ChatFormat& format, const ChatRequest& conversation);

}  // namespace k3::train
