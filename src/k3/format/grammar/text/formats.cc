#include "k3/format/grammar/text/formats.h"

#include <string>

#include "k3/format/grammar/text/regex.h"

namespace k3::grammar {
namespace {

std::string any_of(std::initializer_list<std::string> parts) {
  std::string out = "(";
  for (const std::string& part : parts) out += (out.size() == 1 ? "" : "|") + part;
  return out + ")";
}

std::string date() {
  const std::string year = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])";
  const std::string leap = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26]|0[48])00)";
  const std::string day = any_of(
      {"(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])", "(0[469]|11)-(0[1-9]|[12][0-9]|30)", "02-(0[1-9]|1[0-9]|2[0-8])"});
  return any_of({year + "-" + day, leap + "-02-29"});
}

std::string time() {
  return "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
}

std::string host() {
  const std::string label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  return label + "(\\." + label + ")*";
}

std::string ipv4() {
  const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return byte + "(\\." + byte + "){3}";
}

std::string ipv6() {
  const std::string h = "[0-9A-Fa-f]{1,4}", group = "(" + h + ":)";
  std::string out = "(" + group + "{7}" + h + "|" + group + "{1,7}:|:(:" + h + "){1,7}|::";
  for (int left = 1; left <= 6; ++left) {
    out += "|" + group + "{1," + std::to_string(7 - left) + "}(:" + h + "){" + std::to_string(left) + "}";
  }
  return out + ")";
}

std::string uri(bool reference) {
  const std::string escaped = "%[0-9A-Fa-f]{2}";
  const std::string chars = "([A-Za-z0-9._~!$&'()*+,;=:@-]|" + escaped + ")";
  const std::string tail = "(\\?(" + chars + "|[/?])*)?(#(" + chars + "|[/?])*)?";
  const std::string segments = "(/" + chars + "*)*";
  const std::string authority = "//([A-Za-z0-9._~-]+@)?" + host() + "(:[0-9]{1,5})?";
  const std::string full = "[A-Za-z][A-Za-z0-9+.-]*:(" + authority + segments + "|" + chars + "+" + segments + ")" + tail;
  if (!reference) return full;
  const std::string first = "([A-Za-z0-9._~!$&'()*+,;=@-]|" + escaped + ")";
  return any_of({full, "(" + authority + segments + "|(/|" + first + "+)?" + segments + ")" + tail});
}

std::string pattern_of(std::string_view name) {
  if (name == "date") return date();
  if (name == "time") return time();
  if (name == "date-time") return date() + "T" + time();
  if (name == "duration") {
    const std::string of_time = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)";
    const std::string of_date = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)";
    return "P(" + of_date + "(" + of_time + ")?|" + of_time + "|[0-9]+W)";
  }
  if (name == "email" || name == "idn-email") {
    const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
    return atom + "(\\." + atom + ")*@" + host();
  }
  if (name == "hostname" || name == "idn-hostname") return host();
  if (name == "ipv4") return ipv4();
  if (name == "ipv6") return ipv6();
  if (name == "uuid") return "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}";
  if (name == "uri" || name == "iri" || name == "url") return uri(false);
  if (name == "uri-reference" || name == "iri-reference") return uri(true);
  if (name == "byte") return "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?";
  if (name == "password" || name == "binary") return "[^]*";  // say how to show or carry a text, not what is in it
  if (name == "json-pointer") return "(/([^~/]|~[01])*)*";
  return "";
}

}  // namespace

Result<TextDfa> format_text(std::string_view name) {
  const std::string pattern = pattern_of(name);
  if (pattern.empty()) return fail(Code::not_found, "'{}' is not a format that can be enforced", name);
  return parse_regex(pattern, true);
}

}  // namespace k3::grammar
