#include "k3/base/result.h"

namespace k3 {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::invalid_argument: return "invalid_argument";
    case Code::not_found: return "not_found";
    case Code::corrupt: return "corrupt";
    case Code::exhausted: return "exhausted";
    case Code::cancelled: return "cancelled";
    case Code::deadline: return "deadline";
    case Code::unavailable: return "unavailable";
    case Code::device_lost: return "device_lost";
    case Code::unsupported: return "unsupported";
    case Code::internal: return "internal";
  }
  return "internal";
}

}  // namespace k3
