// Purpose:  the string literals of a Python source file, without running it.
// Shapes:   none.
// Units:    none.
// Memory:   the result owns its strings.
// Threads:  pure function.
// Errors:   corrupt naming source and line: invalid UTF-8, a string that does not end, unbalanced braces in an f-string,
//           a malformed escape.
// Source:   model.md 5.3. Adjacent literals are one; an f-string contributes the runs of text between its braces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

Result<std::vector<std::string>> python_string_literals(std::string_view text, std::string_view source);

}  // namespace k3
