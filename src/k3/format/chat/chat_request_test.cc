// Malformed requests: each is refused, naming the JSON path and the fact (api.md 1, 3.1, 3.2, 6.1, 7.1, 8).
#include <gtest/gtest.h>

#include "k3/format/chat/chat_test_util.h"

namespace k3 {
namespace {

struct Bad {
  const char* body;
  const char* start;  // of the message
};

void refuse(std::span<const Bad> cases) {
  const ChatFormat format = test::short_format();
  for (const Bad& item : cases) {
    const auto text = test::render_text(format, item.body);
    ASSERT_FALSE(text.ok()) << item.body;
    EXPECT_EQ(text.error().code, Code::invalid_argument) << item.body;
    EXPECT_EQ(text.error().message.find(item.start), 0U) << item.body << "\n" << text.error().message;
  }
}

TEST(ChatRequestErrors, Body) {
  const Bad cases[] = {
      {"", "invalid JSON at byte 0"},
      {"[]", "the request must be a JSON object, not an array"},
      {"{} {}", "invalid JSON at byte 3: bytes after the end"},
      {R"({"messages":[],"messages":[]})", "the object that ends at byte 29 has the key 'messages' twice"},
      {"{\"messages\":\"\xC3\x28\"}", "invalid UTF-8 at byte 13"},
      {"{}", "messages: is missing"},
      {R"({"messages":null})", "messages: is missing"},
      {R"({"messages":{}})", "messages: must be an array, not an object"},
      {R"({"messages":[]})", "messages: is empty"},
      {R"({"messages":["x"]})", "messages[0]: must be an object, not a string"},
      {R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":1})",
       "add_generation_prompt: must be a boolean"},
      {R"({"messages":[{"role":"user","content":"x"}],"continue_final_message":true})", "messages[0]: only an assistant"},
      {R"({"messages":[{"role":"assistant","content":"x"}],"continue_final_message":true,"add_generation_prompt":true})",
       "add_generation_prompt: cannot"},
  };
  refuse(cases);
}

TEST(ChatRequestErrors, Messages) {
  const Bad cases[] = {
      {R"({"messages":[{"content":"x"}]})", "messages[0].role: is missing"},
      {R"({"messages":[{"role":1,"content":"x"}]})", "messages[0].role: must be a string, not a number"},
      {R"({"messages":[{"role":"robot","content":"x"}]})", "messages[0].role: 'robot' is not one of"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content: is missing"},
      {R"({"messages":[{"role":"user","content":1}]})", "messages[0].content: must be a string, null or an array"},
      {R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content[0]: must be an object"},
      {R"({"messages":[{"role":"user","content":[{"text":"x"}]}]})", "messages[0].content[0].type: is missing"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text: is missing"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"audio"}]}]})",
       "messages[0].content[1].type: unsupported content part 'audio'"},
      {R"({"messages":[{"role":"user","name":1,"content":""}]})", "messages[0].name: must be a string"},
      {R"({"messages":[{"role":"assistant","reasoning_content":[]}]})", "messages[0].reasoning_content: must be a string"},
      {R"({"messages":[{"role":"assistant","tool_calls":{}}]})", "messages[0].tool_calls: must be an array"},
      {R"({"messages":[{"role":"assistant","tool_calls":[1]}]})", "messages[0].tool_calls[0]: must be an object"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})", "messages[0].tool_calls[0].function: is missing"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"type":"x"}]}]})", "messages[0].tool_calls[0].type: only"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":1,"function":{"name":"f"}}]}]})",
       "messages[0].tool_calls[0].id: must"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}]})",
       "messages[0].tool_calls[0].function.name: is missing"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}]})",
       "messages[0].tool_calls[0].function.arguments: must hold a JSON object, not an array"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":7}}]}]})",
       "messages[0].tool_calls[0].function.arguments: must be a JSON-object string"},
      {R"({"messages":[{"role":"tool","content":"x"}]})", "messages[0].tool_call_id: is missing"},
      {R"({"messages":[{"role":"tool","tool_call_id":"?","content":"x"}]})", "messages[0].tool_call_id: '?' is no call"},
      {R"({"messages":[{"role":"assistant","partial":1}]})", "messages[0].partial: must be a boolean"},
      {R"({"messages":[{"role":"user","content":"","partial":true}]})", "messages[0].partial: only an assistant"},
      {R"({"messages":[{"role":"assistant","partial":true},{"role":"user","content":""}]})",
       "messages[0].partial: only the last"},
      {R"({"messages":[{"role":"assistant","partial":true,"tool_calls":[{"function":{"name":"f"}}]}]})",
       "messages[0].tool_calls: a message with tool calls"},
  };
  refuse(cases);
}

// Wraps the given tools into a request.
TEST(ChatRequestErrors, Tools) {
  const std::string name257(257, 'a');
  const std::pair<std::string, const char*> cases[] = {
      {R"({})", ": must be an array, not an object"},
      {R"([1])", "[0]: a tool must be an object"},
      {R"([{"function":{"name":"f"}}])", "[0].type: is missing"},
      {R"([{"type":"function","function":{"name":"f"}},{"type":"web","function":{"name":"g"}}])",
       "[1].type: unsupported tool type 'web'"},
      {R"([{"type":"function"}])", "[0].function: is missing"},
      {R"([{"type":"function","function":1}])", "[0].function: must be an object"},
      {R"([{"type":"function","function":{}}])", "[0].function.name: is missing"},
      {R"([{"type":"function","function":{"name":1}}])", "[0].function.name: must be a string"},
      {R"([{"type":"function","function":{"name":""}}])", "[0].function.name: must start"},
      {R"([{"type":"function","function":{"name":"1f"}}])", "[0].function.name: must start"},
      {R"([{"type":"function","function":{"name":"a@b"}}])", "[0].function.name: must start"},
      {R"([{"type":"function","function":{"name":")" + name257 + R"("}}])", "[0].function.name: must start"},
      {R"([{"type":"function","function":{"name":"f","strict":"yes"}}])", "[0].function.strict: must be a boolean"},
      {R"([{"type":"function","function":{"name":"f","parameters":[]}}])", "[0].function.parameters: must be an object"},
      {R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])",
       "[1].function.name: 'f' is declared twice"},
  };
  const ChatFormat format = test::short_format();
  for (const auto& [tools, fact] : cases) {
    const auto global = test::render_text(format, R"({"messages":[{"role":"user","content":""}],"tools":)" + tools + "}");
    ASSERT_FALSE(global.ok()) << tools;
    EXPECT_EQ(global.error().message.find("tools" + std::string(fact)), 0U) << global.error().message;
    const auto dynamic = test::render_text(format, R"({"messages":[{"role":"system","tools":)" + tools + "}]}");
    ASSERT_FALSE(dynamic.ok()) << tools;
    EXPECT_EQ(dynamic.error().message.find("messages[0].tools" + std::string(fact)), 0U) << dynamic.error().message;
  }
}

TEST(ChatRequestErrors, DynamicToolsAndChoice) {
  const Bad cases[] = {
      {R"({"messages":[{"role":"user","content":"","tools":[{"type":"function","function":{"name":"f"}}]}]})",
       "messages[0].tools: only a system message"},
      {R"({"messages":[{"role":"system","content":"x","tools":[{"type":"function","function":{"name":"f"}}]}]})",
       "messages[0].content: a system message that declares tools"},
      {R"({"messages":[{"role":"system","tools":[{"type":"function","function":{"name":"f"}}]},{"role":"system","tools":[{"type":"function","function":{"name":"f"}}]}]})",
       "messages[1].tools[0].function.name: 'f' is declared twice"},
      {R"({"tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"system","tools":[{"type":"function","function":{"name":"f"}}]}]})",
       "messages[0].tools[0].function.name: 'f' is declared twice"},
      {R"({"messages":[{"role":"user","content":""}],"tool_choice":"required"})", "tool_choice: 'required' needs tools"},
      {R"({"messages":[{"role":"user","content":""}],"tools":[],"tool_choice":"required"})",
       "tool_choice: 'required' needs tools"},
      {R"({"messages":[{"role":"user","content":""}],"tool_choice":"any"})", "tool_choice: 'any' is not one of"},
      {R"({"messages":[{"role":"user","content":""}],"tool_choice":1})", "tool_choice: must be a string or an object"},
      {R"({"messages":[{"role":"user","content":""}],"tool_choice":{"type":"function"}})",
       "tool_choice.function: must be an object"},
      {R"({"messages":[{"role":"user","content":""}],"tool_choice":{"type":"x"}})", "tool_choice.type: only"},
      {R"({"messages":[{"role":"user","content":""}],"tool_choice":{"type":"function","function":{"name":"g"}}})",
       "tool_choice.function.name: no tool 'g'"},
  };
  refuse(cases);
}

TEST(ChatRequestErrors, ThinkingAndResponseFormat) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("thinking":true)", "thinking: must be an object"},
      {R"("thinking":{"type":"on"})", "thinking.type: must be"},
      {R"("thinking":{"effort":"huge"})", "thinking.effort: 'huge' is not one of"},
      {R"("thinking":{"effort":"none"})", "thinking.effort: 'none' is not one of"},
      {R"("reasoning_effort":3)", "reasoning_effort: must be one of low, high, max, not a number"},
      {R"("reasoning_effort":"very")", "reasoning_effort: 'very'"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs: must be an object"},
      {R"("chat_template_kwargs":{"thinking":"yes"})", "chat_template_kwargs.thinking: must be a boolean"},
      {R"("chat_template_kwargs":{"thinking_effort":1})", "chat_template_kwargs.thinking_effort: must be one of"},
      {R"("response_format":"json")", "response_format: must be an object"},
      {R"("response_format":{})", "response_format.type: is missing"},
      {R"("response_format":{"type":"xml"})", "response_format.type: 'xml' is not one of"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema: is missing"},
      {R"("response_format":{"type":"json_schema","json_schema":1})", "response_format.json_schema: must be an object"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})",
       "response_format.json_schema.name: is missing"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"","schema":{}}})",
       "response_format.json_schema.name: is empty"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
       "response_format.json_schema.schema: is missing"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":[]}})",
       "response_format.json_schema.schema: must be an object"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{},"strict":"x"}})",
       "response_format.json_schema.strict: must be a boolean"},
  };
  for (const auto& [field, fact] : cases) {
    const auto request = parse_chat_request(std::string(R"({"messages":[{"role":"user","content":""}],)") + field + "}");
    ASSERT_FALSE(request.ok()) << field;
    EXPECT_EQ(request.error().code, Code::invalid_argument);
    EXPECT_EQ(request.error().message.find(fact), 0U) << request.error().message;
  }
}

TEST(ChatRequestErrors, Images) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"image_url"})", ".image_url: is missing"},
      {R"({"type":"image_url","image_url":{}})", ".image_url.url: is missing"},
      {R"({"type":"image_url","image_url":{"url":1}})", ".image_url.url: must be a string"},
      {R"({"type":"image_url","image_url":{"url":"https://example.com/a.png"}})",
       ".image_url.url: invalid image: only data: URLs"},
      {R"({"type":"image_url","image_url":{"url":"data:image/png;base64"}})",
       ".image_url.url: invalid image: the data: URL has no ','"},
      {R"({"type":"image_url","image_url":{"url":"data:image/gif;base64,AAAA"}})",
       ".image_url.url: invalid image: the type is 'image/gif'"},
      {R"({"type":"image_url","image_url":{"url":"data:image/png,AAAA"}})",
       ".image_url.url: invalid image: the data: URL must be base64"},
      {R"({"type":"image_url","image_url":{"url":"data:image/png;base64,@@"}})",
       ".image_url.url: invalid image: the data is not base64"},
      {R"({"type":"image_url","image_url":{"url":"data:image/png;base64,A"}})",
       ".image_url.url: invalid image: the data is not base64"},
      {R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AA=A"}})",
       ".image_url.url: invalid image: the data is not base64"},
      {R"({"type":"image_url","image_url":{"url":"data:image/png;base64,%4"}})",
       ".image_url.url: invalid image: the data is not base64"},
      {R"({"type":"image_url","image_url":{"url":"data:image/png;base64,"}})",
       ".image_url.url: invalid image: the image is empty"},
      {R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}})",
       ".image_url.url: invalid image: the data is not a PNG"},
  };
  for (const auto& [part, fact] : cases) {
    const auto request = parse_chat_request(std::string(R"({"messages":[{"role":"user","content":[)") + part + "]}]}");
    ASSERT_FALSE(request.ok()) << part;
    EXPECT_EQ(request.error().message.find("messages[0].content[0]" + std::string(fact)), 0U) << request.error().message;
  }
}

TEST(ChatRequestErrors, TheImagesOfARequestTogetherAreBounded) {
  // A PNG header of 3584 x 3584 pixels: 16,384 tokens.
  const std::string part =
      R"({"type":"image_url","image_url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAADgAAAA4ACAIAAAAAAAAA"})";
  std::string parts = part;
  for (int i = 1; i < 64; ++i) parts += "," + part;
  const auto request = [](const std::string& content) {
    return parse_chat_request(R"({"messages":[{"role":"user","content":[)" + content + "]}]}");
  };
  EXPECT_TRUE(request(parts).ok());
  const auto over = request(parts + "," + part);
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.error().message.find("messages[0].content[64]: the images up to here need 1064960 tokens"), 0U)
      << over.error().message;
}

TEST(ChatRequest, Base64FormsAreTolerated) {
  const auto image = [](const char* url) {
    return parse_chat_request(
        fmt::format(R"({{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":"{}"}}]}}]}})", url));
  };
  // 33 bytes of a PNG header; escaped, with a line break, in capitals.
  for (const char* url : {"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAADgAAAAoCAIAAAAAAAAA",
                          "DATA:IMAGE/PNG;charset=utf-8;BASE64,iVBORw0KGgoAAAANSUhEUgAAADgAAAAoCAIAAAAAAAAA",
                          "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAADgAAAAoCAIAAAAAAAAA%0A",
                          "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAADgAAAAoCAIAAAAAAAAAAA%3D%3D"}) {
    const auto request = image(url);
    ASSERT_TRUE(request.ok()) << url << ": " << request.error().message;
    const ContentPart& part = request->messages[0].content[0];
    EXPECT_EQ(part.image.width, 56);
    EXPECT_EQ(part.image.height, 40);
    EXPECT_EQ(part.image_bytes.substr(0, 4), "\x89PNG");
    EXPECT_EQ(static_cast<uint8_t>(part.image_bytes[16 + 3]), 56);
  }
}

TEST(ChatRequest, CountsAndLookups) {
  const ChatRequest request =
      parse_chat_request(
          R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}},{"function":{"name":"g"}}]},
    {"role":"system","tools":[{"type":"function","function":{"name":"d","strict":true,"parameters":{"b":1,"a":2}}}]},{"role":"user","content":""}],
    "tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"d"}}})")
          .value();
  EXPECT_EQ(request.call_count(), 2);
  EXPECT_TRUE(request.declares_tool("d"));
  EXPECT_FALSE(request.declares_tool("g"));
  EXPECT_EQ(request.tool_choice, ToolChoice::named);
  EXPECT_EQ(request.tool_choice_name, "d");
  EXPECT_EQ(request.messages[1].tools.items[0].parameters_json, R"({"a":2,"b":1})");
  EXPECT_FALSE(request.has_images());
}

}  // namespace
}  // namespace k3
