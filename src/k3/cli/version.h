#pragma once

#include <string>

namespace k3::cli {

std::string version_text();  // version, compiler, instruction set found, optional parts

}  // namespace k3::cli
