// What is missing to end an assistant message that was cut anywhere.
#include "k3/format/chat/output/xtml_parser.h"
#include "k3/format/chat/render.h"

namespace k3 {

// Completes the marker that is being written, then closes every element that is open.
std::vector<Segment> XtmlParser::missing_segments() const {
  SegmentWriter out;
  std::vector<std::string_view> open;  // innermost last
  bool response = response_done_;
  switch (state_) {
    case State::think: open = {"think"}; break;
    case State::response:
      open = {"response"};
      response = true;
      break;
    case State::tools: open = {"tools"}; break;
    case State::call: open = {"tools", "call"}; break;
    case State::argument: open = {"tools", "call", "argument"}; break;
    case State::json: open = {"tools", "call", "json"}; break;
    default: break;
  }
  if (state_ == State::tools || in_call() || state_ == State::after_tools) response = true;
  if (!skip_.empty()) open.push_back(skip_);
  const XtmlTag written = parse_xtml_tag(header_);
  if (marker_ == Marker::close) {
    // The innermost element that the written part can still name, or else the message itself.
    std::vector<std::string_view> rest = open;
    while (!rest.empty() && !rest.back().starts_with(header_)) rest.pop_back();
    const std::string_view expected = rest.empty() ? "message" : rest.back();
    const bool fits = expected.starts_with(header_);
    if (fits) out.text(expected.substr(header_.size()));
    out.special("<|sep|>");
    if (fits && rest.empty()) return out.special("<|end_of_msg|>").take();
    if (fits) {
      rest.pop_back();
      open = std::move(rest);
    }
  } else if (marker_ == Marker::open) {
    const std::string_view expected = response ? "tools" : "response";
    const bool fits = state_ == State::message && expected.starts_with(header_);
    if (fits) out.text(expected.substr(header_.size()));
    out.special("<|sep|>");
    if (fits) {
      open.push_back(expected);
      response = true;
    } else if (!written.name.empty() && written.name != "message") {
      open.push_back(written.name);
      response = response || written.name == "response";
    }
  }
  for (; !open.empty(); open.pop_back()) out.close(open.back());
  if (!response) out.open("response").close("response");
  return out.close("message").special("<|end_of_msg|>").take();
}

}  // namespace k3
