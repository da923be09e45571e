// Purpose:  the `format` values of JSON Schema that are enforced, as sets of strings.
// Shapes:   none.
// Units:    none.
// Memory:   by value.
// Threads:  pure function.
// Errors:   not_found: a name that is not known.
// Source:   RFC 3339 (dates exist, years 0001 to 9999, no leap seconds), 5321 (dot-atoms), 1123, 2673, 4291, 3986, 4122,
//           6901. Each set is within what the RFC allows, not always all of it.
#pragma once

#include <string_view>

#include "k3/format/grammar/text/text_dfa.h"

namespace k3::grammar {

Result<TextDfa> format_text(std::string_view name);

}  // namespace k3::grammar
