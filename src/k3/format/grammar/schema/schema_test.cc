// Which texts a schema lets pass, byte by byte: mask and accept are compared at every step.
#include <gtest/gtest.h>

#include "k3/format/grammar/grammar_test_util.h"

namespace k3 {
namespace {

struct Case {
  const char* name;
  const char* schema;
  std::vector<const char*> accepted, refused;
};

const std::vector<Case> kCases = {
    {"boolean", R"({"type":"boolean"})", {"true", "false"}, {"null", "tru", "\"true\"", " true", "true "}},
    {"integer", R"({"type":"integer"})", {"0", "-7", "123"}, {"01", "1.5", "-", "1e3", "+1"}},
    {"number", R"({"type":"number"})", {"0", "-7.25", "1e3", "1.5E-7"}, {"01", "1.", ".5", "1e"}},
    {"types", R"({"type":["string","null"]})", {"null", "\"x\""}, {"1", "true"}},
    {"range",
     R"({"type":"integer","minimum":-12,"maximum":345})",
     {"-12", "-1", "0", "9", "99", "345", "340", "299"},
     {"-13", "346", "350", "1000", "-0", "-20"}},
    {"exclusive", R"({"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":10})", {"1", "9"}, {"0", "10", "-1"}},
    {"draft 4 exclusive", R"({"type":"integer","minimum":0,"exclusiveMinimum":true,"maximum":3})", {"1", "3"}, {"0", "4"}},
    {"fractions",
     R"({"type":"number","minimum":0.5,"maximum":99.75})",
     {"0.5", "0.51", "1", "99.75", "99.7", "99.750", "42.123"},
     {"0.49", "0", "99.76", "100", "-1", "1e1", "99.7501"}},
    {"negative fractions",
     R"({"type":"number","minimum":-1.5,"exclusiveMaximum":-0.25})",
     {"-1.5", "-1", "-0.26", "-0.251"},
     {"-1.51", "-0.25", "-0.2", "0", "1", "-0.250"}},
    {"far apart", R"({"type":"integer","minimum":1000000000000})", {"1000000000000", "9999999999999999"}, {"999999999999"}},
    {"integer with fractional bounds", R"({"type":"integer","minimum":0.5,"maximum":2.5})", {"1", "2"}, {"0", "3"}},
    {"multiple", R"({"type":"integer","multipleOf":7,"minimum":0,"maximum":50})", {"0", "7", "49"}, {"1", "48", "56"}},
    {"cents", R"({"type":"number","multipleOf":0.01,"minimum":0})", {"0", "19.99", "3.5", "7"}, {"0.001", "-1"}},
    {"quarter", R"({"type":"number","multipleOf":0.25})", {"0.25", "-1.5", "3", "0.50"}, {"0.3", "0.2", "1.1"}},
    {"string",
     R"({"type":"string"})",
     {R"("")", R"("a\n\u00e9\ud83d\ude00/\/")", "\"\xC3\xA9\""},
     {"\"a\nb\"", R"("\x")", R"("\ud83d")", R"("\ude00")", "\"\xC3\"", "\"\xFF\""}},
    {"length",
     R"({"type":"string","minLength":2,"maxLength":3})",
     {R"("ab")", R"("abc")", "\"\xC3\xA9\xC3\xA9\"", R"("\ud83d\ude00x")"},
     {R"("a")", R"("abcd")", "\"\xC3\xA9\""}},
    {"long length", R"({"type":"string","maxLength":1000000})", {R"("abc")"}, {}},
    {"pattern",
     R"({"type":"string","pattern":"^[A-Z]{2}-\\d+$"})",
     {R"("AB-1")", R"("ZZ-123")"},
     {R"("AB-")", R"("xAB-1")", R"("AB-1x")"}},
    {"unanchored pattern", R"({"type":"string","pattern":"b+"})", {R"("abc")", R"("b")", R"("xxbb")"}, {R"("ac")", R"("")"}},
    {"anchors within", R"({"type":"string","pattern":"^a|b$"})", {R"("ax")", R"("xb")", R"("a")"}, {R"("xa")", R"("bx")"}},
    {"pattern and length",
     R"({"type":"string","pattern":"^a*$","minLength":2,"maxLength":3})",
     {R"("aa")", R"("aaa")"},
     {R"("a")", R"("aaaa")"}},
    {"counted class", R"({"type":"string","pattern":"^[a-c]{1,200}$"})", {R"("a")", R"("abcabc")"}, {R"("")", R"("d")"}},
    {"pattern escapes",
     R"({"type":"string","pattern":"^[\\s\"\\\\]$"})",
     {R"("\"")", R"("\\")", R"("\n")", R"(" ")"},
     {R"("x")"}},
    {"date",
     R"({"type":"string","format":"date"})",
     {R"("2024-02-29")", R"("1999-12-31")"},
     {R"("2023-02-29")", R"("2023-13-01")", R"("2023-04-31")"}},
    {"date-time",
     R"({"type":"string","format":"date-time"})",
     {R"("2024-01-02T03:04:05Z")", R"("2024-01-02T03:04:05.25+02:00")"},
     {R"("2024-01-02 03:04:05Z")"}},
    {"uuid", R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
    {"ipv6",
     R"({"type":"string","format":"ipv6"})",
     {R"("::1")", R"("fe80::1:2")", R"("1:2:3:4:5:6:7:8")"},
     {R"("1:2:3")", R"("1::2::3")"}},
    {"email", R"({"type":"string","format":"email"})", {R"("a.b@example.org")"}, {R"("a@")", R"("@b")"}},
    {"enum",
     R"({"enum":["red","green",3,null,{"a":[1,2]}]})",
     {R"("red")", "3", "null", R"({"a":[1,2]})", R"({"a": [1, 2]})"},
     {R"("blue")", "4"}},
    {"const", R"({"const":"ä\"b"})", {"\"\xC3\xA4\\\"b\""}, {"\"a\""}},
    {"enum with type", R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
    {"object",
     R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}},"required":["b"]})",
     {R"({"b":1})", R"({"b": 1, "a": "x"})", R"({"b":1,"a":"x"})"},
     {R"({})", R"({"a":"x","b":1})", R"({"b":1,"c":2})", R"({"b":1,"b":2})", R"({ "b":1})", R"({"b":1 })", R"({"b" :1})"}},
    {"optional",
     R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"}}})",
     {"{}", R"({"a":null})", R"({"b":null})", R"({"a":null,"c":null})", R"({"a":null,"b":null,"c":null})"},
     {R"({"c":null,"a":null})", R"({"a":null,})"}},
    {"additional",
     R"({"type":"object","properties":{"a":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
     {R"({"a":null,"x":1,"y":2})", R"({"x":1})", R"({"ab":1})"},
     {R"({"a":1})", R"({"x":null})", R"({"x":1,"a":null})"}},
    {"map",
     R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})",
     {R"({"x":1})", R"({"x":1,"y":2})"},
     {"{}", R"({"x":1,"y":2,"z":3})"}},
    {"key patterns",
     R"({"type":"object","patternProperties":{"^x-":{"type":"integer"},"^y-":{"type":"null"}},"additionalProperties":false})",
     {"{}", R"({"x-a":1,"y-b":null})"},
     {R"({"x-a":null})", R"({"z":1})"}},
    {"property names",
     R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"additionalProperties":true})",
     {R"({"abc":[1]})"},
     {R"({"A":1})"}},
    {"unicode names",
     R"({"type":"object","properties":{"größe":{"type":"integer"},"名":{"const":1}},"required":["größe","名"]})",
     {"{\"gr\xC3\xB6\xC3\x9F"
      "e\":3,\"\xE5\x90\x8D\":1}"},
     {R"({"gr\u00f6\u00dfe":3})"}},
    {"array",
     R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
     {"[1]", "[1,2]", "[1, 2, 3]"},
     {"[]", "[1,2,3,4]", "[1,]", "[ 1]"}},
    {"long array",
     R"({"type":"array","items":{"const":1},"minItems":9,"maxItems":11})",
     {"[1,1,1,1,1,1,1,1,1]", "[1,1,1,1,1,1,1,1,1,1,1]"},
     {"[1,1,1,1,1,1,1,1]", "[1,1,1,1,1,1,1,1,1,1,1,1]"}},
    {"huge array", R"({"type":"array","items":{"const":1},"minItems":1,"maxItems":1000000000})", {"[1]", "[1,1,1]"}, {"[]"}},
    {"tuple",
     R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
     {"[]", "[1]", R"([1,"a"])"},
     {R"([1,"a",2])", R"(["a"])"}},
    {"tuple of draft 7",
     R"({"type":"array","items":[{"const":1}],"additionalItems":{"const":2},"minItems":2})",
     {"[1,2]", "[1,2,2]"},
     {"[1]", "[2]"}},
    {"anyOf",
     R"({"anyOf":[{"type":"integer"},{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},{"type":"object","properties":{"k":{"const":"b"},"v":{"type":"integer"}},"required":["k","v"]}]})",
     {"5", R"({"k":"a"})", R"({"k":"b","v":1})"},
     {R"({"k":"b"})", R"({"k":"a","v":1})", R"("x")"}},
    {"anyOf beside properties",
     R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
     {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"},
     {"{}"}},
    {"oneOf",
     R"({"oneOf":[{"type":"object","properties":{"t":{"const":1}},"required":["t"]},{"type":"object","properties":{"t":{"const":2}},"required":["t"]},{"type":"null"}]})",
     {R"({"t":1})", R"({"t":2})", "null"},
     {R"({"t":3})"}},
    {"oneOf beside a type",
     R"({"type":"object","oneOf":[{"properties":{"a":{"const":1}},"required":["a"]},{"properties":{"a":{"const":2},"b":{"type":"null"}},"required":["a"]}]})",
     {R"({"a":1})", R"({"a":2,"b":null})"},
     {R"({"a":1,"b":null})"}},
    {"allOf",
     R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":3}},"required":["a"]},{"properties":{"a":{"maximum":5},"b":{"type":"null"}}}]})",
     {R"({"a":3})", R"({"a":5,"b":null})"},
     {R"({"a":6})", R"({"a":2})", R"({"b":null})"}},
    {"recursion",
     R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}}})",
     {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
     {R"({"v":1})", R"({"v":1,"next":3})"}},
    {"definitions",
     R"({"type":"array","items":{"$ref":"#/definitions/a~1b"},"definitions":{"a/b":{"enum":[1,2]}}})",
     {"[1,2]"},
     {"[3]"}},
    {"root reference",
     R"({"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#"}}},"additionalProperties":false})",
     {"{}", R"({"c":[{},{"c":[]}]})"},
     {R"({"c":[1]})"}},
    {"true", "true", {"1", "{}", R"([{"a":[null]}])", R"("x")"}, {"", "x", "{1}"}},
    {"empty", R"({"title":"anything","description":"d","default":1})", {"1", R"({"a":{"b":[1, 2.5e3]}})"}, {"[1,]"}},
    {"implied type", R"({"properties":{"a":{"minimum":3}},"required":["a"]})", {R"({"a":3})"}, {"3", R"({"a":"x"})"}},
    {"nothing optional",
     R"({"type":"object","properties":{"a":false,"b":{"type":"null"}}})",
     {"{}", R"({"b":null})"},
     {R"({"a":1})"}},
    {"format of a number", R"({"type":"integer","format":"int32"})", {"5"}, {"5.5"}},
    {"property any", R"({"properties":{"a":{}},"required":["a"]})", {R"({"a":[{"b":null}]})"}, {"{}"}},
    {"required undeclared",
     R"({"type":"object","required":["z"],"additionalProperties":{"type":"integer"}})",
     {R"({"z":1})", R"({"z":1,"a":2})"},
     {R"({"a":2})"}},
};

TEST(Schema, TextsByByte) {
  for (const Case& test : kCases) {
    const auto grammar = Grammar::json_schema(test::byte_trie(), test.schema);
    ASSERT_TRUE(grammar.ok()) << test.name << ": " << grammar.error().message;
    for (const char* text : test.accepted) EXPECT_EQ(test::feed_bytes(*grammar, text), "") << test.name << ": " << text;
    for (const char* text : test.refused) {
      const std::string result = test::feed_bytes(*grammar, text);
      EXPECT_NE(result, "") << test.name << ": " << text;
      EXPECT_EQ(result.find("disagree"), std::string::npos) << test.name << ": " << text << ": " << result;
    }
  }
}

struct Refusal {
  const char* schema;
  const char* message;
};

TEST(Schema, Refusals) {
  const Refusal refusals[] = {
      {R"({"properties":{"a":{"not":{}}}})", "properties.a.not: is not supported"},
      {R"({"if":{}})", "if: is not supported"},
      {R"({"dependentRequired":{}})", "dependentRequired: is not supported"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems: is not supported"},
      {R"({"type":"array","contains":{}})", "contains: is not supported"},
      {R"j({"properties":{"a":{"pattern":"(?=x)"}}})j", "properties.a.pattern: the pattern uses look-ahead"},
      {R"({"pattern":"(a)\\1"})", "pattern: the pattern uses a back reference"},
      {R"({"pattern":"\\bx"})", "pattern: the pattern uses a word boundary"},
      {R"({"pattern":"("})", "pattern: the pattern has an unclosed"},
      {R"({"type":"strin"})", "type: is not the name of a type"},
      {R"({"type":"string","format":"colour"})", "format: 'colour' is not a format"},
      {R"({"$ref":"#/nope"})", "$ref: '#/nope' does not exist"},
      {R"({"$ref":"http://x/y"})", "$ref: only references"},
      {R"({"$ref":"#"})", "refers to itself"},
      {R"({"anyOf":[]})", "anyOf: must be a non-empty array"},
      {R"({"oneOf":[{"type":"string"},{"type":"string","maxLength":3}]})", "oneOf: branches 0 and 1 cannot be told apart"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf: branches 0 and 1"},
      {R"({"type":"string","minLength":-1})", "minLength: must be a count"},
      {R"({"type":"integer","multipleOf":0})", "multipleOf: must be above 0"},
      {R"({"type":"integer","multipleOf":123457})", "multipleOf: needs more than"},
      {R"({"type":"object","properties":{"a":{}},"minProperties":3,"additionalProperties":true})",
       "minProperties: is supported only"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "nothing satisfies it"},
      {R"({"type":"string","pattern":"^a$","minLength":2})", "nothing satisfies it"},
      {"false", "nothing satisfies it"},
      {R"({"properties":{"x":{"$ref":"#"}},"required":["x"]})", "nothing satisfies it"},
      {R"({"pattern":"(a|b)*a(a|b){30}"})", "pattern: needs an automaton"},
      {R"({"pattern":"((a{1000}){1000}){1000}"})", "pattern: the pattern repeats too much"},
      {R"({"type":"string","minLength":10000000000})", "minLength: is too large"},
      {R"([1])", "a schema must be an object"},
      {R"({"properties":{"a":5}})", "properties.a: a schema must be an object"},
      {R"({"enum":[{"a":1}],"properties":{"a":{}}})", "enum: holds containers"},
  };
  for (const Refusal& test : refusals) {
    const auto grammar = Grammar::json_schema(test::byte_trie(), test.schema);
    ASSERT_FALSE(grammar.ok()) << test.schema;
    EXPECT_NE(grammar.error().message.find(test.message), std::string::npos)
        << test.schema << ": " << grammar.error().message;
    EXPECT_TRUE(grammar.error().code == Code::invalid_argument || grammar.error().code == Code::exhausted) << test.schema;
  }
}

}  // namespace
}  // namespace k3
