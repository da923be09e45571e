// Purpose:  the two renderers, internal to format/chat.
// Shapes:   none.
// Units:    none.
// Memory:   by value.
// Threads:  pure functions.
// Errors:   as ChatFormat::render.
// Source:   api.md 7.2, model.md 5.3.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "k3/format/chat/chat.h"
#include "k3/format/chat/constants/chat_constants.h"

namespace k3 {

// Every piece is one segment; empty text makes none.
class SegmentWriter {
 public:
  SegmentWriter& special(std::string_view name) { return add(Segment::Kind::special, name); }
  SegmentWriter& text(std::string_view body) { return add(Segment::Kind::text, body); }
  SegmentWriter& image(const ImageHeader& image);
  SegmentWriter& parts(const std::vector<ContentPart>& content);

  // XTML elements.
  SegmentWriter& open(std::string_view tag) { return special("<|open|>").text(tag).special("<|sep|>"); }
  SegmentWriter& begin(std::string_view tag) { return special("<|open|>").text(tag); }
  SegmentWriter& attribute(std::string_view key, std::string_view value);
  SegmentWriter& end() { return special("<|sep|>"); }
  SegmentWriter& close(std::string_view tag) { return special("<|close|>").text(tag).special("<|sep|>"); }

  std::vector<Segment> take() { return std::move(segments_); }

 private:
  SegmentWriter& add(Segment::Kind kind, std::string_view body);
  std::vector<Segment> segments_;
};

Result<Prompt> render_xtml(const ChatConstants& constants, const ChatRequest& request, Thinking thinking,
                           size_t first_message);
Result<Prompt> render_k2(const ChatRequest& request, size_t first_message);

}  // namespace k3
